"""What plans look like: the waits above all."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from monolane.errors import BackendError, ConfigError, RequestError
from monolane.model import Index, ModelConfig, Role
from monolane.plan import (
    H200,
    Buffer,
    Choice,
    DeviceDescription,
    PhaseKind,
    Plan,
    Scope,
    build,
    cpu,
    find_device,
    named_config,
)

DeviceOf = Callable[..., DeviceDescription]


def waits(plan: Plan, scope: Scope) -> dict[str, int]:
    """Return phase -> how many phases lie between it and the last one that it waits for."""
    return {
        phase.name: phase.index - count
        for phase in plan.phases
        if (count := phase.wait(scope)) is not None
    }


def test_lanes_of_a_laneformer_wait_for_what_is_long_over() -> None:
    plan = build(named_config("laneformer-2b"), H200, "bfloat16")
    between = waits(plan, Scope.ALL)
    assert between.pop("CHOOSE") == 0
    # GATE_UP of a layer needs OUT, the phase before, of two layers ago; QKV the like of DOWN.
    assert set(between.values()) == {10}
    assert len(between) == 2 * 13  # the first two layers exchange nothing
    # Inside a lane each phase waits for the one before: 75 waits among 16 SMs.
    inside = waits(plan, Scope.GROUP)
    assert set(inside.values()) == {0}
    assert len(inside) == 75


def test_a_worker_with_whole_lanes_waits_for_nobody_inside_them() -> None:
    plan = build(named_config("laneformer-2b"), cpu(2), "bfloat16")
    assert waits(plan, Scope.GROUP) == {}
    assert plan.splits == 1
    assert plan.output_slots == (5, 5, 0, 0)


def test_one_worker_waits_for_nothing(config: ModelConfig, device_of: DeviceOf) -> None:
    assert all(phase.waits == () for phase in build(config, device_of(1), "float32").phases)


def test_tensor_parallel_lanes_wait_for_all_twice_a_layer(
    configs: dict[str, ModelConfig], device_of: DeviceOf
) -> None:
    plan = build(configs["tensor_parallel"], device_of(4), "float32")
    names = [name for i in range(4) for name in (f"GATE_UP {i}", f"QKV {i + 1}")]
    expected = dict.fromkeys([*names[:-1], "HEAD", "CHOOSE", "EMBED"], 0)
    assert waits(plan, Scope.ALL) == expected


def test_where_nothing_else_does_the_choice_guards_the_logits(
    configs: dict[str, ModelConfig], device_of: DeviceOf
) -> None:
    plan = build(configs["no_comm"], device_of(4, Choice.EVERYONE), "float32")
    count = len(plan.phases)
    # HEAD overwrites what CHOOSE of the previous pass read: its last phase, so a count of zero.
    assert plan.find(PhaseKind.HEAD).wait(Scope.ALL) == 0
    assert waits(plan, Scope.ALL) == {"HEAD": count - 2, "CHOOSE": 0}


def test_shorter_rings_keep_lanes_closer_together() -> None:
    config = named_config("laneformer-2b")

    def slack(slots: int | None) -> int:
        between = waits(build(config, cpu(2), "int8", ring_slots=slots), Scope.ALL)
        del between["EMBED"], between["CHOOSE"]
        return min(between.values())

    # Phases that a lane may be ahead of another. From five slots on only the data itself counts.
    assert {slots: slack(slots) for slots in (3, 4, 5, 15)} == {3: 3, 4: 8, 5: 10, 15: 10}
    assert slack(None) == 10
    with pytest.raises(ConfigError, match="ring_slots: expected at least 3, a delay of 2 layers"):
        build(config, cpu(2), "int8", ring_slots=2)
    deep = build(config, cpu(2), "int8", ring_slots=99)
    assert deep.output_slots == (15, 15, 0, 0)


def test_shares_of_a_lane_group_are_even() -> None:
    plan = build(named_config("laneformer-2b"), H200, "bfloat16")
    rows = {
        matrix.role: {end - begin for begin, end in map(matrix.share.of, range(128))}
        for phase in plan.phases
        for matrix in phase.matrices
    }
    assert rows == {
        Role.Q: {24},
        Role.K: {12},
        Role.V: {12},
        Role.O: {192},
        Role.GATE: {96},
        Role.UP: {96},
        Role.DOWN: {192},
        Role.HEAD: {248, 252},
    }
    assert plan.splits == 8  # 16 workers, 2 KV heads


def test_uneven_products_burden_different_workers(
    configs: dict[str, ModelConfig], device_of: DeviceOf
) -> None:
    """12 rows each of Q, K and V among 5 workers: what is left over goes round."""
    config = replace(configs["tensor_parallel"], num_heads=8, num_kv_heads=8)
    phase = build(config, device_of(20), "float32").find(PhaseKind.QKV, 0)
    totals = [
        sum(m.share.of(worker)[1] - m.share.of(worker)[0] for m in phase.matrices)
        for worker in range(5)
    ]
    assert sum(totals) == 3 * 12
    assert max(totals) - min(totals) <= 4  # a block; always the same workers first: 11 - 2


def test_half_style_heads_stay_whole(configs: dict[str, ModelConfig], device_of: DeviceOf) -> None:
    phase = build(configs["dense"], device_of(5), "float32").find(PhaseKind.QKV, 0)
    q, k, _ = phase.matrices
    assert q.share.bounds == (0, 12, 24, 36, 42, 48)
    assert k.share.bounds == (0, 6, 12, 12, 18, 24)


def test_a_shared_head_is_gathered_and_split_over_all(
    configs: dict[str, ModelConfig], device_of: DeviceOf
) -> None:
    plan = build(configs["concat_head"], device_of(6), "float32")
    head = plan.find(PhaseKind.HEAD)
    assert head.matrices[0].share.scope is Scope.ALL
    assert head.matrices[0].share.total == 43
    assert head.wait(Scope.ALL) == plan.find(PhaseKind.GATHER).index + 1
    one_lane = replace(configs["concat_head"], num_lanes=1)
    assert all(
        p.kind is not PhaseKind.GATHER for p in build(one_lane, device_of(2), "float32").phases
    )


def test_a_lane_per_device() -> None:
    plan = build(named_config("laneformer-2b"), find_device("8xh200"), "bfloat16")
    assert (plan.groups.count, plan.groups.lanes_each, plan.groups.workers_each) == (8, 1, 128)


def test_shapes_of_the_buffers() -> None:
    plan = build(named_config("laneformer-2b"), H200, "bfloat16", max_width=4, context=1000)
    assert {buffer: plan.shape(buffer, 0) for buffer in Buffer if plan.size(buffer)} == {
        Buffer.TOKENS: (4,),
        Buffer.QUERY: (8, 4, 384),
        Buffer.KEY_VALUE: (2, 8, 1000, 2, 96),
        Buffer.ATTENTION: (8, 8, 4, 4, 98),
        Buffer.FIRST_OUTPUT: (8, 4, 3072),
        Buffer.HIDDEN: (8, 4, 1536),
        Buffer.SECOND_OUTPUT: (8, 4, 3072),
        Buffer.STREAM: (8, 4, 3072),
        Buffer.LOGITS: (4, 32000),
        Buffer.UNNORMED: (8, 4, 768),  # in the place of QUERY
    }
    slots = {buffer: plan.slots(buffer) for buffer in Buffer if plan.slots(buffer) > 1}
    assert slots == {
        Buffer.KEY_VALUE: 15,
        Buffer.FIRST_OUTPUT: 5,
        Buffer.SECOND_OUTPUT: 5,
        Buffer.STATE: 15,
    }


def test_shapes_where_attention_is_latent(
    configs: dict[str, ModelConfig], device_of: DeviceOf
) -> None:
    plan = build(configs["latent"], device_of(8), "bfloat16", max_width=4)
    assert plan.splits == 8  # of the one KV head, whatever the number of heads
    shapes = {
        Buffer.QUERY: (1, 4, 8 * (11 + 4)),
        Buffer.KEY_VALUE: (1, 1, 64, 1, 11 + 4),
        Buffer.ATTENTION: (1, 8, 4, 8, 11 + 4 + 2),
        Buffer.LATENTS: (1, 4, 9 + 11 + 4),
        Buffer.HEADS: (1, 4, 8 * 7),
    }
    assert {buffer: plan.shape(buffer, 0) for buffer in shapes} == shapes


def test_whole_heads_of_queries_and_their_second_product_are_one_worker_s(
    configs: dict[str, ModelConfig], device_of: DeviceOf
) -> None:
    query, up = (
        build(configs["latent"], device_of(3), "bfloat16").find(PhaseKind.EXPAND, 0).matrices
    )
    assert query.share.bounds == tuple(10 * head for head in (0, 3, 6, 8))
    assert up.share.bounds == tuple(11 * head for head in (0, 3, 6, 8))


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"max_width": 0}, "max_width: expected 1 to 96, got 0"),
        ({"max_width": 97}, "max_width: expected 1 to 96, got 97"),
        ({"context": 0}, "context: expected None or 1 to 4096 tokens, .* got 0"),
        ({"context": 4097}, "context: expected None or 1 to 4096 tokens, .* got 4097"),
    ],
)
def test_wishes_that_cannot_be_met(wish: dict[str, object], message: str) -> None:
    wish = {"dtype": "bfloat16"} | wish
    with pytest.raises(ConfigError, match=message):
        build(named_config("laneformer-2b"), H200, **wish)  # type: ignore[arg-type]


def test_how_wide_a_pass_of_a_mixture_may_be(
    configs: dict[str, ModelConfig], device_of: DeviceOf
) -> None:
    mixture = configs["mixture"]
    assert build(mixture, device_of(3), "bfloat16", max_width=256).max_width == 256
    with pytest.raises(ConfigError, match="max_width: expected 1 to 256, got 257"):
        build(mixture, device_of(3), "bfloat16", max_width=257)
    with pytest.raises(ConfigError, match="max_width: expected 1 to 64, got 65"):
        build(configs["delta_mixture"], device_of(3), "bfloat16", max_width=65)


def test_what_no_plan_has_is_refused_by_its_name(
    configs: dict[str, ModelConfig], device_of: DeviceOf
) -> None:
    index = Index(heads=2, width=8, chosen=4, style="half")
    config = replace(configs["latent"], index=index)
    with pytest.raises(BackendError, match="^index: the interpreter backend does not compute it"):
        build(config, device_of(3), "bfloat16")


def test_a_dtype_that_is_none() -> None:
    with pytest.raises(RequestError, match="dtype: expected one of .*, got 'fp8'"):
        build(named_config("laneformer-2b"), H200, dtype="fp8")
