"""A plan as three flat arrays, laid out as the structs of csrc/plan_abi.h.

The tables below are the only owner of names, order and meaning: _header.py prints the C structs
from them, and a test compiles those and compares every size and offset.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monolane.model import Head, Role
from monolane.plan._device import Choice
from monolane.plan._phase import Matrix, Phase
from monolane.plan._plan import Plan
from monolane.plan._split import Scope, Share

SCHEMA = 1
NO_WAIT = -(1 << 31)
MAX_MATRICES = 3
HEADS = (Head.VOCAB_PARALLEL, Head.MEAN, Head.SUM, Head.CONCAT)
ROTARY_STYLES = ("interleaved", "half")
ROLES = tuple(Role)

Field = tuple[str, str, str]  # name, C type, meaning

HEADER_FIELDS: tuple[Field, ...] = (
    ("schema", "int32_t", "kPlanSchema"),
    ("phases", "int32_t", "P: length of the array of phases"),
    ("share_tables", "int32_t", "number of tables of shares, each of `workers` entries"),
    ("workers", "int32_t", "W, of all devices"),
    ("groups", "int32_t", "G; group = worker / group_workers"),
    ("group_workers", "int32_t", "W / G"),
    ("group_lanes", "int32_t", "L / G; the group's lanes begin at group * group_lanes"),
    ("lanes", "int32_t", "L"),
    ("layers", "int32_t", "N"),
    ("hidden", "int32_t", "D"),
    ("intermediate", "int32_t", "F, over all lanes"),
    ("heads", "int32_t", "H, over all lanes"),
    ("kv_heads", "int32_t", "K, over all lanes"),
    ("head_dim", "int32_t", "h"),
    ("vocab", "int32_t", "V"),
    ("max_width", "int32_t", "T: token positions of a pass at most"),
    ("context", "int32_t", "tokens that a sequence may hold"),
    ("attention_slots", "int32_t", "ring slots of kAttentionOutput"),
    ("mlp_slots", "int32_t", "ring slots of kMlpOutput"),
    ("splits", "int32_t", "S: parts into which the keys of a KV head are cut"),
    ("chunk", "int32_t", "keys: split s takes the chunks c with c % S == s"),
    ("format", "WeightFormat", "of the matrices"),
    ("head", "PlanHead", "how the lanes' streams become logits"),
    ("rotary", "RotaryStyle", "which elements of a head turn together"),
    ("norm_per_lane", "int32_t", "1: norm scales are [L, D]; 0: [1, D]"),
    ("final_norm_per_lane", "int32_t", "the same of the last norm"),
    ("qkv_bias", "int32_t", "1: Q, K and V have biases"),
    ("leader", "int32_t", "1: worker 0 chooses tokens; 0: every worker does, alike"),
    ("norm_eps", "float", "of every norm"),
)

MATRIX_FIELDS: tuple[Field, ...] = (
    ("role", "WeightRole", "kNone in unused entries"),
    ("rows", "int32_t", "of one lane"),
    ("columns", "int32_t", "inputs of a row"),
    ("share", "int32_t", "table of shares"),
)

PHASE_FIELDS: tuple[Field, ...] = (
    ("kind", "PhaseKind", "what to do"),
    ("layer", "int32_t", "-1 outside the layers"),
    ("wait_group", "int32_t", "kNoWait, or what all workers of the own group must have finished"),
    ("wait_all", "int32_t", "kNoWait, or what all workers must have finished"),
    ("units", "int32_t", "table of shares of kAttend and kGather; -1: none"),
    ("update", "PlanBuffer", "kNone, kAttentionOutput or kMlpOutput"),
    ("update_layer", "int32_t", "whose module; -1: no update"),
    ("update_delay", "int32_t", "kNever, 0 (now) or layers; kNever if there is no update"),
    ("update_own_slot", "int32_t", "ring slot of the own lane's outputs; -1: no update"),
    ("update_other_slot", "int32_t", "ring slot of the other lanes' outputs; -1: no update"),
    ("write_slot", "int32_t", "ring slot that kOut or kDown writes; -1 in other phases"),
    ("window", "int32_t", "keys visible to a query in this layer, itself included; 0: all"),
    ("num_matrices", "int32_t", "used entries of `matrices`"),
)


def _dtype(fields: tuple[Field, ...]) -> list[tuple[str, str]]:
    return [(name, "<f4" if kind == "float" else "<i4") for name, kind, _ in fields]


HEADER_DTYPE = np.dtype(_dtype(HEADER_FIELDS))
MATRIX_DTYPE = np.dtype(_dtype(MATRIX_FIELDS))
PHASE_DTYPE = np.dtype([*_dtype(PHASE_FIELDS), ("matrices", MATRIX_DTYPE, (MAX_MATRICES,))])
SHARE_DTYPE = np.dtype([("begin", "<i4"), ("end", "<i4")])


@dataclass(frozen=True, slots=True)
class PlanArrays:
    """What a native executor is handed; nothing in it needs to be worked out again."""

    header: npt.NDArray[np.void]  # HEADER_DTYPE []
    phases: npt.NDArray[np.void]  # PHASE_DTYPE [P]
    shares: npt.NDArray[np.void]  # SHARE_DTYPE [tables, W]


def to_arrays(plan: Plan) -> PlanArrays:
    """Lay a plan out as arrays."""
    tables = plan.shares
    index = {share: i for i, share in enumerate(tables)}
    phases = np.zeros(len(plan.phases), PHASE_DTYPE)
    for row, phase in zip(phases, plan.phases, strict=True):
        _fill_phase(row, phase, plan, index)
    workers = range(plan.groups.workers)
    shares = np.array([[table.of(w) for w in workers] for table in tables], SHARE_DTYPE)
    arrays = PlanArrays(_header(plan, len(tables)), phases, shares)
    for array in (arrays.header, arrays.phases, arrays.shares):
        array.flags.writeable = False
    return arrays


def _header(plan: Plan, tables: int) -> npt.NDArray[np.void]:
    config, groups = plan.config, plan.groups
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
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
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
        "leader": plan.device.choice is Choice.LEADER,
        "norm_eps": config.norm_eps,
    }
    header = np.zeros((), HEADER_DTYPE)
    for name, _, _ in HEADER_FIELDS:
        header[name] = values[name]
    return header


def _fill_phase(row: np.void, phase: Phase, plan: Plan, index: dict[Share, int]) -> None:
    group, everybody = phase.wait(Scope.GROUP), phase.wait(Scope.ALL)
    update = phase.update
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
        "window": 0 if phase.layer < 0 else plan.config.layers[phase.layer].window or 0,
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
    for name, _, _ in PHASE_FIELDS:
        row[name] = values[name]
    empty = (-1, 0, 0, -1)
    listed = [_matrix(matrix, index) for matrix in phase.matrices]
    row["matrices"] = listed + [empty] * (MAX_MATRICES - len(listed))


def _matrix(matrix: Matrix, index: dict[Share, int]) -> tuple[int, int, int, int]:
    return ROLES.index(matrix.role), matrix.rows, matrix.columns, index[matrix.share]
