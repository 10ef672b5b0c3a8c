"""Launches as the executor strings them together: batches, stops, slots used again, windows that
wrap, the hand-over from a wide kernel to a narrow one, and the host's wish to end."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from emulation import HostStore
from rig import Ask, MakeRig, Outcome, Rig, random_weights, tiny_config
from tolerance import limits, oracle

from monolane.model import NOW, LayerConfig, ModelConfig, Reduce

CONFIG = tiny_config(layers=(LayerConfig(NOW, NOW, 6), LayerConfig(Reduce(1), Reduce(1))))
PROMPT = (1, 5, 9, 2, 7, 3, 20, 11, 4, 17)


def healthy(outcome: Outcome) -> Outcome:
    assert outcome.healthy, (outcome.error, outcome.fault)
    return outcome


def rows_of(outcome: Outcome, ask: int) -> np.ndarray:
    """The recorded logits of one ask; every ask must record."""
    assert len(outcome.events) == len(outcome.logits)
    return outcome.logits[[i == ask for i, _ in outcome.events]]


@pytest.fixture(scope="module")
def rig(make_rig: MakeRig) -> Rig:
    return make_rig(random_weights(CONFIG), workers=4, widths=(8, 3, 1), slots=6)


# ---- what ends a sequence ----------------------------------------------------------------------
def test_stop_ids_end_a_sequence(rig: Rig) -> None:
    rig.forget()
    ask = Ask(tokens=PROMPT, budget=12, temperature=1.0, seed=2)
    free = healthy(rig.launch(ask)).tokens()
    assert len(free) == 12
    stop = next(t for i, t in enumerate(free) if i >= 3 and t not in free[:i])
    count = free.index(stop) + 1
    unseen = next(t for t in range(CONFIG.vocab_size) if t not in free)
    for width in rig.layouts:
        rig.forget()
        outcome = healthy(rig.launch(replace(ask, stops=(unseen, stop)), width=width))
        assert outcome.tokens() == free[:count]
        assert rig.lengths[0] == len(PROMPT) + count - 1  # the last one is not fed
        assert outcome.progress["done"].tolist() == [1]
        assert outcome.epoch["over"] == 1


def test_budgets_of_a_batch(rig: Rig) -> None:
    rig.forget()
    budgets = (1, 7, 3, 2)
    asks = [Ask(tokens=PROMPT[: 3 + i], slot=i, budget=n) for i, n in enumerate(budgets)]
    outcome = healthy(rig.launch(*asks))
    assert [len(outcome.tokens(i)) for i in range(4)] == list(budgets)
    assert rig.lengths[:4] == [3 + i + n - 1 for i, n in enumerate(budgets)]


# ---- batches -----------------------------------------------------------------------------------
BATCH = (
    Ask(tokens=PROMPT[:1], slot=3, budget=14, record_logits=True),
    Ask(tokens=PROMPT, slot=1, budget=9, record_logits=True, temperature=1.0, seed=3),
    Ask(tokens=PROMPT * 2, slot=0, budget=1, record_logits=True),  # in its prompt while others draw
    Ask(tokens=PROMPT[2:], slot=5, budget=6, record_logits=True, temperature=1.5, top_k=9, seed=4),
)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_batch_gives_each_sequence_what_it_gets_alone(rig: Rig, count: int) -> None:
    alone = []
    for ask in BATCH[:count]:
        rig.forget()
        alone.append(healthy(rig.launch(ask, width=1)))
    for width in (8, 3) if count <= 3 else (8,):
        rig.forget()
        rig.poison_cache()
        both = healthy(rig.launch(*BATCH[:count], width=width, seed=width))
        for i, one in enumerate(alone):
            assert both.tokens(i) == one.tokens()
            assert rows_of(both, i).tobytes() == one.logits.tobytes()


def test_slots_are_used_again(rig: Rig) -> None:
    """What other sequences left, NaNs even, is never looked at."""
    rig.forget()
    ask = Ask(tokens=PROMPT, budget=9, record_logits=True)
    fresh = healthy(rig.launch(ask))
    for seed, fill in enumerate((healthy, None)):
        rig.forget()
        if fill:
            healthy(rig.launch(Ask(tokens=PROMPT[::-1] * 3, budget=20, temperature=1.0)))
            healthy(rig.launch(Ask(tokens=PROMPT[::-1] * 2, budget=9, slot=1), width=1))
        else:
            rig.poison_cache()
        rig.lengths = [0] * rig.slots  # as the executor truncates
        again = healthy(rig.launch(ask, seed=seed, width=3))
        assert again.tokens() == fresh.tokens()
        assert again.logits.tobytes() == fresh.logits.tobytes()


def test_taking_tokens_back(rig: Rig) -> None:
    """A sequence continues from any of its lengths, over what was there."""
    rig.forget()
    first = healthy(rig.launch(Ask(tokens=PROMPT, all_logits=True), width=1)).logits
    for length in (9, 4, 7):
        healthy(rig.launch(Ask(tokens=PROMPT[:3], budget=3)))
        rig.lengths[0] = length
        again = healthy(rig.launch(Ask(tokens=PROMPT[length:], all_logits=True))).logits
        assert again.tobytes() == first[length:].tobytes()


# ---- long sequences ----------------------------------------------------------------------------
def long_config(**changes: Any) -> ModelConfig:
    layers = (LayerConfig(NOW, NOW, 5), LayerConfig(NOW, NOW, 20), LayerConfig(NOW, NOW))
    return tiny_config(layers=layers, max_positions=320, **changes)


def test_windows_wrap_the_cache_several_times(make_rig: MakeRig) -> None:
    """Three splits of a lane's KV head; 300 positions in caches of 80 and 96."""
    config = long_config(hidden_size=18)
    rig = make_rig(random_weights(config), workers=6, widths=(8, 1))
    capacities = [layer.capacity for layer in rig.layout.layers]
    assert 3 * capacities[0] < 300
    assert 3 * capacities[1] < 300 < capacities[2]
    ids = np.random.default_rng(2).integers(config.vocab_size, size=300).tolist()
    rig.poison_cache()
    got = healthy(rig.launch(Ask(tokens=ids, all_logits=True))).logits
    difference = np.abs(got - oracle(rig.weights, ids)).max(axis=1)
    assert (difference < limits(rig.weights, ids, "bfloat16")).all()
    # Token by token over the last wrap, where the wide passes had written.
    rig.lengths[0] = 280
    tail = healthy(rig.launch(Ask(tokens=ids[280:], all_logits=True), width=1)).logits
    assert tail.tobytes() == got[280:].tobytes()


@pytest.mark.parametrize("width", [8, 1])
def test_the_context_is_used_to_its_last_position(make_rig: MakeRig, width: int) -> None:
    config = tiny_config(max_positions=48)
    rig = make_rig(random_weights(config), workers=4, widths=(width,), context=41)
    prompt = np.random.default_rng(5).integers(config.vocab_size, size=30).tolist()
    before = rig.memory["cache"].reshape(2, -1)[1].copy()
    # The last token drawn takes position 41, where nothing is; it is not fed.
    outcome = healthy(rig.launch(Ask(tokens=prompt, budget=12, record_logits=True)))
    assert rig.lengths[0] == 41
    text = prompt + outcome.tokens()[:-1]
    difference = np.abs(outcome.logits - oracle(rig.weights, text)[29:]).max(axis=1)
    assert (difference < limits(rig.weights, text, "bfloat16")[29:]).all()
    assert (rig.memory["cache"].reshape(2, -1)[1] == before).all(), "the next slot's cache"


# ---- from launch to launch ---------------------------------------------------------------------
def test_a_wide_kernel_hands_over_to_a_narrow_one(rig: Rig) -> None:
    rig.forget()
    ask = Ask(tokens=PROMPT, budget=9, record_logits=True, temperature=1.0, seed=1)
    whole = healthy(rig.launch(ask))
    assert whole.epoch["over"] == 1
    for wide in (8, 3):
        rig.forget()
        first = healthy(rig.launch(ask, width=wide, handover=1))
        # Ten tokens are 8 + 2, and one that is drawn; or 3 + 3 + 3 and one that is left.
        assert len(first.events) == (1 if wide == 8 else 0)
        assert first.epoch["over"] == 0
        second = healthy(rig.launch(ask, width=1, after=first))
        assert second.events == whole.events
        assert second.logits.tobytes() == whole.logits.tobytes()
        assert second.epoch["over"] == 1
        assert rig.lengths[0] == len(PROMPT) + 8
        assert second.epoch["pass_number"] == whole.epoch["pass_number"] + (wide == 3) * 2


def test_nothing_to_do_is_handed_on(rig: Rig) -> None:
    """A launch that finds its work done, or too little of it, leaves things as they were."""
    rig.forget()
    ask = Ask(tokens=PROMPT[:1], budget=2)
    untouched = healthy(rig.launch(ask, handover=1))
    assert untouched.events == ()
    assert untouched.epoch["over"] == 0
    done = healthy(rig.launch(ask, width=1, after=untouched))
    assert len(done.events) == 2
    again = healthy(rig.launch(ask, width=1, after=done))
    assert again.events == done.events
    assert again.epoch == done.epoch


def test_the_host_asks_for_the_end_beforehand(rig: Rig) -> None:
    for width in rig.layouts:
        rig.forget()
        rig.memory["control"][0] = 1
        outcome = healthy(rig.launch(Ask(tokens=PROMPT[:1], budget=9), width=width))
        assert len(outcome.events) == 1, "the pass that was begun is the last"
        assert outcome.epoch["over"] == 1
        assert outcome.progress["done"].tolist() == [0]


@pytest.mark.parametrize("seed", range(3))
def test_the_host_asks_for_the_end_meanwhile(rig: Rig, seed: int) -> None:
    """All blocks leave after the same pass, and the rest can be asked for."""
    rig.forget()
    ask = Ask(tokens=PROMPT, budget=20, temperature=1.0, seed=6, record_logits=True)
    whole = healthy(rig.launch(ask, width=3, seed=seed))
    control = rig.memory["control"].ctypes.data
    counts = []
    for part in (0.2, 0.35, 0.5, 0.65):
        rig.forget()
        store = HostStore(int(part * whole.effort.ticks), control, 1)
        cut = healthy(rig.launch(ask, width=3, seed=seed, stores=[store]))
        assert cut.epoch["over"] == 1
        assert cut.tokens() == whole.tokens()[: len(cut.events)]
        counts.append(len(cut.events))
        left = 20 - len(cut.events)
        rig.memory["control"][0] = 0
        if not cut.events or not left:
            continue
        rest = Ask(tokens=cut.tokens()[-1:], budget=left, temperature=1.0, seed=6)
        assert healthy(rig.launch(rest, width=1)).tokens() == whole.tokens()[-left:]
    assert counts[0] < counts[-1]
    assert counts[0] < 20


def test_stamps_near_their_end(rig: Rig) -> None:
    """Up to the last stamp but one that 32 bits hold: the executor clears the words before."""
    rig.forget()
    ask = Ask(tokens=PROMPT, budget=6, record_logits=True)
    low = healthy(rig.launch(ask))
    rig.forget()
    passes = int(low.epoch["pass_number"])
    rig.passes = 2**32 // (2 * CONFIG.num_layers + 2) - passes
    high = healthy(rig.launch(ask))
    assert high.events == low.events
    assert high.logits.tobytes() == low.logits.tobytes()
