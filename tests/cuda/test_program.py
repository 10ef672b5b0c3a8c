"""The program of a pass: lowered from the plan, and proven before anybody compiles it.

What is broken here on purpose is broken for the emulated kernel too (test_monokernel_bugs.py); the
proof says it without running anything.
"""

from dataclasses import fields, replace
from typing import Any

import pytest
from emulation import KERNELS
from rig import tiny_config
from schedules import CASES, GAPS, Case

from monolane.cuda import _layout, _program, check_fit
from monolane.cuda._device import GpuInfo
from monolane.cuda._kernel_header import specialisation
from monolane.cuda._lay_out import lay_out
from monolane.cuda._layout import Layout
from monolane.cuda._plan_device import lay_out_widths
from monolane.cuda._program import Exchange, Op, Program, Touch, Verb, When, lower
from monolane.cuda._race_check import faults, prove
from monolane.errors import BackendError, ConfigError
from monolane.model import (
    NEVER,
    NOW,
    AltUp,
    Delta,
    Experts,
    Head,
    Hyper,
    Index,
    Latent,
    LayerConfig,
    ModelConfig,
    QkNorm,
    Reduce,
    Role,
    Rotary,
    Temperature,
    YarnScaling,
    parse_config,
)
from monolane.ops.conv.spec import Conv
from monolane.ops.laurel.spec import Laurel
from monolane.plan import (
    Buffer,
    Choice,
    DeviceDescription,
    Plan,
    PlanError,
    build,
    named_config,
    validate,
)

ALL = {**CASES, "gaps": GAPS}
H200 = GpuInfo("H200", (9, 0), 132, 227 << 10, 1 << 37, 1 << 37)


def layout_of(case: Case, wide: bool = False) -> Layout:
    device = DeviceDescription(
        name="t", workers=case.workers, bandwidth=1e9, compute=1e9, source="a test", chunk=16,
        choice=Choice.EVERYONE, tile_rows=16,
    )  # fmt: skip
    plan = build(case.config, device, "bfloat16", max_width=8)
    return lay_out(plan, warps=2, slot_bytes=4096, wide=wide)


def with_slots(program: Program, **slots: int) -> Program:
    return replace(program, slots=replace(program.slots, **slots))


def told(program: Program) -> str:
    return "\n".join(faults(program))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_programs_are_sound(name: str, wide: bool) -> None:
    prove(layout_of(ALL[name], wide).program)


@pytest.mark.parametrize("name", ALL)
def test_programs_that_merge_apart_are_sound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_layout, "_MERGED_APART", 0)
    program = layout_of(ALL[name]).program
    apart = program.merge is not None
    assert apart == any(Op.MERGE_OWN in step.ops for step in program.steps)
    assert apart or ALL[name].config.head_dim % 4  # pairs of words need pairs of pairs
    prove(program)


def dealt(layers: int = 4) -> Layout:
    """Three tiles of the stream for two blocks, and five of queries, keys and values."""
    config = tiny_config(
        num_lanes=1, hidden_size=48, num_heads=3, num_kv_heads=1, head_dim=16,
        intermediate_size=40, layers=(LayerConfig(NEVER, NEVER),) * layers,
    )  # fmt: skip
    return layout_of(replace(CASES["batch of two"], config=config, workers=2))


def test_layers_deal_tiles_out_by_turns() -> None:
    layout = dealt()
    assert layout.share_layers == 2
    assert layout.uneven
    prove(layout.program)
    assert layout.program.copies(Exchange.QKV) == layout.program.copies(Exchange.HIDDEN) == 2
    assert "expected rows shared out as 1 layers before" in told(
        with_slots(layout.program, layers=1)
    )


def test_a_word_has_one_writer() -> None:
    """Two would be ordered by nothing that PTX promises."""
    program = dealt().program
    phases = list(program.plan.phases)
    at = next(i for i, x in enumerate(phases) if x.name == "QKV 2")
    other = next(x for x in phases if x.name == "QKV 1")
    phases[at] = replace(phases[at], matrices=other.matrices)
    plan = replace(program.plan, phases=tuple(phases))
    assert "layer 2: expected rows shared out as 2 layers before" in told(
        lower(plan, program.wide, program.slots)
    )


def test_the_2b_program_is_sound_at_every_width() -> None:
    for layout in lay_out_widths(named_config("laneformer-2b"), H200, "bfloat16", 4096, (1, 64)):
        prove(layout.program)


@pytest.mark.parametrize("name", ["uneven rows", "late outputs", "gaps"])
def test_a_program_that_keeps_its_words_uses_no_place_again(name: str) -> None:
    kept = 3
    program = replace(layout_of(ALL[name]), kept_passes=kept).program
    prove(program)
    layers = range(program.plan.config.num_layers)
    for what in set(Exchange) - {Exchange.WEIGHTS, Exchange.LANE, Exchange.ACTIVATIONS}:
        events = {
            (2 * layer + module + 1, layer, module) for layer in layers for module in (0, 1)
        } | {(0, 0, 0)}
        if program.events(what) == 1:
            events = {(0, 0, 0)}
        elif what in _program._LAYERED:
            events = {(2 * layer + 1, layer, 0) for layer in layers}
        elif what in (Exchange.LANES, Exchange.GAINED):
            events -= {(0, 0, 0)}
        places = [
            program.slot(what, event=event, number=number, layer=layer, module=module)
            for number in range(kept)
            for event, layer, module in events
        ]
        assert sorted(places) == list(range(program.copies(what))), what


def test_steps_are_the_plans_phases() -> None:
    program = layout_of(CASES["uneven rows"]).program  # its head reads all lanes
    steps = [(step.name, [op.name for op in step.ops]) for step in program.steps]
    assert steps[:2] == [("EMBED", ["EMBED"]), ("QKV 0", ["NORMALISE", "MULTIPLY", "PUBLISH_QKV"])]
    assert steps[-3:] == [
        ("DOWN 1", ["FETCH_HIDDEN", "MULTIPLY", "UPDATE"]),
        ("HEAD", ["JOIN", "MULTIPLY", "SETTLE_GUIDES", "OFFER"]),
        ("CHOOSE", ["CHOOSE", "NEXT_PASS"]),
    ]
    assert [phase.name for phase in program.steps[-2].phases] == ["GATHER", "HEAD"]


# ---- an order that is not the plan's -----------------------------------------------------------
def swapped(plan: Plan, first: int) -> Plan:
    phases = list(plan.phases)
    phases[first : first + 2] = reversed(phases[first : first + 2])
    return replace(plan, phases=tuple(phases))


def test_a_plan_in_another_order_is_not_compiled() -> None:
    layout = layout_of(CASES["batch of two"])
    for first in range(len(layout.plan.phases) - 1):
        other = replace(layout, plan=swapped(layout.plan, first))
        with pytest.raises((PlanError, ConfigError)):
            specialisation(other)


def test_a_program_in_another_order_than_its_plan_is_not_compiled() -> None:
    program = layout_of(CASES["batch of two"]).program
    steps = list(program.steps)
    steps[3], steps[4] = steps[4], steps[3]
    with pytest.raises(PlanError, match="GATE_UP 0 where the plan has OUT 0"):
        prove(replace(program, steps=tuple(steps)))
    with pytest.raises(PlanError, match="other phases"):
        prove(replace(program, steps=program.steps[:-1]))


def test_a_delay_that_is_not_the_plans() -> None:
    program = layout_of(CASES["late outputs"]).program
    at = next(i for i, s in enumerate(program.steps) if s.name == "OUT 3")
    steps = list(program.steps)
    rule = steps[at].rule
    assert rule is not None
    steps[at] = replace(steps[at], rule=replace(rule, delay=0))
    assert "GATE_UP 3: expected a delay of 1" in told(replace(program, steps=tuple(steps)))


# ---- an exchange that is not there -------------------------------------------------------------
NORMING = (Op.PUBLISH_QKV, Op.ATTEND)  # of a model of one lane, whose heads are normed at once
MERGING = (Op.MERGE_OWN, Op.FETCH_MERGED)  # of narrow passes, in the place of MERGE
TOUCHES = [
    (op, wide, touch)
    for wide in (False, True)
    for op in Op
    for touch in _program.touches(op, wide, Head.MEAN, gained=True, heads=op in NORMING)
    if touch.verb is not Verb.BARRIER and not (wide and op in MERGING)
]


@pytest.mark.parametrize(
    ("op", "wide", "touch"), TOUCHES,
    ids=[f"{op.name}-{'wide-' * w}{t.verb.name}-{Exchange(t.what or 1).name}-{t.when.name}"
         for op, w, t in TOUCHES],
)  # fmt: skip
def test_a_removed_exchange_is_seen(
    monkeypatch: pytest.MonkeyPatch, op: Op, wide: bool, touch: Touch
) -> None:
    # Lanes that meet now, and a layer later, under a head that reads them all.
    config = tiny_config(
        head=Head.MEAN,
        layers=(LayerConfig(Reduce(0), Reduce(0)),) + (LayerConfig(Reduce(1), Reduce(1)),) * 2,
    )
    normed: dict[str, Any] = {"norm_before": op is not Op.FETCH_STREAM, "norm_after": True}
    if touch.what is Exchange.HEAD_SQUARES:
        normed |= {"num_lanes": 1, "head": Head.VOCAB_PARALLEL, "qk_norm": QkNorm.ALL}
    case = replace(CASES["batch of two"], config=replace(config, **normed))
    if op in MERGING:
        monkeypatch.setattr(_layout, "_MERGED_APART", 0)
    program = layout_of(case, wide).program
    whole = _program.touches

    def without(of: Op, *rest: Any) -> tuple[Touch, ...]:
        return tuple(t for t in whole(of, *rest) if (of, t) != (op, touch))

    monkeypatch.setattr(_program, "touches", without)
    assert next(faults(program), "") or (op is Op.JOIN and touch.what is Exchange.SQUARES), (
        "the norms of a joined head are not the plan's, but the kernel's own statement has them"
    )


def test_the_kernel_states_what_is_proven() -> None:
    """Each operation has its statement, which the compiler compares."""
    text = "".join(path.read_text() for path in [*KERNELS.glob("*.cuh"), KERNELS / "monokernel.cu"])
    for op in Op:
        assert f"is_proven(OP_{op.name}," in text or f"is_proven(OP_{op.name})" in text


# ---- a ring that is too small ------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "slots", "fault"),
    [
        ("idle blocks", {"stream": 1}, r"DOWN 0: STREAM\[0\] is overwritten by block"),
        ("lanes apart", {"choice": 1}, r"HEAD: CANDIDATES\[0\] is overwritten by block"),
        ("lanes apart", {"choice": 1}, r"CHOOSE: CONTROL\[0\] is overwritten by block"),
        ("late outputs", {"attention": 1}, r"OUT 2: LANES\[0\] is overwritten by block"),
        ("late outputs", {"mlp": 1}, r"DOWN 1: LANES\[3\] is overwritten by block"),
        ("gaps", {"attention": 3}, r"cannot know that block 0 of lane 1 has read it"),
    ],
)
def test_a_ring_that_is_too_small_is_seen(name: str, slots: dict[str, int], fault: str) -> None:
    with pytest.raises(PlanError, match=fault):
        prove(with_slots(layout_of(ALL[name]).program, **slots))


def test_a_single_buffer_of_a_wide_pass_is_seen() -> None:
    program = layout_of(CASES["wide pass"], wide=True).program
    assert "ACTIVATIONS[0] is overwritten" in told(with_slots(program, activations=1))


def test_a_block_that_publishes_nothing_could_fall_behind_unseen() -> None:
    """Why lay_out wants a row of the stream for each block."""
    program = layout_of(CASES["idle blocks"]).program
    # Block 3 has no row of anything, and does not attend.
    bounds = {
        Role.Q: (0, 8, 16, 16, 16),
        Role.K: (0, 8, 8, 8, 8),
        Role.V: (0, 3, 6, 8, 8),
        Role.O: (0, 6, 11, 16, 16),
        Role.DOWN: (0, 6, 11, 16, 16),
    }
    phases = []
    for phase in program.plan.phases:
        matrices = tuple(
            replace(m, share=replace(m.share, bounds=bounds.get(m.role, m.share.bounds)))
            for m in phase.matrices
        )
        units = phase.units and replace(phase.units, bounds=(0, 2, 3, 4, 4))
        phases.append(replace(phase, matrices=matrices, units=units))
    plan = replace(program.plan, phases=tuple(phases))
    validate(plan)
    assert "cannot know that block 3 of lane 0" in told(_program.lower(plan, False, program.slots))


def test_a_plan_that_breaks_its_own_rules_is_not_compiled() -> None:
    layout = layout_of(CASES["batch of two"])
    phases = [
        replace(p, reads=tuple(r for r in p.reads if r.buffer is not Buffer.HIDDEN))
        for p in layout.plan.phases
    ]
    with pytest.raises(PlanError):
        validate(replace(layout.plan, phases=tuple(phases)))
    with pytest.raises(PlanError):
        specialisation(replace(layout, plan=replace(layout.plan, phases=tuple(phases))))


ALTUP = {
    "altup": AltUp(2),
    "num_lanes": 1,
    "layers": (
        LayerConfig(
            NOW, NOW, modules=("attention", "mlp", Laurel(rank=2), Conv(channels=4, taps=2))
        ),
    ),
}
REFUSED: dict[str, dict[str, Any]] = {
    "norm_centred": {"norm_centred": True},
    "altup": ALTUP,
    "hyper": {"hyper": Hyper(3, 4, 1e-6), "num_lanes": 1},
    "value_norm": {"value_norm": True},
    "layer_scales": {"layer_scales": True},
    "attention_sinks": {"attention_sinks": True},
    "key_scale": {"key_scale": 0.5},
    "activation": {"activation": "relu_squared"},
    "experts": {
        "experts": Experts(4, 2, 8, normalised=True),
        "layers": (LayerConfig(NOW, NOW, experts=True),),
        "num_lanes": 1,
    },
    "latent": {
        "latent": Latent(rank=16, query_rank=None, plain=8, turned=8, value=8),
        "head_dim": 16,
        "num_kv_heads": 4,
        "num_heads": 4,
        "num_lanes": 1,
    },
    "index": {
        "index": Index(heads=2, width=8, chosen=4, style="half"),
        "latent": Latent(rank=16, query_rank=8, plain=8, turned=8, value=8),
        "head_dim": 16,
        "num_kv_heads": 4,
        "num_heads": 4,
        "num_lanes": 1,
    },
    "attention_gate": {"attention_gate": True},
    "delta": {
        "delta": Delta(key_heads=1, value_heads=2, key=4, value=4, kernel=2),
        "layers": (LayerConfig(NOW, NOW, delta=True),),
        "num_lanes": 1,
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_fields_that_the_kernels_lack_are_refused_by_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CASES["batch of two"].config, **REFUSED[name])
    with pytest.raises(BackendError, match=f"^{name}: the cuda backend does not compute it"):
        lay_out_widths(config, H200, "bfloat16", 64, (1, 8))


COMPUTED: dict[str, dict[str, Any]] = {
    "qkv_bias": {"qkv_bias": True},
    "out_bias": {"out_bias": True, "num_lanes": 1},
    "qk_norm": {"qk_norm": QkNorm.HEAD},
    "query_scale": {"query_scale": 0.5},
    "layers.rotary": {"layers": (LayerConfig(NOW, NOW, rotary="none"),)},
    "rotary.amplitude": {"rotary": Rotary(scaling=YarnScaling(2.0, 32, 1.1))},
    "rotary.part": {"rotary": Rotary(part=0.5)},
    "local_rotary": {"local_rotary": Rotary()},
    "norm_before": {"norm_before": False, "norm_after": True},
    "norm_after": {"norm_after": True},
    "norm_offset": {"norm_offset": 1.0},
    "embedding_scale": {"embedding_scale": 2.0},
    "residual_scale": {"residual_scale": 0.5},
    "logit_scale": {"logit_scale": 0.5},
    "logit_cap": {"logit_cap": 30.0},
    "score_cap": {"score_cap": 50.0},
    "norm_turned": {"norm_turned": True, "qk_norm": QkNorm.HEAD},
    "qk_unscaled": {"qk_unscaled": True, "qk_norm": QkNorm.HEAD},
    "attention_temperature": {"attention_temperature": Temperature(0.1, 8)},
}


@pytest.mark.parametrize("name", COMPUTED)
def test_fields_that_the_kernels_have_are_laid_out(name: str) -> None:
    config = replace(CASES["batch of two"].config, **COMPUTED[name])
    assert name in config.features
    for layout in lay_out_widths(config, H200, "bfloat16", 64, (1, 8)):
        assert "PROGRAM" in specialisation(layout)


def test_rotaries_that_turn_parts_of_a_head_that_differ() -> None:
    local = {"local_rotary": Rotary(), "rotary": Rotary(part=0.5)}
    config = replace(CASES["batch of two"].config, **local)
    with pytest.raises(BackendError, match=r"rotary.part: .* in all layers, got 0.5 and 1.0"):
        lay_out_widths(config, H200, "bfloat16", 64, (1,))


def test_every_field_is_computed_or_refused() -> None:
    marked = {x.name for x in fields(ModelConfig) if x.metadata.get("feature")}
    parts = {"layers.rotary", "rotary.amplitude", "rotary.part"}
    assert REFUSED.keys() | COMPUTED.keys() == marked | parts


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gemma3n_text", "value_norm"),
        ("gemma4_text", "value_norm"),
        ("gemma4_unified_text", "value_norm"),
        ("olmoe", "experts"),
        ("arcee", "activation"),
        ("gpt_oss", "attention_sinks"),
        ("mixtral", "experts"),
        ("qwen2_moe", "experts"),
        ("qwen3_moe", "experts"),
        ("qwen3_next", "attention_gate"),
        ("qwen3_5_text", "attention_gate"),
        ("qwen3_5_moe_text", "attention_gate"),
        ("glm4_moe_lite", "latent"),
        ("exaone_moe", "experts"),
        ("hunyuan_v1_moe", "experts"),
        ("mistral4", "latent"),
        ("deepseek_v32", "index"),
        ("glm_moe_dsa", "index"),
        ("deepseek_v4", "experts"),
        ("lfm2", "layers.modules"),
        ("granitemoehybrid", "experts"),
        ("nemotron_h", "activation"),
        ("falcon_h1", "key_scale"),
        ("bamba", "layers.modules"),
        ("granitemoe", "experts"),
        ("granitemoeshared", "experts"),
        ("glm4_moe", "experts"),
        ("minimax_m2", "experts"),
        ("cohere", "norm_centred"),
        ("cohere2", "norm_centred"),
        ("ernie4_5_moe", "experts"),
        ("llama4_text", "experts"),
        ("kimi_linear", "latent"),
        ("deepseek_v2", "latent"),
        ("deepseek_v3", "latent"),
        ("youtu", "latent"),
        ("dots1", "experts"),
        ("solar_open", "experts"),
        ("mellum", "experts"),
        ("flex_olmo", "experts"),
    ],
)
def test_families_with_such_fields_are_refused(kind: str, name: str) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 96}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8}
    heads["num_experts_per_tok"] = 2  # which DeepSeek-V2 has no default for
    said = {"model_type": kind, "max_position_embeddings": 64} | sizes | heads
    own = {
        "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
        "granite": {"residual_multiplier": 0.5},
        "falcon_h1": {"key_multiplier": 0.5},
        "nemotron_h": {"hybrid_override_pattern": "M-*"},
        "hunyuan_v1_moe": {"num_experts": 4},
        "gemma3n_text": {"num_kv_shared_layers": 0},
        "deepseek_v4": {"num_key_value_heads": 1, "qk_rope_head_dim": 4},
        "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    }
    config = parse_config(said | own.get(kind, {}))
    with pytest.raises(BackendError, match=f"^{name}: the cuda backend does not compute it"):
        check_fit(config, "auto", H200, context=64, slots=1)


def test_what_requests_ask_for_is_proven_too() -> None:
    assert {When.GUIDED, When.LIMITED} <= {t.when for _, _, t in TOUCHES}
