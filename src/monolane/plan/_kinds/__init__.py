"""The kinds of phases: those outside the layers are here, those of a layer in operations' folders.

To add a kind: its name in _phase.py, and what is known of it in its operation's ``plan``, whose
PARTS are in the order of a pass.
"""

from collections.abc import Mapping
from functools import cache
from itertools import chain

from monolane.ops import Operation, modules
from monolane.plan._kind import Kind, Part
from monolane.plan._kinds import altup, choose, embed, head
from monolane.plan._phase import PhaseKind

LAST: tuple[Part, ...] = (altup.OUT, head.PART, choose.PART)


@cache
def _layer_parts() -> tuple[tuple[Part, ...], ...]:
    """Return the parts of each operation. Only when asked: their files import this package."""
    return tuple(module.PARTS for module in modules("plan"))


@cache
def first_parts() -> tuple[Part, ...]:
    """Return the parts before the layers: the embedding, and what operations need besides."""
    own = chain(*(getattr(module, "FIRST", ()) for module in modules("plan")))
    return (embed.PART, *own, altup.IN)


def parts_before(place: int) -> tuple[Part, ...]:
    """Return the parts of no module before that in a place of a layer."""
    return (altup.STEPS[place],) if place in altup.STEPS else ()


def parts_of(operation: Operation) -> tuple[Part, ...]:
    """Return the parts of which a layer's operation may have phases, in their order."""
    return next(
        (parts for parts in _layer_parts() if isinstance(operation, parts[0].operation)), ()
    )


@cache
def kinds() -> Mapping[PhaseKind, Kind]:
    """Return every kind of phase by its name."""
    parts = (*first_parts(), *altup.STEPS.values(), *chain(*_layer_parts()), *LAST)
    return {kind: part.kinds[kind] for kind in PhaseKind for part in parts if kind in part.kinds}


__all__ = ["LAST", "Kind", "Part", "first_parts", "kinds", "parts_before", "parts_of"]
