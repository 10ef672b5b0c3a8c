"""What a starved wait means, in words: the kernel leaves numbers, the user gets a sentence.

The numbers of the waits are the kernel's (enum Awaited in kernels/block.cuh) and are read from
there, so that the two cannot drift; a test holds that every one has its words here.
"""

import re
from functools import cache

import numpy as np
import numpy.typing as npt

from monolane.cuda._compile import KERNELS
from monolane.plan import PhaseKind, Plan

# Words of Params.fault: the wait, block, SM, phase of the pass, detail, pass.
FAULT_WORDS = 8

WAITS = {
    "WEIGHTS": "its own weights, to be streamed",
    "STREAM": "the residual stream of its lane",
    "SQUARES": "the sums of squares of its lane",
    "QKV": "queries, keys and values of its lane",
    "PARTIAL": "partial attention of its lane",
    "HIDDEN": "the MLP's hidden values of its lane",
    "LANES": "the outputs of the other lanes",
    "JOINED": "the streams of all lanes",
    "CANDIDATES": "the candidates of all blocks",
    "CONTROL": "block 0's word on whether to go on",
    "LOGITS": "the logits of all blocks",
    "DECISION": "the chosen token",
    "LANE": "the other blocks of its lane",
    "GUIDE": "block 0's word on a constraint's mask, or the mask itself",
}


@cache
def wait_names() -> dict[int, str]:
    """Return the kernel's waits by number."""
    text = (KERNELS / "block.cuh").read_text()
    return {int(number): name for name, number in re.findall(r"\bAWAIT_(\w+) = (\d+)", text)}


def describe_fault(fault: npt.NDArray[np.uint32], plan: Plan) -> str:
    """Return the sentence for a fault that is not all zeros."""
    wait, block, sm, phase, detail, number = (int(word) for word in fault[:6])
    awaited = WAITS.get(wait_names().get(wait, ""), f"wait {wait}")
    # The kernel counts neither EMBED, which waits for nobody, nor GATHER, which is part of HEAD.
    phases = [x for x in plan.phases if x.kind not in (PhaseKind.EMBED, PhaseKind.GATHER)]
    place = phases[phase].name if phase < len(phases) else f"phase {phase}"
    lane = block // plan.groups.workers_each
    return (
        f"block {block} (lane {lane}, SM {sm}) waited in vain for {awaited}, in {place} of pass "
        f"{number}, detail {detail}"
    )
