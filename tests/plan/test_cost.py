"""Costs, against figures worked out by hand."""

import numpy as np
import pytest

from monolane.model import ModelConfig, Role
from monolane.plan import (
    H200,
    PhaseKind,
    build,
    cpu,
    find_device,
    main_format,
    named_config,
    pass_cost,
    phase_cost,
    to_arrays,
    worker_bytes,
)

LANEFORMER = named_config("laneformer-2b")


def test_a_token_of_laneformer_2b() -> None:
    """15 x 141.56 M + 98.3 M weights of two bytes, and 92,160 bytes of keys per visible token."""
    plan = build(LANEFORMER, H200, "bfloat16")
    weights = 15 * (2 * 3072 * 3072 + 2 * 1536 * 3072 + 3 * 12288 * 3072) + 32000 * 3072
    assert pass_cost(plan, length=1024).bytes == 2 * weights + 92_160 * 1024
    assert 2 * weights == pytest.approx(4.443e9, rel=1e-4)
    assert pass_cost(plan, length=1024).seconds == pytest.approx(1182e-6, abs=1e-6)
    # At 4k ten layers see 2048 keys, five all of them.
    keys = 10 * 2048 + 5 * 4096
    assert pass_cost(plan).bytes == 2 * weights + 92_160 // 15 * keys


def test_the_floor_of_several_devices_is_their_share() -> None:
    one, eight = (
        pass_cost(build(LANEFORMER, find_device(name), "bfloat16")) for name in ("h200", "8xh200")
    )
    assert one.bytes == eight.bytes
    assert one.seconds == pytest.approx(8 * eight.seconds)


@pytest.mark.parametrize(("dtype", "each"), [("float32", 4), ("int8", 1.0625), ("int4", 0.5625)])
def test_bytes_follow_the_dtype(dtype: str, each: float) -> None:
    plan = build(LANEFORMER, cpu(2), dtype)
    assert phase_cost(plan, plan.find(PhaseKind.HEAD)).bytes == 32000 * 3072 * each
    kv_bytes = 4 if dtype == "float32" else 2
    attend = phase_cost(plan, plan.find(PhaseKind.ATTEND, 14), length=100)
    assert attend.bytes == 100 * 2 * 1536 * kv_bytes


def test_keys_and_values_wider_than_go_with_the_weights() -> None:
    two, four = (build(LANEFORMER, cpu(2), "bfloat16", keys=k) for k in (None, "float32"))
    costs = [phase_cost(p, p.find(PhaseKind.ATTEND, 14), length=100) for p in (two, four)]
    assert [cost.bytes for cost in costs] == [100 * 2 * 1536 * 2, 100 * 2 * 1536 * 4]


def test_width_costs_operations_and_few_bytes() -> None:
    plan = build(LANEFORMER, H200, "bfloat16")
    one, four = (phase_cost(plan, plan.find(PhaseKind.DOWN, 0), width=w) for w in (1, 4))
    assert one.operations == 2 * 12288 * 3072
    assert four.operations == 4 * one.operations
    assert four.bytes == one.bytes


def test_attention_of_several_tokens() -> None:
    plan = build(LANEFORMER, H200, "bfloat16")
    windowed, full = (plan.find(PhaseKind.ATTEND, layer) for layer in (0, 14))
    # Tokens at 3000, 3001 and 3002 see 2048 keys each, 2050 in all; unwindowed 3001 to 3003.
    cost = phase_cost(plan, windowed, width=3, length=3003)
    assert cost.bytes == 2050 * 2 * 1536 * 2
    assert cost.operations == 4 * 3 * 2048 * 3072
    cost = phase_cost(plan, full, width=3, length=3003)
    assert cost.bytes == 3003 * 2 * 1536 * 2
    assert cost.operations == 4 * (3001 + 3002 + 3003) * 3072


def test_the_floor_is_the_longer_of_streaming_and_computing() -> None:
    plan = build(LANEFORMER, cpu(2), "bfloat16")
    down = plan.find(PhaseKind.DOWN, 0)
    narrow, wide = phase_cost(plan, down), phase_cost(plan, down, width=64)
    assert narrow.seconds == narrow.bytes / 45e9
    assert wide.seconds == wide.operations / (2 * 512e9)
    assert pass_cost(plan, 64).seconds == sum(phase_cost(plan, p, 64).seconds for p in plan.phases)


def test_the_main_format_is_that_of_most_weights_that_a_pass_streams() -> None:
    layers = range(LANEFORMER.num_layers)
    assert main_format(build(LANEFORMER, cpu(2), "int8")) == "int8"
    blocks = {(role, i): "q4_k_panels" for role in (Role.GATE, Role.UP, Role.DOWN) for i in layers}
    assert main_format(build(LANEFORMER, cpu(2), "bfloat16", formats=blocks)) == "bfloat16"
    blocks |= {(role, i): "q6_k_panels" for role in (Role.Q, Role.K) for i in layers}
    assert main_format(build(LANEFORMER, cpu(2), "bfloat16", formats=blocks)) == "q4_k"


@pytest.mark.parametrize("workers", [1, 3, 16, 24])
def test_workers_share_what_a_phase_streams(workers: int) -> None:
    plan = build(LANEFORMER, cpu(workers), "int8", context=512)
    for phase in plan.phases:
        shared, whole = worker_bytes(plan, phase, length=300), phase_cost(plan, phase, 1, 300).bytes
        assert shared.shape == (workers,)
        assert whole - workers < shared.sum() <= whole  # keys are rounded down to a byte
        if phase.matrices:
            begin, end = phase.matrices[0].share.of(workers - 1)
            assert shared[-1] >= (end - begin) * phase.matrices[0].row_bytes


@pytest.mark.parametrize("name", ["dense", "mixture", "delta_mixture"])
def test_what_a_wider_pass_reads_is_the_union_of_its_experts(
    configs: dict[str, ModelConfig], name: str
) -> None:
    plan = build(configs[name], cpu(2), "bfloat16")
    # Without keys, values and states: what these take does not follow from the choice of experts.
    moved = [
        sum(m.lanes * m.rows * m.row_bytes * plan.active_experts(m, width) for m in matrices)
        for matrices in [[m for phase in plan.phases for m in phase.matrices]]
        for width in range(1, 65)
    ]
    read = to_arrays(plan).header["read"]
    np.testing.assert_allclose(read, np.array(moved) / moved[0], rtol=1e-6)
    assert (read[1] > 1.01) == (name != "dense")
    assert (read == 1).all() == (name == "dense")
