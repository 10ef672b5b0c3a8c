"""The generated header of one specialisation: a layout as compile-time constants.

Shapes, lane split, tiles and offsets are constants of the kernel, so that loops unroll and nothing
is looked up that never changes.
"""

from collections.abc import Iterable
from dataclasses import fields

import numpy as np

from monolane._structs import CUDA, declare_enum, members_of
from monolane.cuda._layout import PRODUCTS, SHARE_TABLES, SHARED_ROLES, Layout
from monolane.cuda._params import STRUCTS
from monolane.cuda._program import Exchange, Op, Program, Touch, Verb, When
from monolane.cuda._proofs import prove_once
from monolane.cuda._shared_memory import HELD_STOPS
from monolane.cuda._switches import Switch
from monolane.cuda._tables import gain_lanes
from monolane.cuda._tiling import Tiling
from monolane.model import FORMATS, Head, ModelConfig, QkNorm
from monolane.plan import PhaseKind

# Tokens that may wait for the host; an epoch never draws more.
EVENTS = 1 << 15
TRACE_PASSES = 64
# What a guide in pinned memory says: draw under its mask, or give the row back. An event of that
# token says that a row was given back.
FREE, MASKED, PARKED = 0, 1, 2
PARKED_TOKEN = 0xFFFFFFFF
# An event of that token says that a logit is no finite number, and the sequence over.
BROKEN_TOKEN = 0xFFFFFFFE
_TOUCH_VERB, _TOUCH_WHEN = 256, 32  # how a touch becomes a number
# Those that the kernel has.
_KINDS = {
    PhaseKind.EMBED,
    PhaseKind.QKV,
    PhaseKind.ATTEND,
    PhaseKind.OUT,
    PhaseKind.GATE_UP,
    PhaseKind.DOWN,
    PhaseKind.GATHER,
    PhaseKind.HEAD,
    PhaseKind.CHOOSE,
}
_HEADS = (Head.VOCAB_PARALLEL, Head.MEAN, Head.SUM, Head.CONCAT)


def specialisation(layout: Layout) -> str:
    """Return the text of ``specialisation.h``; PlanError if the program in it is unsound."""
    program = layout.program
    prove_once(program)
    tables = [*(role.name for role in SHARED_ROLES), "ATTEND", "GATHER", "MERGE"]
    parts = [
        "// Generated from a plan: the constants of one monokernel. Sizes count per lane where the",
        "// comment says so.",
        "#pragma once",
        "",
        declare_enum("Format", [(x.short, x.code) for x in FORMATS.values() if x.named], CUDA),
        declare_enum("HeadKind", [(f"HEAD_{x.name}", i) for i, x in enumerate(_HEADS)], CUDA),
        *_constants(layout),
        *_switches(layout),
        "",
        _tilings(layout),
        _layers(layout),
        *_program(program),
        declare_enum("Verdict", [("FREE", FREE), ("MASKED", MASKED), ("PARKED", PARKED)], CUDA),
        f"constexpr u32 PARKED_TOKEN = {PARKED_TOKEN:#x};",
        f"constexpr u32 BROKEN_TOKEN = {BROKEN_TOKEN:#x};",
        "",
        "struct alignas(8) Share {",
        "  u32 begin, end;",
        "};",
        declare_enum("ShareTable", [(f"SHARE_{name}", i) for i, name in enumerate(tables)], CUDA),
        *(struct.declare(CUDA) for struct in STRUCTS),
    ]
    return "\n".join(parts)


def mask_words(vocab: int) -> int:
    """Return the 32-bit words of a mask of the vocabulary."""
    return -(-vocab // 32)


def _constants(layout: Layout) -> list[str]:
    plan, c = layout.plan, layout.plan.config
    shared_head = plan.shared_head
    lanes = c.num_lanes
    numbers: dict[str, tuple[int, str]] = {
        "LANES": (lanes, "L"),
        "BLOCKS": (layout.blocks, "B of a lane"),
        "WORKERS": (plan.groups.workers, "W = L * B"),
        "DEVICES": (layout.devices, "that the lanes are dealt out to, in their order"),
        "DEVICE_LANES": (layout.device_lanes, "lanes of each"),
        "DEVICE_WORKERS": (layout.device_workers, "blocks of each"),
        "LAYERS": (c.num_layers, "N"),
        "HIDDEN": (c.hidden_size, "D"),
        "INNER": (c.intermediate_size // lanes, "F / L"),
        "HEADS": (c.num_heads // lanes, "query heads of a lane"),
        "KV_HEADS": (c.num_kv_heads // lanes, "of a lane"),
        "HEAD_DIM": (c.head_dim, "h"),
        "VOCAB": (c.vocab_size, "V"),
        "HEAD_ROWS": (c.vocab_size if shared_head else c.vocab_size // lanes, "of a lane"),
        "WIDTH": (layout.width, "T: rows of a pass at most"),
        "CONTEXT": (plan.context, "tokens of a sequence at most"),
        "SPLITS": (plan.splits, "S: parts of a KV head's keys"),
        "CHUNK": (plan.device.chunk, "keys: split s takes the chunks c with c % S == s"),
        "WARPS": (layout.warps, "that compute; one more streams"),
        "TILE_BYTES": (layout.tile_bytes, "16 rows x 16 columns"),
        "RING_SLOTS": (layout.ring_slots, ""),
        "SLOT_BYTES": (layout.slot_bytes, "at most"),
        "TOTAL_ROWS": (layout.total_rows, "of a product whose parts are added round by round"),
        "OWN_ROWS": (layout.own_rows, "of the stream, of the busiest block"),
        "ACTIVATION_STRIDE": (layout.activation_stride, "bytes from token to token"),
        "KV_ROW_BYTES": (layout.kv_row_bytes, ""),
        "WIDE": (int(layout.wide), "1: a pass's activations lie in memory"),
        "MERGED_ROWS": (layout.merged_rows, "query rows whose warps' attention meets at a time"),
        "MERGE_PAIRS": (layout.merge_sizes[0], "that a block merges, at most; 0: each merges all"),
        "QUERY_STRIDE": (layout.query_stride, "bytes from query to query"),
        "EVENTS": (EVENTS, ""),
        "TRACE_PASSES": (TRACE_PASSES, "the last so many are kept"),
        "MASK_WORDS": (mask_words(c.vocab_size), "of a guide: token t has bit t % 32 of t / 32"),
        "WEIGHTS": (FORMATS[plan.dtype].code, "enum Format"),
        "HEAD": (_HEADS.index(c.head) if shared_head else 0, "HeadKind"),
        "ROTARY_INTERLEAVED": (int(c.rotary.style == "interleaved"), ""),
        "NORM_LANES": (lanes if c.norm_scale_per_lane else 1, "scales of a norm"),
        "FINAL_NORM_LANES": (lanes if c.final_norm_per_lane else 1, ""),
        "NORM_AFTER": (int(c.norm_after), "1: what a module adds to the streams is normed"),
        "QKV_BIAS": (int(c.qkv_bias), ""),
        "OUT_BIAS": (int(c.out_bias), "of a model of one lane"),
        "QK_NORM": (
            (None, QkNorm.HEAD, QkNorm.ALL).index(c.qk_norm),
            "of queries and keys; 1: of each head, 2: of all at once",
        ),
        "ALL_TURN": (int(set(_turns(c)) == {1}), "0: layers have other rotaries, or none"),
        "ROTARIES": (1 if c.local_rotary is None else 2, ""),
        "TURNED": (c.rotary_dim("main"), "numbers of a head that turn"),
        "NORM_TURNED": (int(c.norm_turned), "1: heads are normed behind the rotary"),
        "TEMPERED": (int(c.attention_temperature is not None), "queries, by their position"),
        "GELU": (int(c.activation == "gelu_tanh"), "1: of the gate, in the place of silu"),
    }
    lines = [
        f"constexpr u32 {name} = {value};" + (f"  // {meaning}" if meaning else "")
        for name, (value, meaning) in numbers.items()
    ]
    lines.append(f"constexpr u64 RUN_BYTES = {layout.run_bytes}ull;")
    lines.append(f"constexpr u32 SCALE_ROWS = {layout.scale_rows};  // of a block's run")
    lines.append(f"constexpr u32 LAYER_ROWS = {layout.row_offsets[4]};  // of them, of a layer")
    lines.append(f"constexpr u64 KV_BYTES = {layout.kv_bytes}ull;")
    scale = c.head_dim**-0.5 if c.query_scale is None else c.query_scale
    lines.append(f"constexpr f32 SCORE_SCALE = {_float(scale)};")
    floats = {
        "NORM_EPS": c.norm_eps,
        "SCORE_CAP": c.score_cap or 0.0,  # 0: none
        "EMBEDDING_SCALE": c.embedding_scale,
        "RESIDUAL_SCALE": c.residual_scale,
        "LOGIT_SCALE": c.logit_scale,
        "LOGIT_CAP": c.logit_cap or 0.0,
    }
    lines += [f"constexpr f32 {name} = {_float(value)};" for name, value in floats.items()]
    for field in fields(layout.shared):
        lines.append(
            f"constexpr u32 AT_{field.name.upper()} = {getattr(layout.shared, field.name)};"
        )
    return lines


def _switches(layout: Layout) -> list[str]:
    """Return the switches, and the constants that they alone need."""
    on = {switch: switch in layout.switches for switch in Switch}
    on[Switch.TABLES] = layout.early_tables
    on[Switch.LANES] = on[Switch.LANES] and not layout.wide
    config = layout.plan.config
    gains = FORMATS["float16" if config.dtype == "float16" else "bfloat16"]
    return [
        *(f"constexpr bool SWITCH_{x.name} = {str(on[x]).lower()};" for x in Switch),
        f"constexpr u32 HELD_STOPS = {HELD_STOPS};",
        f"constexpr u32 SHARE_TABLES = {SHARE_TABLES};",
        f"constexpr u32 SHARE_LAYERS = {layout.share_layers};  // ways of sharing out",
        f"constexpr bool UNEVEN = {str(layout.uneven).lower()};  // blocks stream more or less",
        f"constexpr u32 GAIN_LANES = {gain_lanes(config)};",
        f"constexpr u32 GAINS = {gains.code};  // enum Format",
        f"constexpr bool PAIRED_HIDDEN = {str(layout.paired_hidden).lower()};",
        f"constexpr bool PAIRED_VALUES = {str(layout.paired_values).lower()};",
        f"constexpr u32 SLOTS_IN_FLIGHT = {layout.slots_in_flight};",
    ]


def _tilings(layout: Layout) -> str:
    names = [field.name for field in fields(Tiling) if field.name != "warps"]
    lines = ["struct Tiling {", f"  u32 {', '.join(names)};"]
    lines += ["  u32 depth, padded_rows, padded_columns, slot_bytes;"]
    lines += ["  u32 first_row;  // of its layer's scales"]
    lines += ["  bool folded;  // parts are added round by round", "};"]
    for kind, first_row in zip(PRODUCTS, (*layout.row_offsets[:4], 0), strict=True):
        tiling = layout.tilings[kind]
        values = [getattr(tiling, name) for name in names]
        values += [tiling.depth, tiling.padded_rows, tiling.padded_columns]
        values += [tiling.slot_bytes(layout.tile_bytes), first_row, int(kind in layout.folded)]
        lines.append(f"constexpr Tiling {kind.name}_TILES{{{', '.join(map(str, values))}}};")
    return "\n".join(lines) + "\n"


def _layers(layout: Layout) -> str:
    lines = [
        "struct Layer {",
        "  u64 kv_offset;  // bytes from the beginning of a sequence's cache",
        "  u32 window;     // keys that a query sees; 0: all",
        "  u32 capacity;   // cached positions",
        "  i32 delay[2];   // of attention and MLP outputs; 0: now, -1: never",
        "  u32 read[2];    // whether any lane reads these outputs of this layer",
        "};",
        "CONSTANT Layer LAYER_TABLE[LAYERS] = {",
    ]
    for x in layout.layers:
        lines.append(
            f"    {{{x.kv_offset}ull, {x.window}, {x.capacity}, "
            f"{{{x.attention.delay}, {x.mlp.delay}}}, "
            f"{{{int(x.attention.read)}, {int(x.mlp.read)}}}}},"
        )
    config = layout.plan.config
    turns = ", ".join(map(str, _turns(config)))
    lines += [
        "};",
        f"CONSTANT u32 LAYER_TURNS[LAYERS] = {{{turns}}};  // 0: not, else which rotary",
    ]
    tempered = (int(x.temperature is not None) for x in config.attentions.values())
    lines.append(f"CONSTANT u32 LAYER_TEMPERED[LAYERS] = {{{', '.join(map(str, tempered))}}};")
    return "\n".join([*lines, ""])


def _turns(config: ModelConfig) -> list[int]:
    """Return by which rotary each layer turns queries and keys; 0: by none."""
    return [("none", "main", "local").index(layer.rotary) for layer in config.layers]


def _program(program: Program) -> list[str]:
    """Return the steps of a pass and what their operations exchange, for the kernel to run."""
    steps, slots = program.steps, program.slots
    layer = program.layer_steps
    first = steps.index(layer[0])
    listed = [*steps[:first], *layer, *steps[first + len(layer) * program.plan.config.num_layers :]]
    products = [step.kind for step in listed if Op.MULTIPLY in step.ops]
    assert products == list(PRODUCTS), "weights are packed in the order of the products"
    base = {step.layer: 2 * step.layer for step in layer}
    most = max(len(step.ops) for step in listed)
    longest = max(len(program.touches(op)) for op in Op) + 1
    last = 2 * program.plan.config.num_layers
    return [
        "// ---- the program of a pass, lowered from the plan, proven by cuda._race_check ----",
        *(
            declare_enum(name, [(f"{prefix}_{x}", code) for x, code in members], CUDA)
            for name, prefix, members in (
                ("PhaseKind", "PHASE", [x for x in members_of(PhaseKind) if x[1] in _KINDS]),
                ("Op", "OP", members_of(Op)),
                ("Verb", "VERB", members_of(Verb)),
                ("When", "WHEN", members_of(When)),
                ("Awaited", "AWAIT", members_of(Exchange)),
            )
        ),
        f"constexpr u32 POSTED = {sum(1 << x for x in program.posted):#x};  // bits: enum Awaited",
        f"constexpr u32 FIRST_STEP = {first};  // of a layer",
        f"constexpr u32 LAYER_STEPS = {len(layer)};",
        f"constexpr u32 STEPS = {len(listed)};",
        f"constexpr u32 PASS_STEPS = {len(steps) - first};  // that are traced",
        f"constexpr u32 PASS_STAMPS = {last + 2};",
        f"constexpr u32 STREAM_SLOTS = {slots.stream};  // by the event; squares too",
        f"constexpr u32 CHOICE_SLOTS = {slots.choice};  // by the pass: of the choice of tokens",
        f"constexpr u32 ACTIVATION_SLOTS = {slots.activations};  // by the sync of a lane",
        f"constexpr u32 ATTENTION_SLOTS = {slots.attention};  // of raw outputs, by the layer",
        f"constexpr u32 MLP_SLOTS = {slots.mlp};",
        f"constexpr u32 KEPT_PASSES = {slots.kept};  // that leave all their words behind",
        "struct Step {",
        "  PhaseKind kind;",
        "  u32 event;  // state of the stream at its beginning, counted from its layer's first",
        "  u32 count;",
        f"  Op ops[{most}];",
        "};",
        "constexpr Step PROGRAM[STEPS] = {",
        *(
            f"    {{PHASE_{step.kind.name}, "
            f"{step.event - base.get(step.layer, last if step.event else 0)}, {len(step.ops)}, "
            f"{{{', '.join(f'OP_{op.name}' for op in step.ops)}}}}},"
            for step in listed
        ),
        "};",
        f"constexpr u32 TOUCH_VERB = {_TOUCH_VERB}, TOUCH_WHEN = {_TOUCH_WHEN};",
        f"constexpr u32 TOUCHES[{len(Op)}][{longest}] = {{  // of each operation, then 0",
        *(f"    {{{_touches(program.touches(op))}}},  // {op.name}" for op in Op),
        "};",
        "",
    ]


def _touches(touches: Iterable[Touch]) -> str:
    codes = [_TOUCH_VERB * x.verb + _TOUCH_WHEN * x.when + (x.what or 0) for x in touches]
    return ", ".join(map(str, [*codes, 0]))


def _float(value: float) -> str:
    return f"{float(np.float32(value)).hex()}f"  # exactly
