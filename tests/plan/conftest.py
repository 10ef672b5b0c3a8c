"""Models for plans: the golden ones, and others that no golden file covers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane.model import (
    EXPERT_ROLES,
    NEVER,
    NOW,
    AltUp,
    Checkpoint,
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
    Temperature,
    Weights,
    YarnScaling,
    lane_shape,
    layer_roles,
    outer_roles,
    read_config,
)
from monolane.model._layer_config import ModuleName
from monolane.ops.conv.spec import Conv
from monolane.ops.kda.spec import Kda
from monolane.ops.laurel.spec import Laurel
from monolane.ops.mamba.spec import Mamba
from monolane.ops.per_layer.spec import PerLayer
from monolane.ops.sparse_mlp.spec import SparseMlp
from monolane.plan import Choice, DeviceDescription, cpu

GOLDEN = Path(__file__).parents[1] / "golden"
LATE = Reduce(2)
DENSE = (LayerConfig(NOW, NOW),)
MIXTURE = LayerConfig(NOW, NOW, experts=True)
STATES = LayerConfig(NOW, NOW, delta=True)

MAMBA = Mamba(heads=6, head=5, groups=2, state_size=3, kernel=4)
PLAIN_MAMBA = Mamba(
    heads=5,
    head=3,
    groups=1,
    state_size=4,
    kernel=1,
    conv_bias=False,
    normed=False,
    scale=1.1,
    gate_scale=0.9,
    input_scale=1.2,
    write_scale=0.8,
    read_scale=1.4,
    step_scale=0.7,
)


def _config(**changes: Any) -> ModelConfig:
    base: dict[str, Any] = {
        "family": "laneformer",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 8,
        "num_kv_heads": 4,
        "head_dim": 6,
        "vocab_size": 44,
        "max_positions": 64,
        "num_lanes": 4,
        "layers": (LayerConfig(NOW, NOW),) * 3,
        "head": Head.VOCAB_PARALLEL,
    }
    return ModelConfig(**(base | changes))


def _per_layer(layers: int) -> ModuleConfig:
    operation = PerLayer(inner=7, layers=layers, rows=44, activation="gelu_tanh")
    return ModuleConfig(operation, norm_before=False, norm_after=True)


def _altup_layer(mlp: ModuleName | SparseMlp, **changes: Any) -> LayerConfig:
    laurel = ModuleConfig(Laurel(rank=5), norm_after=False, beside=True, same_norm=True)
    per_layer = PerLayer(inner=7, layers=3, rows=40, activation="gelu_tanh")
    modules = ("attention", laurel, mlp, ModuleConfig(per_layer, norm_before=False))
    return LayerConfig(NOW, NOW, modules=modules, **changes)


def _same(name: ModuleName) -> ModuleConfig:
    return ModuleConfig(name, beside=True, same_norm=True)


def _latent(latent: Latent, **changes: Any) -> ModelConfig:
    sizes = {"num_lanes": 1, "num_kv_heads": 8, "head_dim": latent.head, "latent": latent}
    return _config(**sizes | changes)


CONFIGS = {
    "mixture": _config(
        num_lanes=1,
        rotary=Rotary(style="half"),
        experts=Experts(5, 3, 14, normalised=True),
        layers=(MIXTURE, *DENSE, MIXTURE),
    ),
    "biased_mixture": _config(
        num_lanes=1,
        rotary=Rotary(style="half"),
        experts=Experts(5, 2, 14, normalised=True, biases=True),
        layers=(replace(MIXTURE, window=5), MIXTURE),
        qkv_bias=True,
        out_bias=True,
        attention_sinks=True,
        activation="clamped_swiglu",
    ),
    "latent": _latent(
        Latent(rank=11, query_rank=9, plain=6, turned=4, value=7),
        attention_temperature=Temperature(0.5, 3),
    ),
    "latent_mixture": _latent(
        Latent(rank=7, query_rank=None, plain=5, turned=2, value=4),
        attention_sinks=True,
        norm_before=False,
        norm_after=True,
        rotary=Rotary(style="half"),
        experts=Experts(
            *(8, 3, 14, True),
            scores="sigmoid",
            corrected=True,
            groups=4,
            chosen_groups=2,
            group_best=2,
            scale=1.7,
            shared=18,
        ),
        layers=(*DENSE, MIXTURE, replace(MIXTURE, window=5)),
    ),
    "delta": _config(
        num_lanes=1,
        delta=Delta(key_heads=3, value_heads=6, key=5, value=7, kernel=4),
        layers=(STATES, *DENSE, STATES),
    ),
    "delta_mixture": _config(
        num_lanes=1,
        head_dim=10,
        num_kv_heads=2,
        attention_gate=True,
        qk_norm=QkNorm.HEAD,
        norm_offset=1.0,
        rotary=Rotary(style="half", part=0.4),
        delta=Delta(key_heads=2, value_heads=2, key=3, value=8, kernel=2),
        experts=Experts(5, 3, 14, normalised=True, shared=10, shared_expert_gate=True),
        layers=(replace(MIXTURE, window=5), replace(STATES, experts=True), *DENSE, STATES),
    ),
    "gates_of_lanes": _config(
        num_lanes=2, head_dim=8, attention_gate=True, rotary=Rotary(part=0.5)
    ),
    "sinks_of_lanes": _config(num_lanes=2, attention_sinks=True, activation="clamped_swiglu"),
    "dense": _config(num_lanes=1, rotary=Rotary(style="half"), qkv_bias=True),
    "tensor_parallel": _config(layers=(LayerConfig(NOW, NOW), LayerConfig(NOW, NOW, 5)) * 2),
    "sum_head": _config(head=Head.SUM, layers=(LayerConfig(NEVER, NOW),) * 2),
    "concat_head": _config(head=Head.CONCAT, vocab_size=43),
    "mixed": _config(
        num_lanes=2,
        layers=(
            LayerConfig(NEVER, NOW),
            LayerConfig(Reduce(1), NEVER),
            LayerConfig(NOW, Reduce(1)),
            LayerConfig(LATE, Reduce(3)),
            LayerConfig(NEVER, LATE, 7),
            LayerConfig(Reduce(1), Reduce(4)),
        ),
    ),
    "mlp_only": _config(layers=(*[LayerConfig(NEVER, NEVER)] * 2, *[LayerConfig(NEVER, LATE)] * 5)),
    "head_norms": _config(num_lanes=2, qk_norm=QkNorm.HEAD, norm_offset=1.0),
    "late_norms_of_lanes": _config(num_lanes=2, qk_norm=QkNorm.ALL, qkv_bias=True),
    "late_norms": _config(
        num_lanes=1,
        qk_norm=QkNorm.ALL,
        qkv_bias=True,
        norm_before=False,
        norm_after=True,
        rotary=Rotary(style="half", scaling=YarnScaling(4.0, 16, 1.2)),
        layers=(LayerConfig(NOW, NOW), LayerConfig(NOW, NOW, rotary="none"), *DENSE),
    ),
    "both_norms": _config(
        norm_after=True,
        norm_offset=1.0,
        qk_norm=QkNorm.HEAD,
        activation="gelu_tanh",
        embedding_scale=5.5,
        residual_scale=0.4,
        logit_scale=0.5,
        logit_cap=3.0,
        query_scale=0.3,
        rotary=Rotary(theta=50.0),
        local_rotary=Rotary(theta=7.0),
        layers=(
            LayerConfig(NOW, NEVER, 5, "local"),
            LayerConfig(NEVER, Reduce(1)),
            LayerConfig(LATE, NOW, rotary="none"),
            LayerConfig(Reduce(1), LATE, 5, "local"),
        ),
    ),
    "two_sizes": _config(
        num_lanes=2,
        num_kv_heads=2,
        qk_norm=QkNorm.HEAD,
        norm_turned=True,
        score_cap=1.5,
        attention_temperature=Temperature(0.5, 4),
        local_rotary=Rotary(theta=7.0, part=0.5),
        layers=(
            LayerConfig(NOW, NOW, 5, "local", num_kv_heads=4, head_dim=12, intermediate_size=28),
            LayerConfig(NOW, NOW, num_heads=4),
            LayerConfig(NOW, NOW, 5, "local", num_kv_heads=4, head_dim=12),
        ),
    ),
    "single_modules": _config(
        num_lanes=1,
        delta=Delta(key_heads=3, value_heads=6, key=5, value=7, kernel=4, tiled=True),
        experts=Experts(5, 3, 14, normalised=True),
        layers=(
            LayerConfig(NOW, NOW, modules=("mlp",)),
            LayerConfig(NOW, NOW, 5, modules=("attention",)),
            LayerConfig(NOW, NOW, experts=True, modules=("experts", "attention")),
            LayerConfig(NOW, NOW, delta=True, modules=("delta",)),
            LayerConfig(NOW, NOW, delta=True, modules=("attention", "delta")),
            LayerConfig(NOW, NOW, experts=True, modules=("experts",)),
        ),
    ),
    "conv": _config(
        num_lanes=1,
        layers=(
            LayerConfig(NOW, NOW, modules=(Conv(channels=48, taps=3), "mlp")),
            *DENSE,
            LayerConfig(NOW, NOW, modules=(Conv(channels=7, taps=4),)),
        ),
    ),
    "kda": _latent(
        Latent(rank=7, query_rank=None, plain=5, turned=2, value=4),
        layers=(
            LayerConfig(NOW, NOW, modules=(Kda(heads=3, width=5, kernel=4), "mlp")),
            LayerConfig(NOW, NOW, rotary="none"),
            LayerConfig(NOW, NOW, modules=(Kda(heads=2, width=7, kernel=2),)),
        ),
    ),
    "mamba": _config(
        num_lanes=1,
        key_scale=0.7,
        activation="relu_squared",
        experts=Experts(5, 3, 14, normalised=True, shared=10),
        layers=(
            LayerConfig(NOW, NOW, modules=(MAMBA,)),
            LayerConfig(
                NOW,
                NOW,
                modules=(
                    ModuleConfig("attention", scale=0.8, read_scale=1.3),
                    ModuleConfig(PLAIN_MAMBA, beside=True, same_norm=True, scale=0.6),
                    ModuleConfig(Mlp(inner=26, gate_scale=0.7), scale=1.2),
                ),
            ),
            LayerConfig(NOW, NOW, modules=("mlp",)),
            LayerConfig(NOW, NOW, experts=True, modules=(MAMBA, "experts")),
        ),
    ),
    "per_layer": _config(
        num_lanes=1,
        qk_norm=QkNorm.HEAD,
        value_norm=True,
        layer_scales=True,
        norm_after=True,
        layers=(
            LayerConfig(NOW, NOW, modules=("attention", "mlp", _per_layer(3))),
            LayerConfig(NOW, NOW, key_is_value=True, modules=("attention", "mlp", _per_layer(3))),
            LayerConfig(NOW, NOW, keys_of=1, modules=(_per_layer(3), "attention", "mlp")),
        ),
    ),
    "altup": _config(
        num_lanes=1,
        qk_norm=QkNorm.HEAD,
        value_norm=True,
        norm_after=True,
        activation="gelu_tanh",
        altup=AltUp(3),
        layers=(
            _altup_layer(SparseMlp(inner=26, sparsity=0.7, activation="gelu_tanh"), window=5),
            _altup_layer("mlp"),
            _altup_layer(SparseMlp(inner=26, sparsity=0.4, activation="gelu_tanh"), keys_of=1),
        ),
    ),
    "unscaled_altup": _config(
        num_lanes=1,
        norm_offset=1.0,
        altup=AltUp(2, scaled=False),
        layers=(_altup_layer("mlp"), _altup_layer("mlp", window=5)),
    ),
    "laurel": _config(
        num_lanes=1,
        layers=(
            LayerConfig(NOW, NOW, modules=(Laurel(rank=5), "mlp")),
            LayerConfig(
                NOW,
                NOW,
                modules=(
                    "attention",
                    ModuleConfig(Laurel(rank=3), beside=True, norm_before=False, norm_after=True),
                    SparseMlp(inner=26, sparsity=0.5, activation="silu"),
                ),
            ),
        ),
    ),
    "beside": _config(
        num_lanes=1,
        layers=(
            LayerConfig(
                NOW,
                NOW,
                modules=(
                    "attention",
                    ModuleConfig("mlp", norm_after=True),
                    ModuleConfig("experts", norm_after=True, beside=True, joint_norm=True),
                ),
                experts=True,
            ),
            LayerConfig(
                NOW,
                NOW,
                experts=True,
                delta=True,
                modules=(
                    "delta",
                    ModuleConfig("attention", beside=True),
                    ModuleConfig("experts", beside=True, norm_before=False, norm_after=True),
                    "mlp",
                ),
            ),
        ),
        experts=Experts(6, 2, 9, normalised=True, shared=5, router_norm=True, each_scaled=True),
        delta=Delta(key_heads=2, value_heads=4, key=5, value=3, kernel=4),
    ),
    "one_norm_of_two": _config(
        num_lanes=1,
        norm_centred=True,
        logit_scale=0.5,
        layers=(
            LayerConfig(NOW, NOW, 5, modules=("attention", _same("mlp"))),
            LayerConfig(NOW, NOW, rotary="none", modules=("attention", _same("mlp"))),
            LayerConfig(NOW, NOW, experts=True, modules=("attention", _same("experts"), "mlp")),
        ),
        experts=Experts(6, 2, 9, normalised=True, corrected=True),
    ),
    "centred_lanes": _config(norm_centred=True, norm_after=True),
    "centred_sum": _config(norm_centred=True, head=Head.SUM),
    "chunks": _config(
        num_lanes=1,
        qk_norm=QkNorm.HEAD,
        qk_unscaled=True,
        norm_turned=True,
        attention_temperature=Temperature(0.5, 4, ahead=1, unturned_alone=True),
        experts=Experts(5, 3, 14, False, scores="sigmoid", shared=6, weigh_inputs=True),
        layers=(
            replace(MIXTURE, window=5, chunked=True),
            LayerConfig(NOW, NOW, rotary="none"),
            LayerConfig(NOW, NOW, 3, chunked=True),
        ),
    ),
    "shared_keys_of_lanes": _config(
        num_lanes=2,
        layers=(
            LayerConfig(NEVER, NOW, window=5),
            LayerConfig(NOW, NOW),
            LayerConfig(NOW, NOW, window=5, keys_of=0),
            LayerConfig(NOW, NOW, keys_of=1),
        ),
    ),
    "single_modules_of_lanes": _config(
        num_lanes=2,
        norm_after=True,
        layers=(
            LayerConfig(NEVER, NOW, modules=("attention",)),
            LayerConfig(Reduce(1), NOW, modules=("mlp",)),
            LayerConfig(LATE, NOW, modules=("attention",)),
            LayerConfig(Reduce(1), NOW, modules=("mlp", "attention")),
        ),
    ),
    "tied": _config(tie_embeddings=True, norm_scale_per_lane=False),
}
CONFIGS |= {path.name: read_config(path) for path in sorted(GOLDEN.iterdir()) if path.is_dir()}


@pytest.fixture(params=CONFIGS)
def name(request: pytest.FixtureRequest) -> str:
    """Each model's name in turn."""
    return str(request.param)


@pytest.fixture
def config(name: str) -> ModelConfig:
    return CONFIGS[name]


@pytest.fixture
def configs() -> dict[str, ModelConfig]:
    return CONFIGS


@pytest.fixture
def weights(name: str) -> Weights:
    return _weights(name)


@pytest.fixture
def weights_of() -> Callable[[str], Weights]:
    return _weights


@pytest.fixture
def device_of() -> Callable[..., DeviceDescription]:
    """A device of so many workers, whose chunks of keys are short enough to be split in tests."""

    def device(workers: int, choice: Choice = Choice.LEADER) -> DeviceDescription:
        return replace(cpu(workers), choice=choice, chunk=4)

    return device


def _weights(name: str) -> Weights:
    config = CONFIGS[name]
    if (GOLDEN / name).is_dir():
        return Weights.load(config, Checkpoint.open(GOLDEN / name))
    rng = np.random.default_rng(1)

    def draw(*roles: Role, layer: int | None = None) -> dict[Role, Any]:
        return {
            role: rng.normal(scale=0.4, size=lane_shape(config, role, layer=layer)).astype(
                np.float32
            )
            for role in roles
        }

    outer = draw(*outer_roles(config))
    roles = [layer_roles(config, i) for i in range(config.num_layers)]
    layers = tuple(
        draw(*(role for role in each if role not in EXPERT_ROLES), layer=i)
        for i, each in enumerate(roles)
    )
    count = 0 if config.experts is None else config.experts.count
    experts = {
        (role, i): tuple(draw(role)[role] for _ in range(count))
        for i, each in enumerate(roles)
        for role in each
        if role in EXPERT_ROLES
    }
    return Weights(config, outer, layers, experts=experts)
