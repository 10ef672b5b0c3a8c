"""Printing csrc/plan_abi.h, the plan as native executors see it.

The file is committed, so that a build needs no Python of ours; a test fails when it drifts.
"""

from collections.abc import Iterable
from enum import IntEnum

import numpy as np

from monolane.plan._arrays import (
    HEADER_DTYPE,
    HEADER_FIELDS,
    HEADS,
    MATRIX_DTYPE,
    MATRIX_FIELDS,
    MAX_MATRICES,
    PHASE_DTYPE,
    PHASE_FIELDS,
    ROLES,
    ROTARY_STYLES,
    SCHEMA,
    SHARE_DTYPE,
    Field,
)
from monolane.plan._formats import FORMATS
from monolane.plan._phase import Buffer, PhaseKind
from monolane.plan._plan import MAX_WIDTH

_SHARE_FIELDS: tuple[Field, ...] = (
    ("begin", "int32_t", "first row"),
    ("end", "int32_t", "one past the last; begin if there are none"),
)
_MATRICES: Field = (f"matrices[{MAX_MATRICES}]", "PlanMatrix", "used from the front")

_TOP = """\
// The plan of a pass as native executors read it. Generated: do not edit. To write it anew:
//   monolane plan header > csrc/plan_abi.h
// What it means is told in docs/plan.md.
//
// A plan is a PlanHeader, PlanPhase[phases] and PlanShare[share_tables][workers]. Every worker runs
// all phases in order, each on its own share, and then counts it as finished. A wait of count c
// holds until the workers in question have finished c phases of this pass, that is, until their
// counters reach pass * phases + c; c <= 0 reaches back into the previous pass.
// Rows of a matrix are those of the group's lanes, lane after lane: row r is row r % rows of lane
// group * group_lanes + r / rows. Rows of a head that reads all lanes are numbered once.
// Units of kAttend are (lane of the group, KV head of the lane, split), the last running fastest;
// those of kGather are the elements (lane of the group, column).
#pragma once

#include <cstddef>
#include <cstdint>

namespace monolane {
"""


def c_header() -> str:
    """Return the whole of csrc/plan_abi.h."""
    parts = [
        _TOP,
        f"constexpr int32_t kPlanSchema = {SCHEMA};",
        "constexpr int32_t kNoWait = INT32_MIN;",
        "constexpr int32_t kNever = -1;  // the delay of lanes that do not meet",
        f"constexpr int32_t kPlanMaxWidth = {MAX_WIDTH};",
        f"constexpr int32_t kPlanMaxMatrices = {MAX_MATRICES};",
        "",
        _enum("PhaseKind", _members(PhaseKind)),
        _enum("PlanBuffer", [("none", -1), *_members(Buffer)]),
        _enum("WeightRole", [("none", -1), *((str(role), i) for i, role in enumerate(ROLES))]),
        _enum("WeightFormat", [(name, x.code) for name, x in FORMATS.items()]),
        _enum("PlanHead", [(str(head), i) for i, head in enumerate(HEADS)]),
        _enum("RotaryStyle", [(style, i) for i, style in enumerate(ROTARY_STYLES)]),
        _struct("PlanShare", _SHARE_FIELDS, SHARE_DTYPE),
        _struct("PlanMatrix", MATRIX_FIELDS, MATRIX_DTYPE),
        _struct("PlanPhase", (*PHASE_FIELDS, _MATRICES), PHASE_DTYPE),
        _struct("PlanHeader", HEADER_FIELDS, HEADER_DTYPE),
        "}  // namespace monolane\n",
    ]
    return "\n".join(parts)


def _members(kind: type[IntEnum]) -> list[tuple[str, int]]:
    return [(member.name, int(member)) for member in kind]


def _enum(name: str, members: Iterable[tuple[str, int]]) -> str:
    lines = [f"  k{_camel(member)} = {value}," for member, value in members]
    return "\n".join([f"enum class {name} : int32_t {{", *lines, "};\n"])


def _struct(name: str, fields: tuple[Field, ...], dtype: "np.dtype[np.void]") -> str:
    declared = [(f"{kind} {field};", meaning) for field, kind, meaning in fields]
    width = max(len(declaration) for declaration, _ in declared)
    lines = [f"struct {name} {{"]
    lines += [f"  {declaration:{width}}  // {meaning}" for declaration, meaning in declared]
    lines += ["};", f"static_assert(sizeof({name}) == {dtype.itemsize});"]
    assert dtype.fields is not None
    lines += [
        f"static_assert(offsetof({name}, {field}) == {where[1]});"
        for field, where in dtype.fields.items()
    ]
    return "\n".join(lines) + "\n"


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.lower().split("_"))
