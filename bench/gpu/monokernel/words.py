"""Which phase of which lane, block and layer was first wrong: every word of a tiny pass, compared.

A word that blocks exchange stays in memory until its place is used again. Here a kernel runs that
uses no place again: a specialisation whose buffers have a copy for each event of each pass
(KEPT_PASSES in specialisation.h). It publishes, awaits and synchronises as the product's does;
addresses alone differ. The alternative, launches that end after layer 0, 1, ..., would need as many
kernels or another exit from the loop, and would show nothing of what a launch does later than the
first error. What it cannot show is an error of reuse: a word that is overwritten too early. If the
product's kernel is wrong with the same tokens and this one is right, reuse is what is left; the
record of a right run says so.

`predict` writes what the emulated device exchanges, value and stamp, and how far each value may be
off (see _bound.py). `words` runs the same on the device, and names the first event in program order
that is wrong, also of a launch that starved, hung or faulted.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.gpu._child import ROOT
from bench.gpu._device import gpu_info
from bench.gpu._stage import Budget, CheckError, NotMeasuredError, Stage, expect, record_of_error
from bench.gpu.monokernel._bound import DEVIATIONS, PRECISION, RUNS, bounds
from bench.gpu.monokernel._difference import Prediction, compare
from bench.gpu.monokernel._kept import KeptModel, Left
from bench.gpu.monokernel._model import Variant
from bench.gpu.monokernel._scale import REHEARSAL
from monolane._results import Record
from monolane.cuda import GpuInfo
from monolane.cuda._compile import architecture, compile_kernel
from monolane.cuda._kernel_header import specialisation
from monolane.cuda._layout import Layout
from monolane.errors import MonolaneError
from monolane.executor_api import Advance, Draw
from monolane.model import Checkpoint, Weights, read_config

FILE = "words.npz"
GOLDEN = "released_shape"  # four lanes, six layers, of which four have a window
SMS = 8  # two blocks of a lane
WIDTHS = (1, 8)
PASSES = {1: 4, 8: 3}  # of a run
_WATCHDOG, _HANG = 2.0, 8.0  # seconds; a pass takes microseconds, emulated some 0.1 s
_THEN = "if the product's kernel is wrong with these tokens, it uses a word's place again too early"
_PROMPTS = 20  # that are tried until one is found whose tokens no error of 16 bits changes
_CHECKS = 4  # runs with errors as large as the bound


@dataclass(frozen=True)
class Case:
    """One run."""

    dtype: str
    width: int
    # Tokens that the first sequence has before, fed by a launch whose words are not kept: beyond
    # one chunk of keys, and beyond the window. As many passes as are kept, so that stamps and
    # copies agree.
    behind: int = 0

    @property
    def labels(self) -> Record:
        """As a record tells it."""
        return {"dtype": self.dtype, "width": self.width, "behind": self.behind}

    @property
    def prefix(self) -> str:
        """Of its arrays in the file."""
        return f"{self.dtype}.{self.width}.{self.behind}."


CASES = (
    *(Case(dtype, width) for dtype in PRECISION for width in WIDTHS),
    Case("bfloat16", 8, 8 * PASSES[8]),
)


def layouts(gpu: GpuInfo) -> Iterator[Layout]:
    """Yield the layout of each kernel, so that it can be compiled ahead."""
    config = read_config(ROOT / "tests" / "golden" / GOLDEN)
    for dtype, width in dict.fromkeys((case.dtype, case.width) for case in CASES):
        variant = Variant("words", kept_passes=PASSES[width])
        small = replace(gpu, sms=min(SMS, gpu.sms))
        yield from variant.layouts(config, small, dtype, config.max_positions, (width,))


def before(case: Case, seed: int) -> tuple[int, ...]:
    """Return the tokens that a sequence has before the run."""
    vocab = read_config(ROOT / "tests" / "golden" / GOLDEN).vocab_size
    ids = np.random.default_rng(1000 + seed).integers(3, vocab, size=case.behind)
    return tuple(ids.tolist())


def advances(width: int, seed: int) -> tuple[Advance, ...]:
    """Return what a run does: a prompt of a few tokens and an answer of a few.

    A wide kernel gets a second sequence, whose choice is limited: logits and decisions go out too.
    """
    vocab = read_config(ROOT / "tests" / "golden" / GOLDEN).vocab_size
    ids = np.random.default_rng(seed).integers(3, vocab, size=7).tolist()
    if width == 1:
        return (Advance(slot=0, token_ids=tuple(ids[:3]), budget=2, logprobs=0),)
    draw = Draw(temperature=0.8, top_k=5, seed=seed)
    return (
        Advance(slot=0, token_ids=tuple(ids[:5]), budget=3, logprobs=0),
        Advance(slot=1, token_ids=tuple(ids[5:]), budget=3, draw=draw),
    )


# ---- ahead, without a GPU ------------------------------------------------------------------------
def predict(folder: Path, work: Path | None = None) -> Path:
    """Run every case on the emulated device; return the file that has its words.

    ``work`` keeps the compiled kernels. The file is the same whenever it is made.
    """
    found: dict[str, Any] = {}
    with TemporaryDirectory(prefix="words-") as scratch:
        budget = Budget(float("inf"))
        stage = Stage(REHEARSAL, work or Path(scratch), budget, lambda record: None)
        for case in CASES:
            found |= predict_case(stage, case).pack(case.prefix)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    with path.open("wb") as file:
        np.savez_compressed(file, **found)
    return path


def predict_case(stage: Stage, case: Case) -> Prediction:
    """Return the words of one case, their bounds, and what was run."""
    model, precision = _open(stage, case), PRECISION[case.dtype]
    try:
        for seed in range(_PROMPTS):
            left = _run(model, case, seed)
            logits = model.logits[: advances(case.width, seed)[0].budget]
            if _is_steady(model, case, seed, left):
                disturbed = (
                    _same(left, _run(model, case, seed, 2.0**-precision, 1 + i)).whole
                    for i in range(RUNS)
                )
                bound = bounds(model.layout, left.whole, disturbed)
                return Prediction(seed, left.tokens, left.whole, bound, logits, model.layout.words)
    finally:
        model.close()
    raise CheckError(f"words: expected steady tokens of one of {_PROMPTS} prompts, got none")


def _is_steady(model: KeptModel, case: Case, seed: int, left: Left) -> bool:
    """Whether no error within the bounds changes a token: all that follows would be another run."""
    size = DEVIATIONS * 2.0 ** -PRECISION[case.dtype]
    return all(
        _run(model, case, seed, size, 1001 + i).tokens == left.tokens for i in range(_CHECKS)
    )


def _same(left: Left, other: Left) -> Left:
    assert left.tokens == other.tokens, "less than what did not change them"
    return other


def _run(model: KeptModel, case: Case, seed: int, size: float = 0.0, noise: int = 0) -> Left:
    """Run on the emulated device; with errors of what is rounded to 16 bits, if asked for."""
    model.device.noise = size, noise  # type: ignore[attr-defined]
    left = model.run(advances(case.width, seed), before(case, seed))
    expect(
        not left.trouble, f"emulated words: expected a launch that ends well, got {left.trouble}"
    )
    return left


def _open(stage: Stage, case: Case, **more: Any) -> KeptModel:
    return KeptModel(stage, _weights(), case.dtype, case.width, PASSES[case.width], sms=SMS, **more)


def _weights() -> Weights:
    folder = ROOT / "tests" / "golden" / GOLDEN
    return Weights.load(read_config(folder), Checkpoint.open(folder))


# ---- on the device -------------------------------------------------------------------------------
def words(stage: Stage, job: str) -> None:
    """Compare every case with its prediction; `words-pinned` keeps words where no fault reaches."""
    path = stage.carried / FILE if stage.carried else None
    if path is None or not path.exists():
        if not stage.scale.emulated:
            raise NotMeasuredError(f"expected {FILE} in the carried folder; `predict` writes it")
        path = predict(stage.work / "words", stage.work)
    compile_ahead(stage)
    over = ""
    with np.load(path) as file:
        for case in stage.paced(CASES):
            if over:
                stage.skip("words", over, **case.labels)
                continue
            prediction = Prediction.unpack(file, case.prefix)
            record = run_case(stage, prediction, case, pinned=job.endswith("pinned"))
            stage.emit({"name": "words", **stage.labels, **case.labels} | record)
            if record.get("ended") == "lost":
                over = "an earlier launch failed or did not end: the device is lost to this process"


def compile_ahead(stage: Stage) -> None:
    """Compile all kernels side by side; the emulated device makes its own as it meets them."""
    if stage.scale.emulated:
        return
    gpu = gpu_info(False)

    def one(layout: Layout) -> None:
        headers = {"specialisation.h": specialisation(layout)}
        compile_kernel("monokernel.cu", headers, architecture(*gpu.compute))

    with ThreadPoolExecutor() as pool:
        list(pool.map(one, layouts(gpu)))


def run_case(stage: Stage, prediction: Prediction, case: Case, *, pinned: bool = False) -> Record:
    """Run one case, and say what was first wrong; see README.md for the fields."""
    try:
        if stage.budget.exhausted:
            raise NotMeasuredError(f"this part's {stage.budget.seconds:.0f} s were spent")
        model = _open(stage, case, watchdog=_WATCHDOG, hang=_HANG, pinned=pinned)
        try:
            expect(
                model.layout.words == prediction.sizes,
                f"layout: expected the predicted words {prediction.sizes}, got "
                f"{model.layout.words}; predict anew, with this tree",
            )
            seed = prediction.seed
            left = model.run(advances(case.width, seed), before(case, seed))
        finally:
            model.close()
        return tell(model.layout, prediction, left, pinned)
    except NotMeasuredError as why:
        return {"not_measured": str(why)}
    except (CheckError, MonolaneError) as error:
        return record_of_error({}, error)


def tell(layout: Layout, prediction: Prediction, left: Left, pinned: bool) -> Record:
    """Return the fields of a record about what a run left."""
    record: Record = {"golden": GOLDEN, "blocks": layout.plan.groups.workers, "pinned": pinned}
    if left.trouble:
        record |= {"ended": left.ended, "trouble": left.trouble}
    if left.early:
        return record | {"error": f"before the words that are kept: {left.trouble}"}
    if left.words is None:
        return record | {"error": f"{left.trouble}; its words are lost: run words-pinned"}
    last = left.fault[5] if any(left.fault) else None
    found = compare(layout, prediction, left.words, last)
    record |= found.fields()
    if found.first:
        told = f"; {left.trouble}" if left.trouble else ""
        return record | {"error": found.sentence() + told}
    if left.trouble:
        return record | {"error": f"{left.trouble}; every word that was published is right"}
    expect(
        left.tokens == prediction.tokens,
        f"tokens: expected {prediction.tokens} of right words, got {left.tokens}",
    )
    return record | {"then": _THEN}
