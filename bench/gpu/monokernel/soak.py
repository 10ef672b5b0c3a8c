"""Does it last? Sequences of all lengths begin and end, many at once, drawn in every way; a fixed
prompt gives the same bits before and after."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bench.gpu._stage import Stage, expect
from bench.gpu.monokernel._model import KEPT_SLOTS, Model, kept_model
from monolane._results import Record
from monolane.executor_api import Advance, Draw

_RESERVE = 0.9  # of the part's time: the rest is for the fixed prompt at the end


def soak(stage: Stage, job: str) -> None:
    """As many tokens as the time allows, up to the scale's."""
    stage.attempt("soak", _soak, stage, dtype="bfloat16")


def _soak(stage: Stage) -> Record:
    scale = stage.scale
    slots = KEPT_SLOTS
    model = kept_model(stage)
    prompt = model.random_tokens(min(64, scale.contexts[0]))
    first = _fingerprint(model, prompt)
    rng = np.random.default_rng(1)
    drawn = epochs = sequences = 0
    begin = time.monotonic()
    rates: list[float] = []
    while drawn < scale.soak_tokens and stage.budget.spent < _RESERVE * stage.budget.seconds:
        advances = _crowd(model, rng, slots)
        start = time.monotonic()
        count = len(model.run(*advances))
        expect(count == sum(x.budget for x in advances), "soak: expected every budget drawn whole")
        rates.append(count / (time.monotonic() - start))
        drawn, epochs, sequences = drawn + count, epochs + 1, sequences + len(advances)
    seconds = time.monotonic() - begin
    last = _fingerprint(model, prompt)
    expect(first[0] == last[0], "soak: expected the same tokens at the end as at the start")
    same = bool((first[1].view(np.uint32) == last[1].view(np.uint32)).all())
    expect(same, "soak: expected the same logits at the end as at the start, to the bit")
    return {
        "tokens_drawn": drawn,
        "epochs": epochs,
        "sequences": sequences,
        "seconds": seconds,
        "first_tenth_per_s": float(np.median(rates[: max(1, len(rates) // 10)])),
        "last_tenth_per_s": float(np.median(rates[-max(1, len(rates) // 10) :])),
    }


def _crowd(model: Model, rng: np.random.Generator, slots: int) -> list[Advance]:
    """Sequences for one epoch, each from an empty slot."""
    scale, found = model.scale, []
    longest = min(scale.contexts[-1] // 4, 1024)
    for slot in range(int(rng.integers(1, slots + 1))):
        model.empty(slot)
        wish = Advance(
            slot=slot,
            token_ids=model.random_tokens(int(rng.integers(1, longest // 2))),
            budget=int(rng.integers(1, longest // 2)),
            draw=Draw(seed=int(rng.integers(1 << 31))),
        )
        kind = int(rng.integers(4))
        if kind:
            top_p, top_k = (1.0, 1.0, 0.9, 1.0)[kind], 40 if kind == 3 else 0
            draw = replace(wish.draw, temperature=0.9, top_p=top_p, top_k=top_k)
            wish = replace(wish, draw=draw)
        found.append(wish)
    return found


def _fingerprint(
    model: Model, prompt: tuple[int, ...]
) -> tuple[list[int], npt.NDArray[np.float32]]:
    model.empty(0)
    logits = model.logits(0, prompt)
    model.empty(0)
    tokens = [x.token_id for x in model.run(Advance(slot=0, token_ids=prompt, budget=len(prompt)))]
    return tokens, logits
