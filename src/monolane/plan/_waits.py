"""Deriving the waits of a plan from what its phases read and write, each only where it is needed.

Two accesses of one slot conflict if one of them writes. The later phase must then know that the
earlier one is over at every worker whose access may touch the same lanes: those of the own group if
both stay within their own lanes, else all. What a worker knows is simple, since all workers run the
same phases: the furthest count of any wait so far, its own progress, and nothing more. A wait is
added exactly where that knowledge falls short; hence none can be removed.
"""

from dataclasses import replace

from monolane.ops import Buffer
from monolane.plan._groups import Groups
from monolane.plan._phase import Phase, Wait
from monolane.plan._split import Scope

# (buffer, slot) -> (write?, whose lanes) -> index of the last phase with such an access. Those
# before it ask for lower counts, and to look through all takes the square of the number of layers.
_History = dict[tuple[Buffer, int], dict[tuple[bool, Scope], int]]


def with_waits(phases: list[Phase], groups: Groups) -> tuple[Phase, ...]:
    """Return the phases with their waits, of a pass that follows upon another of its kind."""
    history: _History = {}
    known = {Scope.GROUP: -len(phases), Scope.ALL: -len(phases)}
    # The first round only says what the previous pass leaves behind.
    _derive(phases, groups, history, known)
    rebased = {scope: count - len(phases) for scope, count in known.items()}
    earlier: _History = {
        slot: {kind: index - len(phases) for kind, index in uses.items()}
        for slot, uses in history.items()
    }
    return tuple(_derive(phases, groups, earlier, rebased))


def scopes(groups: Groups) -> tuple[Scope, ...]:
    """Return the scopes in which there is anybody else to wait for, the narrow one first."""
    narrow = (Scope.GROUP,) if groups.workers_each > 1 else ()
    return (*narrow, Scope.ALL) if groups.count > 1 else narrow


def _derive(
    phases: list[Phase], groups: Groups, history: _History, known: dict[Scope, int]
) -> list[Phase]:
    return [replace(phase, waits=_waits_of(phase, groups, history, known)) for phase in phases]


def _waits_of(
    phase: Phase, groups: Groups, history: _History, known: dict[Scope, int]
) -> tuple[Wait, ...]:
    needed = dict.fromkeys(Scope, -(1 << 30))
    accesses = [(False, a) for a in phase.reads] + [(True, a) for a in phase.writes]
    for write, access in accesses:
        for (wrote, lanes), index in history.get((access.buffer, access.slot), {}).items():
            if write or wrote:
                scope = max(access.lanes, lanes)
                needed[scope] = max(needed[scope], index + 1)
    for write, access in accesses:
        history.setdefault((access.buffer, access.slot), {})[write, access.lanes] = phase.index
    waits = []
    if groups.count == 1:  # the group is everybody
        needed[Scope.GROUP] = max(needed.values())
    # The wide scope first: to know it of all is to know it of the group.
    for scope in reversed(scopes(groups)):
        if needed[scope] > known[scope]:
            waits.append(Wait(scope, needed[scope]))
            known[scope] = needed[scope]
        if scope is Scope.ALL:
            known[Scope.GROUP] = max(known[Scope.GROUP], known[Scope.ALL])
    return tuple(reversed(waits))
