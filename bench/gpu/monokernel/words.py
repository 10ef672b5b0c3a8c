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

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.gpu._child import ROOT
from bench.gpu._device import gpu_info
from bench.gpu._stage import Budget, CheckError, NotMeasuredError, Stage, expect, record_of_error
from bench.gpu.monokernel._bound import DEVIATIONS, PRECISION, RUNS, bounds
from bench.gpu.monokernel._difference import Prediction, compare
from bench.gpu.monokernel._events import Words
from bench.gpu.monokernel._kept import KeptModel, Left
from bench.gpu.monokernel._model import Variant
from bench.gpu.monokernel._scale import REHEARSAL
from monolane._results import Record
from monolane.cuda import GpuInfo
from monolane.cuda._compile import architecture, compile_kernel
from monolane.cuda._layout import Layout
from monolane.cuda._specialise import specialisation
from monolane.epoch import Advance, Draw
from monolane.errors import MonolaneError
from monolane.model import Checkpoint, Weights, read_config

FILE = "words.npz"
GOLDEN = "released_shape"  # four lanes, six layers, of which four have a window
SMS = 8  # two blocks of a lane
DTYPES = tuple(PRECISION)
WIDTHS = (1, 8)
PASSES = {1: 4, 8: 3}  # of a run
_WATCHDOG, _HANG = 2.0, 8.0  # seconds; a pass takes microseconds, emulated some 0.1 s
_THEN = "if the product's kernel is wrong with these tokens, it uses a word's place again too early"
_PROMPTS = 20  # that are tried until one is found whose tokens no error of 16 bits changes
_CHECKS = 4  # runs with errors as large as the bound


def cases() -> Iterator[tuple[str, int]]:
    """Yield dtype and width of each run."""
    for dtype in DTYPES:
        for width in WIDTHS:
            yield dtype, width


def layouts(gpu: GpuInfo) -> Iterator[Layout]:
    """Yield the layout of each run's kernel, so that it can be compiled ahead."""
    config = read_config(ROOT / "tests" / "golden" / GOLDEN)
    for dtype, width in cases():
        variant = Variant("words", kept_passes=PASSES[width])
        small = replace(gpu, sms=min(SMS, gpu.sms))
        yield from variant.layouts(config, small, dtype, config.max_positions, (width,))


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
        for dtype, width in cases():
            found |= predict_case(stage, dtype, width).pack(f"{dtype}.{width}.")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    with path.open("wb") as file:
        np.savez_compressed(file, **found)
    return path


def predict_case(stage: Stage, dtype: str, width: int) -> Prediction:
    """Return the words of one case, their bounds, and what was run."""
    model = _open(stage, dtype, width)
    try:
        for seed in range(_PROMPTS):
            wanted = advances(width, seed)
            left = _right(model.run(wanted))
            assert left.words is not None
            logits = model.logits[: wanted[0].budget]
            if _is_steady(model, wanted, left, PRECISION[dtype]):
                disturbed = _disturbed(model, wanted, left, PRECISION[dtype])
                bound = bounds(model.layout, left.words, disturbed)
                return Prediction(seed, left.tokens, left.words, bound, logits, model.layout.words)
    finally:
        _disturb(model, 0.0, 0)
        model.close()
    raise CheckError(f"words: expected steady tokens of one of {_PROMPTS} prompts, got none")


def _is_steady(model: KeptModel, wanted: Sequence[Advance], left: Left, precision: int) -> bool:
    """Whether no error within the bounds changes a token: all that follows would be another run."""
    for seed in range(1, 1 + _CHECKS):
        _disturb(model, DEVIATIONS * 2.0**-precision, 1000 + seed)
        if _right(model.run(wanted)).tokens != left.tokens:
            _disturb(model, 0.0, 0)
            return False
    return True


def _disturbed(
    model: KeptModel, wanted: Sequence[Advance], left: Left, precision: int
) -> Iterator[Words]:
    """Yield the words of runs whose roundings to 16 bits err."""
    for seed in range(1, 1 + RUNS):
        _disturb(model, 2.0**-precision, seed)
        found = _right(model.run(wanted))
        assert found.tokens == left.tokens, "less than what did not change them"
        assert found.words is not None
        yield found.words


def _disturb(model: KeptModel, size: float, seed: int) -> None:
    model.device.noise = size, seed  # type: ignore[attr-defined]


def _right(left: Left) -> Left:
    expect(
        not left.trouble, f"emulated words: expected a launch that ends well, got {left.trouble}"
    )
    return left


def _open(stage: Stage, dtype: str, width: int, **more: Any) -> KeptModel:
    return KeptModel(stage, _weights(), dtype, width, PASSES[width], sms=SMS, **more)


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
        for dtype, width in stage.paced(list(cases())):
            labels = {"dtype": dtype, "width": width}
            if over:
                stage.skip("words", over, **labels)
                continue
            prediction = Prediction.unpack(file, f"{dtype}.{width}.")
            record = run_case(stage, prediction, dtype, width, pinned=job.endswith("pinned"))
            stage.emit({"name": "words", **stage.labels, **labels} | record)
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


def run_case(
    stage: Stage, prediction: Prediction, dtype: str, width: int, *, pinned: bool = False
) -> Record:
    """Run one case, and say what was first wrong; see README.md for the fields."""
    try:
        if stage.budget.exhausted:
            raise NotMeasuredError(f"this part's {stage.budget.seconds:.0f} s were spent")
        model = _open(stage, dtype, width, watchdog=_WATCHDOG, hang=_HANG, pinned=pinned)
        try:
            expect(
                model.layout.words == prediction.sizes,
                f"layout: expected the predicted words {prediction.sizes}, got "
                f"{model.layout.words}; predict anew, with this tree",
            )
            left = model.run(advances(width, prediction.seed))
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
