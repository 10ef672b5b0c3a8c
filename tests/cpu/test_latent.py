"""Latent attention, chosen groups of experts and what tokens share, in the native executor."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from random_weights import weights_of

from monolane.cpu import CpuExecutor
from monolane.errors import BackendError, ConfigError
from monolane.executor_api import Advance
from monolane.model import (
    NOW,
    Experts,
    Head,
    Latent,
    LayerConfig,
    ModelConfig,
    Role,
    Rotary,
    Temperature,
    Weights,
    YarnScaling,
    in_lanes,
)
from monolane.ops.experts.reference import choose_experts
from monolane.plan import PhaseKind, build, cpu, pass_cost, phase_cost
from monolane.reference import ReferenceModel

VOCAB, TOKENS = 61, 300  # beyond one pass, and beyond one chunk of keys
DENSE, MIXTURE = LayerConfig(NOW, NOW), LayerConfig(NOW, NOW, experts=True)
IDS = np.random.default_rng(1).integers(VOCAB, size=TOKENS)
GROUPED = Experts(
    *(12, 4, 26, True),
    scores="sigmoid",
    corrected=True,
    groups=4,
    chosen_groups=2,
    group_best=2,
    scale=2.5,
    shared=30,
)


def config_of(latent: Latent, experts: Experts, **changes: Any) -> ModelConfig:
    sizes: dict[str, Any] = {
        "family": "deepseek_v3",
        "hidden_size": 40,
        "intermediate_size": 44,
        "num_heads": 6,
        "num_kv_heads": 6,
        "head_dim": latent.head,
        "vocab_size": VOCAB,
        "max_positions": 400,
        "num_lanes": 1,
        "layers": (DENSE, MIXTURE, MIXTURE),
        "head": Head.VOCAB_PARALLEL,
        "rotary": Rotary(theta=100.0, scaling=YarnScaling(4.0, 64, 1.1)),
        "latent": latent,
        "experts": experts,
    }
    return ModelConfig(**sizes | changes)


ODD = Latent(rank=18, query_rank=22, plain=10, turned=6, value=14)
EVEN = Latent(rank=64, query_rank=32, plain=32, turned=32, value=32)  # that codes fit into
CASES = {
    "grouped": config_of(ODD, GROUPED),
    "queries of the stream, one group, nothing shared": config_of(
        replace(ODD, query_rank=None, value=19),
        Experts(7, 3, 26, False, scores="sigmoid", corrected=True, scale=1.5),
    ),
    "groups by logits, sinks, a window, no norm before": config_of(
        replace(ODD, query_rank=None),
        Experts(8, 2, 26, False, groups=4, chosen_groups=2, shared=52),
        attention_sinks=True,
        out_bias=True,
        norm_before=False,
        norm_after=True,
        norm_offset=1.0,
        rotary=Rotary(style="half"),
        layers=(replace(DENSE, window=24), replace(MIXTURE, rotary="none"), MIXTURE),
    ),
    "queries that grow": config_of(
        ODD,
        Experts(7, 3, 26, True, shared=26),
        attention_temperature=Temperature(0.3, 40),
    ),
    "whole groups of numbers": config_of(
        EVEN,
        replace(GROUPED, inner=32, shared=64),
        hidden_size=64,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=4,
    ),
}


def load(weights: Weights, workers: int, dtype: str = "auto", **options: Any) -> CpuExecutor:
    options = {"context": 400, "slots": 1} | options
    return CpuExecutor(weights, dtype, workers=workers, **options)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_the_oracle_s_whatever_the_workers(case: str) -> None:
    weights = weights_of(CASES[case])
    model = ReferenceModel(weights)
    wanted = model.forward(IDS, model.new_cache())
    assert wanted.std() > 0.3  # logits near zero would agree whatever the model did
    for workers in (1, 2, 3, 13):
        found = load(weights, workers, "float32").logits(0, IDS.tolist())
        assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max(), workers


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_depend_on_nothing_but_the_tokens(case: str, dtype: str) -> None:
    """In passes of any width, one by one, rolled back, copied, saved and restored."""
    weights = weights_of(CASES[case], ml_dtypes.bfloat16)
    executor = load(weights, 2, dtype, slots=3)
    ids = IDS.tolist()
    logits = executor.logits(0, ids)
    executor.truncate(0, 0)
    for begin, end in ((0, 3), (3, 70), *((i, i + 1) for i in range(70, 100)), (100, TOKENS)):
        np.testing.assert_array_equal(executor.logits(0, ids[begin:end]), logits[begin:end])
    executor.truncate(0, 290)
    executor.logits(0, ids[:5])  # drafts that are rejected
    executor.truncate(0, 290)
    executor.copy(0, 1)
    executor.restore(2, executor.save(0, 0, 290), 290)
    for slot in (0, 1, 2):
        np.testing.assert_array_equal(executor.logits(slot, ids[290:]), logits[290:])


def test_a_greedy_answer_is_the_oracle_s() -> None:
    weights = weights_of(CASES["grouped"])
    executor = load(weights, 2, "float32")
    executor.start([Advance(slot=0, token_ids=tuple(IDS[:20].tolist()), budget=30)])
    while not executor.read(0.1):
        pass
    drawn = [event.token_id for event in executor.take()]
    model = ReferenceModel(weights)
    logits = model.forward([*IDS[:20], *drawn], model.new_cache())
    assert logits[19:-1].argmax(-1).tolist() == drawn


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_latents_and_what_is_shared_in_codes(dtype: str) -> None:
    weights = weights_of(CASES["whole groups of numbers"])
    model = ReferenceModel(weights)
    wanted = model.forward(IDS, model.new_cache())
    found = load(weights, 2, dtype, cache_dtype="int8").logits(0, IDS.tolist())
    # Choices may differ where they nearly tie, so this says only that nothing is read amiss.
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > (0.98 if dtype == "int8" else 0.85)


def test_a_cache_holds_one_latent_a_token() -> None:
    config = CASES["grouped"]
    executor = load(weights_of(config), 2, "float32", context=256)
    assert executor.cache_bytes == 3 * 256 * (18 + 6) * 4
    with pytest.raises(ConfigError, match="cache: expected heads whose width is a multiple of 32"):
        load(weights_of(config), 2, "float32", cache_dtype="int8")


def test_a_plan_costs_what_is_read() -> None:
    config = CASES["grouped"]
    plan = build(config, cpu(2), "bfloat16")
    attend = phase_cost(plan, plan.find(PhaseKind.ATTEND, 1), length=100)
    assert attend.bytes == 100 * (18 + 6) * 2
    assert attend.operations == 2 * 100 * 6 * (18 + 6 + 18)  # scores, and sums of latents
    attention = 22 * 40 + 6 * 16 * 22 + 24 * 40 + 6 * (10 + 14) * 18 + 40 * 6 * 14
    mixture = 12 * 40 + 3 * 40 * (4 * 26 + 30)
    weights = 3 * attention + 3 * 40 * 44 + 2 * mixture + VOCAB * 40
    assert pass_cost(plan, length=100).bytes == 2 * weights + 3 * attend.bytes


def test_of_equal_scores_the_first_win_in_groups_and_among_them() -> None:
    """All scores tie: groups 0 and 1, and of them the first four, whatever runs it."""
    config = CASES["grouped"]
    assert config.experts is not None
    weights_TE = choose_experts(np.zeros((1, 12), np.float32), config.experts)
    np.testing.assert_array_equal(np.flatnonzero(weights_TE), [0, 1, 2, 3])
    np.testing.assert_allclose(weights_TE[0, :4], 2.5 / 4, rtol=1e-6)
    # The correction chooses, and weighs nothing: group 3 by two of its experts, then group 1.
    correction = np.zeros(12, np.float32)
    correction[[4, 9, 11]] = 0.3, 0.2, 0.2
    weights_TE = choose_experts(np.zeros((1, 12), np.float32), config.experts, correction)
    np.testing.assert_array_equal(np.flatnonzero(weights_TE), [3, 4, 9, 11])
    np.testing.assert_allclose(weights_TE[weights_TE > 0], 2.5 / 4, rtol=1e-6)


@pytest.mark.parametrize("tied", ["router", "correction", "both"])
def test_tied_experts_are_the_oracle_s(tied: str) -> None:
    weights = weights_of(CASES["grouped"])
    for layer in weights.layers[1:]:
        if tied != "correction":
            layer[Role.ROUTER][:] = 0
        if tied != "router":
            layer[Role.ROUTER_CORRECTION][:] = 0
    model = ReferenceModel(weights)
    wanted = model.forward(IDS[:40], model.new_cache())
    found = load(weights, 2, "float32").logits(0, IDS[:40].tolist())
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_what_the_kernels_do_not_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="latent: expected one lane"):
        in_lanes(CASES["grouped"], 2)
    wide = config_of(replace(ODD, rank=1020), GROUPED)
    with pytest.raises(BackendError, match="latent: the CPU backend holds keys of at most 1024"):
        load(weights_of(wide), 1)
