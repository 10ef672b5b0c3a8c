"""What a delay costs, one block at a time on one GPU: `python studies/delay/block.py`.

    python studies/delay/prepare.py                                  # ahead, without a GPU
    python studies/delay/block.py --seconds 300 --work runs/delay --out OUT
    python studies/delay/block.py --cpu --seconds 7200 --out OUT     # a smaller size, hours
    python studies/delay/block.py --rehearse --work runs/r --out O   # no GPU: minutes, tiny sizes
    python studies/delay/block.py --fold OUT/runs.jsonl              # results into the repository
    python studies/delay/block.py --list

Trains what the ledger names next and the results lack, run after run, while whole runs fit in the
seconds; writes a line for each at once; says last which command is next. README.md tells more.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shlex
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "src", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from bench.gpu._packages import provide  # noqa: E402
from bench.gpu.monokernel._ledger import PATH, Ledger, card_of, in_order  # noqa: E402
from monolane._results import current_commit  # noqa: E402
from studies.delay import plan  # noqa: E402
from studies.delay.plan import FAILED, PARTS, Run, Study  # noqa: E402
from studies.delay.sizes import SEEDS, VARIANTS  # noqa: E402

if TYPE_CHECKING:
    import torch

    from monolane.hf import LaneformerForCausalLM
    from studies.delay.checkpoint import Checkpoint
    from studies.delay.text import Text

HERE = Path(__file__).parent
CARRIED, RESULTS = HERE / "carried", HERE / "results" / "runs.jsonl"
WORK = ROOT / "runs" / "delay"
REHEARSED = ("jinja2",)  # what stands for the packages of the image
_MOST = 600.0  # seconds of a command
_MOST_CPU = 7 * 86400.0  # and of one on a processor
_RESERVE = 8.0  # seconds of the end: a last exam, files
_PIECE = 15 * 10**6  # bytes of a file of weights: larger ones do not come back
_CODE = (
    "studies/delay/model.py", "studies/delay/processor.cpp", "studies/delay/processor.py",
    "studies/delay/sizes.py", "studies/delay/sources.py", "studies/delay/text.py",
    "studies/delay/training.py", "studies/dtp/rules.py", "src/monolane/hf", "src/monolane/train",
)  # fmt: skip


@dataclass
class Block:
    """One command: where it writes, what it knows, and when it must end."""

    options: argparse.Namespace
    began: float = field(default_factory=time.monotonic)
    card: str = ""
    lines: list[dict[str, Any]] = field(default_factory=list)
    tried: list[Run] = field(default_factory=list)
    touched: dict[str, float] = field(default_factory=dict)  # parts, with their seconds
    claims: list[TextIO] = field(default_factory=list)  # locked files of the runs taken here

    # ---- the way ---------------------------------------------------------------------------------
    def main(self) -> int:
        """Exit status 0: nothing failed."""
        import torch

        from studies.delay.training import say

        o = self.options
        self.lines = plan.merged(
            [] if o.rehearse else plan.read_lines(o.results), plan.read_lines(self.kept)
        )
        device = torch.device("cuda" if self.where == "gpu" else "cpu")
        if o.rehearse or o.cpu:
            torch.set_num_threads(1)  # tensors so small are only slowed down by more
            # At a high rate attention becomes so sharp that its small weights were denormal: such a
            # run took three times as long.
            torch.set_flush_denormal(True)
        if device.type == "cuda" and not torch.cuda.is_available():
            say("expected a CUDA device, found none; --cpu and --rehearse go without one")
            return 1
        self.card = card_of(torch.cuda.get_device_name()) if self.where == "gpu" else "CPU"
        say(f"{self.card}: torch {torch.__version__}, Python {sys.version.split()[0]}")
        text = self.open_text(device)
        if self.study.missing(["delay:b0"]):
            self.bring_up(text, device)
        while run := self.next_run():
            self.tried.append(run)
            self.one(run, text, device)
        self.write()
        self.last_words()
        return int(any(x["state"] == FAILED for x in self.own_runs()))

    @property
    def study(self) -> Study:
        """What is known now."""
        return Study(tuple(self.lines), self.where, self.card)

    @property
    def where(self) -> str:
        """Where this is done, as a study calls it."""
        return where_of(self.options)

    @property
    def kept(self) -> Path:
        """The lines of earlier commands on this machine, too."""
        return Path(self.options.work / "runs.jsonl")

    def left(self) -> float:
        """Seconds until this command must end."""
        return float(self.options.seconds - _RESERVE - (time.monotonic() - self.began))

    def parts(self) -> list[str]:
        """The study's parts in the ledger's order, or those that are named."""
        parts = plan.CPU_PARTS if self.where == "cpu" else PARTS
        known = list(parts)
        if self.where != "cpu":
            known = [x["part"] for x in in_order(Ledger.read(self.options.ledger).parts)]
        wanted = [x for x in self.options.only.split(",") if x]
        return [x for x in wanted or known if x in parts]

    def next_run(self) -> Run | None:
        """The first missing run that fits; one that was tried here is not tried again.

        On a processor a run goes on in the next command, so each fits; one that another command
        trains at this moment is left to it.
        """
        self.lines = plan.merged(self.lines, plan.read_lines(self.kept))
        study = self.study
        for run in study.missing(self.parts()):
            if run in self.tried:
                continue
            if self.where != "cpu":
                if study.need(run) <= self.left():
                    return run
            elif self.left() > 0 and self.claim(run):
                # Another command may have ended it since the lines were read.
                self.lines = plan.merged(self.lines, plan.read_lines(self.kept))
                if run in self.study.missing(self.parts()):
                    return run
        return None

    def claim(self, run: Run) -> bool:
        """Take a run for this command, until its process ends; False where another has it."""
        name = sha256(repr(sorted(run.key().items())).encode()).hexdigest()[:16]
        folder = self.options.work / "claims"
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / name).open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self.claims.append(file)  # a closed file would be free again
        return True

    # ---- the parts of it -------------------------------------------------------------------------
    def open_text(self, device: torch.device) -> Text:
        """The text, on the device."""
        from studies.delay.sources import FOUND
        from studies.delay.text import open_text
        from studies.delay.training import say

        begin = time.monotonic()
        size = self.study.size
        # What a machine has of its own would make each one's text another.
        names = {"gpu": FOUND, "cpu": (), "rehearsal": REHEARSED}[self.where]
        o = self.options
        text = open_text(o.carried, o.work, device, names, size.exam_rows, size.context)
        share = float(text.exam.counts.float().mean())
        say(
            f"text {text.digest}: {len(text.ids) / 1e6:.1f} M tokens; exam of "
            f"{text.exam.counts.numel():,}, {share:.1%} of it counts; "
            f"{time.monotonic() - begin:.1f} s"
        )
        self.add({
            "kind": "text", "text": text.digest, "tokens": len(text.ids),
            "exam_tokens": text.exam.counts.numel(), "exam_share": round(share, 4),
            "sources": list(text.sources),
        })  # fmt: skip
        return text

    def bring_up(self, text: Text, device: torch.device) -> None:
        """Whether products compiled and not, and one lane and eight, agree here."""
        from studies.delay.training import first_loss, say

        losses: dict[str, float] = {}
        took: float | None = None
        size = self.study.size
        for name in ("dense", "now", "naive 2", "naive 2, eight lanes", "delay 2"):
            losses[name] = first_loss(size, VARIANTS[name], text, device, False)
        if not self.options.eager:
            begin = time.monotonic()
            try:
                losses["delay 2, compiled"] = first_loss(
                    size, VARIANTS["delay 2"], text, device, True
                )
                took = round(time.monotonic() - begin, 1)
            except Exception as error:  # a machine whose compiler fails still trains
                self.options.eager = True
                say(f"not compiled here: {type(error).__name__}: {str(error)[:300]}")
        for name, loss in losses.items():
            say(f"first loss {name:22} {loss:.5f}")
        self.add({"kind": "bring-up", "losses": losses, "compile_s": took})

    def one(self, run: Run, text: Text, device: torch.device) -> None:
        """Train one model; its line, whatever comes of it."""
        import torch

        from studies.delay.training import say, train

        begin = time.monotonic()
        try:
            keep = self.keep_weights if self.is_kept(run) else None
            compiled = not self.options.eager
            line = train(run, text, device, self.left, compiled, keep, self.checkpoint(run, text))
        except Exception as error:
            traceback.print_exc()
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            line = {"kind": "run", **run.key(), "part": run.part, "state": FAILED, "why": why,
                    "tokens_per_s": None, "text": text.digest}  # fmt: skip
        if device.type == "cuda":
            torch.cuda.empty_cache()
        took = time.monotonic() - begin
        if line is None:
            say(f"{run.part:15} {run.variant:26} seed {run.seed}  {took:5.0f} s  "
                "goes on in the next command")  # fmt: skip
            return
        self.touched[run.part] = self.touched.get(run.part, 0.0) + took
        self.add(line)
        if checkpoint := self.checkpoint(run, text):
            checkpoint.drop()
        said = line.get("why") or f"{line['exam_nats']:.4f} nats, {line['tokens_per_s']:,} tokens/s"
        if line.get("mfu"):
            said += f", MFU {line['mfu']:.1%}, {line['memory_gb']:.1f} GB"
        say(f"{run.part:15} {run.variant:26} rate {run.rate:<8.3g} seed {run.seed}  "
            f"{took:5.0f} s  {said}")  # fmt: skip

    def checkpoint(self, run: Run, text: Text) -> Checkpoint | None:
        """Where a run on a processor is kept; on a GPU whole runs alone count."""
        from studies.delay.checkpoint import Checkpoint

        if self.where != "cpu":
            return None
        return Checkpoint.of(self.options.work / "checkpoints", run, code_digest(), text.digest)

    def is_kept(self, run: Run) -> bool:
        """Whether the weights come back: those of delay 2 in the first block."""
        return run.variant == "delay 2" and run.seed == SEEDS[0] and run.part == "delay:b1"

    def keep_weights(self, model: LaneformerForCausalLM) -> None:
        """Write a model's weights in pieces; `cat` joins them to model.safetensors."""
        from safetensors.torch import save

        state = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
        data = save(state)
        folder = self.options.out
        folder.mkdir(parents=True, exist_ok=True)
        for number, at in enumerate(range(0, len(data), _PIECE)):
            (folder / f"model.safetensors.{number}").write_bytes(data[at : at + _PIECE])
        (folder / "config.json").write_text(model.config.to_json_string(), encoding="utf-8")

    # ---- what is written -------------------------------------------------------------------------
    def add(self, line: dict[str, Any]) -> None:
        """A line, with what all lines say; nothing if the same is there."""
        import torch
        import transformers

        line |= {
            "card": self.card, "torch": torch.__version__, "transformers": transformers.__version__,
            "commit": self.options.commit, "sources_digest": code_digest(),
        }  # fmt: skip
        self.lines = plan.merged(self.lines, [line])
        self.write()

    def write(self) -> None:
        """Lines and ledger, for this machine and to be taken away."""
        with (self.options.work / "lock").open("w") as lock:  # commands beside one another
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.lines = plan.merged(plan.read_lines(self.kept), self.lines)
            plan.write_lines(self.kept, self.lines)
        plan.write_lines(self.options.out / RESULTS.name, self.lines)
        if self.where == "cpu":  # the ledger is of GPUs
            return
        folded(Ledger.read(self.options.ledger), self.study, self.touched, self.options.commit
               ).write(self.options.out / PATH.name)  # fmt: skip

    def own_runs(self) -> list[dict[str, Any]]:
        """The lines of this command's runs."""
        return [
            x for x in self.lines if x["kind"] == "run" and any(run.is_of(x) for run in self.tried)
        ]

    # ---- the end ---------------------------------------------------------------------------------
    def last_words(self) -> None:
        """What the rule says, and what to type next."""
        from studies.delay.training import say

        study, o = self.study, self.options
        if self.where != "cpu":  # whose blocks have one look, the report's
            say(f"rule: {study.look().text}")
        pending = study.missing(self.parts())
        if not pending:
            say("next: nothing: no run is missing")
            return
        need = study.need(pending[0]) + study.start
        if need > _MOST and self.where != "cpu":
            say(f"next: {pending[0].variant} of {pending[0].size} takes {need:.0f} s at the rate "
                f"that was measured, and a command has {_MOST:.0f}")  # fmt: skip
            return
        seconds = max(o.then, need)
        words = ["python", "studies/delay/block.py", *(["--rehearse"] if o.rehearse else [])]
        words += ["--cpu"] if o.cpu else []
        words += ["--seconds", f"{seconds:.0f}", "--then", f"{o.then:.0f}"]
        words += ["--eager"] if o.eager else []
        for name, usual in (("only", ""), ("carried", CARRIED), ("work", WORK), ("out", None)):
            if (value := getattr(o, name)) != usual:
                words += [f"--{name}", str(value)]
        words += ["--commit", o.commit]
        say(f"next: {shlex.join(words)}")


def folded(ledger: Ledger, study: Study, touched: dict[str, float], commit: str) -> Ledger:
    """The ledger with what came of the parts that a command, or a file, has touched."""
    records: list[dict[str, Any]] = [{"name": "machine", "sources": code_digest()[:16]}]
    for part, took in touched.items():
        wrong = [
            x.get("why", "") for run in study.of_part(part) or () for x in study.lines
            if x["kind"] == "run" and x["state"] == FAILED and run.is_of(x)
            and not study.is_settled(run)
        ]  # fmt: skip
        if wrong:
            records.append({"name": "run", "part": part, "error": wrong[-1]})
        if study.is_done(part):
            records.append({"name": "part", "part": part, "took_s": round(took, 1)})
            records.append({"name": "run", "part": part})
    document = {"device": {"name": study.card}, "records": records, "commit": commit}
    return ledger.folded(document, f"../../{RESULTS.relative_to(ROOT)}")


def fold(options: argparse.Namespace) -> int:
    """Bring files of lines into the repository's results and ledger."""
    before = plan.read_lines(options.results)
    lines = plan.merged(before, *(plan.read_lines(path) for path in options.fold))
    ledger = Ledger.read(options.ledger)
    new = [x for x in lines if x not in before and x["kind"] == "run"]
    for card in dict.fromkeys(x["card"] for x in new):
        touched: dict[str, float] = {}
        for line in (x for x in new if x["card"] == card):
            touched[line["part"]] = touched.get(line["part"], 0.0) + line.get("seconds", 0.0)
        commit = next(x["commit"] for x in new if x["card"] == card)
        if card != "CPU":
            ledger = folded(ledger, Study(tuple(lines), card=card), touched, commit)
    plan.write_lines(options.results, lines)
    ledger.write(options.ledger)
    sys.stdout.write(f"{len(lines) - len(before)} new lines, {len(lines)} in all\n")
    return 0


def code_digest() -> str:
    """Of the files that decide what a run learns."""
    digest = sha256()
    for name in _CODE:
        place = ROOT / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def where_of(options: argparse.Namespace) -> str:
    """Where a command's study is done."""
    return "rehearsal" if options.rehearse else "cpu" if options.cpu else "gpu"


def show(options: argparse.Namespace) -> int:
    """The parts, and what is missing of each."""
    study = Study(tuple(plan.read_lines(options.results)), where_of(options))
    for name, part in (plan.CPU_PARTS if options.cpu else PARTS).items():
        runs = study.of_part(name)
        state = "waits, or the rule left it out" if runs is None else (
            f"{len(runs) - len(study.missing([name]))} of {len(runs)} runs, "
            f"{sum(map(study.need, study.missing([name]))):.0f} s to go"
        )  # fmt: skip
        sys.stdout.write(f"{name:16} {part.tells}: {state}\n")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0: done; 1: a run failed; 2: usage."""
    p = argparse.ArgumentParser(prog="block.py", description=(__doc__ or "").split("\n\n")[0])
    p.add_argument("--seconds", type=float, default=300.0, help="this command may take: 300")
    p.add_argument("--then", type=float, default=300.0, help="the next may take: 300")
    p.add_argument("--only", default="", help="comma-separated parts, instead of the ledger's next")
    p.add_argument("--carried", type=Path, default=CARRIED, help="what prepare.py made")
    p.add_argument("--work", type=Path, default=WORK,
                   help="folder to keep between commands: text, compiled code, lines")  # fmt: skip
    p.add_argument("--out", type=Path, help="folder of what is to be taken away")
    p.add_argument("--results", type=Path, default=RESULTS, help="what was done before")
    p.add_argument("--ledger", type=Path, default=PATH, help="which parts there are, in order")
    p.add_argument("--commit", help="to record where the files are in no git checkout")
    p.add_argument("--eager", action="store_true", help="compile nothing")
    where = p.add_mutually_exclusive_group()
    where.add_argument("--cpu", action="store_true", help="the size for processors, in float32")
    where.add_argument("--rehearse", action="store_true", help="tiny sizes on the processor")
    p.add_argument("--fold", type=Path, nargs="+", metavar="LINES",
                   help="bring lines into the results and the ledger, and stop")  # fmt: skip
    p.add_argument("--list", action="store_true", help="print the parts and stop")
    options = p.parse_args(arguments)
    if options.list:
        return show(options)
    if options.fold:
        return fold(options)
    if not (options.carried / "manifest.json").is_file():
        p.error(f"--carried: expected what prepare.py made, found none in {options.carried}")
    most = _MOST_CPU if options.cpu else _MOST
    if not 0 < options.seconds <= most:
        p.error(f"--seconds: expected more than 0, at most {most:.0f}, got {options.seconds:g}")
    options.out = options.out or options.work / "out"
    options.commit = options.commit or current_commit(ROOT)
    options.work.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(options.work.resolve() / "inductor"))
    block = Block(options)
    with tempfile.TemporaryDirectory(prefix="packages-") as site:
        provide(options.carried, Path(site))
        return block.main()


if __name__ == "__main__":
    raise SystemExit(main())
