"""Layers of one module, of two in another order, and of more, in the native executor."""

from typing import Any

import numpy as np
import pytest
from random_weights import weights_of

from monolane.cpu import CpuExecutor
from monolane.errors import BackendError, ConfigError
from monolane.model import (
    NOW,
    Delta,
    Experts,
    Head,
    Latent,
    LayerConfig,
    Mlp,
    ModelConfig,
    ModuleConfig,
    QkNorm,
    Reduce,
    Role,
    Rotary,
    Weights,
)
from monolane.ops.per_layer.spec import PerLayer
from monolane.plan import PhaseKind
from monolane.reference import ReferenceModel

VOCAB, TOKENS = 62, 300  # beyond one chunk of keys
IDS = np.random.default_rng(1).integers(VOCAB, size=TOKENS)


def layer(*modules: Any, **changes: Any) -> LayerConfig:
    names = [x.name if isinstance(x, ModuleConfig) else x for x in modules]
    kinds = {"delta": "delta" in names, "experts": "experts" in names}
    return LayerConfig(NOW, NOW, modules=modules, **kinds | changes)


def _per_layer(layers: int) -> ModuleConfig:
    operation = PerLayer(inner=24, layers=layers, rows=VOCAB, activation="gelu_tanh")
    return ModuleConfig(operation, norm_before=False, norm_after=True)


def config_of(*layers: LayerConfig, **changes: Any) -> ModelConfig:
    sizes: dict[str, Any] = {
        "family": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "vocab_size": VOCAB,
        "max_positions": 600,
        "num_lanes": 1,
        "layers": layers,
        "head": Head.VOCAB_PARALLEL,
        "rotary": Rotary(theta=100.0),
    }
    return ModelConfig(**sizes | changes)


# As Nemotron-H has them: one module a layer, attention or an MLP or a state.
SINGLE = config_of(
    layer("mlp"),
    layer("delta"),
    layer("attention", window=20),
    layer("experts"),
    layer("attention"),
    layer("mlp"),
    delta=Delta(key_heads=2, value_heads=4, key=16, value=8, kernel=4),
    experts=Experts(6, 2, 32, normalised=True, shared=32),
)
TURNED = config_of(
    layer("mlp", "attention"),
    layer("attention", "delta"),
    layer("experts"),
    delta=Delta(key_heads=2, value_heads=4, key=16, value=8, kernel=4),
    experts=Experts(6, 2, 32, normalised=True),
    norm_after=True,
)

# As Kimi Linear has them: gated delta rules, and latent attention.
BESIDE_LATENT = config_of(
    layer("delta", "mlp"),
    layer("attention", "mlp"),
    layer("delta", "experts"),
    delta=Delta(key_heads=2, value_heads=4, key=16, value=8, kernel=4),
    experts=Experts(6, 2, 32, normalised=True),
    latent=Latent(rank=32, query_rank=None, plain=16, turned=8, value=16),
    num_kv_heads=4,
    head_dim=24,
)

# As Gemma 3n has them: the last layers read what an earlier one of their kind keeps.
SHARED_KEYS = config_of(
    layer("attention", "mlp", window=20),
    layer("attention", "mlp"),
    layer("attention", "mlp", window=20, keys_of=0),
    layer("attention", "mlp", keys_of=1),
    qk_norm=QkNorm.HEAD,
    qkv_bias=True,
)


# Attention and an MLP that read the same, as Cohere 2 has them, before experts that read both.
BESIDE = config_of(
    layer("attention", ModuleConfig("mlp", beside=True), "experts", window=20),
    layer("delta", ModuleConfig("mlp", beside=True), ModuleConfig("experts", beside=True)),
    layer("attention", "mlp"),
    layer("delta", "attention", "experts", "mlp"),
    layer("attention", ModuleConfig("mlp", beside=True)),
    delta=Delta(key_heads=2, value_heads=4, key=16, value=8, kernel=4),
    experts=Experts(6, 2, 32, normalised=True, shared=32),
)

# Modules with other norms than the rest have.
OWN_NORMS = config_of(
    layer(
        "attention",
        ModuleConfig("mlp", norm_before=False, norm_after=True),
        ModuleConfig("experts", norm_after=True, beside=True),
    ),
    layer(
        "attention",
        ModuleConfig("mlp", norm_after=True),
        ModuleConfig("experts", norm_after=True, beside=True, joint_norm=True),
    ),
    layer(ModuleConfig("mlp", norm_before=False), ModuleConfig("attention", norm_after=True)),
    experts=Experts(6, 2, 32, normalised=True, router_norm=True, each_scaled=True),
    residual_scale=0.5,
)


# As Gemma 4 has them: a third module that reads what the token has for the layer.
PER_LAYER = config_of(
    *(
        layer("attention", "mlp", _per_layer(3), key_is_value=i == 1, keys_of=1 if i > 1 else None)
        for i in range(3)
    ),
    qk_norm=QkNorm.HEAD,
    value_norm=True,
    layer_scales=True,
    norm_after=True,
)


def executor_of(weights: Weights, workers: int, dtype: str) -> CpuExecutor:
    return CpuExecutor(weights, context=600, slots=3, workers=workers, dtype=dtype)


@pytest.mark.parametrize(
    "config",
    [SINGLE, TURNED, BESIDE_LATENT, SHARED_KEYS, BESIDE, OWN_NORMS, PER_LAYER],
    ids=[
        "single",
        "turned round",
        "beside latent",
        "shared keys",
        "beside",
        "own norms",
        "per layer",
    ],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_logits_are_the_reference_s(config: ModelConfig, workers: int) -> None:
    weights = weights_of(config)
    model = ReferenceModel(weights)
    expected = model.forward(IDS, model.new_cache())
    executor = executor_of(weights, workers, "float32")
    # The bound for float32 sums in another order, as in tests/cpu/test_latent.py.
    assert np.abs(executor.logits(0, IDS) - expected).max() < 1e-3


@pytest.mark.parametrize(
    "config",
    [SINGLE, SHARED_KEYS, BESIDE, PER_LAYER],
    ids=["single", "shared keys", "beside", "per layer"],
)
def test_a_sequence_is_kept_and_goes_on(config: ModelConfig) -> None:
    executor = executor_of(weights_of(config), 2, "bfloat16")
    expected = executor.logits(0, IDS)
    executor.logits(1, IDS[:200])
    executor.restore(2, executor.save(1, 0, 200), 200)
    np.testing.assert_array_equal(executor.logits(2, IDS[200:]), expected[200:])


def test_phases_follow_the_modules() -> None:
    plan = executor_of(weights_of(TURNED), 1, "float32").plan
    assert [phase.kind for phase in plan.phases if phase.layer == 0] == [
        *(PhaseKind.GATE_UP, PhaseKind.DOWN),
        *(PhaseKind.QKV, PhaseKind.ATTEND, PhaseKind.OUT),
    ]
    head = plan.find(PhaseKind.HEAD)
    assert [(x.module.name, x.layer) for x in head.updates] == [("FIRST_OUTPUT", 2)]


def test_what_reads_the_same_joins_the_streams_together() -> None:
    plan = executor_of(weights_of(BESIDE), 1, "float32").plan
    joined = {
        phase.name: [x.module.name.removesuffix("_OUTPUT") for x in phase.updates]
        for phase in plan.phases
        if phase.kind in (PhaseKind.GATE_UP, PhaseKind.ROUTE, PhaseKind.QKV, PhaseKind.HEAD)
    }
    assert joined == {
        "QKV 0": [],
        "GATE_UP 0": [],
        "ROUTE 0": ["FIRST", "SECOND"],
        "GATE_UP 1": [],
        "ROUTE 1": [],
        "QKV 2": ["FIRST", "SECOND", "THIRD"],
        "GATE_UP 2": ["FIRST"],
        "QKV 3": ["FIRST"],
        "ROUTE 3": ["SECOND"],
        "GATE_UP 3": ["THIRD"],
        "QKV 4": ["FOURTH"],
        "GATE_UP 4": [],
        "HEAD": ["FIRST", "SECOND"],
    }
    # What does not read what attention says does not wait for it either.
    gate_up = plan.find(PhaseKind.GATE_UP, 4)
    assert gate_up.reads == ()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (layer("mlp", "mlp"), "layer 1: modules: expected one to 4 of attention, delta, mlp"),
        (
            layer("mlp", Mlp(inner=96, activation="silu")),
            "layer 1: modules: .* one of each, got mlp, Mlp",
        ),
        (layer("mlp", "rnn"), "layer 1: modules: expected one to 4 of attention, delta, mlp"),
        (
            layer("attention", ModuleConfig("mlp", joint_norm=True)),
            r"a joint norm where a module is beside another, got attention, mlp \(joint_norm\)",
        ),
        (layer(ModuleConfig("mlp", beside=True)), "a first one that is beside no other, got mlp"),
        (layer("mlp", experts=True), "layer 1: experts: expected False, as its modules are mlp"),
        (
            LayerConfig(NOW, Reduce(1), modules=("attention", "mlp")),
            "layer 1: mlp_reduce: expected the delay of a layer with as many modules, got 1",
        ),
    ],
)
def test_modules_that_make_no_sense_are_refused(wrong: LayerConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(layer("attention"), wrong)


def test_several_lanes_have_two_modules_a_layer_that_read_in_turn() -> None:
    for modules in (("attention", ModuleConfig("mlp", beside=True)), ("attention", "mlp", "delta")):
        with pytest.raises(ConfigError, match="modules: expected one lane with attention, mlp"):
            config_of(layer(*modules), num_lanes=2)


def test_an_executor_that_knows_two_modules_a_layer_refuses_others() -> None:
    config = config_of(layer("attention"), layer("mlp"))
    with pytest.raises(BackendError, match=r"layers\.modules: .* \(attention; mlp\)"):
        config.check_features("other")


def test_shared_keys_are_kept_once() -> None:
    plan = executor_of(weights_of(SHARED_KEYS), 1, "bfloat16").plan
    assert plan.position_bytes == 2 * 2 * 2 * 16 * 2  # layers, lists, heads, numbers, bytes
    assert [matrix.role for matrix in plan.find(PhaseKind.QKV, 2).matrices] == [Role.Q]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (layer("attention", keys_of=2), "keys_of: expected an earlier layer with attention"),
        (layer("mlp", keys_of=0), "keys_of: expected an earlier layer with attention"),
        (layer("attention", keys_of=1), "keys_of: expected an earlier layer with attention"),
        (layer("attention", keys_of=0, window=7), "a layer of the same window, 7, got layer 0"),
        (layer("attention", keys_of=0, num_kv_heads=1), "a layer of the same kv_heads, 1, got"),
    ],
)
def test_keys_of_layers_that_make_no_sense_are_refused(wrong: LayerConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(layer("attention"), layer("mlp"), wrong)
