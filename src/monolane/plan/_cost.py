"""What a phase must stream and compute, and the least time that takes on a device.

The floor is a limit, not a forecast: no waits, no latencies, perfect balance. Counted are the
matrices with their scales, of experts those that tokens choose, and the keys and values read. Of
one token that is exact; more tokens are taken to choose each expert as often. Norm scales,
embedding rows and new keys are left out: together less than a thousandth of what any model of
interest streams.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monolane.model import EXPERT_ROLES
from monolane.plan._kinds import kinds
from monolane.plan._phase import Matrix, Phase
from monolane.plan._plan import Plan


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a phase or a pass, over all lanes and workers."""

    bytes: int
    operations: int  # a multiplication and an addition are two
    seconds: float  # floor: the longer of streaming and computing

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.bytes + other.bytes,
            self.operations + other.operations,
            self.seconds + other.seconds,
        )


def phase_cost(plan: Plan, phase: Phase, width: int = 1, length: int | None = None) -> Cost:
    """Return the cost of a phase of a pass of ``width`` tokens.

    ``length`` counts the sequence with these tokens; by default it fills the plan's context.
    """
    total = plan.context if length is None else length
    assert 1 <= width <= plan.max_width
    assert width <= total <= plan.context
    moved = round(sum(_matrix_bytes(plan, m, width) for m in phase.matrices))
    chosen = 1 if plan.config.experts is None else plan.config.experts.chosen
    products = width * sum(
        m.lanes * m.rows * m.columns * (chosen if m.role in EXPERT_ROLES else 1)
        for m in phase.matrices
    )
    more = kinds()[phase.kind].beside(plan, phase, width, total)
    moved, products = moved + more[0], products + more[1]
    device = plan.device
    seconds = max(moved / device.total_bandwidth, 2 * products / device.total_compute)
    return Cost(moved, 2 * products, seconds)


def _matrix_bytes(plan: Plan, matrix: Matrix, width: int) -> float:
    return _row_bytes(plan, matrix, width) * matrix.lanes * matrix.rows


def _row_bytes(plan: Plan, matrix: Matrix, width: int) -> float:
    """Return the bytes of a row, of every expert that a pass reads."""
    return matrix.row_bytes * plan.active_experts(matrix, width)


def pass_cost(plan: Plan, width: int = 1, length: int | None = None) -> Cost:
    """Return the cost of a whole pass."""
    costs = [phase_cost(plan, phase, width, length) for phase in plan.phases]
    return sum(costs, Cost(0, 0, 0.0))


def weights_read(plan: Plan, widest: int) -> list[float]:
    """Return the weights that passes of one to ``widest`` tokens stream, beside those of one."""
    always, routed = 0, 0  # bytes; of experts, of one of each layer
    for matrix in (matrix for phase in plan.phases for matrix in phase.matrices):
        each = matrix.row_bytes * matrix.lanes * matrix.rows
        routed += each * (matrix.role in EXPERT_ROLES)
        always += each * (matrix.role not in EXPERT_ROLES)
    mixture = plan.config.experts
    active = [1 if mixture is None else mixture.active(width + 1) for width in range(widest)]
    read = [always + routed * count for count in active]
    return [moved / read[0] for moved in read]


def main_format(plan: Plan, width: int = 1) -> str:
    """Return the format of most bytes of weights that a pass streams: "int8", "q4_k", ..."""
    formats, moved = dict(plan.formats), Counter[str]()
    for phase in plan.phases:
        layer = None if phase.layer < 0 else phase.layer
        for matrix in phase.matrices:
            stored = formats.get((matrix.role, layer), plan.dtype).removesuffix("_panels")
            moved[stored] += round(_matrix_bytes(plan, matrix, width))
    return moved.most_common(1)[0][0]


def worker_bytes(
    plan: Plan, phase: Phase, width: int = 1, length: int | None = None
) -> npt.NDArray[np.int64]:
    """Return what each worker streams of a phase's bytes, [W]: by rows; of keys, by units."""
    moved = np.zeros(plan.groups.workers, np.int64)
    for matrix in phase.matrices:
        rows = np.resize(np.diff(matrix.share.bounds), moved.shape)
        moved += np.rint(rows * _row_bytes(plan, matrix, width)).astype(np.int64)
    if phase.units is not None and phase.units.total:
        units = np.resize(np.diff(phase.units.bounds), moved.shape)
        moved += phase_cost(plan, phase, width, length).bytes * units // units.sum()
    return moved
