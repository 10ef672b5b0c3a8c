"""What is known of a kind of phase: what it must touch and read, what it costs, what it does.

How phases are built is in ``Part.build``. What a ``Kind`` says of them is stated anew, for
``validate``: two hands that share a mistake would agree.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from monolane.model import ModelConfig, Role
from monolane.ops import Buffer
from monolane.plan._builder import Builder
from monolane.plan._interpreter_worker import Worker
from monolane.plan._phase import OUTPUTS, Phase, PhaseKind
from monolane.plan._plan import Plan
from monolane.plan._split import Share

Joining = tuple[Buffer, int]  # where a module puts its outputs, and its layer


@dataclass(frozen=True, slots=True)
class Touches:
    """What of shared buffers a phase reads, besides what its update does, and what it writes."""

    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()
    wide: tuple[Buffer, ...] = ()  # of these, those of which it touches all lanes, not the own


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of phase, as the checker, the costs and the interpreter know it."""

    touches: Callable[[Plan, int], Touches]
    # What a worker does behind the phase's update, in NumPy.
    run: Callable[[Worker, Phase], None]
    # The weights that it reads, in their order.
    roles: Callable[[ModelConfig, int], tuple[Role, ...]] = lambda _, __: ()
    # How many units a group shares out, where work is not rows.
    units: Callable[[Plan, int], int] | None = None
    # Whose outputs, of which layer, join the residual streams in the phase of a layer.
    updates: Callable[[Plan, int], tuple[Joining, ...]] = lambda _, __: ()
    # What is wrong with a phase that has the right weights, beyond what holds for every kind.
    faults: Callable[[Plan, Phase], Iterator[str]] = lambda _, __: iter(())
    # Bytes and products besides those of its matrices, of a pass of so many tokens, with which the
    # sequence is so long.
    beside: Callable[[Plan, Phase, int, int], tuple[int, int]] = lambda *_: (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Phases that follow upon each other in a pass: built, and expected, where a model has them."""

    kinds: Mapping[PhaseKind, Kind]
    operation: type | tuple[()] = ()  # of which module they are phases; (): outside the layers
    # The phases of a layer's module in its place, of -1 outside the layers; none where an operation
    # of that kind has other ones.
    build: Callable[[Builder, int, int], tuple[Phase, ...]]
    # The same for the checker.
    order: Callable[[Plan, int], tuple[PhaseKind, ...]]
    # Who streams which rows of the matrices of a layer, -1 outside the layers.
    share_out: Callable[[Builder, int], Mapping[Role, Share]] = lambda _, __: {}


def joined_before(operation: type) -> Callable[[Plan, int], tuple[Joining, ...]]:
    """Return, for the checker, whose outputs join the streams before a layer's operation reads."""

    def found(plan: Plan, layer: int) -> tuple[Joining, ...]:
        own = plan.config.modules[layer]
        place = next(i for i, x in enumerate(own) if isinstance(x.operation, operation))
        return joined(plan, layer, place)

    return found


def joined(plan: Plan, layer: int, place: int) -> tuple[Joining, ...]:
    """Return, for the checker, whose outputs join the streams before a place of a layer reads.

    They are those since the last place that did not read beside the one before it.
    """
    modules = plan.config.modules
    if plan.config.altup is not None and place in (0, 3, 4):
        return ()  # they join in the steps of AltUp
    if place < len(modules[layer]) and modules[layer][place].beside:
        return ()
    if place == 0 and layer == 0:
        return ()
    if place == 0:
        return joined(plan, layer - 1, len(modules[layer - 1]))
    first = place - 1
    while modules[layer][first].beside:
        first -= 1
    return tuple((OUTPUTS[i], layer) for i in range(first, place))


def says(operation: type) -> Callable[[Plan, int], Buffer]:
    """Return, for the checker, where a layer's operation puts what it says."""

    def found(plan: Plan, layer: int) -> Buffer:
        modules = plan.config.modules[layer]
        return next(
            output
            for output, module in zip(OUTPUTS, modules, strict=False)
            if isinstance(module.operation, operation)
        )

    return found


def last_product(operation: type, role: Role, reads: Buffer) -> Kind:
    """Return a module's last phase: the product of a matrix with a buffer is what it says."""
    said = says(operation)
    return Kind(
        touches=lambda plan, layer: Touches((reads,), (said(plan, layer),)),
        roles=lambda _, __: (role,),
        run=_multiply_read,
    )


def check_pairs(plan: Plan, phase: Phase) -> Iterator[str]:
    """Yield what is wrong with the shares of matrices that are gate and up by turns."""
    del plan
    for gate, up in zip(phase.matrices[::2], phase.matrices[1::2], strict=True):
        if gate.share != up.share:
            yield (
                "expected gate and up to be shared out alike: each row of up is multiplied by "
                "gate's"
            )


def _multiply_read(worker: Worker, phase: Phase) -> None:
    """Do a module's last phase, in NumPy: multiply what it reads, and offer the products."""
    (matrix,), (read,), (write,) = phase.matrices, phase.reads, phase.writes
    for lane, rows in worker.pieces(matrix):
        x = worker.read(read.buffer, (lane, slice(worker.width), slice(matrix.columns)))
        y = worker.product(phase.layer, matrix, lane, rows, x)
        worker.store(write.buffer, (write.slot, lane), rows, y)
