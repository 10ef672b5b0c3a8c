"""Speculation: whatever is drafted, tokens and log-probabilities are those of plain decoding.

Scripted drafts make the cases certain: drafts that are always right, always wrong, or right up to a
place. The model has windowed layers whose rings wrap, so that rejected drafts are written over.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_weights import weights_of

from monolane.cpu import CpuExecutor
from monolane.errors import RequestError
from monolane.executor_api import AUTO_DRAFTS, TEXT_END, Advance, Draw, Guide, TokenEvent

from .test_delta import CASES, load
from .test_ranked_kv import DTYPES, make

VOCAB = 72
PROMPT = tuple(np.random.default_rng(2).integers(VOCAB, size=40).tolist())
LONG = tuple(np.random.default_rng(3).integers(VOCAB, size=250).tolist())  # near the rings' wrap
SAMPLED = Draw(temperature=0.9, seed=5, top_p=0.95)
DRAWS = {
    "greedy": Draw(),
    "sampled": SAMPLED,
    "limited": replace(SAMPLED, top_k=9, min_p=0.01, top_p=1.0),
    "penalised": replace(
        SAMPLED, frequency_penalty=0.7, presence_penalty=0.4, repetition_penalty=1.2
    ),
    "biased": replace(SAMPLED, logit_bias=((3, 2.5), (7, -4.0), (11, -np.inf))),
}


@pytest.fixture(scope="module", params=[*DTYPES, ("states",)], ids="-".join)
def executor(request: pytest.FixtureRequest) -> CpuExecutor:
    """Two workers, so that a pass is laid out while another worker still has the one before.

    Once with states, which cannot go back to what they were before a rejected draft.
    """
    if request.param == ("states",):
        return load(weights_of(CASES["odd"]), 2, "float32", slots=3)
    return make(*request.param, slots=3)


def asked(slot: int, token_ids: Sequence[int] = PROMPT, budget: int = 60, **more: Any) -> Advance:
    """A request that begins in an empty slot."""
    given = {"logprobs": 3, "prompt": len(token_ids), "draw": SAMPLED} | more
    return Advance(slot=slot, token_ids=tuple(token_ids), budget=budget, **given)


def finish(executor: CpuExecutor) -> list[TokenEvent]:
    events: list[TokenEvent] = []
    over = False
    while not over:
        over = executor.read(5.0)
        events += executor.take()
    return events


def run(executor: CpuExecutor, *advances: Advance) -> list[TokenEvent]:
    for advance in advances:
        executor.truncate(advance.slot, 0)
    executor.start(advances)
    return finish(executor)


def bits(events: Sequence[TokenEvent], slot: int = 0) -> list[tuple[object, ...]]:
    """Tokens of a slot, with all that is said of them; equal floats are equal bits."""
    return [(e.token_id, e.logprob) for e in events if e.slot == slot]


def tokens(events: Sequence[TokenEvent], slot: int = 0) -> list[int]:
    return [event.token_id for event in events if event.slot == slot]


def passes(events: Sequence[TokenEvent]) -> int:
    """How many passes gave these tokens: an accepted draft has its place behind others."""
    owed = count = 0
    for event in events:
        count += owed == 0
        owed = event.accepted > 0
    return count


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("prompt", [PROMPT, LONG], ids=["short", "wrapping"])
def test_right_and_wrong_drafts_give_the_same_bits(
    executor: CpuExecutor, draw: Draw, prompt: tuple[int, ...]
) -> None:
    plain = run(executor, asked(0, prompt, draw=draw))
    right = [*prompt, *tokens(plain)]
    wrong = [(token + 1) % VOCAB for token in right]
    # Right for a while, then wrong, so that a pass accepts a part of its draft.
    mixed = [w if i % 7 == 0 else r for i, (r, w) in enumerate(zip(right, wrong, strict=True))]
    lengths = {}
    for name, script in (("right", right), ("wrong", wrong), ("mixed", mixed)):
        for drafts in (1, 5, 40):
            executor.script(0, drafts=script)
            got = run(executor, asked(0, prompt, draw=draw, drafts=drafts))
            assert bits(got) == bits(plain), (name, drafts)
            assert executor.length(0) == len(prompt) + 59  # the last one drawn is never fed
            lengths[name, drafts] = passes(got)
    executor.script(0)
    assert lengths["right", 5] == 1 + -(-59 // 6)
    assert lengths["right", 40] == 1 + -(-59 // 33)  # 32 drafted tokens at most
    assert lengths["wrong", 5] == 60
    assert lengths["right", 5] < lengths["mixed", 5] < 60


def test_counts_of_drafts_and_of_accepted_ones(executor: CpuExecutor) -> None:
    plain = run(executor, asked(0))
    executor.script(0, drafts=[*PROMPT, *tokens(plain)])
    got = run(executor, asked(0, drafts=5))
    executor.script(0)
    assert [event.accepted for event in got[:8]] == [0, 1, 2, 3, 4, 5, 0, 1]
    assert [event.drafted for event in got[:8]] == [0, 5, 0, 0, 0, 0, 0, 5]


def test_the_drafter_itself(executor: CpuExecutor) -> None:
    """A text that repeats is drafted, with and without a choice of how much."""
    prompt = PROMPT[:12] * 6
    replayed = [*prompt, *(PROMPT[:12] * 12)]
    for drafts in (8, AUTO_DRAFTS):
        executor.script(0, draws=replayed)
        got = run(executor, asked(0, prompt, budget=100, drafts=drafts))
        executor.script(0)
        assert tokens(got) == replayed[len(prompt) : len(prompt) + 100]
        if drafts == 8:
            assert passes(got) < 50
    plain = run(executor, asked(0, prompt, budget=100))
    for drafts in (3, 32, AUTO_DRAFTS):
        assert bits(run(executor, asked(0, prompt, budget=100, drafts=drafts))) == bits(plain)


def test_earlier_texts_are_drafted_from_and_forgotten(executor: CpuExecutor) -> None:
    text = np.random.default_rng(5).permutation(VOCAB).tolist()  # repeats nothing of its own
    executor.script(0, draws=[*PROMPT[:3], *text])
    first = asked(0, PROMPT[:3], budget=30, drafts=8)
    assert passes(run(executor, first)) == 30
    earlier = [5, 6, TEXT_END, *text, TEXT_END]
    got = run(executor, replace(first, earlier=earlier))
    assert tokens(got) == text[:30]
    assert passes(got) < 8
    # The sequence goes on: with the same texts, with more of them, and with none, as if another
    # asked who may not know of them. What is no longer given is not drafted from.
    held = [*PROMPT[:3], *text[:29]]
    rest = asked(0, text[29:30], budget=20, drafts=8, history=held, prompt=3)
    counts = {}
    for name, texts in (("same", earlier), ("more", [*earlier, 7, TEXT_END]), ("none", ())):
        run(executor, replace(first, earlier=earlier))
        executor.start([replace(rest, earlier=texts)])
        counts[name] = passes(finish(executor))
    executor.script(0)
    assert counts["same"] == counts["more"] < 6
    assert counts["none"] == 20
    with pytest.raises(RequestError, match="earlier: expected ids from 0 to 71, got 72"):
        run(executor, replace(first, earlier=[72]))


def test_a_stop_within_a_draft(executor: CpuExecutor) -> None:
    plain = run(executor, asked(0))
    stop = plain[20].token_id
    first = tokens(plain).index(stop)
    executor.script(0, drafts=[*PROMPT, *tokens(plain)])
    got = run(executor, asked(0, drafts=30, stop_ids=frozenset([stop])))
    executor.script(0)
    assert bits(got) == bits(plain)[: first + 1]
    assert executor.length(0) == len(PROMPT) + first  # what stops is not fed
    # The sequence goes on as if nothing had been drafted behind the stop.
    executor.start([asked(0, (stop,), budget=30, draw=SAMPLED)])
    assert bits(finish(executor)) == bits(plain)[first + 1 : first + 31]


@pytest.mark.parametrize("budget", [1, 2, 3, 7])
def test_budget_and_context_end_within_a_draft(executor: CpuExecutor, budget: int) -> None:
    prompt = (PROMPT * 15)[: 601 - budget]  # the last token has no room to be fed
    plain = run(executor, asked(0, prompt, budget))
    executor.script(0, drafts=[*prompt, *tokens(plain), 1, 2, 3])
    got = run(executor, asked(0, prompt, budget, drafts=30))
    executor.script(0)
    assert len(got) == budget
    assert bits(got) == bits(plain)


def test_batches_have_the_bits_of_each_alone(executor: CpuExecutor) -> None:
    """Three sequences, one of them long: rows of drafts and of a prompt share passes."""
    requests = [asked(0, PROMPT), asked(1, PROMPT[::-1], draw=DRAWS["biased"]), asked(2, LONG)]
    alone = [bits(run(executor, request), request.slot) for request in requests]
    for request, answer in zip(requests, alone, strict=True):
        right = [*request.token_ids, *(token for token, _ in answer)]
        executor.script(request.slot, drafts=[0 if i % 5 == 4 else t for i, t in enumerate(right)])
    for drafts in ((30, 30, 30), (4, 0, 9), (AUTO_DRAFTS,) * 3, (AUTO_DRAFTS, 25, 0)):
        both = [replace(r, drafts=d) for r, d in zip(requests, drafts, strict=True)]
        got = run(executor, *both)
        assert [bits(got, slot) for slot in range(3)] == alone
    for slot in range(3):
        executor.script(slot)


def test_sixteen_sequences_draft_in_one_pass() -> None:
    """Each has the bits that it has alone, and as few passes: 16 rows and 48 drafted ones fit."""
    executor = make("bfloat16", "int8", slots=16)
    rng = np.random.default_rng(16)
    names = sorted(DRAWS)
    requests = [
        asked(i, rng.integers(VOCAB, size=3 + 2 * i).tolist(), 40, draw=DRAWS[names[i % 5]])
        for i in range(16)
    ]
    alone = []
    for request in requests:
        plain = run(executor, request)
        right = [*request.token_ids, *tokens(plain, request.slot)]
        executor.script(request.slot, drafts=[0 if i % 9 == 8 else t for i, t in enumerate(right)])
        alone.append((bits(plain, request.slot), passes(run(executor, replace(request, drafts=3)))))
    for drafts in (3, 9, AUTO_DRAFTS):
        got = run(executor, *(replace(request, drafts=drafts) for request in requests))
        for slot, (wanted, alone_passes) in enumerate(alone):
            mine = [event for event in got if event.slot == slot]
            assert bits(mine, slot) == wanted
            assert drafts != 3 or passes(mine) == alone_passes < 20


def test_interrupted_epochs_go_on_with_the_same_bits(executor: CpuExecutor) -> None:
    plain = run(executor, asked(0, budget=80))
    known = [*PROMPT, *tokens(plain)]
    executor.script(0, drafts=[0 if i % 9 == 4 else t for i, t in enumerate(known)])
    executor.truncate(0, 0)
    got: list[TokenEvent] = []
    for turn in range(200):
        length = executor.length(0)
        sequence = [*PROMPT, *tokens(got)]
        rest = asked(
            0,
            sequence[length:],
            80 - len(got),
            drafts=6,
            history=sequence[:length],
            prompt=len(PROMPT),
        )
        executor.start([rest])
        if turn % 2 == 0:
            executor.interrupt()
        got += finish(executor)
        if len(got) == 80:
            break
    executor.script(0)
    assert bits(got) == bits(plain)


def test_copies_and_kept_parts_behind_rejected_drafts(executor: CpuExecutor) -> None:
    """What drafts wrote and was not accepted is in no copy, nor in what is saved."""
    plain = run(executor, asked(0, LONG, budget=100))
    executor.script(0, drafts=[1] * 600)
    first = run(executor, asked(0, LONG, budget=50, drafts=31))
    executor.script(0)
    rest = asked(1, tokens(first)[-1:], budget=50)
    executor.copy(0, 1)
    executor.start([rest])
    assert bits(finish(executor), 1) == bits(plain)[50:]
    kept = executor.save(0, 0, executor.length(0))
    executor.truncate(2, 0)
    executor.restore(2, kept, kept.positions)
    executor.start([replace(rest, slot=2)])
    assert bits(finish(executor), 2) == bits(plain)[50:]


def guide_behind(known: Sequence[int]) -> Guide:
    """A third of the vocabulary, and now and then a run of forced tokens: by what was drawn."""
    state = 17
    for token in known:
        state = (state * 31 + token) % 2**32
    allowed = np.arange(VOCAB) % 3 == state % 3
    mask = np.packbits(np.pad(allowed, (0, -VOCAB % 32)), bitorder="little").view(np.uint32)
    forced = [(state + 5 * i) % VOCAB for i in range(state % 7 if state % 4 == 0 else 0)]
    return Guide(None if len(known) > 70 else mask, tuple(forced))


def run_guided(
    executor: CpuExecutor, *advances: Advance, stop_after: int | None = None
) -> list[TokenEvent]:
    """Run what is asked in empty slots; slot 0 is guided. ``stop_after``: tokens of an epoch."""
    for advance in advances:
        executor.truncate(advance.slot, 0)
    events: list[TokenEvent] = []
    guide, owed = Guide(None), 0  # what is left of the guide said last
    while True:
        known = tokens(events)
        sequence = [*advances[0].token_ids, *known]
        held = executor.length(0)
        rest = replace(
            advances[0],
            token_ids=tuple(sequence[held:]),
            history=sequence[:held],
            budget=advances[0].budget - len(known),
        )
        executor.start([rest, *advances[1:]])
        over, begun = False, len(known)
        if owed:
            left = owed - (guide.mask is not None)
            executor.guide(0, replace(guide, forced=guide.forced[len(guide.forced) - left :]))
        while not over:
            known = tokens(events)
            if (
                not owed
                and len(known) < advances[0].budget
                and (not known or guide.mask is not None)
            ):
                guide = guide_behind(known)
                owed = len(guide.forced) + (guide.mask is not None)
                if not owed:  # nothing may follow
                    executor.interrupt()
                else:
                    executor.guide(0, guide)
            over = executor.read(0.05)
            new = executor.take()
            events += new
            owed -= len(tokens(new))
            if stop_after is not None and len(tokens(events)) - begun >= stop_after:
                executor.interrupt()
        if len(tokens(events)) == advances[0].budget or (guide.mask is None and not owed):
            return events


@pytest.mark.parametrize(
    ("draw", "budget"),
    [("greedy", 60), ("penalised", 90)],
    ids=["ended by its budget", "penalised, ended by its grammar"],
)
def test_drafts_in_a_guided_slot(executor: CpuExecutor, draw: str, budget: int) -> None:
    """Each drafted token is drawn under its own mask, or forced; others have drafts beside it."""
    request = asked(0, draw=DRAWS[draw], guided=True, budget=budget)
    plain, free = run_guided(executor, request), run(executor, asked(1))
    assert len(plain) == 60 if budget == 60 else 70 < len(plain) < 90
    right = [*PROMPT, *tokens(plain)]
    wrong = [(token + 1) % VOCAB for token in right]
    mixed = [w if i % 7 == 0 else r for i, (r, w) in enumerate(zip(right, wrong, strict=True))]
    executor.script(1, drafts=[*PROMPT, *tokens(free, 1)])
    for name, script in (("right", right), ("wrong", wrong), ("mixed", mixed)):
        for drafts in (1, 8, AUTO_DRAFTS):
            executor.script(0, drafts=script)
            for others, stop_after in (((), None), ((asked(1, drafts=9),), None), ((), 4)):
                given = replace(request, drafts=drafts)
                got = run_guided(executor, given, *others, stop_after=stop_after)
                assert bits(got) == bits(plain), (name, drafts, stop_after)
                accepted = sum(e.accepted > 0 for e in got if e.slot == 0)
                assert name != "wrong" or not accepted
                assert (name, drafts, stop_after) != ("right", 8, None) or accepted > 40
                assert bits(got, 1) == (bits(free, 1) if others else [])
    executor.script(0)
    executor.script(1)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.booleans(), min_size=60, max_size=60),
    st.integers(1, 40),
    st.sampled_from(sorted(DRAWS)),
)
def test_any_pattern_of_right_and_wrong_drafts(
    executor: CpuExecutor, pattern: list[bool], drafts: int, draw: str
) -> None:
    request = asked(0, PROMPT, draw=DRAWS[draw])
    plain = run(executor, request)
    answer = [
        t if right else (t + 9) % VOCAB for t, right in zip(tokens(plain), pattern, strict=True)
    ]
    executor.script(0, drafts=[*PROMPT, *answer])
    assert bits(run(executor, replace(request, drafts=drafts))) == bits(plain)
    executor.script(0)


def test_costs_are_known_of_widths_that_were_run(executor: CpuExecutor) -> None:
    run(executor, asked(0))
    executor.script(0, drafts=[1] * 300)
    run(executor, asked(0, drafts=3))
    executor.script(0)
    costs = executor.pass_costs()
    assert costs.keys() >= {1, 4}
    assert all(cost > 0 for cost in costs.values())


def test_what_is_refused(executor: CpuExecutor) -> None:
    executor.truncate(0, 0)
    with pytest.raises(RequestError, match="drafts: expected -1 or more"):
        executor.start([asked(0, drafts=-2)])
    with pytest.raises(RequestError, match="drafts: expected ids from 0 to 71, got 72"):
        executor.script(0, drafts=[72])
    with pytest.raises(RequestError, match="draws: expected ids"):
        executor.script(0, draws=[-1])
    with pytest.raises(RequestError, match="slot"):
        executor.script(3)
