"""Built plans are sound, none of their waits can be spared, and faults are seen."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolane.model import NEVER, Head, LayerConfig, ModelConfig, QkNorm, Reduce, Rotary
from monolane.plan import (
    H200,
    MI300X,
    Access,
    Buffer,
    Choice,
    DeviceDescription,
    Phase,
    PhaseKind,
    Plan,
    PlanError,
    Scope,
    Share,
    Wait,
    build,
    cpu,
    faults,
    find_device,
    named_config,
    validate,
)

DeviceOf = Callable[..., DeviceDescription]


def changed(plan: Plan, at: int, /, **fields: object) -> Plan:
    """Return the plan with one phase altered."""
    phases = list(plan.phases)
    phases[at] = replace(phases[at], **fields)  # type: ignore[arg-type]
    return replace(plan, phases=tuple(phases))


def without_each_wait(plan: Plan) -> Iterator[tuple[Phase, Wait, Plan]]:
    for phase in plan.phases:
        for wait in phase.waits:
            rest = tuple(other for other in phase.waits if other is not wait)
            yield phase, wait, changed(plan, phase.index, waits=rest)


@pytest.mark.parametrize("choice", Choice)
@pytest.mark.parametrize("workers", [2, 3, 8, 12])
def test_built_plans_are_sound_and_no_wait_is_spare(
    config: ModelConfig, device_of: DeviceOf, workers: int, choice: Choice
) -> None:
    plan = build(config, device_of(workers, choice), "float32")
    validate(plan)
    for phase, wait, weaker in without_each_wait(plan):
        with pytest.raises(PlanError, match="without a wait for every worker"):
            validate(weaker)
        # Nor does a wait for one phase fewer do.
        kept = [replace(w, count=w.count - 1) if w is wait else w for w in phase.waits]
        assert any("without a wait" in f for f in faults(changed(plan, phase.index, waits=kept)))


@pytest.mark.parametrize("slots", [3, 4, 5, 6])
def test_rings_of_any_depth(
    configs: dict[str, ModelConfig], device_of: DeviceOf, slots: int
) -> None:
    for name in ("released_shape", "early_comm", "mlp_only"):
        for workers in (2, 3, 8):
            plan = build(configs[name], device_of(workers), "float32", ring_slots=slots)
            validate(plan)
            for _, _, weaker in without_each_wait(plan):
                assert list(faults(weaker))


def test_plans_of_large_devices() -> None:
    for device in (H200, MI300X, find_device("8xh200"), find_device("8xmi300x"), cpu(2)):
        validate(build(named_config("laneformer-2b"), device, "bfloat16"))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any small model on any small device."""

    def rule(layer: int) -> Reduce:
        return draw(st.one_of(st.just(NEVER), st.builds(Reduce, st.integers(0, layer))))

    lanes = draw(st.sampled_from([1, 2, 3, 4]))
    count = draw(st.integers(1, 6))
    config = ModelConfig(
        family="laneformer",
        hidden_size=draw(st.integers(1, 40)),
        intermediate_size=lanes * draw(st.integers(1, 20)),
        num_heads=lanes * 2,
        num_kv_heads=lanes * draw(st.sampled_from([1, 2])),
        head_dim=2 * draw(st.integers(1, 5)),
        vocab_size=lanes * draw(st.integers(1, 9)),
        max_positions=32,
        num_lanes=lanes,
        layers=tuple(LayerConfig(rule(i), rule(i)) for i in range(count)),
        head=draw(st.sampled_from(Head)),
        rotary=Rotary(style=draw(st.sampled_from(["interleaved", "half"]))),
    )
    norms = st.sampled_from([None, *QkNorm])
    config = replace(config, qk_norm=draw(norms))
    device = replace(cpu(draw(st.integers(1, 9))), choice=draw(st.sampled_from(Choice)))
    delays = [r.delay or 0 for x in config.layers for r in (x.attention_reduce, x.mlp_reduce)]
    slots = draw(st.one_of(st.none(), st.integers(max(delays) + 1, 8)))
    return build(config, device, "float32", ring_slots=slots)


@settings(max_examples=30, deadline=None)
@given(plans(), st.randoms())
def test_any_plan_is_sound_and_no_wait_is_spare(plan: Plan, random: object) -> None:
    validate(plan)
    weaker = [each for _, _, each in without_each_wait(plan)]
    random.shuffle(weaker)  # type: ignore[attr-defined]
    assert all(list(faults(each)) for each in weaker[:12])


@pytest.fixture
def plan(configs: dict[str, ModelConfig], device_of: DeviceOf) -> Plan:
    """Four lanes, delay 2, eight workers: both scopes, rings, splits."""
    return build(configs["released_shape"], device_of(8), "bfloat16")


def seen(plan: Plan, *parts: str) -> bool:
    """Tell whether one fault names all parts."""
    found = list(faults(plan))
    return any(all(part in fault for part in parts) for fault in found)


def test_a_sound_plan_has_no_faults(plan: Plan) -> None:
    assert list(faults(plan)) == []


def test_the_error_names_every_fault(plan: Plan) -> None:
    broken = changed(plan, 2, waits=(), units=None)
    with pytest.raises(PlanError) as caught:
        validate(broken)
    message = str(caught.value)
    assert "ATTEND 0: QUERY[0] of layer 0, own lanes is read without a wait" in message
    assert "for every worker of the group to have finished QKV 0, where it is written" in message
    assert "ATTEND 0: expected units in" in message


def test_a_wait_that_points_forward(plan: Plan) -> None:
    for count in (3, 99, -len(plan.phases)):
        broken = changed(plan, 2, waits=(Wait(Scope.GROUP, count),))
        assert seen(broken, "ATTEND 0", f"waits for {count} phases, which is not behind it")
    twice = changed(plan, 2, waits=(Wait(Scope.GROUP, 2), Wait(Scope.GROUP, 1)))
    assert seen(twice, "ATTEND 0", "waits twice in one scope")


def test_a_wait_for_nobody(configs: dict[str, ModelConfig], device_of: DeviceOf) -> None:
    alone = build(configs["released_shape"], device_of(4), "float32")
    broken = changed(alone, 2, waits=(Wait(Scope.GROUP, 2),))
    assert seen(broken, "ATTEND 0", "waits in GROUP, where there is nobody else")


def test_a_group_wait_where_all_are_needed(plan: Plan) -> None:
    index = plan.find(PhaseKind.GATE_UP, 3).index
    broken = changed(plan, index, waits=(Wait(Scope.GROUP, index),))
    assert seen(
        broken, "GATE_UP 3", "of layer 1, all lanes is read without a wait for every worker"
    )


def test_a_wrong_slot(plan: Plan) -> None:
    phase = plan.find(PhaseKind.GATE_UP, 3)
    (update,), (own, others) = phase.updates, phase.reads
    slot = (others.slot + 1) % plan.output_slots[0]
    reads = (own, replace(others, slot=slot))
    broken = changed(plan, phase.index, reads=reads, updates=(replace(update, other_slot=slot),))
    assert seen(broken, "GATE_UP 3", f"FIRST_OUTPUT[{slot}] of layer 1", "holds layer 2")
    assert seen(changed(plan, phase.index, reads=reads), "its update reads FIRST_OUTPUT[1]")
    beyond = (own, replace(others, slot=plan.output_slots[0]))
    assert seen(changed(plan, phase.index, reads=beyond), "GATE_UP 3", "there are 5 slots")


def test_a_slot_reused_too_early(plan: Plan) -> None:
    """Write layer 3's outputs where layer 1's still wait for their last reader."""
    out, gate_up = plan.find(PhaseKind.OUT, 3), plan.find(PhaseKind.GATE_UP, 3)
    write = replace(out.writes[0], slot=1)
    own = replace(gate_up.reads[0], slot=1)
    broken = changed(plan, out.index, writes=(write,))
    updates = (replace(gate_up.updates[0], own_slot=1),)
    broken = changed(broken, gate_up.index, reads=(own, gate_up.reads[1]), updates=updates)
    assert seen(broken, "GATE_UP 3", "of layer 1, all lanes, but the slot holds layer 3")


def test_a_missing_write(plan: Plan) -> None:
    phase = plan.find(PhaseKind.DOWN, 0)
    broken = changed(plan, phase.index, writes=())
    assert seen(broken, "DOWN 0: expected to write SECOND_OUTPUT, got nothing")
    assert seen(
        broken, "QKV 1: reads SECOND_OUTPUT[0] of layer 0", "which no phase before it writes"
    )


def test_a_missing_or_foreign_read(plan: Plan) -> None:
    phase = plan.find(PhaseKind.OUT, 1)
    assert seen(changed(plan, phase.index, reads=()), "OUT 1: expected to read ATTENTION")
    reads = (*phase.reads, Access(Buffer.QUERY, 0, 1, Scope.GROUP))
    assert seen(changed(plan, phase.index, reads=reads), "OUT 1", "got ATTENTION, QUERY")
    narrow = tuple(replace(read, lanes=Scope.ALL) for read in phase.reads)
    assert seen(changed(plan, phase.index, reads=narrow), "OUT 1: ATTENTION", "the wrong lanes")
    stray = tuple(replace(write, layer=5) for write in phase.writes)
    assert seen(changed(plan, phase.index, writes=stray), "expected to write data of layer 1")


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((0, 8, 12), "expected 16 rows to be shared out, got 12"),
        ((0, 8, 24), "expected 16 rows to be shared out, got 24"),
        ((0, 7, 16), "a rotary pair is cut at row 7"),
        ((0, 20, 16), "rows 20..16 of worker 1 do not follow upon row 20"),
        ((2, 8, 16), "rows 2..8 of worker 0 do not follow upon row 0"),
        ((0, 16), "expected shares of 2 workers (GROUP), got 1"),
    ],
)
def test_rows_that_are_not_streamed_exactly_once(
    plan: Plan, bounds: tuple[int, ...], message: str
) -> None:
    phase = plan.find(PhaseKind.QKV, 2)
    q, k, v = phase.matrices
    broken = replace(q, share=Share(Scope.GROUP, bounds))
    assert seen(changed(plan, phase.index, matrices=(broken, k, v)), "QKV 2: q", message)


def test_a_head_that_is_normed_is_not_cut(
    configs: dict[str, ModelConfig], device_of: DeviceOf
) -> None:
    plan = build(configs["head_norms"], device_of(4), "float32")
    phase = plan.find(PhaseKind.QKV, 0)
    q, k, v = phase.matrices
    cut = replace(k, share=Share(Scope.GROUP, (0, 8, 12)))  # pairs of two rows, heads of six
    broken = changed(plan, phase.index, matrices=(q, cut, v))
    assert seen(broken, "QKV 0: k: a head that is normed is cut at row 8")
    assert not seen(broken, "a rotary pair is cut")


def test_a_head_and_its_gate_are_not_cut_apart(
    configs: dict[str, ModelConfig], device_of: DeviceOf
) -> None:
    plan = build(configs["gates_of_lanes"], device_of(4), "float32")
    phase = plan.find(PhaseKind.QKV, 0)
    q, k, v = phase.matrices
    cut = replace(q, share=Share(Scope.GROUP, (0, 24, 64)))  # heads of eight rows, and as many
    broken = changed(plan, phase.index, matrices=(cut, k, v))
    assert seen(broken, "QKV 0: q: a head and its gate are cut at row 24")
    assert not seen(broken, "a rotary pair is cut")


def test_a_norm_over_all_heads_that_is_left_out_or_incomplete(
    configs: dict[str, ModelConfig], device_of: DeviceOf
) -> None:
    plan = build(configs["late_norms"], device_of(3), "float32")
    phase = plan.find(PhaseKind.NORM_QK, 1)
    rest = tuple(x for x in plan.phases if x is not phase)
    assert seen(replace(plan, phases=rest), f"they differ from phase {phase.index} on")
    blind = changed(plan, phase.index, reads=())
    assert seen(blind, "NORM_QK 1: expected to read UNNORMED, got nothing")
    mute = changed(plan, phase.index, writes=phase.writes[:1])
    assert seen(mute, "NORM_QK 1: expected to write QUERY, KEY_VALUE, got QUERY")
    few = changed(plan, phase.index, units=Share(Scope.GROUP, (0, 4, 8, 8)))
    assert seen(few, "NORM_QK 1: expected 12 rows to be shared out, got 8")
    early = changed(plan, phase.index, waits=())
    assert seen(early, "NORM_QK 1: UNNORMED[0] of layer 1", "is read without a wait")
    direct = plan.find(PhaseKind.QKV, 1)
    written = (Access(Buffer.QUERY, 0, 1, Scope.GROUP), direct.writes[1])
    broken = changed(plan, direct.index, writes=written)
    assert seen(broken, "QKV 1: expected to write UNNORMED, KEY_VALUE, got QUERY, KEY_VALUE")


def test_gate_and_up_apart(plan: Plan) -> None:
    phase = plan.find(PhaseKind.GATE_UP, 0)
    gate, up = phase.matrices
    apart = replace(up, share=Share(Scope.GROUP, (0, 8, up.share.total)))
    broken = changed(plan, phase.index, matrices=(gate, apart))
    assert seen(broken, "GATE_UP 0: expected gate and up to be shared out alike")


def test_heads_of_latent_attention_apart(
    configs: dict[str, ModelConfig], device_of: DeviceOf
) -> None:
    plan = build(configs["latent"], device_of(3), "bfloat16")
    phase = plan.find(PhaseKind.EXPAND, 1)
    query, up = phase.matrices
    for bounds in ((0, 22, 66, 88), (0, 32, 66, 88)):  # other heads; amid one
        apart = replace(up, share=Share(Scope.GROUP, bounds))
        broken = changed(plan, phase.index, matrices=(query, apart))
        assert seen(broken, "EXPAND 1: expected queries and their second product")


def test_parts_of_a_mixture_apart(configs: dict[str, ModelConfig], device_of: DeviceOf) -> None:
    plan = build(configs["latent_mixture"], device_of(3), "bfloat16")
    for kind, message in (
        (PhaseKind.EXPERT_GATE_UP, "gate and up to be shared out alike"),
        (PhaseKind.EXPERT_DOWN, "all that is added up of a mixture"),
    ):
        phase = plan.find(kind, 1)
        *others, last = phase.matrices
        apart = replace(last, share=Share(Scope.GROUP, (0, 1, 2, last.share.total)))
        broken = changed(plan, phase.index, matrices=(*others, apart))
        assert seen(broken, f"{phase.name}: expected {message}")


def test_weights_left_out_or_misshapen(plan: Plan) -> None:
    phase = plan.find(PhaseKind.QKV, 2)
    q, k, v = phase.matrices
    assert seen(
        changed(plan, phase.index, matrices=(q, k)), "expected the weights Q, K, V, got Q, K"
    )
    wide = replace(q, columns=q.columns * 2)
    assert seen(changed(plan, phase.index, matrices=(wide, k, v)), "QKV 2: q: expected shape")
    heavy = replace(q, row_bytes=1)
    assert seen(changed(plan, phase.index, matrices=(heavy, k, v)), "bytes a row, got 1")


def test_an_update_that_is_not_the_model_s(plan: Plan) -> None:
    phase = plan.find(PhaseKind.GATE_UP, 3)
    early = replace(phase.updates[0], reduce=Reduce(1))
    broken = changed(plan, phase.index, updates=(early,))
    assert seen(broken, "expected to reduce after 2, got after 1")
    assert seen(changed(plan, phase.index, updates=()), "GATE_UP 3: the wrong updates")


def test_phases_out_of_order(plan: Plan) -> None:
    phases = plan.phases
    swapped = replace(plan, phases=(*phases[:3], phases[4], phases[3], *phases[5:]))
    assert seen(swapped, "they differ from phase 3 on")
    assert seen(
        replace(plan, phases=phases[:-1]), f"expected {len(phases)} phases", "count differs"
    )
    assert seen(changed(plan, 3, index=4), "OUT 0: expected index 3, got 4")
