"""What does a delay cost a real model, before and after it is trained back?

    python studies/retrofit/study.py WORK before     # the delay switched on, nothing trained
    python studies/retrofit/study.py WORK search     # rates, then orders, in short runs
    python studies/retrofit/study.py WORK main       # the long runs, with seeds
    python studies/retrofit/report.py                # README.md and the figure

WORK keeps text, models and states (some 20 GB). Each may be stopped at any time, also by a kill:
the same command goes on. A finished run is a line in results/. README.md states the search.
Needs ``pip install 'monolane[sft,plot]'``, and Debian's apt-get for the manuals.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from exam import examine, source_logs
from text import digest, exam_windows, prepare

from monolane.engine import find_model, unpack_gguf
from monolane.hf import LaneformerForCausalLM
from monolane.text import Tokenizer
from monolane.tune import AnnealRecipe, distil_folder, keep_freed_memory, retrofit_folder

RESULTS = Path(__file__).parent / "results"
LANES, CONTEXT, ROWS = 3, 256, 4
_EXAM_ROWS = 8  # windows of each source
_CURVE_POINTS = 50  # of a run's training losses that are kept, means of as many steps each

# Delay in layers, and whether the layers before it exchange at once.
VARIANTS: dict[str, dict[str, Any]] = {
    "delay 0": {"delay": 0},
    "delay 1": {"delay": 1},
    "delay 2": {"delay": 2},
    "delay 4": {"delay": 4},
    "delay 1, early": {"delay": 1, "early": True},
    "delay 2, early": {"delay": 2, "early": True},
    "delay 4, early": {"delay": 4, "early": True},
}
RATES = (3e-4, 1e-4, 1e-3)
ORDERS = ("at_once", "from_bottom", "from_top")
SEARCHED = ("delay 2", "delay 2, early")  # others take the rate of their kind: late or early
SEARCH_STEPS, MAIN_STEPS = 100, 600


@dataclass(frozen=True)
class Run:
    """One training."""

    variant: str
    rate: float
    order: str = "together"
    steps: int = SEARCH_STEPS
    seed: int = 0  # of the order of the windows: all begin from the same weights

    @property
    def name(self) -> str:
        """A folder's name."""
        variant = self.variant.replace(", ", "-").replace(" ", "-")
        return f"{variant}-{self.order}-{self.rate:g}-{self.steps}-seed{self.seed}"


def search(done: Sequence[dict[str, Any]]) -> Iterator[Run]:
    """Yield what the search lacks: rates first, then orders at the best of them."""
    rates = [Run(variant, rate) for variant in SEARCHED for rate in RATES]
    have = runs_of(done)
    yield from (run for run in rates if run not in have)
    if all(run in have for run in rates):
        for variant in SEARCHED:
            best = best_of(done, variant)
            orders = (Run(variant, best.rate, order) for order in ORDERS)
            yield from (run for run in orders if run not in have)


def main_runs(done: Sequence[dict[str, Any]]) -> Iterator[Run]:
    """Yield the long runs that are missing, at what the search found best; further seeds last."""
    if next(search(done), None) is not None:
        raise SystemExit("expected a finished search, got one with runs missing; run search first")
    have = runs_of(done)
    seeds = [(variant, 0) for variant in VARIANTS]
    seeds += [(variant, seed) for seed in (1, 2) for variant in ("delay 0", *SEARCHED)]
    for variant, seed in seeds:
        best = best_of(done, SEARCHED[int(VARIANTS[variant].get("early", False))])
        run = Run(variant, best.rate, best.order, MAIN_STEPS, seed)
        if run not in have:
            yield run


def best_of(done: Sequence[dict[str, Any]], variant: str) -> Run:
    """Return the run of the search with the least divergence from the source on held-out text."""
    tried = [line for line in done if line["run"]["variant"] == variant]
    tried = [line for line in tried if line["run"]["steps"] == SEARCH_STEPS]
    return Run(**min(tried, key=lambda line: float(line["exam"]["all"]["kl"]))["run"])


def runs_of(done: Sequence[dict[str, Any]]) -> set[Run]:
    """Return the runs of these lines."""
    return {Run(**line["run"]) for line in done}


class Workplace:
    """The work folder: text, conversions, the teacher's best tokens, and the runs."""

    def __init__(self, work: Path, source: Path, own: int) -> None:
        self._work = work
        self._source = source
        prepare(work, source, own)
        self.text = digest(work)
        tokenizer = Tokenizer.open(self.conversion("delay 0"))
        assert tokenizer is not None
        self._windows = exam_windows(work, tokenizer, CONTEXT, _EXAM_ROWS)
        self._logs = source_logs(work / "exam", load(self.conversion(None)), self._windows)

    def conversion(self, variant: str | None) -> Path:
        """Return the source as a variant, or as one lane (None); made once."""
        name = "one-lane" if variant is None else Run(variant, 0).name.split("-together")[0]
        folder = self._work / "models" / name
        if not folder.exists():
            shape = {"lanes": 1} if variant is None else {"lanes": LANES, **VARIANTS[variant]}
            retrofit_folder(self._dense(), folder, **shape)
        return folder

    def before(self, variant: str) -> dict[str, Any]:
        """Return a variant's line without training."""
        return {"variant": variant, "text": self.text, "exam": self.exam(self.conversion(variant))}

    def exam(self, folder: Path) -> dict[str, dict[str, float]]:
        """Examine the model of a folder."""
        found = examine(load(folder), self._windows, self._logs)
        return {kind: {k: round(v, 5) for k, v in values.items()} for kind, values in found.items()}

    def train(self, run: Run) -> dict[str, Any]:
        """Do a run, or the rest of it; return its line."""
        out = self._work / "runs" / run.name
        out.parent.mkdir(exist_ok=True)
        recipe = AnnealRecipe(
            order=run.order,  # type: ignore[arg-type]
            steps=run.steps,
            rows_per_step=ROWS,
            context=CONTEXT,
            peak_lr=run.rate,
            seed=run.seed,
        )
        began = time.monotonic()

        def report(step: int, loss: float, share: float) -> None:
            seconds = time.monotonic() - began
            say(f"{run.name} step {step + 1}: {loss:.3f}, share {share:.2f}, {seconds:.0f} s")

        healed = distil_folder(
            self.conversion(None),
            self.conversion(run.variant),
            self._work / "text" / "train",
            out,
            recipe,
            overwrite=True,
            resume=(out.with_name(f"{out.name}.run") / "run.json").exists(),
            save_every=25,
            report=report,
            say=say,
            kept=self._work / "best",
        )
        line = {"run": asdict(run), "text": self.text, "tokens": run.steps * ROWS * CONTEXT}
        line |= {"curve": thinned([loss for _, loss, _ in healed.curve]), "exam": self.exam(out)}
        shutil.rmtree(out.with_name(f"{out.name}.run"))  # 3 GB of states
        return line

    def _dense(self) -> Path:
        folder = self._work / "models" / "dense"
        if self._source.is_dir():
            return self._source
        if not folder.exists():
            unpack_gguf(self._source, folder)
        return folder


def load(folder: Path) -> LaneformerForCausalLM:
    """Return the model of a folder, in float32."""
    model: LaneformerForCausalLM = LaneformerForCausalLM.from_pretrained(
        folder, dtype=torch.float32
    )
    model.eval()
    return model


def thinned(losses: Sequence[float]) -> list[float]:
    """Return means of equally many losses each, some fifty of them."""
    each = max(1, len(losses) // _CURVE_POINTS)
    parts = [losses[at : at + each] for at in range(0, len(losses), each)]
    return [round(sum(part) / len(part), 4) for part in parts]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a results file; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def keep(path: Path, line: dict[str, Any]) -> None:
    """Add a line to a results file."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def say(text: str) -> None:
    """Tell on stderr how far it is."""
    sys.stderr.write(text + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Do what a stage lacks."""
    parser = argparse.ArgumentParser(description="Train SmolLM2 in lanes back, delay by delay.")
    parser.add_argument("work", type=Path)
    parser.add_argument("stage", choices=("before", "search", "main", "one"))
    parser.add_argument("--run", nargs=2, metavar=("VARIANT", "RATE"), help="of the stage one")
    parser.add_argument("--steps", type=int, default=SEARCH_STEPS, help="of the stage one")
    parser.add_argument("--source", default="smollm2", help="model to start from")
    parser.add_argument("--own", type=int, default=400, help="texts that the model writes itself")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    if (given.stage == "one") != (given.run is not None):
        parser.error("--run VARIANT RATE: expected with the stage one, and with no other")
    keep_freed_memory()
    torch.set_num_threads(given.threads)
    given.out.mkdir(parents=True, exist_ok=True)
    place = Workplace(given.work, find_model(given.source), given.own)
    before, after = given.out / "before.jsonl", given.out / "runs.jsonl"
    for path in (before, after):
        if any(line["text"] != place.text for line in read_lines(path)):
            raise SystemExit(
                f"{path}: expected results on the text {place.text}, found some on another; use "
                "the work folder that they were made in, or another --out"
            )
    if given.stage == "before":
        have = {line["variant"] for line in read_lines(before)}
        for variant in (variant for variant in VARIANTS if variant not in have):
            keep(before, place.before(variant))
            say(f"{variant}: examined")
        return 0
    while (run := _next(given, read_lines(after))) is not None:
        keep(after, place.train(run))
    return 0


def _next(given: argparse.Namespace, done: Sequence[dict[str, Any]]) -> Run | None:
    if given.stage == "one":
        run = Run(given.run[0], float(given.run[1]), steps=given.steps)
        return None if run in runs_of(done) else run
    return next(search(done) if given.stage == "search" else main_runs(done), None)


if __name__ == "__main__":
    sys.exit(main())
