"""Is it right? Golden models, bits across widths and runs, and an independent model of 2 billion.

The full model runs first and leaves its tokens and logits in the folder; torch or NumPy looks at
them in another process, so that neither's trouble costs the other's records.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.gpu._child import ROOT
from bench.gpu._device import lacks_torch
from bench.gpu._stage import Stage, expect
from bench.gpu.monokernel._carried import LOGITS, OTHER, install
from bench.gpu.monokernel._model import KEPT_SLOTS, Model, Tokens, kept_model
from bench.gpu.monokernel._random_weights import block_digest, wide_weights
from bench.gpu.monokernel._scale import Scale
from monolane._results import Record
from monolane.cuda._pack import widened
from monolane.executor_api import Advance, Draw
from monolane.model import Checkpoint, SafetensorsFile, Weights, read_config
from monolane.reference import ReferenceModel

Floats = npt.NDArray[np.float32]

LEFT = "full.npz"
# Largest error of a golden model's logits, which reach 2.2. float16: weights, activations, queries,
# attention weights and cache are rounded by 2^-11 each, and errors of a dozen such roundings do not
# all point one way; bfloat16 has three bits less. float8 is held against the logits of its own
# weights: what it rounds beside them are activations, as float16 does.
GOLDEN_TOLERANCE = {"float16": 2**-8, "bfloat16": 2**-5, "float8": 2**-8}
# |error| / |logits| of bfloat16 arithmetic without another bfloat16 model to compare with: a
# rounding is 2^-9 / sqrt(3) = 0.0011 of a value, and the squares of some 60 roundings (15 layers of
# normed input, attention, its output, hidden values) add up to 0.009, which is also what a model of
# a quarter of the width shows whose products' inputs are rounded; three times that.
RELATIVE_TOLERANCE = 0.027


# ---- golden models -------------------------------------------------------------------------------
def first_golden(stage: Stage, job: str) -> None:
    """One golden model in one dtype, at every width: the first tokens of all."""
    name, dtype = stage.scale.goldens[0], stage.scale.golden_dtypes[0]
    stage.attempt("golden", golden, stage, name, dtype, golden=name, dtype=dtype)


def goldens(stage: Stage, job: str) -> None:
    """Every golden model in every dtype, at every width."""
    for dtype in stage.scale.golden_dtypes:
        for name in stage.scale.goldens:
            stage.attempt("golden", golden, stage, name, dtype, golden=name, dtype=dtype)


def golden(stage: Stage, name: str, dtype: str, widths: tuple[int, ...] | None = None) -> Record:
    """Logits against the golden ones, bits of every width and run, greedy tokens."""
    folder = ROOT / "tests" / "golden" / name
    config = read_config(folder)
    weights = Weights.load(config, Checkpoint.open(folder))
    expected = SafetensorsFile(folder / "expected.safetensors")
    widths, tolerance = widths or stage.scale.golden_widths, GOLDEN_TOLERANCE[dtype]
    model = Model(stage, widths=widths, context=config.max_positions, weights=weights, dtype=dtype)
    try:
        ids, logits = expected["input_ids"][0].tolist(), np.asarray(expected["logits"][0])
        if dtype == "float8":
            weights = widened(weights)
            oracle = ReferenceModel(weights)
            logits = oracle.forward(ids, oracle.new_cache(len(ids)))
        found = _logits_by_width(model, tuple(ids), widths)
        error = float(np.abs(found - logits).max())
        expect(
            error <= tolerance,
            f"logits: expected the golden ones to {tolerance:.2g}, got an error of {error:.2g}",
        )
        answer = [int(token) for token in expected["greedy_ids"][0]]
        drawn = _greedy(model, tuple(answer[:8]), len(answer) - 8)
        equal = _check_greedy(ReferenceModel(weights), tuple(answer[:8]), drawn, tolerance)
    finally:
        model.close()
    return {
        "largest_error": error,
        "tolerance": tolerance,
        "widths": list(widths),
        "tokens_drawn": len(drawn),
        "tokens_equal": equal,
    }


def _logits_by_width(model: Model, ids: Tokens, widths: tuple[int, ...]) -> Floats:
    """Logits of all tokens; CheckError unless every width and a second run give the same bits."""
    first: Floats | None = None
    for width in (*widths, widths[0]):
        with model.forced(width):
            model.empty(0)
            found = model.logits(0, ids)
        if first is None:
            first = found
        different = int((found.view(np.uint32) != first.view(np.uint32)).sum())
        expect(
            different == 0,
            f"width {width}: expected the bits of width {widths[0]}, got {different} other logits "
            f"of {first.size}",
        )
    assert first is not None
    return first


def _greedy(model: Model, prompt: Tokens, count: int) -> Tokens:
    model.empty(0)
    drawn = model.run(Advance(slot=0, token_ids=prompt, budget=count))
    return tuple(x.token_id for x in drawn)


def _check_greedy(
    reference: ReferenceModel, prompt: Tokens, drawn: Tokens, tolerance: float
) -> int:
    """Return how many tokens are the reference's own choice behind the same tokens.

    CheckError if another one is further from it than errors of both logits explain.
    """
    ids = (*prompt, *drawn)
    logits = reference.forward(ids, reference.new_cache(len(ids)))
    return check_choices(logits[len(prompt) - 1 : -1], drawn, tolerance)


def check_choices(logits: Floats, drawn: Tokens, tolerance: float) -> int:
    """The same for logits [T, V] that each of T tokens should have been drawn from."""
    best = logits.max(axis=1)
    chosen = logits[np.arange(len(drawn)), np.asarray(drawn)]
    worst = int(np.argmax(best - chosen))
    expect(
        float(best[worst] - chosen[worst]) <= 2 * tolerance,
        f"greedy token {worst}: expected one within {2 * tolerance:.2g} of the best logit, got one "
        f"{float(best[worst] - chosen[worst]):.2g} below it",
    )
    return int((best == chosen).sum())


# ---- the full model ------------------------------------------------------------------------------
def full(stage: Stage, job: str) -> None:
    """A prompt beyond the window and an answer: the same at every width, in every company."""
    stage.attempt("full_model", full_model, stage, dtype="bfloat16")


def full_model(stage: Stage) -> Record:
    """Bits of logits at every width, run twice; tokens alone and among others; left for torch."""
    scale = stage.scale
    widths = scale.checked_widths
    others = min(7, max(widths) - 1, KEPT_SLOTS - 1)
    model = kept_model(stage)
    prompt = model.random_tokens(scale.full_prompt)
    found: list[Floats] = []
    for width in (*widths, widths[-1]):
        with model.forced(width):
            model.empty(0)
            if prompt[: -scale.compared]:
                model.feed(0, prompt[: -scale.compared])
            found.append(model.logits(0, prompt[-scale.compared :]))
        different = int((found[-1].view(np.uint32) != found[0].view(np.uint32)).sum())
        expect(
            different == 0,
            f"width {width}: expected the bits of width {widths[0]}, got {different} other logits "
            f"of {found[0].size}",
        )
    expect(bool(np.isfinite(found[0]).all()), "logits: expected numbers, got some that are not")
    drawn = _greedy(model, prompt, scale.full_drawn)
    np.savez(stage.work / LEFT, prompt=prompt, drawn=drawn, logits=found[0])
    _check_company(model, prompt, drawn, others)
    return {"widths": list(widths), "prompt": len(prompt), "tokens_drawn": len(drawn), "runs": 2}


def _check_company(model: Model, prompt: Tokens, alone: Tokens, others: int) -> None:
    """The same tokens with other sequences in the batch, which begin and end at other times."""
    model.empty(0)
    advances = [Advance(slot=0, token_ids=prompt, budget=len(alone))]
    for slot in range(1, 1 + others):
        # Prompts of other lengths, which are over before the first one is.
        tokens = model.random_tokens(3 + len(prompt) * slot // (2 * others))
        budget = 2 + len(alone) * slot // (2 * others)
        advances.append(
            Advance(
                slot=slot, token_ids=tokens, budget=budget, draw=Draw(temperature=0.8, seed=slot)
            )
        )
    together = [x.token_id for x in model.run(*advances) if x.slot == 0]
    same = sum(a == b for a, b in zip(together, alone, strict=False))
    expect(
        tuple(together) == alone,
        f"beside {others} other sequences: expected the same {len(alone)} tokens, got {same}",
    )


# ---- the full model, first tokens ----------------------------------------------------------------
def first_tokens(stage: Stage, job: str) -> None:
    """A few tokens at width 1 against NumPy's logits, then the bits of the other widths."""
    _first_tokens(stage, kept_model(stage))


def _first_tokens(stage: Stage, model: Model) -> None:
    left: list[Floats] = []
    stage.attempt("first_tokens", _against_numpy, stage, model, left, dtype="bfloat16")
    for width in model.executor._resident.kernels.widths[1:] if left else ():
        labels = {"width": width, "dtype": "bfloat16"}
        stage.attempt("first_bits", _same_bits, stage, model, width, left[0], **labels)


def first_ids(scale: Scale) -> Tokens:
    """Tokens far from each other, the same at every run."""
    return tuple((7919 * i + 17) % scale.config.vocab_size for i in range(scale.first_tokens))


def _against_numpy(stage: Stage, model: Model, left: list[Floats]) -> Record:
    begin, ids = time.monotonic(), first_ids(stage.scale)
    with model.forced(1):
        model.empty(0)
        found = model.logits(0, ids)
    expected, source = _expected(stage, ids)
    error = relative(found, expected)
    expect(
        error <= RELATIVE_TOLERANCE,
        f"logits: expected NumPy's to {RELATIVE_TOLERANCE} of their size, got {error:.2g}",
    )
    left.append(found)
    seconds = time.monotonic() - begin
    made = {"relative_error": error, "tokens_compared": len(ids), "logits_from": source}
    return made | {"seconds": seconds}


def _expected(stage: Stage, ids: Tokens) -> tuple[Floats, str]:
    """The logits that were carried here, if they are of these very weights; else made here."""
    path = stage.carried and stage.carried / LOGITS
    if path is not None and path.exists():
        there = np.load(path)
        if tuple(there["ids"].tolist()) == ids and int(there["block"]) == block_digest(stage.work):
            return there["logits"], "carried"
        print("the carried logits are of other weights or tokens: NumPy makes them here")
    return numpy_logits(stage.scale, stage.work), "NumPy here"


def numpy_logits(scale: Scale, work: Path) -> Floats:
    """Of the first tokens, by float32 arithmetic on the weights as the device has them."""
    ids = first_ids(scale)
    oracle = ReferenceModel(wide_weights(scale.config, work))
    return oracle.forward(ids, oracle.new_cache(len(ids)))


def save_logits(scale: Scale, work: Path, path: Path) -> None:
    """Leave the logits of the first tokens for another machine."""
    logits = numpy_logits(scale, work)
    np.savez(path, ids=first_ids(scale), block=block_digest(work), logits=logits)


def _same_bits(stage: Stage, model: Model, width: int, expected: Floats) -> Record:
    with model.forced(width):
        model.empty(0)
        found = model.logits(0, first_ids(stage.scale))
    different = int((found.view(np.uint32) != expected.view(np.uint32)).sum())
    expect(
        different == 0,
        f"width {width}: expected the bits of width 1, got {different} other logits "
        f"of {found.size}",
    )
    return {"logits_compared": found.size}


# ---- when something is wrong ---------------------------------------------------------------------
def width_one(stage: Stage, job: str) -> None:
    """The narrowest kernel alone: no other one is loaded."""
    name, dtype = stage.scale.goldens[0], stage.scale.golden_dtypes[0]
    labels = {"golden": name, "dtype": dtype, "width": 1}
    stage.attempt("golden", golden, stage, name, dtype, (1,), **labels)
    model = Model(stage, widths=(1,))
    _first_tokens(stage, model)
    model.close()


def other_compiler(stage: Stage, job: str) -> None:
    """The first rungs by the machine code of another release of the compiler, made ahead."""
    install(stage.carried, OTHER)
    first_golden(stage, job)
    model = Model(stage)
    _first_tokens(stage, model)
    model.close()


# ---- an independent model ------------------------------------------------------------------------
def reference(stage: Stage, job: str) -> None:
    """Torch in float32, where it is there."""
    left = stage.work / LEFT
    if lacks := lacks_torch(stage.scale.emulated):
        stage.skip("reference_torch", lacks, dtype="bfloat16")
    else:
        stage.attempt("reference_torch", _against_torch, stage, left, dtype="bfloat16")


def _against_torch(stage: Stage, left: Any) -> Record:
    expect(left.exists(), "the full model left no logits to compare with")
    from bench.gpu.monokernel.peers import reference_logits

    saved = np.load(left)
    prompt, drawn, logits = saved["prompt"].tolist(), saved["drawn"].tolist(), saved["logits"]
    count, begin = len(logits), time.monotonic()
    wide, narrow = reference_logits(stage, [*prompt, *drawn[:-1]], count + len(drawn) - 1)
    ours, theirs = relative(logits, wide[:count]), relative(narrow[:count], wide[:count])
    # Torch in bfloat16 rounds all that the monokernel rounds, and the stream and sums besides.
    expect(
        ours <= theirs,
        f"logits: expected at most the error of torch in bfloat16, {theirs:.2g}, got {ours:.2g}",
    )
    largest = float(np.abs(logits - wide[:count]).max())
    equal = check_choices(wide[count - 1 :], tuple(drawn), largest)
    return {
        "relative_error": ours,
        "relative_error_of_torch_bfloat16": theirs,
        "largest_error": largest,
        "tokens_compared": count,
        "tokens_drawn": len(drawn),
        "tokens_equal": equal,
        "seconds": time.monotonic() - begin,
    }


def relative(found: Floats, expected: Floats) -> float:
    """|found - expected| / |expected|; infinite where something is no number."""
    error = float(np.linalg.norm(found.astype(np.float64) - expected))
    size = float(np.linalg.norm(expected.astype(np.float64)))
    return error / size if np.isfinite(error) else float("inf")
