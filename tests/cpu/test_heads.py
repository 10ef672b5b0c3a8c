"""Heads: whatever they draft, tokens and log-probabilities are those of plain decoding.

Of a model whose layers add nothing the next token follows from the last one alone, and heads can be
written down that always know it; so counts are certain, and the arithmetic of a chain is checked.
Heads of random numbers are hardly ever right.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from monolane.cpu import CpuExecutor
from monolane.errors import ConfigError, RequestError
from monolane.executor_api import AUTO_DRAFTS, Draw, TokenEvent
from monolane.model import Heads, Role, Weights

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
HIDDEN, VOCAB = 32, 72


def chain_weights() -> Weights:
    """A model whose next token follows from the last one: its layers write zeros."""
    weights = small_weights()
    silent = {Role.O, Role.DOWN}
    layers = tuple(
        {role: x * (role not in silent) for role, x in layer.items()} for layer in weights.layers
    )
    rng = np.random.default_rng(3)
    embedding = rng.choice([-1.0, 1.0], size=(VOCAB, HIDDEN)).astype(np.float32)
    embedding[:, 0] = 1  # every row has the norm 1 already, and a 1 in front
    outer = dict(weights.outer)
    outer[Role.EMBEDDING] = embedding
    outer[Role.FINAL_NORM] = np.ones_like(outer[Role.FINAL_NORM])
    # The token behind t is 5 t + 1: far ahead of all others.
    rows = np.zeros((VOCAB, HIDDEN), np.float32)
    rows[(5 * np.arange(VOCAB) + 1) % VOCAB] = embedding
    outer[Role.HEAD] = rows.reshape(outer[Role.HEAD].shape)
    return replace(weights, layers=layers, outer=outer)


def chain_heads() -> Heads:
    """Heads that take the state to the last token's embedding, and know what follows it.

    silu(a) b + silu(-a) (-b) = a b: the first column of the input is 1, so two rows of the block
    make any linear function of it.
    """
    weights = chain_weights()
    gate = np.zeros((2 * HIDDEN, 2 * HIDDEN), np.float32)
    gate[:HIDDEN, HIDDEN], gate[HIDDEN:, HIDDEN] = 1, -1  # the embedding's 1
    eye = np.eye(HIDDEN, dtype=np.float32)
    difference = np.concatenate([-eye, eye], axis=1)  # of the embedding and the state
    up = np.concatenate([difference, -difference])
    head = weights.outer[Role.HEAD].reshape(VOCAB, HIDDEN)
    return Heads(gate, up, np.tile(eye, 2), head, np.arange(VOCAB, dtype=np.int32), VOCAB)


def random_heads(drafted: int = 50) -> Heads:
    rng = np.random.default_rng(5)

    def make(*shape: int) -> np.ndarray:
        return rng.normal(scale=0.3, size=shape).astype(np.float32)

    ids = rng.permutation(VOCAB)[:drafted].astype(np.int32)
    block = (64, 2 * HIDDEN)
    return Heads(make(*block), make(*block), make(HIDDEN, 64), make(drafted, HIDDEN), ids, VOCAB)


@cache
def executor(drafts: str, workers: int = 2) -> CpuExecutor:
    """Heads that are right, and such as hardly ever are, each of its own model."""
    weights, heads = (
        (chain_weights(), chain_heads()) if drafts == "right" else (small_weights(), random_heads())
    )
    return CpuExecutor(weights, context=CONTEXT, slots=3, workers=workers, draft=heads)


def accepted(events: Sequence[TokenEvent]) -> int:
    return sum(event.accepted > 0 for event in events)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("drafts", ["right", "wrong"])
def test_the_bits_are_those_of_plain_decoding(drafts: str, draw: Draw) -> None:
    drafting = executor(drafts)
    for prompt in (PROMPT, LONG):
        request = asked(0, prompt, draw=draw)
        plain = run(drafting, request)
        assert not any(event.drafter for event in plain)
        for count in (1, 7, 40):
            got = run(drafting, replace(request, drafts=count, drafter="heads"))
            assert bits(got) == bits(plain), count
            assert drafting.length(0) == len(prompt) + 59  # the last one drawn is never fed
            assert {event.drafter for event in got} == {"", "heads"}
            drafted = sum(event.drafted for event in got)
            if drafts == "right" and draw == DRAWS["greedy"]:
                assert accepted(got) == drafted > 0
                if count == 7:
                    assert passes(got) == 1 + -(-59 // 8)
            if drafts == "wrong" and draw.temperature == 0 and count == 40:
                assert accepted(got) < drafted / 4


def test_the_state_is_what_the_head_read_last() -> None:
    """Heads that see it alone: it tells the last token, and so the one behind, and no more.

    Every pass verifies one drafted token, so what counts is the second of its rows.
    """
    heads = chain_heads()
    behind = np.zeros_like(heads.head)
    behind[(5 * np.arange(VOCAB) + 1) % VOCAB] = heads.head
    still = replace(heads, down=np.zeros_like(heads.down), head=behind)
    drafting = CpuExecutor(chain_weights(), context=CONTEXT, slots=1, workers=2, draft=still)
    request = asked(0)
    got = run(drafting, replace(request, drafts=1, drafter="heads"))
    assert bits(got) == bits(run(drafting, request))
    assert accepted(got) == sum(event.drafted for event in got) == 29
    got = run(drafting, replace(request, drafts=2, drafter="heads"))
    assert accepted(got) == sum(event.drafted > 0 for event in got)


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_workers_share_the_rows(workers: int) -> None:
    """Also where there are more of them than panels of rows: some have none."""
    drafting = executor("right", workers)
    request = asked(0)
    got = run(drafting, replace(request, drafts=7, drafter="heads"))
    assert bits(got) == bits(run(drafting, request))
    assert accepted(got) == sum(event.drafted for event in got) > 40


def test_sampled_drafts_have_the_sequences_own_noise() -> None:
    """Of logits as flat as these, half of the draws would be guessed wrong without it."""
    heads = chain_heads()
    flat = replace(heads, head=heads.head / 24)  # of logits from -32 to 32: from -1.3 to 1.3
    weights = chain_weights()
    weights = replace(weights, outer={**weights.outer, Role.HEAD: weights.outer[Role.HEAD] / 24})
    drafting = CpuExecutor(weights, context=CONTEXT, slots=1, workers=2, draft=flat)
    request = asked(0, draw=Draw(temperature=1.0, seed=8, top_k=30))
    plain = run(drafting, request)
    got = run(drafting, replace(request, drafts=4, drafter="heads"))
    assert bits(got) == bits(plain)
    assert len(set(tokens(plain))) > 20
    assert accepted(got) > 0.8 * sum(event.drafted for event in got)


def test_batches_and_prompts_beside() -> None:
    for drafts in ("right", "wrong"):
        drafting = executor(drafts)
        requests = [asked(0), asked(1, PROMPT[::-1], draw=DRAWS["penalised"]), asked(2, LONG)]
        alone = [bits(run(drafting, request), request.slot) for request in requests]
        for counts in ((9, 9, 9), (30, 0, 4), (AUTO_DRAFTS,) * 3):
            both = [
                replace(r, drafts=n, drafter="heads") for r, n in zip(requests, counts, strict=True)
            ]
            got = run(drafting, *both)
            assert [bits(got, slot) for slot in range(3)] == alone
            if drafts == "right" and counts == (9, 9, 9):
                mine = [event for event in got if event.slot == 0]
                assert accepted(mine) == sum(event.drafted for event in mine) > 40


def test_auto_and_the_suffix_drafter_beside() -> None:
    for drafts in ("right", "wrong"):
        drafting = executor(drafts)
        request = asked(0, PROMPT[:12] * 6, 120)
        plain = run(drafting, request)
        for drafter in ("auto", "suffix", "heads"):
            for _ in range(2):  # the first has no costs to go by
                got = run(drafting, replace(request, drafts=AUTO_DRAFTS, drafter=drafter))
                assert bits(got) == bits(plain)
                assert drafter == "auto" or {event.drafter for event in got} <= {"", drafter}


def test_interrupted_epochs_kept_prefixes_and_copies() -> None:
    """What the head read is known of no token before the epoch: its first pass has no drafts."""
    drafting = executor("right")
    plain = run(drafting, asked(0, budget=80))
    kept = drafting.save(0, 0, len(PROMPT))
    drafting.truncate(0, 0)
    got: list[TokenEvent] = []
    while len(got) < 80:
        sequence, held = [*PROMPT, *tokens(got)], drafting.length(0)
        more = {"drafts": 6, "drafter": "heads", "history": sequence[:held], "prompt": len(PROMPT)}
        drafting.start([asked(0, sequence[held:], 80 - len(got), **more)])
        if len(got) % 3 == 0:
            drafting.interrupt()
        got += finish(drafting)
    assert bits(got) == bits(plain)
    for slot in (1, 2):
        drafting.truncate(slot, 0)
        drafting.restore(1, kept, len(PROMPT) - 1) if slot == 1 else drafting.copy(1, 2)
        if slot == 2:
            drafting.truncate(2, len(PROMPT) - 1)
        drafting.start(
            [
                asked(
                    slot,
                    PROMPT[-1:],
                    80,
                    drafts=6,
                    drafter="heads",
                    history=PROMPT[:-1],
                    prompt=len(PROMPT),
                )
            ]
        )
        got = finish(drafting)
        assert [e.token_id for e in got] == tokens(plain)
        assert accepted(got) > 50


def test_stops_budgets_and_a_full_context() -> None:
    drafting = executor("right")
    plain = run(drafting, asked(0))
    stop = plain[20].token_id
    first = tokens(plain).index(stop)
    more = {"drafts": 30, "drafter": "heads"}
    stopped = run(drafting, asked(0, stop_ids=frozenset([stop]), **more))
    assert bits(stopped) == bits(plain)[: first + 1]
    assert drafting.length(0) == len(PROMPT) + first
    for budget in (1, 2, 7):
        prompt = (PROMPT * 15)[: CONTEXT + 1 - budget]
        plain = run(drafting, asked(0, prompt, budget))
        assert bits(run(drafting, asked(0, prompt, budget, **more))) == bits(plain)


@pytest.mark.parametrize("drafts", [3, AUTO_DRAFTS])
@pytest.mark.parametrize("which", ["right", "wrong"])
def test_guided_slots(which: str, drafts: int) -> None:
    drafting = executor(which)
    request = asked(0, draw=DRAWS["penalised"], guided=True, budget=60)
    plain = run_guided(drafting, request)
    got = run_guided(drafting, replace(request, drafts=drafts, drafter="heads"))
    assert bits(got) == bits(plain)


def test_what_is_refused() -> None:
    weights = small_weights()
    with pytest.raises(RequestError, match="draft: expected 1 rank"):
        CpuExecutor(weights, context=64, slots=1, ranks=2, draft=random_heads())
    for field, size in (("vocab_size", 96), ("hidden_size", 64)):
        config = replace(weights.config, **{field: size})
        with pytest.raises(ConfigError, match=f"heads: {field}: expected {size}, the model's, got"):
            random_heads().check(config, "heads")
