"""The monokernel on one GPU, right or wrong and how fast: `python bench/gpu/monokernel/run.py`.

Runs every part in a process of its own within one budget, the most important first, and writes one
JSON in the results format, one table in Markdown and one log, rewritten after each part. Needs a
driver, `cuda-core`, `cuda-bindings`, NVRTC and NumPy; torch and transformers for the peers. The
package need not be installed. It never changes the GPU's settings. README.md tells how to read it.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[3]
for folder in (ROOT / "src", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from bench import _results  # noqa: E402
from bench._command import shown_command  # noqa: E402
from bench.gpu.monokernel._campaign import Campaign  # noqa: E402
from bench.gpu.monokernel._child import child_main, run_part  # noqa: E402
from bench.gpu.monokernel._markdown import render  # noqa: E402
from bench.gpu.monokernel._parts import Part, chosen, parts  # noqa: E402
from bench.gpu.monokernel._profilers import command_lines  # noqa: E402
from bench.gpu.probes._child import Outcome  # noqa: E402
from bench.gpu.probes._telemetry import Telemetry, driver_version  # noqa: E402


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(prog="run.py", description=(__doc__ or "").split("\n\n")[0])
    p.add_argument("--minutes", type=float, default=10.0, help="wall time of everything")
    p.add_argument("--only", default="", help="comma-separated parts; build always runs")
    p.add_argument("--commit", help="commit to record where the files are not in a git checkout")
    p.add_argument("--out", type=Path, help="folder of the results (default: bench/results)")
    p.add_argument("--name", default="monokernel", help="end of the results' file names")
    p.add_argument("--rehearse", action="store_true",
                   help="the same campaign with a tiny model on an emulated GPU")  # fmt: skip
    p.add_argument("--list", action="store_true", help="print the parts and stop")
    p.add_argument("--work", type=Path, help="folder to keep weights and kernels in")
    p.add_argument("--child", help=argparse.SUPPRESS)
    p.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    p.add_argument("--records", type=Path, help=argparse.SUPPRESS)
    return p.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Exit status 0: all right and measured; 1: something failed; 2: usage."""
    options = parse(arguments)
    if options.list:
        for part in parts(options.rehearse):
            print(f"{part.name:24} {part.seconds:4.0f} s  {part.tells}")
        return 0
    if options.child:
        return child_main(
            options.child, options.seconds, options.records, options.work, options.rehearse
        )
    try:
        wanted = chosen(options.only, options.rehearse)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(options, wanted, arguments)
    except KeyboardInterrupt as error:
        print(f"stopped: {error or 'interrupted'}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace, wanted: tuple[Part, ...], arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="monokernel-") as scratch:
        work = (options.work or Path(scratch)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        # A rehearsal's figures mean nothing: they go among the results only if that is asked for.
        usual = Path(scratch) / "results" if options.rehearse else ROOT / "bench" / "results"
        folder = options.out or usual
        folder.mkdir(parents=True, exist_ok=True)
        log_path = work / "log.txt"
        with log_path.open("a", encoding="utf-8") as log:

            def tell(line: str) -> None:
                print(line, flush=True)
                log.write(line + "\n")
                log.flush()

            def runner(part: Part, seconds: float) -> Outcome:
                return run_part(part, seconds, work, options.rehearse, log)

            campaign = Campaign(
                parts=wanted,
                runner=runner,
                render=render,
                tell=tell,
                seconds=60 * options.minutes,
                command=shown_command([__file__, *arguments]),
                commit=options.commit or _results.current_commit(ROOT),
                folder=folder,
                what=options.name,
                always=options.out is not None,
                driver=None if options.rehearse else driver_version(),
            )
            return _finish(campaign, options.rehearse, log, log_path)


def _finish(campaign: Campaign, rehearse: bool, log: IO[str], log_path: Path) -> int:
    """Run the campaign between looks at the clocks; the table comes last, whatever happens."""
    telemetry = Telemetry()
    telemetry.start()
    try:
        campaign.run()
    finally:  # also on a signal: what was measured is written
        telemetry.stop()
        campaign.records.append(telemetry.record())
        campaign.write()
        print("\n" + campaign.page(campaign.document()))
        for line in command_lines():
            print(line)
        if campaign.device or campaign.always:
            path = campaign.path()
            log.flush()
            path.with_suffix(".txt").write_text(log_path.read_text(errors="replace"))
            print(f"results: {path}" + (" (a rehearsal: they mean nothing)" if rehearse else ""))
    failed = any("error" in record for record in campaign.records)
    return 0 if campaign.device and not failed else 1


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(f"signal {number}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
