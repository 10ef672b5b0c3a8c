"""What does a delay cost a real model, before and after it is trained back?

    python studies/retrofit/study.py WORK list       # what is missing, and its minutes
    python studies/retrofit/study.py WORK all        # all of it, one piece after the other:
    python studies/retrofit/study.py WORK before     # the delay switched on, nothing trained
    python studies/retrofit/study.py WORK search     # rates, then orders, in short runs
    python studies/retrofit/study.py WORK pair       # delay 0 and 2 with three seeds
    python studies/retrofit/study.py WORK main       # every variant, longest
    python studies/retrofit/study.py WORK before --lanes 9    # the second shape, nothing trained
    python studies/retrofit/study.py WORK pair --lanes 9      # its pair, as the first shape's
    python studies/retrofit/study.py WORK length     # loss against tokens, low-rank updates beside
    python studies/retrofit/report.py                # README.md and the figure

WORK keeps text, models and states (some 12 GB). Each may be stopped at any time, also by a kill:
the same command goes on, and skips what is done. With ``--workers 2 --threads 1`` two runs are done
at a time, which two cores do sooner than one after the other. A finished run is a line in results/;
README.md and design.py state what is run.
Needs ``pip install 'monolane[sft,plot]'``, and Debian's apt-get for the manuals.
"""

import argparse
import json
import multiprocessing
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from choice import choice_items, right_choices
from design import (
    CONTEXT,
    LANES,
    LENGTH,
    LENGTHENED,
    NINE,
    RESULTS,
    ROWS,
    SEARCH_STEPS,
    STAGES,
    VARIANTS,
    Run,
    forecast,
    length_runs,
    pair_runs,
    read_lines,
    result_paths,
    runs_of,
)
from exam import examine, source_logs
from samples import FIFTY, QUESTIONS, answers
from text import digest, exam_windows, prepare

from monolane.hf import LaneformerForCausalLM, load_whole
from monolane.sources import find_model, unpack_gguf
from monolane.text import Tokenizer
from monolane.tune import (
    AnnealRecipe,
    LoraRecipe,
    distil_folder,
    keep_freed_memory,
    products_dtype,
    retrofit_folder,
)

_EXAM_ROWS = 8  # windows of each source
_ITEMS = 16  # choices of each source
_HELD_OUT_ROWS = 8  # that the training itself looks at: the exam is what counts
_CURVE_POINTS = 50  # of a run's training losses that are kept, means of as many steps each

Line = dict[str, Any]  # of a results file


class Workplace:
    """The work folder: text, conversions, the teacher's best tokens, and the runs."""

    def __init__(
        self, work: Path, source: Path, own: int, lanes: int, questions: Sequence[str] = QUESTIONS
    ) -> None:
        self._work = work
        self._source = source
        self._lanes = lanes
        self._questions = questions
        prepare(work, source, own)
        self.text = digest(work)
        tokenizer = Tokenizer.open(self.conversion("delay 0"))
        assert tokenizer is not None
        self._windows = exam_windows(work, tokenizer, CONTEXT, _EXAM_ROWS)
        self._items = {
            kind: choice_items(rows_RC, _ITEMS) for kind, rows_RC in self._windows.items()
        }
        self._logs = source_logs(work / "exam", load(self.conversion(None)), self._windows)

    def conversion(self, variant: str | None) -> Path:
        """Return the source as a variant, or as one lane (None); made once."""
        name = "one-lane" if variant is None else Run(variant, 0).name.split("-together")[0]
        if variant is not None and self._lanes != LANES:
            name += f"-{self._lanes}-lanes"
        folder = self._work / "models" / name
        if not folder.exists():
            shape = {"lanes": 1} if variant is None else {"lanes": self._lanes, **VARIANTS[variant]}
            retrofit_folder(self._dense(), folder, **shape)
        return folder

    def before(self, variant: str) -> dict[str, Any]:
        """Return a variant's line without training."""
        folder = self.conversion(variant)
        line = {"variant": variant, "text": self.text, "exam": self.exam(folder)}
        return line | {"answers": answers(folder, self._questions)}

    def exam(self, folder: Path) -> dict[str, dict[str, float]]:
        """Examine the model of a folder."""
        model = load(folder)
        found = examine(model, self._windows, self._logs)
        for kind, share in right_choices(model, self._items).items():
            found[kind]["choice"] = share
        return {kind: {k: round(v, 5) for k, v in values.items()} for kind, values in found.items()}

    def train(self, run: Run) -> dict[str, Any]:
        """Do a run, or the rest of it; return its line."""
        shape = "runs" if self._lanes == LANES else f"runs-{self._lanes}-lanes"
        out = self._work / shape / run.name
        out.parent.mkdir(exist_ok=True)
        recipe = AnnealRecipe(
            order=run.order,  # type: ignore[arg-type]
            steps=run.steps,
            rows_per_step=ROWS,
            context=CONTEXT,
            peak_lr=run.rate,
            seed=run.seed,
            examined=_HELD_OUT_ROWS,
            lora=LoraRecipe(rank=run.lora, alpha=2.0 * run.lora) if run.lora else None,
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
            save_every=50,
            report=report,
            say=say,
            kept=self._work / "best",
        )
        line = {"run": asdict(run), "text": self.text, "tokens": run.steps * ROWS * CONTEXT}
        line |= {
            "products": str(products_dtype("auto", torch.device("cpu"))).removeprefix("torch.")
        }
        line |= {"curve": thinned([loss for _, loss, _ in healed.curve]), "exam": self.exam(out)}
        line |= {"answers": answers(out, self._questions)}
        shutil.rmtree(out.with_name(f"{out.name}.run"))  # 3 GB of states
        return line

    def _dense(self) -> Path:
        folder = self._work / "models" / "dense"
        if self._source.is_dir():
            return self._source
        if not folder.exists():
            unpack_gguf(self._source, folder)
        return folder


_place: Workplace | None = None  # of a worker


def load(folder: Path) -> LaneformerForCausalLM:
    """Return the model of a folder, in float32."""
    model: LaneformerForCausalLM = load_whole(LaneformerForCausalLM, folder, dtype=torch.float32)
    model.eval()
    return model


def thinned(losses: Sequence[float]) -> list[float]:
    """Return means of equally many losses each, some fifty of them."""
    each = max(1, len(losses) // _CURVE_POINTS)
    parts = [losses[at : at + each] for at in range(0, len(losses), each)]
    return [round(sum(part) / len(part), 4) for part in parts]


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
    parser.add_argument("stage", choices=("list", "all", "before", *STAGES, LENGTH, "one"))
    parser.add_argument("--run", nargs=2, metavar=("VARIANT", "RATE"), help="of the stage one")
    parser.add_argument("--lanes", type=int, default=LANES, help=f"{NINE}: the second shape")
    parser.add_argument("--steps", type=int, default=SEARCH_STEPS, help="of the stage one")
    parser.add_argument("--source", default="smollm2", help="model to start from")
    parser.add_argument("--own", type=int, default=160, help="texts that the model writes itself")
    parser.add_argument("--threads", type=int, default=2, help="of a process")
    parser.add_argument("--workers", type=int, default=1, help="processes, each on its own run")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    if (given.stage == "one") != (given.run is not None):
        parser.error("--run VARIANT RATE: expected with the stage one, and with no other")
    if given.lanes != LANES and given.stage not in ("before", "pair", "one"):
        parser.error(f"--lanes {given.lanes}: expected the stage before, pair or one")
    before, after = result_paths(given.out, given.lanes, given.stage)
    if given.stage == "list":
        sys.stdout.write("\n".join(forecast(read_lines(before), read_lines(after))) + "\n")
        return 0
    _set_up(given.threads)
    given.out.mkdir(parents=True, exist_ok=True)
    place = _workplace(given)
    for path in (before, after):
        if any(line["text"] != place.text for line in read_lines(path)):
            raise SystemExit(
                f"{path}: expected results on the text {place.text}, found some on another; use "
                "the work folder that they were made in, or another --out"
            )
    if given.stage in ("before", "all", LENGTH):
        have = {line["variant"] for line in read_lines(before)}
        wanted = ("delay 0", LENGTHENED) if given.stage == LENGTH else VARIANTS
        for variant in (variant for variant in wanted if variant not in have):
            keep(before, place.before(variant))
            say(f"{variant}: examined")
    for stage in STAGES if given.stage == "all" else (given.stage,):
        while runs := _missing(given, stage, read_lines(after)):
            for line in _lines(place, runs, given):
                keep(after, line)
    return 0


def _missing(given: argparse.Namespace, stage: str, done: Sequence[dict[str, Any]]) -> list[Run]:
    if stage == "one":
        run = Run(given.run[0], float(given.run[1]), steps=given.steps)
        return [] if run in runs_of(done) else [run]
    if stage == LENGTH:
        return list(length_runs(done, read_lines(result_paths(given.out, LANES)[1])))
    if given.lanes != LANES and stage == "pair":
        return list(pair_runs(done, read_lines(result_paths(given.out, LANES)[1])))
    return list(STAGES[stage](done)) if stage in STAGES else []


def _lines(place: Workplace, runs: Sequence[Run], given: argparse.Namespace) -> Iterator[Line]:
    """Yield the lines of ``runs`` as they come."""
    if given.workers == 1:
        yield from map(place.train, runs)
        return
    for variant in {run.variant for run in runs}:
        place.conversion(variant)  # before several processes want it
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.workers, context, _begin, (given,)) as pool:
        jobs = [pool.submit(_train, run) for run in runs]
        try:
            for job in as_completed(jobs):
                yield job.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(given: argparse.Namespace) -> None:
    """Prepare a worker."""
    global _place  # a worker's only state
    _set_up(given.threads)
    _place = _workplace(given)


def _workplace(given: argparse.Namespace) -> Workplace:
    questions = FIFTY if given.stage == LENGTH else QUESTIONS
    return Workplace(given.work, find_model(given.source), given.own, given.lanes, questions)


def _train(run: Run) -> Line:
    assert _place is not None
    return _place.train(run)


def _set_up(threads: int) -> None:
    keep_freed_memory()
    torch.set_num_threads(threads)


if __name__ == "__main__":
    sys.exit(main())
