"""A draft model: whatever it drafts, tokens and log-probabilities are those of plain decoding.

A model that drafts for itself is always right, and one of other weights hardly ever: so counts are
certain. Both have windowed layers, whose rings wrap while drafts are taken back.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from monolane.cpu import CpuExecutor
from monolane.errors import RequestError
from monolane.executor_api import AUTO_DRAFTS, Draw, TokenEvent
from monolane.model import Role, Weights

from .test_ranked_kv import small_weights
from .test_speculation import (
    DRAWS,
    LONG,
    PROMPT,
    asked,
    bits,
    finish,
    passes,
    run,
    run_guided,
    tokens,
)

CONTEXT = 600


def other_weights() -> Weights:
    """The same shapes, other numbers."""
    weights = small_weights()
    layers = tuple({role: x[..., ::-1].copy() for role, x in of.items()} for of in weights.layers)
    return replace(weights, layers=layers)


@cache
def executor(drafts: str) -> CpuExecutor:
    """Drafts that are right, mostly right, and hardly ever right; all of the same model."""
    draft = other_weights() if drafts == "wrong" else small_weights()
    dtype = "bfloat16" if drafts == "near" else "auto"
    return CpuExecutor(
        small_weights(), context=CONTEXT, slots=3, workers=2, draft=draft, draft_dtype=dtype
    )


def accepted(events: Sequence[TokenEvent]) -> int:
    return sum(event.accepted > 0 for event in events)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("drafts", ["right", "near", "wrong"])
def test_the_bits_are_those_of_plain_decoding(drafts: str, draw: Draw) -> None:
    drafting = executor(drafts)
    for prompt in (PROMPT, LONG):
        request = asked(0, prompt, draw=draw)
        plain = run(drafting, request)
        assert not any(event.drafter for event in plain)
        for count in (7, 40):
            got = run(drafting, replace(request, drafts=count, drafter="draft"))
            assert bits(got) == bits(plain), count
            assert drafting.length(0) == len(prompt) + 59  # the last one drawn is never fed
            assert {event.drafter for event in got} == {"", "draft"}
            drafted = sum(event.drafted for event in got)
            if drafts == "right":
                assert accepted(got) == drafted > 0
            if drafts == "right" and count == 7:
                assert passes(got) == 1 + -(-59 // 8)
            # With the same noise, two models often draw the same of flat distributions.
            if drafts == "wrong" and draw.temperature == 0:
                assert accepted(got) < drafted / 4


def test_auto_and_either_drafter_alone() -> None:
    """Both draft where both may, and neither where it is not asked."""
    for drafts in ("right", "wrong"):
        drafting = executor(drafts)
        request = asked(0, PROMPT[:12] * 6, 120)
        plain = run(drafting, request)
        for drafter in ("auto", "suffix", "draft"):
            for _ in range(2):  # the first has no costs to go by
                got = run(drafting, replace(request, drafts=AUTO_DRAFTS, drafter=drafter))
                assert bits(got) == bits(plain)
                assert drafter == "auto" or {event.drafter for event in got} <= {"", drafter}


def test_batches_and_prompts_beside() -> None:
    drafting = executor("near")
    requests = [asked(0), asked(1, PROMPT[::-1], draw=DRAWS["penalised"]), asked(2, LONG)]
    alone = [bits(run(drafting, request), request.slot) for request in requests]
    for counts in ((9, 9, 9), (30, 0, 4), (AUTO_DRAFTS,) * 3):
        both = [
            replace(r, drafts=n, drafter="draft") for r, n in zip(requests, counts, strict=True)
        ]
        got = run(drafting, *both)
        assert [bits(got, slot) for slot in range(3)] == alone


def test_another_sequence_in_the_slot_and_one_that_goes_on() -> None:
    """What its slot has read is compared with the sequence: it goes back as far as they differ."""
    drafting = executor("right")
    first = asked(0, LONG + PROMPT, 40, drafts=5, drafter="draft")
    run(drafting, first)
    # A part that is the same is not read again; of what is new, 256 tokens between two passes,
    # which have no drafts meanwhile.
    for prompt, reading in ((LONG + PROMPT[::-1], 0), (PROMPT, 0), ((LONG + PROMPT) * 2, 2)):
        prompt = prompt[:560]
        request = asked(0, prompt, 30)
        plain = run(drafting, request)
        got = run(drafting, replace(request, drafts=5, drafter="draft"))
        assert bits(got) == bits(plain)
        assert passes(got) == 1 + reading + -(-(29 - reading) // 6)
    plain = run(drafting, asked(0, budget=80))
    drafting.truncate(0, 0)
    got: list[TokenEvent] = []
    for turn in range(100):
        sequence, held = [*PROMPT, *tokens(got)], drafting.length(0)
        drafting.start(
            [
                asked(
                    0,
                    sequence[held:],
                    80 - len(got),
                    drafts=6,
                    drafter="draft",
                    history=sequence[:held],
                    prompt=len(PROMPT),
                )
            ]
        )
        if turn % 2 == 0:
            drafting.interrupt()
        got += finish(drafting)
        if len(got) == 80:
            break
    assert bits(got) == bits(plain)


def test_stops_budgets_and_a_full_context() -> None:
    drafting = executor("right")
    plain = run(drafting, asked(0))
    stop = plain[20].token_id
    first = tokens(plain).index(stop)
    more = {"drafts": 30, "drafter": "draft"}
    assert (
        bits(run(drafting, asked(0, stop_ids=frozenset([stop]), **more)))
        == bits(plain)[: first + 1]
    )
    assert drafting.length(0) == len(PROMPT) + first
    for budget in (1, 2, 7):
        prompt = (PROMPT * 15)[: CONTEXT + 1 - budget]
        plain = run(drafting, asked(0, prompt, budget))
        assert bits(run(drafting, asked(0, prompt, budget, **more))) == bits(plain)


@pytest.mark.parametrize("drafts", [3, AUTO_DRAFTS])
def test_guided_slots(drafts: int) -> None:
    drafting = executor("near")
    request = asked(0, draw=DRAWS["penalised"], guided=True, budget=60)
    plain = run_guided(drafting, request)
    got = run_guided(drafting, replace(request, drafts=drafts, drafter="draft"))
    assert bits(got) == bits(plain)


@pytest.fixture
def limited() -> Callable[..., CpuExecutor]:
    """Make an executor whose draft model has another vocabulary or a smaller context."""

    def make(vocab: int, context: int) -> CpuExecutor:
        weights = small_weights()
        config = replace(weights.config, vocab_size=vocab, max_positions=context)
        sizes = {Role.EMBEDDING: 0, Role.HEAD: 1}

        def fit(role: Role, x: np.ndarray) -> np.ndarray:
            if role not in sizes:
                return x
            axis = list(x.shape).index(72 if role == Role.EMBEDDING else 36)
            rows = vocab if role == Role.EMBEDDING else vocab // 2
            return np.resize(np.moveaxis(x, axis, 0), (rows, *np.delete(x.shape, axis)))

        outer = {role: fit(role, x) for role, x in weights.outer.items()}
        draft = replace(weights, config=config, outer=outer)
        return CpuExecutor(weights, context=CONTEXT, slots=1, workers=2, draft=draft)

    return make


@pytest.mark.parametrize(("vocab", "context"), [(72, 64), (96, 600), (64, 600)])
def test_a_draft_model_that_ends_before(
    limited: Callable[..., CpuExecutor], vocab: int, context: int
) -> None:
    """It drafts nothing that the model has not, and nothing behind what it cannot read."""
    drafting = limited(vocab, context)
    request = asked(0, draw=DRAWS["biased"])
    plain = run(drafting, request)
    got = run(drafting, replace(request, drafts=9, drafter="draft"))
    assert bits(got) == bits(plain)
    if context == 64:
        assert 0 < accepted(got) <= 64 - len(PROMPT)


def test_ranks_are_refused() -> None:
    with pytest.raises(RequestError, match="draft: expected 1 rank"):
        CpuExecutor(small_weights(), context=64, slots=1, ranks=2, draft=small_weights())
