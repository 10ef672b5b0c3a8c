"""How operations are computed: each in the ``reference.py`` of its folder."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from monolane.ops import Operation, modules
from monolane.reference._operations import Floats


@dataclass(frozen=True, slots=True)
class Row:
    """Numbers that a cache keeps of each token, in each lane: [heads, width]."""

    heads: int
    width: int
    rounded: bool = True  # to what the dtype of the cache can hold


@dataclass(frozen=True, slots=True)
class Computation:
    """How an operation is computed: what of the normed stream [L, T, D] joins the stream."""

    operation: type[Operation]
    # Given the operation's sizes, the ``LayerPass`` and what it reads.
    run: Callable[[Any, Any, Floats], Floats]
    # The shapes of what a sequence keeps of it beside cached rows, which begins as zeros.
    state: Callable[[Any], tuple[tuple[int, ...], ...]] = lambda _: ()
    # What a sequence keeps of each token, of a model with so many lanes.
    rows: Callable[[Any, int], tuple[Row, ...]] = lambda _, __: ()


@cache
def _computations() -> dict[type[Operation], Computation]:
    found = (module.COMPUTATION for module in modules("reference"))
    return {computation.operation: computation for computation in found}


def find_computation(operation: Operation) -> Computation:
    """Return how an operation is computed; TypeError if nobody computes it here."""
    found = _computations().get(type(operation))
    if found is None:
        raise TypeError(f"reference: computes no {type(operation).__name__}")
    return found
