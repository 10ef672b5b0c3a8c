"""The small arrays beside the weights."""

import ctypes
import ctypes.util
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from monolane.cuda._lay_out import lay_out
from monolane.cuda._tables import make_tables, rotary_table, share_tables
from monolane.model import (
    Checkpoint,
    Head,
    QkNorm,
    Role,
    Rotary,
    Weights,
    YarnScaling,
    read_config,
)
from monolane.plan import DeviceDescription, Plan, build, named_config

GOLDEN = Path(__file__).parents[1] / "golden"


def plan_of(weights: Weights, blocks: int = 2) -> Plan:
    lanes = weights.config.num_lanes
    device = DeviceDescription(
        name="t",
        workers=lanes * blocks,
        bandwidth=1e12,
        compute=1e14,
        source="a test",
        tile_rows=16,
    )
    return build(weights.config, device, "bfloat16")


def load(name: str) -> Weights:
    folder = GOLDEN / name
    return Weights.load(read_config(folder), Checkpoint.open(folder))


def test_rotary_is_what_the_native_core_computes() -> None:
    """std::cos(float) of a float32 product, to the last bit but for the C library's own error."""
    config = replace(named_config("laneformer-2b"), rotary=Rotary(theta=10000.0))
    table = rotary_table(config, 256)
    assert table.shape == (256, config.head_dim // 2, 2)
    assert table.dtype == np.float32
    name = ctypes.util.find_library("m")
    if name is None:
        pytest.skip("no C mathematics library")
    library = ctypes.CDLL(name)
    frequencies = config.rotary.frequencies(config.head_dim)
    for place, function in enumerate((library.cosf, library.sinf)):
        function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float]
        for position in range(0, 256, 17):
            angles = np.float32(position) * frequencies
            theirs = np.array([function(float(angle)) for angle in angles], np.float32)
            ours = table[position, :, place]
            # One unit in the last place is what a C library may err.
            assert (np.abs(ours - theirs) <= np.spacing(np.abs(theirs))).all()
            assert (ours == theirs).mean() > 0.95


def test_norms_and_embedding_are_shaped_by_lane() -> None:
    for name in ("released_shape", "shared_norm_scale"):
        weights = load(name)
        config = weights.config
        tables = make_tables(lay_out(plan_of(weights)), weights)
        lanes = config.num_lanes if config.norm_scale_per_lane else 1
        shape = (config.num_layers, lanes, config.hidden_size)
        assert tables.attention_norm.shape == tables.mlp_norm.shape == shape
        np.testing.assert_array_equal(tables.mlp_norm[1], weights.layers[1][Role.MLP_NORM])
        embedding = weights.outer[Role.EMBEDDING].astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(tables.embedding, embedding)
        assert tables.qkv_bias is tables.qk_norm is None


def test_biases_follow_the_rows_of_a_lane() -> None:
    weights = load("released_shape")
    config = replace(weights.config, qkv_bias=True)
    rng = np.random.default_rng(0)
    lanes, h = config.num_lanes, config.head_dim
    rows = {Role.Q_BIAS: config.num_heads, Role.K_BIAS: config.num_kv_heads}
    rows[Role.V_BIAS] = config.num_kv_heads
    layers = tuple(
        {
            **layer,
            **{
                role: rng.normal(size=(lanes, heads * h // lanes)).astype(np.float32)
                for role, heads in rows.items()
            },
        }
        for layer in weights.layers
    )
    biased = Weights(config, weights.outer, layers)
    bias = make_tables(lay_out(plan_of(biased)), biased).qkv_bias
    assert bias is not None
    assert bias.shape == (config.num_layers, lanes, sum(rows.values()) * h // lanes)
    wanted = [layers[1][role][2] for role in (Role.Q_BIAS, Role.K_BIAS, Role.V_BIAS)]
    np.testing.assert_array_equal(bias[1, 2], np.concatenate(wanted))


def test_scales_of_heads_are_queries_then_keys() -> None:
    weights = load("released_shape")
    h = weights.config.head_dim
    layers = tuple(
        {**layer, Role.Q_NORM: np.full((1, h), 2.0 * i), Role.K_NORM: np.full((1, h), 2.0 * i + 1)}
        for i, layer in enumerate(weights.layers)
    )
    config = replace(weights.config, qk_norm=QkNorm.HEAD)
    normed = Weights(config, weights.outer, layers)
    found = make_tables(lay_out(plan_of(normed)), normed).qk_norm
    assert found is not None
    assert found.dtype == np.float32
    wanted = np.arange(2 * config.num_layers).reshape(config.num_layers, 2, 1)
    np.testing.assert_array_equal(found, np.broadcast_to(wanted, (config.num_layers, 2, h)))


def test_amplitude_is_in_the_rotary_table() -> None:
    config = named_config("laneformer-2b")
    plain, large = (
        rotary_table(replace(config, rotary=Rotary(scaling=YarnScaling(2.0, 64, x))), 96)
        for x in (1.0, 1.25)
    )
    np.testing.assert_allclose(large, 1.25 * plain, rtol=2.0**-23)  # each rounded once


@pytest.mark.parametrize("name", ["released_shape", "replicate_head"])
def test_every_row_and_unit_has_one_owner(name: str) -> None:
    weights = load(name)
    config = weights.config
    plan = plan_of(weights, blocks=3)
    tables = share_tables(lay_out(plan))
    assert tables.shape == (10, plan.groups.workers, 2)
    lanes, h = config.num_lanes, config.head_dim
    q, kv = config.num_heads * h // lanes, config.num_kv_heads * h // lanes
    units = config.num_kv_heads // lanes * plan.splits
    inner, d = config.intermediate_size // lanes, config.hidden_size
    totals = [q, kv, kv, d, inner, d, config.vocab_size // lanes, units, 0, 0]
    if config.head is not Head.VOCAB_PARALLEL:
        totals[6], totals[8] = config.vocab_size, d
    for table, (bounds, total) in enumerate(zip(tables, totals, strict=True)):
        everybody = table == 6 and config.head is not Head.VOCAB_PARALLEL
        groups = [bounds] if everybody else np.split(bounds, lanes)
        for group in groups:
            assert group[0, 0] == 0
            assert group[-1, 1] == total
            assert (group[1:, 0] == group[:-1, 1]).all()
