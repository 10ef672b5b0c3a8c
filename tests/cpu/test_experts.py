"""Mixtures of experts on the CPU: the oracle's numbers in every format that matrices have, and bits
that depend on nothing but the tokens."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from blocks import BLOCKS, random_blocks
from random_weights import weights_of

from monolane.cpu import CpuExecutor
from monolane.errors import BackendError, CheckpointError, ConfigError
from monolane.executor_api import AUTO_DRAFTS, Advance
from monolane.model import (
    NOW,
    Experts,
    Head,
    LayerConfig,
    Matrix,
    ModelConfig,
    Quantization,
    Role,
    Rotary,
    Weights,
    in_lanes,
    quantize_matrix,
)
from monolane.model._weights import _Found
from monolane.ops.experts.reference import choose_experts
from monolane.plan import PhaseKind, build, cpu, interpret, pass_cost, phase_cost, validate
from monolane.reference import ReferenceModel

VOCAB, TOKENS = 61, 90  # beyond one pass
DEFAULTS = (False, "softmax", False, 1, 1, 1, 1.0)  # between `normalised` and `shared`
DENSE, MIXTURE = LayerConfig(NOW, NOW), LayerConfig(NOW, NOW, experts=True)
IDS = np.random.default_rng(1).integers(VOCAB, size=TOKENS)


EXPERTS = Experts(7, 3, 52, True)


def config_of(experts: Experts = EXPERTS, **changes: Any) -> ModelConfig:
    sizes: dict[str, Any] = {
        "family": "qwen3_moe",
        "hidden_size": 40,
        "intermediate_size": 44,
        "num_heads": 8,
        "num_kv_heads": 4,
        "head_dim": 8,
        "vocab_size": VOCAB,
        "max_positions": 400,
        "num_lanes": 1,
        "layers": (MIXTURE, DENSE, MIXTURE),
        "head": Head.VOCAB_PARALLEL,
        "rotary": Rotary(theta=100.0, style="half"),
        "experts": experts,
    }
    return ModelConfig(**sizes | changes)


def load(weights: Weights, workers: int = 2, dtype: str = "auto", slots: int = 1) -> CpuExecutor:
    return CpuExecutor(weights, dtype, context=400, slots=slots, workers=workers)


def oracle(weights: Weights) -> np.ndarray:
    model = ReferenceModel(weights)
    return model.forward(IDS, model.new_cache())


def one_by_one(executor: CpuExecutor) -> np.ndarray:
    executor.truncate(0, 0)
    return np.concatenate([executor.logits(0, [token]) for token in IDS.tolist()])


CASES = {
    "normalised": config_of(),
    "not normalised, one": config_of(Experts(5, 1, 30, False)),
    "all chosen, a norm behind": config_of(Experts(3, 3, 20, False), norm_after=True),
    "biases, sinks, a clamped gate": config_of(
        Experts(6, 2, 52, True, biases=True),
        qkv_bias=True,
        out_bias=True,
        attention_sinks=True,
        activation="clamped_swiglu",
        layers=(replace(MIXTURE, window=7), MIXTURE),
    ),
    "a gate on what all share": config_of(
        Experts(6, 2, 52, False, shared=28, shared_expert_gate=True), qkv_bias=True
    ),
    "weights of what experts read": config_of(
        Experts(6, 2, 52, False, scores="sigmoid", shared=28, weigh_inputs=True)
    ),
    "shares, corrected": config_of(Experts(7, 3, 52, False, corrected=True)),
    "no norm before": config_of(Experts(4, 2, 52, True), norm_before=False, norm_after=True),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_are_the_oracle_s_whatever_the_workers(case: str) -> None:
    weights = weights_of(CASES[case])
    wanted = oracle(weights)
    assert wanted.std() > 0.3  # logits near zero would agree whatever the model did
    executor = load(weights, 1, "float32")
    first = executor.logits(0, IDS.tolist())
    np.testing.assert_array_equal(one_by_one(executor), first)
    assert np.abs(first - wanted).max() < 1e-4 * np.abs(wanted).max()
    for workers in (2, 3, 13):
        np.testing.assert_allclose(
            load(weights, workers, "float32").logits(0, IDS.tolist()), first, atol=1e-4, rtol=0
        )


@pytest.mark.parametrize(
    ("dtype", "shared"),
    [*((x, 0) for x in ("float32", "bfloat16", "float16", "int8", "int4")), ("int8", 32)],
)
def test_bits_depend_on_nothing_but_the_tokens(dtype: str, shared: int) -> None:
    """One by one, in passes whose tokens choose differently, and by other workers."""
    experts = Experts(7, 3, 64, True, shared=shared, shared_expert_gate=shared > 0)
    config = config_of(hidden_size=64, intermediate_size=96, experts=experts)
    weights = weights_of(config, ml_dtypes.bfloat16)
    executor = load(weights, 2, dtype)
    logits = executor.logits(0, IDS.tolist())
    np.testing.assert_array_equal(one_by_one(executor), logits)
    np.testing.assert_array_equal(load(weights, 3, dtype).logits(0, IDS.tolist()), logits)
    # Activations are rounded to 8 bits, weights to 8 or 4: some hundredths of the spread.
    wanted = oracle(weights)
    near = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 0.05, "int8": 0.1, "int4": 0.5}[dtype]
    assert np.abs(logits - wanted).mean() < near * wanted.std()


@pytest.mark.parametrize("form", ["int8", "int4", *BLOCKS])
def test_experts_in_codes_are_the_numbers_that_they_mean(form: str) -> None:
    rng = np.random.default_rng(2)
    config = config_of(
        Experts(4, 2, 256, True), hidden_size=256, intermediate_size=64, layers=(MIXTURE, DENSE)
    )

    def make(role: Role, shape: tuple[int, ...]) -> Matrix:
        if form in BLOCKS:
            return random_blocks(rng, form, shape)
        plain = rng.normal(scale=0.08, size=shape).astype(np.float32)
        return quantize_matrix(plain, Quantization(8 if form == "int8" else 4))

    weights = weights_of(config, ml_dtypes.bfloat16, make)
    if form not in BLOCKS:
        weights = replace(weights, config=replace(config, quantization=None))
    wanted = oracle(weights)
    executor = load(weights, 3)
    logits = executor.logits(0, IDS.tolist())
    np.testing.assert_array_equal(one_by_one(executor), logits)
    # As in tests/engine/test_gguf.py: activations of 8 bits; a tensor in a wrong place gives all.
    assert 0 < np.abs(logits - wanted).mean() < 0.05 * wanted.std()


def test_requests_in_a_batch_and_drafts_draw_what_each_draws_alone() -> None:
    weights = weights_of(config_of(), ml_dtypes.bfloat16)
    executor = load(weights, 2, slots=3)

    def run(drafts: int, *slots: int) -> dict[int, list[int]]:
        asked = [
            Advance(
                slot=s, token_ids=tuple(IDS[9 * s : 9 * s + 9].tolist()), budget=30, drafts=drafts
            )
            for s in slots
        ]
        for slot in slots:
            executor.truncate(slot, 0)
        executor.start(asked)
        while not executor.read(0.1):
            pass
        drawn: dict[int, list[int]] = {slot: [] for slot in slots}
        for event in executor.take():
            drawn[event.slot].append(event.token_id)
        return drawn

    alone = run(0, 0) | run(0, 1) | run(0, 2)
    assert run(0, 0, 1, 2) == alone
    for slot, drawn in alone.items():  # right drafts and wrong ones, verified in wide passes
        prompt = IDS[9 * slot : 9 * slot + 9].tolist()
        executor.script(slot, drafts=[x if i % 5 else 0 for i, x in enumerate([*prompt, *drawn])])
    assert run(AUTO_DRAFTS, 0, 1, 2) == alone


@pytest.mark.parametrize("normalised", [True, False])
def test_of_equal_logits_the_lowest_index_is_chosen(normalised: bool) -> None:
    experts = Experts(5, 2, 52, normalised)
    logits = np.array([[1, 3, 3, 3, 0], [2, 2, 2, 2, 2], [0, 1, 2, 9, 2]], np.float32)
    chosen = choose_experts(logits, experts) > 0
    assert [np.flatnonzero(row).tolist() for row in chosen] == [[1, 2], [0, 1], [2, 3]]
    weights = weights_of(config_of(experts))
    for layer in (0, 2):  # logits of exactly 0, in whatever order products are summed
        weights.layers[layer][Role.ROUTER][0, [0, 2, 3]] = 0
    wanted = oracle(weights)
    executor = load(weights, 2, "float32")
    found = executor.logits(0, IDS.tolist())
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()
    np.testing.assert_array_equal(one_by_one(executor), found)


def test_the_plan_costs_what_one_token_reads() -> None:
    config = config_of()
    plan = build(config, cpu(3), "bfloat16")
    validate(plan)
    up, down = (plan.find(kind, 2) for kind in (PhaseKind.EXPERT_GATE_UP, PhaseKind.EXPERT_DOWN))
    assert phase_cost(plan, up).bytes == 2 * 3 * 2 * 52 * 40  # 3 of 7 experts, gate and up
    assert phase_cost(plan, down).bytes == 2 * 3 * 52 * 40
    assert phase_cost(plan, up, width=4).operations == 4 * 2 * 3 * 2 * 52 * 40
    assert phase_cost(plan, plan.find(PhaseKind.ROUTE, 2)).bytes == 2 * 7 * 40
    wide = phase_cost(plan, up, width=4).bytes / (2 * 2 * 52 * 40)
    assert wide == pytest.approx(7 * (1 - (4 / 7) ** 4), rel=1e-4)  # each as likely as another
    assert pass_cost(plan, length=1).bytes < sum(m.bytes for p in plan.phases for m in p.matrices)
    assert load(weights_of(config), 3).bytes_per_token(10) > 0


def test_one_lane_is_asked_for_by_name() -> None:
    with pytest.raises(ConfigError, match="^experts: expected one lane in a model with mixtures"):
        in_lanes(config_of(), 4)
    with pytest.raises(BackendError, match="^experts: the cuda backend does not compute it yet"):
        config_of().check_features("cuda")
    with pytest.raises(BackendError, match="ranks: this model cannot be cut into 2 lanes"):
        CpuExecutor(weights_of(config_of()), context=40, slots=1, workers=2, ranks=2)


def test_experts_of_a_layer_are_stored_in_one_way(tmp_path: Any) -> None:
    found = _Found(config_of())
    found.put(Role.EXPERT_UP, 0, 0, np.zeros((1, 2, 2), np.float32))
    found.put(Role.EXPERT_UP, 0, 1, np.zeros((1, 2, 2), np.float16))
    with pytest.raises(CheckpointError, match="layer 0: expert_up: expected all experts in one"):
        found.weights(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0, 1, 8, True), "experts: expected 1 to 4096 in a layer, got 0"),
        ((4, 5, 8, True), "experts: expected 1 to 4 chosen for a token"),
        ((4, 0, 8, True), "experts: expected 1 to 4 chosen for a token"),
        ((4, 2, 8, True, *DEFAULTS, 0, True), "experts: expected a shared width of 1 and more"),
        ((4, 2, 8, True, False, "softmax", False, 2, 1, 2), "experts: expected scores by sigmoid"),
    ],
)
def test_sizes_that_make_no_sense(values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Experts(*values)


def test_a_router_s_bias_decides() -> None:
    """Weights and bias of zero but for two experts: whatever the token is, these are chosen."""
    weights = weights_of(CASES["biases, sinks, a clamped gate"])
    for layer in weights.layers:
        layer[Role.ROUTER][:] = 0
        layer[Role.ROUTER_BIAS][:] = 0
        layer[Role.ROUTER_BIAS][0, [2, 5]] = 1
    both = load(weights, 2, "float32").logits(0, IDS.tolist())
    assert np.abs(both - oracle(weights)).max() < 1e-4 * np.abs(both).max()
    for role, layer in list(weights.experts):
        for expert in (0, 1, 3, 4):
            weights.experts[role, layer][expert][:] = np.nan
    np.testing.assert_array_equal(load(weights, 2, "float32").logits(0, IDS.tolist()), both)


@pytest.mark.parametrize("case", ["normalised", "a gate on what all share"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_interpreted_plan_computes_the_same(seed: int, case: str) -> None:
    weights = weights_of(CASES[case])
    plan = build(weights.config, replace(cpu(3), chunk=4), "float32", context=40, max_width=8)
    ids = IDS[:8].tolist()
    found = interpret(plan, weights, [ids[:5], ids[5:]], seed=seed)
    model = ReferenceModel(weights)
    wanted = model.forward(ids, model.new_cache())
    assert np.abs(found.logits[:8] - wanted).max() < 1e-4 * np.abs(wanted).max()
