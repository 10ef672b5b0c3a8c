"""A plan as three flat arrays, laid out as the structs of csrc/abi/plan_abi.h.

The tables below are the only owner of names, order and meaning: that header is printed from them,
and a test compiles it and compares every size and offset. It is committed, so that a build needs no
Python of ours; a test fails when it drifts.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monolane._structs import CPP, Field, Struct, declare_enum, members_of
from monolane.model import Head, LayerConfig, ModelConfig, QkNorm, Role
from monolane.plan._device import Choice
from monolane.plan._phase import Buffer, Phase, PhaseKind
from monolane.plan._plan import MAX_WIDTH, MIXTURE_WIDTH, PROMPT_WIDTH, Plan
from monolane.plan._split import Scope, Share

SCHEMA = 4
NO_WAIT = -(1 << 31)
MAX_MATRICES = 4
HEADS = (Head.VOCAB_PARALLEL, Head.MEAN, Head.SUM, Head.CONCAT)
ROTARY_STYLES = ("interleaved", "half")
ROTARIES = ("main", "local")  # of the config; a layer's is one of them, or none
QK_NORMS = (None, QkNorm.HEAD, QkNorm.ALL)
ACTIVATIONS = ("silu", "gelu_tanh", "clamped_swiglu")
SCORES = ("softmax", "sigmoid")
ROLES = tuple(Role)

SHARE = Struct(
    "PlanShare",
    (
        Field("begin", "i32", "first row"),
        Field("end", "i32", "one past the last; begin if there are none"),
    ),
)
HEADER = Struct(
    "PlanHeader",
    (
        Field("schema", "i32", "kPlanSchema"),
        Field("phases", "i32", "P: length of the array of phases"),
        Field("share_tables", "i32", "number of tables of shares, each of `workers` entries"),
        Field("workers", "i32", "W, of all devices"),
        Field("groups", "i32", "G; group = worker / group_workers"),
        Field("group_workers", "i32", "W / G"),
        Field("group_lanes", "i32", "L / G; the group's lanes begin at group * group_lanes"),
        Field("lanes", "i32", "L"),
        Field("layers", "i32", "N"),
        Field("hidden", "i32", "D"),
        Field("intermediate", "i32", "F, over all lanes"),
        Field("hidden_columns", "i32", "of kHidden: F/L or k*X + Xs, whichever is more"),
        Field("experts", "i32", "E of a layer that is a mixture; 0: there are no mixtures"),
        Field("chosen", "i32", "k: experts of a token"),
        Field("expert_inner", "i32", "X: inner width of an expert"),
        Field("chosen_normalised", "i32", "1: the weights of the chosen add up to 1"),
        Field("expert_scores", "ExpertScores", "what experts are chosen and weighted by"),
        Field("expert_groups", "i32", "of consecutive experts"),
        Field("chosen_groups", "i32", "of which alone a token's experts are chosen"),
        Field("group_best", "i32", "experts whose scores, added up, count for their group"),
        Field("expert_scale", "f32", "of the weights of the chosen"),
        Field("shared_inner", "i32", "Xs: inner width of what all tokens share; 0: nothing"),
        Field("delta_key_heads", "i32", "G of a gated delta rule; 0: no layer has one"),
        Field("delta_value_heads", "i32", "U"),
        Field("delta_key", "i32", "d_k: width of its queries and keys"),
        Field("delta_value", "i32", "d_v: width of its values"),
        Field("delta_kernel", "i32", "C: tokens over which its channels are summed"),
        Field("heads", "i32", "H, over all lanes"),
        Field("kv_heads", "i32", "K, over all lanes; 1 where latents are cached"),
        Field("head_dim", "i32", "h, of a cached key and a query that meets it; of latents R + r"),
        Field(
            "rotary_dim", "i32", "of these those that turn: of a latent the last, else the first"
        ),
        Field("latent", "i32", "R: what of a cached key is its value; 0: values are cached"),
        Field("query_latent", "i32", "Q: what queries are made of; 0: of the stream"),
        Field("latent_eps", "f32", "of the norms of latents"),
        Field("vocab", "i32", "V"),
        Field("max_width", "i32", "T: token positions of a pass at most"),
        Field("context", "i32", "tokens that a sequence may hold"),
        Field("attention_slots", "i32", "ring slots of kAttentionOutput"),
        Field("mlp_slots", "i32", "ring slots of kMlpOutput"),
        Field("splits", "i32", "S: parts into which the keys of a KV head are cut"),
        Field("chunk", "i32", "keys: split s takes the chunks c with c % S == s"),
        Field("format", "Format", "of the matrices"),
        Field("head", "PlanHead", "how the lanes' streams become logits"),
        Field("rotary", "RotaryStyle", "which elements of a head turn together"),
        Field("norm_per_lane", "i32", "1: norm scales are [L, D]; 0: [1, D]"),
        Field("final_norm_per_lane", "i32", "the same of the last norm"),
        Field("qkv_bias", "i32", "1: Q, K and V have biases"),
        Field("attention_gate", "i32", "1: of each head Q has rows of the query, then of a gate"),
        Field("qk_norm", "QkNorm", "what of Q and K is normed, before rotary"),
        Field("norm_before", "i32", "1: what a module reads is normed"),
        Field("norm_after", "i32", "1: what a stream gains from a module, reduced, is normed"),
        Field("activation", "GateActivation", "of the gate"),
        Field("leader", "i32", "1: worker 0 chooses tokens; 0: every worker does, alike"),
        Field("norm_eps", "f32", "of every norm"),
        Field("embedding_scale", "f32", "of embedded tokens"),
        Field("query_scale", "f32", "of the scores"),
        Field("amplitude", "f32", "of cosine and sine, by PlanRotary", length=len(ROTARIES)),
    ),
)

MATRIX = Struct(
    "PlanMatrix",
    (
        Field("role", "WeightRole", "kNone in unused entries"),
        Field("rows", "i32", "of one lane"),
        Field("columns", "i32", "inputs of a row"),
        Field("share", "i32", "table of shares"),
    ),
)

PHASE = Struct(
    "PlanPhase",
    (
        Field("kind", "PhaseKind", "what to do"),
        Field("layer", "i32", "-1 outside the layers"),
        Field("wait_group", "i32", "kNoWait, or what all of the own group must have finished"),
        Field("wait_all", "i32", "kNoWait, or what all workers must have finished"),
        Field("units", "i32", "table of shares of work that is not rows; -1: none"),
        Field("update", "PlanBuffer", "kNone, kAttentionOutput or kMlpOutput"),
        Field("update_layer", "i32", "whose module; -1: no update"),
        Field("update_delay", "i32", "kNever, 0 (now) or layers; kNever if there is no update"),
        Field("update_own_slot", "i32", "ring slot of the own lane's outputs; -1: no update"),
        Field("update_other_slot", "i32", "ring slot of the other lanes' outputs; -1: no update"),
        Field(
            "write_slot", "i32", "ring slot that is written, of kOut, kDown or kExpertDown; else -1"
        ),
        Field("window", "i32", "keys visible to a query in this layer, itself included; 0: all"),
        Field("rotary", "PlanRotary", "what turns this layer's queries and keys; kNone: nothing"),
        Field("num_matrices", "i32", "used entries of `matrices`"),
        Field("matrices", "PlanMatrix", "used from the front", length=MAX_MATRICES),
    ),
    parts=(MATRIX,),
)


@dataclass(frozen=True, slots=True)
class PlanArrays:
    """What a native executor is handed; nothing in it needs to be worked out again."""

    header: npt.NDArray[np.void]  # HEADER []
    phases: npt.NDArray[np.void]  # PHASE [P]
    shares: npt.NDArray[np.void]  # SHARE [tables, W]


def to_arrays(plan: Plan) -> PlanArrays:
    """Lay a plan out as arrays."""
    tables = plan.shares
    index = {share: i for i, share in enumerate(tables)}
    phases = np.zeros(len(plan.phases), PHASE.dtype)
    for row, phase in zip(phases, plan.phases, strict=True):
        _fill_phase(row, phase, plan, index)
    workers = range(plan.groups.workers)
    shares = np.array([[table.of(w) for w in workers] for table in tables], SHARE.dtype)
    arrays = PlanArrays(_header(plan, len(tables)), phases, shares)
    for array in (arrays.header, arrays.phases, arrays.shares):
        array.flags.writeable = False
    return arrays


def _header(plan: Plan, tables: int) -> npt.NDArray[np.void]:
    config, groups = plan.config, plan.groups
    mixture, latent, delta = config.experts, config.latent, config.delta
    values = {
        "schema": SCHEMA,
        "phases": len(plan.phases),
        "share_tables": tables,
        "workers": groups.workers,
        "groups": groups.count,
        "group_workers": groups.workers_each,
        "group_lanes": groups.lanes_each,
        "lanes": config.num_lanes,
        "layers": config.num_layers,
        "hidden": config.hidden_size,
        "intermediate": config.intermediate_size,
        "hidden_columns": plan.hidden_columns,
        "experts": 0 if mixture is None else mixture.count,
        "chosen": 0 if mixture is None else mixture.chosen,
        "expert_inner": 0 if mixture is None else mixture.inner,
        "chosen_normalised": mixture is not None and mixture.normalised,
        "expert_scores": 0 if mixture is None else SCORES.index(mixture.scores),
        "expert_groups": 1 if mixture is None else mixture.groups,
        "chosen_groups": 1 if mixture is None else mixture.chosen_groups,
        "group_best": 1 if mixture is None else mixture.group_best,
        "expert_scale": 1.0 if mixture is None else mixture.scale,
        "shared_inner": 0 if mixture is None else mixture.shared,
        "delta_key_heads": 0 if delta is None else delta.key_heads,
        "delta_value_heads": 0 if delta is None else delta.value_heads,
        "delta_key": 0 if delta is None else delta.key,
        "delta_value": 0 if delta is None else delta.value,
        "delta_kernel": 0 if delta is None else delta.kernel,
        "heads": config.num_heads,
        "kv_heads": config.cached_heads,
        "head_dim": config.cached_width,
        "rotary_dim": config.rotary_dim,
        "latent": 0 if latent is None else latent.rank,
        "query_latent": 0 if latent is None else latent.query_rank or 0,
        "latent_eps": 0.0 if latent is None else latent.norm_eps,
        "vocab": config.vocab_size,
        "max_width": plan.max_width,
        "context": plan.context,
        "attention_slots": plan.attention_slots,
        "mlp_slots": plan.mlp_slots,
        "splits": plan.splits,
        "chunk": plan.device.chunk,
        "format": plan.format.code,
        "head": HEADS.index(config.head),
        "rotary": ROTARY_STYLES.index(config.rotary.style),
        "norm_per_lane": config.norm_scale_per_lane,
        "final_norm_per_lane": config.final_norm_per_lane,
        "qkv_bias": config.qkv_bias,
        "attention_gate": config.attention_gate,
        "qk_norm": QK_NORMS.index(config.qk_norm),
        "norm_before": config.norm_before,
        "norm_after": config.norm_after,
        "activation": ACTIVATIONS.index(config.activation),
        "leader": plan.device.choice is Choice.LEADER,
        "norm_eps": config.norm_eps,
        "embedding_scale": config.embedding_scale,
        "query_scale": _query_scale(config),
        "amplitude": [
            1.0 if rotary is None else rotary.amplitude
            for rotary in (config.rotary, config.local_rotary)
        ],
    }
    header = np.zeros((), HEADER.dtype)
    for name, value in values.items():
        header[name] = value
    return header


def _rotary_code(rules: LayerConfig | None) -> int:
    return -1 if rules is None or rules.rotary == "none" else ROTARIES.index(rules.rotary)


def _query_scale(config: ModelConfig) -> float:
    scale = config.query_scale
    return 1.0 / math.sqrt(config.head_dim) if scale is None else scale


def _fill_phase(row: np.void, phase: Phase, plan: Plan, index: dict[Share, int]) -> None:
    group, everybody = phase.wait(Scope.GROUP), phase.wait(Scope.ALL)
    update = phase.update
    rules = None if phase.layer < 0 else plan.config.layers[phase.layer]
    ring = next((a.slot for a in phase.writes if a.buffer.name.endswith("_OUTPUT")), -1)
    values = {
        "kind": phase.kind,
        "layer": phase.layer,
        "wait_group": NO_WAIT if group is None else group,
        "wait_all": NO_WAIT if everybody is None else everybody,
        "units": -1 if phase.units is None else index[phase.units],
        "update": -1,
        "update_layer": -1,
        "update_delay": -1,
        "update_own_slot": -1,
        "update_other_slot": -1,
        "write_slot": ring,
        "window": 0 if rules is None else rules.window or 0,
        "rotary": _rotary_code(rules),
        "num_matrices": len(phase.matrices),
    }
    if update is not None:
        delay = update.reduce.delay
        values |= {
            "update": update.module,
            "update_layer": update.layer,
            "update_delay": -1 if delay is None else delay,
            "update_own_slot": update.own_slot,
            "update_other_slot": update.other_slot,
        }
    for name, value in values.items():
        row[name] = value
    row["matrices"]["role"] = row["matrices"]["share"] = -1  # unused entries
    for entry, matrix in zip(row["matrices"], phase.matrices, strict=False):
        entry["role"], entry["share"] = ROLES.index(matrix.role), index[matrix.share]
        entry["rows"], entry["columns"] = matrix.rows, matrix.columns


_TOP = """\
// The plan of a pass as native executors read it. Generated: do not edit. To write it anew:
//   scripts/headers
// What it means is told in docs/plan.md.
//
// A plan is a PlanHeader, PlanPhase[phases] and PlanShare[share_tables][workers]. Every worker runs
// all phases in order, each on its own share, and then counts it as finished. A wait of count c
// holds until the workers in question have finished c phases of this pass, that is, until their
// counters reach pass * phases + c; c <= 0 reaches back into the previous pass.
// Rows of a matrix are those of the group's lanes, lane after lane: row r is row r % rows of lane
// group * group_lanes + r / rows. Rows of a head that reads all lanes are numbered once. Of
// experts' matrices rows are one expert's: each has the same share of every expert, of the one
// lane. Rows of kKUp and kVUp are those of one head after the other. Units of kAttend are (lane of
// the group, KV head of the lane, split), the last running fastest; those of kGather are the
// elements (lane of the group, column), those of kNormQk the heads, of Q and then of K, of each
// lane of the group, and those of kDelta key heads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/formats_abi.h"

namespace monolane {
"""


def _for_each(macro: str, members: list[str]) -> str:
    lines = [f"#define MONOLANE_{macro}(X)", *(f"  X({member})" for member in members)]
    wide = max(len(line) for line in lines) + 1
    return "\n".join([*(f"{line:<{wide}}\\" for line in lines[:-1]), lines[-1], ""])


def c_header() -> str:
    """Return the whole of csrc/abi/plan_abi.h."""
    enums = (
        ("PhaseKind", members_of(PhaseKind)),
        ("PlanBuffer", [("none", -1), *members_of(Buffer)]),
        ("WeightRole", [("none", -1), *((str(role), i) for i, role in enumerate(ROLES))]),
        ("PlanHead", [(str(head), i) for i, head in enumerate(HEADS)]),
        ("RotaryStyle", [(style, i) for i, style in enumerate(ROTARY_STYLES)]),
        ("PlanRotary", [("none", -1), *((name, i) for i, name in enumerate(ROTARIES))]),
        ("QkNorm", [(str(norm or "none"), i) for i, norm in enumerate(QK_NORMS)]),
        ("GateActivation", [(name, i) for i, name in enumerate(ACTIVATIONS)]),
        ("ExpertScores", [(name, i) for i, name in enumerate(SCORES)]),
    )
    parts = [
        _TOP,
        f"constexpr int32_t kPlanSchema = {SCHEMA};",
        "constexpr int32_t kNoWait = INT32_MIN;",
        "constexpr int32_t kNever = -1;  // the delay of lanes that never exchange",
        "// Rows of a pass at most: of one that decodes, of one that only reads prompts, and of a",
        "// mixture's that only reads prompts.",
        f"constexpr int32_t kPlanMaxWidth = {MAX_WIDTH};",
        f"constexpr int32_t kPlanPromptWidth = {PROMPT_WIDTH};",
        f"constexpr int32_t kPlanMixtureWidth = {MIXTURE_WIDTH};",
        f"constexpr int32_t kPlanMaxMatrices = {MAX_MATRICES};",
        f"constexpr int32_t kPlanRotaries = {len(ROTARIES)};",
        "",
        *(declare_enum(name, members, CPP) for name, members in enums),
        "// X(member, name) for each kind of phase.",
        _for_each(
            "PHASE_KINDS",
            [f"{CPP.member(kind.name)}, {kind.name.lower()}" for kind in PhaseKind],
        ),
        *(struct.declare(CPP) for struct in (SHARE, MATRIX, PHASE, HEADER)),
        "}  // namespace monolane\n",
    ]
    return "\n".join(parts)
