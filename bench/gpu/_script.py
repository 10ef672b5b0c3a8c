"""What both scripts of this folder do: read the command line, run a campaign, write and tell.

A script gives its parts, its sizes and its page; it is also what each part's process runs.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench._command import shown_command
from bench.gpu._campaign import Campaign, Course, Part, chosen, find_part
from bench.gpu._child import ROOT, Outcome, child_main, inner_command, run_child
from bench.gpu._stage import FAULTS, Budget, NotMeasuredError, Stage
from bench.gpu._telemetry import Telemetry, driver_version
from bench.gpu._worker import Job, Worker, Workers, serve_jobs
from monolane._results import Document, Record, current_commit


@dataclass(frozen=True)
class Script:
    """A campaign as a command."""

    path: Path
    doc: str
    engine: str  # of its records
    what: str  # the end of its files' names
    minutes: float
    parts: Callable[[bool], Sequence[Part]]  # of a rehearsal, or of a GPU
    stage: Callable[..., Stage]  # (part, rehearse, work, budget, emit)
    render: Callable[[Document], str]
    epilogue: Callable[[], list[str]] = list
    environment: Mapping[str, str] = field(default_factory=dict)  # of the parts' processes
    course: Callable[[Any, Sequence[Part]], Course] = lambda options, parts: Course()
    as_named: bool = False  # --only says the order too

    def parser(self) -> argparse.ArgumentParser:
        """The options of every script."""
        p = argparse.ArgumentParser(prog="run.py", description=self.doc.split("\n\n")[0])
        p.add_argument("--minutes", type=float, default=self.minutes, help="wall time of all")
        p.add_argument("--only", default="", help="comma-separated parts; build always runs")
        p.add_argument("--commit", help="commit to record where the files are in no git checkout")
        p.add_argument("--out", type=Path, help="results file, or its folder: bench/results")
        p.add_argument("--name", default=self.what, help="end of the results' file names")
        p.add_argument("--rehearse", action="store_true",
                       help="the same campaign with tiny sizes on an emulated GPU")  # fmt: skip
        p.add_argument("--list", action="store_true", help="print the parts and stop")
        p.add_argument("--work", type=Path, help="folder to keep compiled kernels in")
        p.add_argument("--carried", type=Path, help="folder of what was prepared ahead")
        p.add_argument("--fault", default="", help=argparse.SUPPRESS)  # PART=KIND, of FAULTS
        p.add_argument("--tell", type=int, help=argparse.SUPPRESS)  # a worker's pipe
        p.add_argument("--wanted", default="", help=argparse.SUPPRESS)  # names of all parts
        p.add_argument("--child", help=argparse.SUPPRESS)
        p.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
        p.add_argument("--records", type=Path, help=argparse.SUPPRESS)
        return p

    def main(self, arguments: list[str], options: Any = None) -> int:
        """Exit status 0: all right and measured; 1: something failed; 2: usage."""
        options = options or self.parser().parse_args(arguments)
        parts = self.parts(options.rehearse)
        if options.fault and options.fault.partition("=")[2] not in FAULTS:
            print(f"--fault: expected PART=KIND, KIND of {', '.join(FAULTS)}", file=sys.stderr)
            return 2
        if options.list:
            for part in parts:
                time = f"share {part.weight:g}" if part.weight else f"{part.seconds:.0f} s"
                print(f"{part.name:24} {time:>9}  {part.tells}")
            return 0
        if options.tell is not None:
            return self.serve(options, parts)
        if options.child:
            return self.child(options, find_part(parts, options.child), {})
        try:
            wanted = chosen(parts, options.only, self.as_named)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            with tempfile.TemporaryDirectory(prefix=f"{self.what}-") as scratch:
                return self._run(options, wanted, arguments, Path(scratch))
        except KeyboardInterrupt as error:
            print(f"stopped: {error or 'interrupted'}", file=sys.stderr)
            return 1

    def serve(self, options: Any, parts: Sequence[Part]) -> int:
        """Run the parts that come here, one after the other, until no more do."""
        kept: dict[Any, Any] = {}

        def run(job: Job) -> int:
            options.seconds, options.records = job["seconds"], Path(job["records"])
            return self.child(options, find_part(parts, job["part"]), kept)

        return serve_jobs(options.tell, run)

    def child(self, options: Any, part: Part, kept: dict[Any, Any]) -> int:
        """Run one part here, in the process that was made for it, or for more."""

        def body(emit: Callable[[Record], None]) -> None:
            budget = Budget(options.seconds)
            stage = self.stage(part.name, options.rehearse, options.work, budget, emit)
            stage.carried, stage.kept = options.carried, kept
            stage.wanted = tuple(filter(None, options.wanted.split(",")))
            name, _, kind = options.fault.partition("=")
            if name == part.name:
                if kind == "missing":
                    raise NotMeasuredError("what this part needs is missing on purpose")
                stage.injected = kind
            part.function()(stage, part.name)

        return child_main(part.name, self.engine, body, options.records)

    def run_part(
        self,
        part: Part,
        soft: float,
        hard: float,
        work: Path,
        rehearse: bool,
        log: Path,
        more: Sequence[str] = (),
        workers: Workers | None = None,
    ) -> Outcome:
        """Run one part in a process of its own, or in that of its group."""
        records = work / f"{part.name.replace(':', '-').replace(' ', '-')}.jsonl"
        if workers is not None and part.group:
            job = {"part": part.name, "seconds": soft, "records": str(records)}
            return workers.run(part.group, self.engine, job, hard)
        more = (*more, "--rehearse") if rehearse else more
        command = inner_command(self.path, part.name, soft, records, work, *more)
        environment = self._environment(work) | dict(part.environment)
        return run_child(part.name, self.engine, command, hard, records, log, environment)

    def _environment(self, work: Path) -> dict[str, str]:
        # Compiled kernels are kept in the campaign's own folder: what the compiler says about them
        # is told only when they are made.
        return {"MONOLANE_CACHE": str(work / "cache"), **self.environment}

    def _worker(self, work: Path, log: Path, more: Sequence[str]) -> Worker:
        command = [sys.executable, str(self.path), "--work", str(work), *more]
        return Worker(command, log, self._environment(work))

    def _run(
        self, options: Any, wanted: Sequence[Part], arguments: list[str], scratch: Path
    ) -> int:
        work = (options.work or scratch).resolve()
        work.mkdir(parents=True, exist_ok=True)
        log = work / "log.txt"
        more = self._inner_options(options, wanted)
        workers = Workers(
            lambda group: self._worker(work, log, (*more, *["--rehearse"] * options.rehearse))
        )
        if groups := [part.group for part in wanted if part.group]:
            workers.warm(groups[0])  # its imports, while the first part runs
        # A rehearsal's figures mean nothing: they go among the results only if that is asked for.
        usual = scratch / "results" if options.rehearse else ROOT / "bench" / "results"

        def tell(line: str) -> None:
            print(line, flush=True)
            with log.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

        campaign = Campaign(
            parts=wanted,
            engine=self.engine,
            runner=lambda part, soft, hard: self.run_part(
                part, soft, hard, work, options.rehearse, log, more, workers
            ),
            render=self.render,
            tell=tell,
            seconds=60 * options.minutes,
            command=shown_command([str(self.path), *arguments]),
            commit=options.commit or current_commit(ROOT),
            out=options.out or usual,
            what=options.name,
            always=options.out is not None,
            driver=None if options.rehearse else driver_version(),
            course=self.course(options, wanted),
            log=log,
        )
        try:
            return self._finish(campaign, options.rehearse)
        finally:
            workers.end()

    def _inner_options(self, options: Any, wanted: Sequence[Part]) -> list[str]:
        """What the parts' processes are told."""
        more = ["--wanted", ",".join(part.name for part in wanted)]
        if options.carried is not None:
            more += ["--carried", str(options.carried.resolve())]
        if options.fault:
            more += ["--fault", options.fault]
        return more

    def _finish(self, campaign: Campaign, rehearse: bool) -> int:
        """Run the campaign between looks at the clocks; the page comes last, whatever happens."""
        telemetry = Telemetry()
        telemetry.start()
        try:
            campaign.run()
        finally:  # also on a signal: what was measured is written
            telemetry.stop()
            campaign.records.append(telemetry.record())
            if verdict := campaign.course.conclude(campaign.document()):
                campaign.records.append(verdict)
            campaign.write()
            print("\n" + campaign.page(campaign.document()))
            for line in self.epilogue():
                print(line)
            if campaign.device or campaign.always:
                document = campaign.document()
                path = campaign.path(document)
                note = " (a rehearsal: they mean nothing)" if rehearse else ""
                print(f"results: {path}{note}")
                for line in campaign.course.last_words(document):
                    print(line)
        return 0 if campaign.right else 1


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(f"signal {number}")
