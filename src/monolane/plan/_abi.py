"""A plan as flat arrays, laid out as the structs of csrc/abi/plan_abi.h.

The tables below are the only owner of names, order and meaning: that header is printed from them,
and a test compiles it and compares every size and offset. It is committed, so that a build needs no
Python of ours; a test fails when it drifts.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane._structs import CPP, Field, Struct, declare_enum, members_of
from monolane.model import ALTUP_IN, JOINING_NORMS, Head, Role, norm_read_by
from monolane.ops import (
    EXPERT_ROLES,
    MAX_WIDTH,
    ROTARIES,
    SCRATCH_STEP,
    Buffer,
    Record,
    operations,
)
from monolane.plan._cost import weights_read
from monolane.plan._device import Choice
from monolane.plan._phase import OUTPUTS, Phase, PhaseKind
from monolane.plan._plan import MIXTURE_WIDTH, PROMPT_WIDTH, Plan
from monolane.plan._split import Scope, Share

SCHEMA = 7
NO_WAIT = -(1 << 31)
MAX_MATRICES = 6
HEADS = (Head.VOCAB_PARALLEL, Head.MEAN, Head.SUM, Head.CONCAT)
ROTARY_STYLES = ("interleaved", "half")
ROLES = tuple(Role)

SHARE = Struct(
    "PlanShare",
    (
        Field("begin", "i32", "first row"),
        Field("end", "i32", "one past the last; begin if there are none"),
    ),
)
ROTARY = Struct(
    "PlanRotaryTable",
    (
        Field("dim", "i32", "numbers of a head that turn; of a latent the last, else the first"),
        Field("style", "RotaryStyle", "which of them turn together"),
        Field("amplitude", "f32", "of cosine and sine"),
    ),
)
HEADER = Struct(
    "PlanHeader",
    (
        Field("schema", "i32", "kPlanSchema"),
        Field("phases", "i32", "P: length of the array of phases"),
        Field("modules", "i32", "M: length of the array of modules"),
        Field("share_tables", "i32", "number of tables of shares, each of `workers` entries"),
        Field("workers", "i32", "W, of all devices"),
        Field("groups", "i32", "G; group = worker / group_workers"),
        Field("group_workers", "i32", "W / G"),
        Field("group_lanes", "i32", "L / G; the group's lanes begin at group * group_lanes"),
        Field("lanes", "i32", "L"),
        Field("layers", "i32", "N"),
        Field("hidden", "i32", "D"),
        Field("streams", "i32", "A: of a token; several with AltUp, else 1"),
        Field("vocab", "i32", "V"),
        Field("max_width", "i32", "T: token positions of a pass at most"),
        Field("context", "i32", "tokens that a sequence may hold"),
        Field("chunk", "i32", "keys: split s takes the chunks c with c % S == s"),
        Field("format", "Format", "of the matrices"),
        Field("head", "PlanHead", "how the lanes' streams become logits"),
        Field("norm_per_lane", "i32", "1: norm scales are [L, D]; 0: [1, D]"),
        Field("final_norm_per_lane", "i32", "the same of the last norm"),
        Field("leader", "i32", "1: worker 0 chooses tokens; 0: every worker does, alike"),
        Field("norm_eps", "f32", "of every norm"),
        Field("norm_centred", "i32", "1: norms of streams take off the mean first"),
        Field("embedding_scale", "f32", "of embedded tokens"),
        Field("logit_scale", "f32", "of logits"),
        Field("logit_cap", "f32", "c: logits become c tanh(logit / c); 0: they do not"),
        Field("rotaries", "PlanRotaryTable", "by PlanRotary", length=len(ROTARIES)),
        Field("read", "f32", "by rows: weights that a pass reads, beside those of one", MAX_WIDTH),
        Field("slots", "i32", "of each buffer: rings and caches have several", len(Buffer)),
        Field("sizes", "i64", "of each buffer: floats of a slot, at most", len(Buffer)),
    ),
    parts=(ROTARY,),
)

STATE = Struct(
    "PlanState",
    (
        Field("parts", "i32", "each of one worker; 0: it keeps no state"),
        Field("numbers", "i32", "of a part's state; 0: it has inputs alone"),
        Field("inputs", "i32", "numbers of a token that its step in a part takes"),
        Field("before", "i32", "earlier tokens whose inputs a step reads"),
    ),
)

# What modules are, by their operations: of each module one is filled in, or two, where an operation
# has phases of another.
_OPERATIONS = {name: struct for x in operations() for name, struct in x.structs.items()}
MODULE = Struct(
    "PlanModule",
    (
        Field("layer", "i32", "whose module"),
        Field("output", "PlanBuffer", "where its outputs go, which join the streams"),
        Field("norm", "WeightRole", "scale of the norm of what it reads; kNone: none"),
        Field("post_norm", "WeightRole", "scale of that of what a stream gains; kNone: none"),
        Field("held", "i32", "1: what it says joins the streams with what the next module says"),
        Field("joint_norm", "WeightRole", "scale of the norm of these two's sum; kNone: none"),
        Field("replaces", "i32", "1: the streams begin anew with what it says"),
        Field("scale", "f32", "of what a stream gains from it, behind the norms"),
        Field("stream_scale", "WeightRole", "of the streams behind it; kNone: none"),
        Field("stream_factor", "f32", "of the streams behind it"),
        Field("aside", "i32", "1: what it says joins all streams of AltUp but the first"),
        Field("scratch", "i32", "floats that a worker needs of its own for its phases"),
        Field("state", "PlanState", "what a sequence keeps of it in a fixed size"),
        # Zeros where it has no such phases.
        *(Field(name, struct.name) for name, struct in _OPERATIONS.items()),
    ),
    parts=(STATE, *_OPERATIONS.values()),
)

UPDATE = Struct(
    "PlanUpdate",
    (
        Field("module", "i32", "whose outputs join the streams; -1 in unused entries"),
        Field("delay", "i32", "kNever, 0 (now) or layers"),
        Field("own_slot", "i32", "ring slot of the own lane's outputs"),
        Field("other_slot", "i32", "ring slot of the other lanes' outputs"),
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
        Field("module", "i32", "of which it is a phase; -1 outside the layers"),
        Field("wait_group", "i32", "kNoWait, or what all of the own group must have finished"),
        Field("wait_all", "i32", "kNoWait, or what all workers must have finished"),
        Field("units", "i32", "table of shares of work that is not rows; -1: none"),
        Field("write_slot", "i32", "ring slot that is written, of a module's last phase; else -1"),
        Field("num_updates", "i32", "used entries of `updates`"),
        Field("updates", "PlanUpdate", "what joins the streams first, in order", len(OUTPUTS)),
        Field("num_matrices", "i32", "used entries of `matrices`"),
        Field("matrices", "PlanMatrix", "used from the front", length=MAX_MATRICES),
    ),
    parts=(UPDATE, MATRIX),
)


_STRUCTS = (SHARE, UPDATE, MATRIX, PHASE, *MODULE.parts, MODULE, ROTARY, HEADER)


@dataclass(frozen=True, slots=True)
class PlanArrays:
    """What a native executor is handed; nothing in it needs to be worked out again."""

    header: npt.NDArray[np.void]  # HEADER []
    modules: npt.NDArray[np.void]  # MODULE [M]
    phases: npt.NDArray[np.void]  # PHASE [P]
    shares: npt.NDArray[np.void]  # SHARE [tables, W]


def to_arrays(plan: Plan) -> PlanArrays:
    """Lay a plan out as arrays."""
    tables = plan.shares
    index = {share: i for i, share in enumerate(tables)}
    places = [(i, j) for i, layer in enumerate(plan.config.modules) for j in range(len(layer))]
    numbers = {(i, OUTPUTS[j]): number for number, (i, j) in enumerate(places)}
    modules = np.zeros(len(places), MODULE.dtype)
    for row, place in zip(modules, places, strict=True):
        _fill(row, _module(plan, *place))
    phases = np.zeros(len(plan.phases), PHASE.dtype)
    for row, phase in zip(phases, plan.phases, strict=True):
        _fill_phase(row, phase, index, numbers)
    workers = range(plan.groups.workers)
    shares = np.array([[table.of(w) for w in workers] for table in tables], SHARE.dtype)
    arrays = PlanArrays(_header(plan, len(modules), len(tables)), modules, phases, shares)
    for array in (arrays.header, arrays.modules, arrays.phases, arrays.shares):
        array.flags.writeable = False
    return arrays


def _header(plan: Plan, modules: int, tables: int) -> npt.NDArray[np.void]:
    config, groups = plan.config, plan.groups
    header = np.zeros((), HEADER.dtype)
    _fill(
        header,
        {
            "schema": SCHEMA,
            "phases": len(plan.phases),
            "modules": modules,
            "share_tables": tables,
            "workers": groups.workers,
            "groups": groups.count,
            "group_workers": groups.workers_each,
            "group_lanes": groups.lanes_each,
            "lanes": config.num_lanes,
            "layers": config.num_layers,
            "hidden": config.hidden_size,
            "streams": config.num_streams,
            "vocab": config.vocab_size,
            "max_width": plan.max_width,
            "context": plan.context,
            "chunk": plan.device.chunk,
            "format": plan.format.code,
            "head": HEADS.index(config.head),
            "norm_per_lane": config.norm_scale_per_lane,
            "final_norm_per_lane": config.final_norm_per_lane,
            "leader": plan.device.choice is Choice.LEADER,
            "norm_eps": config.norm_eps,
            "norm_centred": config.norm_centred,
            "embedding_scale": config.embedding_scale,
            "logit_scale": config.logit_scale,
            "logit_cap": config.logit_cap or 0.0,
            "read": weights_read(plan, MAX_WIDTH),
            "slots": [plan.slots(buffer) for buffer in Buffer],
            "sizes": [plan.size(buffer) for buffer in Buffer],
        },
    )
    for row, which in zip(header["rotaries"], ROTARIES, strict=True):
        rotary = config.local_rotary if which == "local" else config.rotary
        if rotary is not None:
            style, dim = ROTARY_STYLES.index(rotary.style), config.rotary_dim(which)
            _fill(row, {"dim": dim, "style": style, "amplitude": rotary.amplitude})
    return header


def _module(plan: Plan, layer: int, place: int) -> Record:
    _, after = JOINING_NORMS[place]
    modules = plan.config.modules[layer]
    module = modules[place]
    operation = module.operation
    state = operation.state()
    values: Record = {
        "layer": layer,
        "output": OUTPUTS[place],
        "norm": ROLES.index(norm_read_by(modules, place)) if module.norm_before else -1,
        "post_norm": ROLES.index(after) if module.norm_after else -1,
        "held": module.held,
        "joint_norm": ROLES.index(Role.JOINT_NORM) if module.joint_norm else -1,
        "replaces": module.replaces,
        "scale": module.scale,
        "stream_scale": ROLES.index(Role.LAYER_SCALE) if module.stream_scale else -1,
        "stream_factor": module.stream_factor,
        "aside": module.aside,
        "scratch": operation.scratch(plan.room),
        "state": {} if state is None else asdict(state),
    }
    return {"attention": {"rotary": -1}, **values, **operation.native(plan.room)}


def _fill(row: Any, values: Record) -> None:
    for name, value in values.items():
        if isinstance(value, dict):
            _fill(row[name], value)
        else:
            row[name] = value


def _fill_phase(
    row: np.void, phase: Phase, index: dict[Share, int], numbers: dict[tuple[int, Buffer], int]
) -> None:
    group, everybody = phase.wait(Scope.GROUP), phase.wait(Scope.ALL)
    module = phase.module
    ring = next((a.slot for a in phase.writes if a.buffer in OUTPUTS), -1)
    values = {
        "kind": phase.kind,
        "layer": phase.layer,
        "module": -1 if module is None else numbers[phase.layer, module],
        "wait_group": NO_WAIT if group is None else group,
        "wait_all": NO_WAIT if everybody is None else everybody,
        "units": -1 if phase.units is None else index[phase.units],
        "write_slot": ring,
        "num_updates": len(phase.updates),
        "num_matrices": len(phase.matrices),
    }
    _fill(row, values)
    row["updates"]["module"] = -1  # unused entries
    for entry, update in zip(row["updates"], phase.updates, strict=False):
        delay = update.reduce.delay
        entry["module"] = numbers[update.layer, update.module]
        entry["delay"] = -1 if delay is None else delay
        entry["own_slot"], entry["other_slot"] = update.own_slot, update.other_slot
    row["matrices"]["role"] = row["matrices"]["share"] = -1  # unused entries
    for entry, matrix in zip(row["matrices"], phase.matrices, strict=False):
        entry["role"], entry["share"] = ROLES.index(matrix.role), index[matrix.share]
        entry["rows"], entry["columns"] = matrix.rows, matrix.columns


_TOP = """\
// The plan of a pass as native executors read it. Generated: do not edit. To write it anew:
//   scripts/headers
// What it means is told in docs/plan.md.
//
// A plan is a PlanHeader, PlanModule[modules], PlanPhase[phases] and
// PlanShare[share_tables][workers]. Every worker runs
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


def _of_each() -> str:
    cases = (f"    case WeightRole::{CPP.member(role)}:" for role in EXPERT_ROLES)
    return "\n".join(
        (
            "// Whether a layer has one for each expert.",
            "constexpr bool of_each(WeightRole role) {",
            "  switch (role) {",
            *cases,
            "      return true;",
            "    default:",
            "      return false;",
            "  }",
            "}",
            "",
        )
    )


def _outputs() -> str:
    begin = "constexpr PlanBuffer kPlanOutputs[] = {"
    names = [f"PlanBuffer::{CPP.member(buffer.name)}" for buffer in OUTPUTS]
    rows = (", ".join(names[i : i + 2]) for i in range(0, len(names), 2))
    return begin + (",\n" + " " * len(begin)).join(rows) + "};"


def c_header() -> str:
    """Return the whole of csrc/abi/plan_abi.h."""
    coded: dict[str, tuple[str, ...]] = {
        name: members for x in operations() for name, members in x.enums.items()
    }
    enums: tuple[tuple[str, list[tuple[str, int]]], ...] = (
        ("PhaseKind", members_of(PhaseKind)),
        ("PlanBuffer", [("none", -1), *members_of(Buffer)]),
        ("WeightRole", [("none", -1), *((str(role), i) for i, role in enumerate(ROLES))]),
        ("PlanHead", [(str(head), i) for i, head in enumerate(HEADS)]),
        ("RotaryStyle", [(style, i) for i, style in enumerate(ROTARY_STYLES)]),
        ("PlanRotary", [("none", -1), *((name, i) for i, name in enumerate(ROTARIES))]),
        *((name, [(x, i) for i, x in enumerate(coded[name])]) for name in coded),
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
        "// Streams of a token at most, of AltUp.",
        f"constexpr int32_t kPlanMaxStreams = {len(ALTUP_IN) + 1};",
        f"constexpr int32_t kPlanMaxUpdates = {len(OUTPUTS)};",
        f"constexpr int32_t kPlanBuffers = {len(Buffer)};",
        f"constexpr int32_t kWeightRoles = {len(ROLES)};",
        "// Floats of a cache line: pieces of a worker's scratch begin at multiples.",
        f"constexpr int32_t kPlanScratchStep = {SCRATCH_STEP};",
        "",
        *(declare_enum(name, members, CPP) for name, members in enums),
        "// Where a layer's modules put their outputs, in their order.",
        _outputs(),
        "",
        _of_each(),
        "// X(member, name) for each kind of phase.",
        _for_each(
            "PHASE_KINDS",
            [f"{CPP.member(kind.name)}, {kind.name.lower()}" for kind in PhaseKind],
        ),
        *(struct.declare(CPP) for struct in _STRUCTS),
        "}  // namespace monolane\n",
    ]
    return "\n".join(parts)
