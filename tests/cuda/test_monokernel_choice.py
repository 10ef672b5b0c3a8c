"""Every drawn token is the one that the definition draws from the logits that the kernel had."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rig import Ask, MakeRig, Outcome, Rig, random_weights, tiny_config

from monolane.cuda._kernel_header import BROKEN_TOKEN
from monolane.executor_api import Draw
from monolane.model import NOW, LayerConfig, Role, Weights
from monolane.reference import choose

VOCAB = 90  # four blocks of 22 or 23 rows
PROMPT = (3, 50, 7, 81, 22)
CONFIG = tiny_config(vocab_size=VOCAB, layers=(LayerConfig(NOW, NOW),), max_positions=128)

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.05},
    "hot": {"temperature": 30.0},
    "top-k": {"temperature": 1.0, "top_k": 5},
    "top-k 1": {"temperature": 2.0, "top_k": 1},
    "top-k of all": {"temperature": 1.0, "top_k": VOCAB},
    "top-k beyond all": {"temperature": 1.0, "top_k": 1000},
    "top-p": {"temperature": 1.0, "top_p": 0.5},
    "top-p, hardly any": {"temperature": 1.0, "top_p": 1e-6},
    "top-p, nearly all": {"temperature": 3.0, "top_p": 0.999},
    "min-p": {"temperature": 1.0, "min_p": 0.2},
    "min-p 1": {"temperature": 1.0, "min_p": 1.0},
    "top-k and top-p": {"temperature": 1.5, "top_k": 20, "top_p": 0.7},
    "top-p and min-p": {"temperature": 1.5, "top_p": 0.8, "min_p": 0.05},
    "all three": {"temperature": 2.0, "top_k": 30, "top_p": 0.9, "min_p": 0.1},
}
SEEDS = (0, 1, 0xFEDC_BA98_7654_3210)


# The same under biases: a ban among them, and a token that outweighs all others.
BIASES = ((0, -2.5), (3, 1.25), (22, -np.inf), (44, 0.5), (45, -100.0), (67, 2.0), (89, 1.0))


def check(asks: list[Ask], outcome: Outcome) -> None:
    """That each token follows from its row of logits; all asks must record."""
    assert outcome.healthy, (outcome.error, outcome.fault)
    assert len(outcome.events) == len(outcome.logits) == sum(ask.budget for ask in asks)
    drawn = [0] * len(asks)
    for (i, token), logits in zip(outcome.events, outcome.logits, strict=True):
        ask = asks[i]
        position = len(ask.tokens) + drawn[i]
        drawn[i] += 1
        draw = Draw(
            temperature=ask.temperature,
            top_k=ask.top_k,
            top_p=float(np.float32(ask.top_p)),
            min_p=float(np.float32(ask.min_p)),
            seed=ask.seed,
            logit_bias=ask.logit_bias,
        )
        wanted = choose(logits, draw, position, ask.mask)
        assert token == wanted, (ask, position)


def make_asks(seed: int, names: list[str], budget: int) -> list[Ask]:
    return [
        Ask(tokens=PROMPT, slot=i, budget=budget, seed=seed, record_logits=True, **SETTINGS[name])
        for i, name in enumerate(names)
    ]


@pytest.fixture(scope="module")
def rig(make_rig: MakeRig) -> Rig:
    return make_rig(random_weights(CONFIG), workers=4, widths=(8,), slots=8)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("half", [0, 1])
def test_draws(rig: Rig, half: int, seed: int) -> None:
    rig.forget()
    asks = make_asks(seed, list(SETTINGS)[half::2], 60)
    check(asks, rig.launch(*asks, seed=half))


@pytest.mark.parametrize("half", [0, 1])
def test_biased_draws(rig: Rig, half: int) -> None:
    rig.forget()
    asks = [replace(x, logit_bias=BIASES) for x in make_asks(half, list(SETTINGS)[half::2], 30)]
    asks[0] = replace(asks[0], logit_bias=((17, 100.0),))
    nothing = tuple((token, -np.inf) for token in range(VOCAB))  # is left
    asks = [replace(x, logit_bias=nothing) if i in (1, 2, 4, 6) else x for i, x in enumerate(asks)]
    outcome = rig.launch(*asks, seed=half)
    check(asks, outcome)
    assert outcome.tokens(0) == [17] * 30
    assert all(outcome.tokens(i) == [0] * 30 for i in (1, 2, 4, 6))
    drawn = {token for i in (3, 5, 7) for token in outcome.tokens(i)}
    assert not drawn & {22, 45}
    assert len(drawn) > 5


def mask_of(*tokens: int) -> Any:
    mask = np.zeros(-(-VOCAB // 32), np.uint32)
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask


@pytest.mark.parametrize("seed", range(6))
def test_masked_draws(rig: Rig, seed: int) -> None:
    """Limits count what the mask allows, a ban yields to it, and the last word's bits count."""
    rig.forget()
    rng = np.random.default_rng(seed)
    names = rng.permutation(list(SETTINGS))[:8].tolist()
    asks = [
        replace(
            ask,
            guided=True,
            mask=mask_of(*rng.integers(VOCAB, size=rng.integers(1, 40)).tolist(), 88),
            logit_bias=BIASES if i % 2 else (),
        )
        for i, ask in enumerate(make_asks(seed, names, 1))
    ]
    banned = tuple((token, -np.inf) for token in (31, 64, 71))
    asks[0] = replace(asks[0], mask=mask_of(71, 64), logit_bias=banned)
    outcome = rig.launch(*asks, seed=seed)
    check(asks, outcome)
    assert outcome.tokens(0) == [64]


@pytest.mark.parametrize("seed", range(3))
def test_a_row_whose_guide_is_late_is_given_back(rig: Rig, seed: int) -> None:
    """As if its pass had not been: the others draw on, and it goes on where it was."""
    free, late, told = make_asks(seed, ["plain", "greedy", "top-k"], 6)
    rig.forget()
    alone = [rig.launch(free).tokens(), rig.launch(replace(late, budget=1)).tokens()]
    rig.forget()
    late, told = replace(late, guided=True), replace(told, guided=True, mask=mask_of(5, 81))
    outcome = rig.launch(free, late, told, seed=seed)
    assert outcome.healthy, (outcome.error, outcome.fault)
    assert outcome.tokens(0) == alone[0]
    assert outcome.tokens(1) == []
    assert len(outcome.tokens(2)) == 1, "its second guide never comes"
    assert outcome.tokens(2)[0] in (5, 81)
    assert rig.lengths[:3] == [len(PROMPT) + 5, len(PROMPT) - 1, len(PROMPT)]
    assert outcome.progress["done"].tolist() == [1, 1, 1]
    assert len(outcome.logits) == 7, "a row that is given back leaves no logits"
    again = replace(late, tokens=PROMPT[-1:], budget=1, mask=mask_of(*range(VOCAB)))
    assert rig.launch(again, seed=seed).tokens() == alone[1]


def test_settings_change_what_is_drawn(rig: Rig) -> None:
    """That the draws above do not all agree for want of a difference."""
    rig.forget()
    asks = make_asks(5, list(SETTINGS)[:8], 12)
    outcome = rig.launch(*asks)
    check(asks, outcome)
    assert len({tuple(outcome.tokens(i)) for i in range(len(asks))}) >= 4


def with_ties(weights: Weights, every: int) -> Weights:
    """The same model whose head has so few different rows that many logits are equal."""
    head = weights.outer[Role.HEAD].copy()  # [L, V / L, D]
    head[...] = head[:1, np.arange(head.shape[1]) % every]
    return replace(weights, outer={**weights.outer, Role.HEAD: head})


@pytest.mark.parametrize("every", [1, 7])
def test_ties(make_rig: MakeRig, every: int) -> None:
    """Equal logits, within a block and across blocks: the lowest ids come first at every limit."""
    config = replace(CONFIG, num_lanes=1, num_heads=2, num_kv_heads=1)
    rig = make_rig(with_ties(random_weights(config), every), workers=4, widths=(8,), slots=8)
    limits: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_k": 11},
        {"temperature": 1.0, "top_p": 0.25},
        {"temperature": 1.0, "top_p": 0.6, "top_k": 40},
        {"temperature": 1.0, "min_p": 1.0},
        {"temperature": 1.0, "min_p": 0.5, "top_k": 17},
        {"temperature": 1.0, "top_p": 1e-9},
    ]
    for seed in range(2):
        rig.forget()
        asks = [
            Ask(tokens=PROMPT, slot=i, budget=8, seed=seed, record_logits=True, **limit)
            for i, limit in enumerate(limits)
        ]
        outcome = rig.launch(*asks, seed=seed)
        check(asks, outcome)
        assert max(np.unique(row).size for row in outcome.logits) <= every
        assert outcome.tokens(0) == [int(row.argmax()) for row in _rows_of(outcome, 0)]


def _rows_of(outcome: Outcome, ask: int) -> list[Any]:
    return [row for (i, _), row in zip(outcome.events, outcome.logits, strict=True) if i == ask]


def test_a_draw_depends_on_seed_and_position_alone(make_rig: MakeRig) -> None:
    """The same prompt in another slot, pass width and company gives the same text."""
    rig = make_rig(random_weights(CONFIG), workers=4, widths=(8, 1), slots=8)
    ask = Ask(tokens=PROMPT, budget=10, seed=9, temperature=1.2, top_p=0.9)
    alone = rig.launch(ask, width=1).tokens()
    rig.forget()
    others = make_asks(4, list(SETTINGS)[4:10], 6)
    beside = rig.launch(*others, replace(ask, slot=7), seed=3)
    assert beside.tokens(len(others)) == alone
    rig.forget()
    assert rig.launch(replace(ask, seed=10)).tokens() != alone


def test_not_a_number_ends_each_sequence(make_rig: MakeRig) -> None:
    """Weights that overflow to infinities and NaNs give no token, and no hang."""
    weights = random_weights(CONFIG)
    outer = {**weights.outer, Role.FINAL_NORM: weights.outer[Role.FINAL_NORM] * np.nan}
    rig = make_rig(replace(weights, outer=outer), workers=4, widths=(8,), slots=8)
    asks = make_asks(1, list(SETTINGS)[::2], 3)
    outcome = rig.launch(*asks)
    assert outcome.healthy, (outcome.error, outcome.fault)
    assert outcome.events == tuple((i, BROKEN_TOKEN) for i in range(len(asks)))
