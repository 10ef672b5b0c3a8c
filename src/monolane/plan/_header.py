"""Printing csrc/plan_abi.h, the plan as native executors see it.

The file is committed, so that a build needs no Python of ours; a test fails when it drifts.
"""

from monolane._structs import CPP, declare_enum, members_of
from monolane.plan._arrays import (
    HEADER,
    HEADS,
    MATRIX,
    MAX_MATRICES,
    PHASE,
    ROLES,
    ROTARY_STYLES,
    SCHEMA,
    SHARE,
)
from monolane.plan._phase import Buffer, PhaseKind
from monolane.plan._plan import MAX_WIDTH

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
// group * group_lanes + r / rows. Rows of a head that reads all lanes are numbered once.
// Units of kAttend are (lane of the group, KV head of the lane, split), the last running fastest;
// those of kGather are the elements (lane of the group, column).
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats_abi.h"

namespace monolane {
"""


def c_header() -> str:
    """Return the whole of csrc/plan_abi.h."""
    enums = (
        ("PhaseKind", members_of(PhaseKind)),
        ("PlanBuffer", [("none", -1), *members_of(Buffer)]),
        ("WeightRole", [("none", -1), *((str(role), i) for i, role in enumerate(ROLES))]),
        ("PlanHead", [(str(head), i) for i, head in enumerate(HEADS)]),
        ("RotaryStyle", [(style, i) for i, style in enumerate(ROTARY_STYLES)]),
    )
    parts = [
        _TOP,
        f"constexpr int32_t kPlanSchema = {SCHEMA};",
        "constexpr int32_t kNoWait = INT32_MIN;",
        "constexpr int32_t kNever = -1;  // the delay of lanes that never exchange",
        f"constexpr int32_t kPlanMaxWidth = {MAX_WIDTH};",
        f"constexpr int32_t kPlanMaxMatrices = {MAX_MATRICES};",
        "",
        *(declare_enum(name, members, CPP) for name, members in enums),
        *(struct.declare(CPP) for struct in (SHARE, MATRIX, PHASE, HEADER)),
        "}  // namespace monolane\n",
    ]
    return "\n".join(parts)
