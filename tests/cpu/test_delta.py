"""Gated delta rules and gated attention in the native executor: states go forward, bits stay."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from random_weights import weights_of

from monolane.cpu import CpuExecutor
from monolane.errors import BackendError, ConfigError, RequestError
from monolane.executor_api import Advance, KeptBytes
from monolane.model import (
    NOW,
    Delta,
    Experts,
    Head,
    LayerConfig,
    ModelConfig,
    QkNorm,
    Rotary,
    Temperature,
    Weights,
    in_lanes,
)
from monolane.plan import PhaseKind, build, cpu, phase_cost
from monolane.reference import ReferenceExecutor, ReferenceModel

VOCAB, TOKENS = 72, 300  # beyond one pass, and beyond one chunk of keys
ATTENDS, STATES = LayerConfig(NOW, NOW), LayerConfig(NOW, NOW, delta=True)
IDS = np.random.default_rng(1).integers(VOCAB, size=TOKENS)
ODD = Delta(key_heads=3, value_heads=9, key=10, value=13, kernel=4)


def config_of(**changes: Any) -> ModelConfig:
    sizes: dict[str, Any] = {
        "family": "qwen3_next",
        "hidden_size": 40,
        "intermediate_size": 44,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 14,
        "vocab_size": VOCAB,
        "max_positions": 600,
        "num_lanes": 1,
        "layers": (STATES, ATTENDS, STATES),
        "head": Head.VOCAB_PARALLEL,
        "rotary": Rotary(theta=100.0, style="half", part=0.3),
        "norm_offset": 1.0,
        "qk_norm": QkNorm.HEAD,
        "attention_gate": True,
        "delta": ODD,
    }
    return ModelConfig(**sizes | changes)


CASES = {
    "odd": config_of(),
    "wide values, one key head, no kernel, a window, mixtures": config_of(
        delta=Delta(key_heads=1, value_heads=2, key=5, value=77, kernel=1),
        experts=Experts(5, 2, 26, True, shared=30, shared_expert_gate=True),
        layers=(
            replace(ATTENDS, window=24),
            replace(STATES, experts=True),
            replace(ATTENDS, experts=True, rotary="none"),
        ),
        rotary=Rotary(theta=100.0, part=0.6),
        qk_norm=None,
    ),
    "nothing attends, no norm before": config_of(
        layers=(STATES, STATES),
        attention_gate=False,
        norm_before=False,
        norm_after=True,
        norm_eps=0.01,  # of 1e-5, what a state says of nearly nothing magnifies the last bits
        delta=Delta(key_heads=7, value_heads=7, key=4, value=32, kernel=9),
    ),
    "tiled, norms behind the rotary, growing queries, capped scores": config_of(
        delta=replace(ODD, tiled=True),
        norm_turned=True,
        attention_temperature=Temperature(0.3, 16),
        score_cap=2.0,
    ),
    "whole groups of numbers": config_of(
        hidden_size=64,
        intermediate_size=96,
        num_heads=4,
        head_dim=32,
        rotary=Rotary(style="half", part=0.25),
        delta=Delta(key_heads=2, value_heads=4, key=32, value=32, kernel=4),
    ),
}


def load(weights: Weights, workers: int, dtype: str = "auto", **options: Any) -> CpuExecutor:
    options = {"context": 600, "slots": 1} | options
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
    """In passes of any width, one by one, copied, saved and restored, with other workers."""
    weights = weights_of(CASES[case], ml_dtypes.bfloat16)
    executor = load(weights, 2, dtype, slots=3)
    ids = IDS.tolist()
    logits = executor.logits(0, ids)
    executor.truncate(0, 0)
    cuts = [0, 3, 70, *range(71, 100), 290]
    for begin, end in pairwise(cuts):
        np.testing.assert_array_equal(executor.logits(0, ids[begin:end]), logits[begin:end])
    executor.copy(0, 1)
    executor.restore(2, executor.save(0, 0, 290), 290)
    executor.logits(0, ids[:5])  # what was copied and saved is not the slot's
    for slot in (1, 2):
        np.testing.assert_array_equal(executor.logits(slot, ids[290:]), logits[290:])
    alone = load(weights, 1, dtype).logits(0, ids)
    np.testing.assert_array_equal(alone, logits)


def test_a_prefix_in_several_parts() -> None:
    executor = load(weights_of(CASES["odd"]), 2, "float32", slots=2)
    logits = executor.logits(0, IDS.tolist())
    executor.truncate(0, 0)
    parts = []
    for begin, end in ((0, 64), (64, 65), (65, 200)):
        executor.logits(0, IDS[begin:end].tolist())
        parts.append(executor.save(0, begin, end))
    for part in parts:
        executor.restore(1, part, part.positions)
    np.testing.assert_array_equal(executor.logits(1, IDS[200:].tolist()), logits[200:])


def test_states_go_back_to_the_beginning_or_not_at_all() -> None:
    weights = weights_of(CASES["odd"])
    for executor in (load(weights, 2, "float32"), ReferenceExecutor(weights, context=9, slots=1)):
        logits = executor.logits(0, IDS[:6].tolist())
        executor.truncate(0, 6)
        with pytest.raises(RequestError, match="length: .*expected 0 or .*6.*, got 5"):
            executor.truncate(0, 5)
        assert executor.save(0, 0, 5).tail_nbytes is None
        executor.truncate(0, 0)
        np.testing.assert_array_equal(executor.logits(0, IDS[:6].tolist()), logits)


def test_a_part_without_states_does_not_go_on() -> None:
    weights = weights_of(CASES["odd"])
    native = load(weights, 2, "float32", slots=2)
    for executor in (native, ReferenceExecutor(weights, context=100, slots=2)):
        executor.logits(0, IDS[:90].tolist())
        kept = executor.save(0, 0, 90)
        assert isinstance(kept, KeptBytes)
        assert kept.tail is not None
        executor.restore(1, kept, 40)
        assert executor.save(1, 0, 40).tail_nbytes is None
        with pytest.raises(RequestError, match="restore: expected the last part with its tail"):
            executor.logits(1, IDS[40:50].tolist())
        executor.truncate(1, 0)
        if executor is native:
            for tail in (kept.tail[:-4], kept.tail[: kept.tail.size // 2]):
                with pytest.raises(RequestError, match="restore: expected what save returned"):
                    executor.restore(1, replace(kept, tail=tail), 90)
        executor.restore(1, kept, 90)
        assert executor.logits(1, IDS[90:91].tolist()).shape == (1, VOCAB)


def draw(executor: CpuExecutor, *prompts: list[int]) -> list[list[int]]:
    """Return 30 tokens behind each prompt, in slots of their own, all at once."""
    advances = [Advance(slot=i, token_ids=tuple(x), budget=30) for i, x in enumerate(prompts)]
    executor.start(advances[::-1])  # the last one fills passes first
    while not executor.read(0.1):
        pass
    events = executor.take()
    for i in range(len(prompts)):
        executor.truncate(i, 0)
    return [[event.token_id for event in events if event.slot == i] for i in range(len(prompts))]


def test_a_prompt_waits_while_another_fills_passes() -> None:
    executor = load(weights_of(CASES["odd"]), 2, "float32", slots=2)
    prompts = IDS[:150].tolist(), IDS[150:].tolist()
    alone = [draw(executor, prompt)[0] for prompt in prompts]
    assert draw(executor, *prompts) == alone


def test_a_greedy_answer_is_the_oracle_s() -> None:
    weights = weights_of(CASES["odd"])
    (drawn,) = draw(load(weights, 2, "float32"), IDS[:20].tolist())
    model = ReferenceModel(weights)
    logits = model.forward([*IDS[:20], *drawn], model.new_cache())
    assert logits[19:-1].argmax(-1).tolist() == drawn


def test_what_the_oracle_saved_goes_on() -> None:
    weights = weights_of(CASES["odd"])
    executor = ReferenceExecutor(weights, context=20, slots=2)
    executor.logits(0, IDS[:9].tolist())
    executor.restore(1, executor.save(0, 0, 9), 9)
    rest = [executor.logits(slot, IDS[9:12].tolist()) for slot in (0, 1)]
    np.testing.assert_array_equal(*rest)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_codes(dtype: str) -> None:
    weights = weights_of(CASES["whole groups of numbers"])
    model = ReferenceModel(weights)
    wanted = model.forward(IDS, model.new_cache())
    found = load(weights, 2, dtype, cache_dtype="int8").logits(0, IDS.tolist())
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > (0.98 if dtype == "int8" else 0.85)


def test_a_sequence_takes_keys_of_layers_that_attend_and_states_of_the_others() -> None:
    executor = load(weights_of(CASES["odd"]), 2, "float32", context=256)
    keys = 2 * 256 * 2 * 14  # of one layer
    inputs = (3 + 64) * (2 * 10 + 3 * 13 + 2 * 3)  # of a key head, those of a whole pass put off
    assert executor.cache_bytes == 4 * (keys + 2 * 3 * (3 * 10 * 13 + inputs))
    position = 4 * 2 * 2 * 14
    tail = 4 * 2 * 3 * (3 * 10 * 13 + 3 * (2 * 10 + 3 * 13 + 2 * 3))
    assert executor.tail_positions == -(-tail // position)


def test_a_plan_costs_what_is_read_and_written() -> None:
    plan = build(CASES["odd"], cpu(2), "bfloat16")
    steps = phase_cost(plan, plan.find(PhaseKind.DELTA, 0), length=100)
    assert steps.bytes == 2 * 4 * 9 * 10 * 13  # float32, whatever the weights are
    assert steps.operations == 2 * (4 * 9 * 10 * 13 + 4 * (2 * 3 * 10 + 9 * 13))
    products = phase_cost(plan, plan.find(PhaseKind.DELTA_IN, 0))
    assert products.bytes == 2 * 40 * (2 * (3 * 10 + 9 * 13) + 2 * 9)


def test_what_is_not_computed_is_refused_by_its_name() -> None:
    config = CASES["odd"]
    with pytest.raises(ConfigError, match="delta: expected one lane, got 2"):
        in_lanes(config, 2)
    plain = replace(config, layers=(ATTENDS,), delta=None, attention_gate=False)
    with pytest.raises(
        BackendError, match="draft: expected a model without states of a fixed size"
    ):
        load(weights_of(plain), 1, draft=weights_of(config))
    for name in ("delta", "attention_gate", "rotary.part"):
        others = [other for other in config.features if other != name]
        with pytest.raises(BackendError, match=f"{name}: the abacus backend does not compute it"):
            config.check_features("abacus", *others)
    with pytest.raises(ConfigError, match="delta: expected its sizes where a layer has"):
        replace(config, delta=None)
    with pytest.raises(ConfigError, match="delta: expected a multiple of 3 value heads"):
        replace(ODD, value_heads=8)
    with pytest.raises(ConfigError, match="layer 0: window: expected None in a layer with"):
        replace(config, layers=(replace(STATES, window=5),))
    with pytest.raises(ConfigError, match="rotary: expected an even part of a head of 14"):
        replace(config, rotary=Rotary(part=0.25))
