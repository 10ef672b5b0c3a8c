"""What a starved wait means, in words: the kernel leaves numbers, the user gets a sentence.

A test holds that every exchange has its words here.
"""

import numpy as np
import numpy.typing as npt

from monolane.cuda._program import Exchange
from monolane.plan import PhaseKind, Plan

# Numbers in Params.fault: the wait, block, SM, step of the pass, detail, pass; on several devices
# that of whose words were late, and whether another device's alarm, not the clock, ended the wait.
FAULT_NUMBERS = 8
_LATE, _HEARD = 6, 7

WAITS = {
    Exchange.WEIGHTS: "its own weights, to be streamed",
    Exchange.STREAM: "the residual stream of its lane",
    Exchange.SQUARES: "the sums of squares of its lane",
    Exchange.GAINED: "the sums of squares of what its lane's stream gains",
    Exchange.HEAD_SQUARES: "the sums of squares of its lane's queries and keys",
    Exchange.QKV: "queries, keys and values of its lane",
    Exchange.PARTIAL: "partial attention of its lane",
    Exchange.MERGED: "attention of its lane, merged",
    Exchange.HIDDEN: "the MLP's hidden values of its lane",
    Exchange.LANES: "the outputs of the other lanes",
    Exchange.JOINED: "the streams of all lanes",
    Exchange.CANDIDATES: "the candidates of all blocks",
    Exchange.BEST: "the best candidates of all devices",
    Exchange.CONTROL: "block 0, on whether to go on",
    Exchange.LOGITS: "the logits of all blocks",
    Exchange.DECISION: "the chosen token",
    Exchange.LANE: "the other blocks of its lane",
    Exchange.GUIDE: "block 0, on a constraint's mask, or the mask itself",
}


def describe_fault(fault: npt.NDArray[np.uint32], plan: Plan) -> str:
    """Return the sentence for a fault that is not all zeros."""
    wait, block, sm, phase, detail, number = (int(x) for x in fault[:6])
    awaited = WAITS[Exchange(wait)] if wait in WAITS else f"wait {wait}"
    # The kernel counts neither EMBED, which waits for nobody, nor GATHER, which is part of HEAD.
    phases = [x for x in plan.phases if x.kind not in (PhaseKind.EMBED, PhaseKind.GATHER)]
    place = phases[phase].name if phase < len(phases) else f"phase {phase}"
    lane = block // plan.groups.workers_each
    return (
        f"block {block} (lane {lane}, SM {sm}) waited in vain for {awaited}, in {place} of pass "
        f"{number}, detail {detail}"
    )


def describe_faults(faults: npt.NDArray[np.uint32], plan: Plan) -> str:
    """Return the sentence for what devices left, [devices, FAULT_NUMBERS], not all of it zeros.

    Of several devices it names the one whose words were late. One that is awaited and has nothing
    to say of itself comes first: it neither works nor waits.
    """
    if len(faults) == 1:
        return describe_fault(faults[0], plan)
    told = [i for i, fault in enumerate(faults) if fault.any()]
    starved = [i for i in told if not faults[i][_HEARD]] or told
    named = {i: int(faults[i][_LATE]) for i in (*starved, *told)}
    silent = [late for late in named.values() if late not in told]
    late = silent[0] if silent else named[starved[0]]
    witness = next(i for i, x in named.items() if x == late)
    where = "itself" if witness == late else f"device {witness}"
    return (
        f"device {late} of {len(faults)} (numbered from 0) is late: on {where} "
        f"{describe_fault(faults[witness], plan)}"
    )
