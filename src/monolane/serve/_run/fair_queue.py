"""Who is next, among senders that may send any number of requests: fair by what each has had.

Not first come, first served: then whoever sends most waits least. Fair in two steps: between
groups, which are keys, or addresses where there are no keys; and between the connections of a
group. Each has a tag that grows by the cost of what it gets, and the lowest tag is next (start-time
fair queueing; Goyal, Vin and Cheng, 1996). Who has asked for little lately is a ``credit`` ahead of
those that always wait, and no more: else a new connection would keep all others waiting.
"""

import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

# Senders that are remembered, beyond which those are forgotten that do not wait.
_REMEMBERED = 4096

# Nobody waits for more than so many times what has been waiting when it came, and some more: else
# senders that are always new would keep others waiting for ever.
_TIMES, _MORE = 2, 16


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sent a request."""

    group: Hashable = b""  # the hash of a key; an address where there are no keys
    connection: Hashable = None


NOBODY = Sender()


@dataclass(slots=True, eq=False)
class Entry:
    """What waits: whose it is, what it costs, and where it stands."""

    sender: Sender
    cost: int  # bytes, or what else is counted
    tag: int = 0
    order: int = 0
    due: int = 0  # it goes first once its group was served so often


E = TypeVar("E", bound=Entry)


@dataclass(slots=True)
class _Group(Generic[E]):
    tag: int = 0
    clock: int = 0  # the highest tag of its own that was served
    pops: int = 0  # how often it was served
    due: int = 0  # it goes first once so many have been served in all
    waiting: list[E] = field(default_factory=list)
    tags: dict[Hashable, int] = field(default_factory=dict)  # of the next entry of a connection


class FairQueue(Generic[E]):
    """Entries in a fair order; not locked."""

    def __init__(self, credit: int) -> None:
        self._credit = credit
        self._clock = self._pops = 0
        self._groups: dict[Hashable, _Group[E]] = {}
        self._orders = itertools.count()

    def __iter__(self) -> Iterator[E]:
        return itertools.chain.from_iterable(group.waiting for group in self._groups.values())

    def put(self, entry: E) -> None:
        """Add an entry."""
        group = self._groups.setdefault(entry.sender.group, _Group())
        if not group.waiting:
            group.tag = max(group.tag, self._clock - self._credit)
            group.due = self._due()
        connection = entry.sender.connection
        entry.tag = max(group.tags.get(connection, 0), group.clock - self._credit)
        entry.order = next(self._orders)
        entry.due = group.pops + _TIMES * len(group.waiting) + _MORE
        group.tags[connection] = entry.tag + entry.cost
        group.waiting.append(entry)
        self._forget(group)

    def pop(self, fits: Callable[[E], bool] = lambda entry: True) -> E | None:
        """Take out who is next of those that fit; None where nobody does."""
        found = min(filter(fits, self), key=self._place, default=None)
        if found is not None:
            group = self._groups[found.sender.group]
            self._pops += 1
            group.pops += 1
            group.due = self._due()
            self._clock = max(self._clock, group.tag)
            group.clock = max(group.clock, found.tag)
            group.tag += found.cost
            group.waiting.remove(found)
        return found

    def last(self, fits: Callable[[E], bool] = lambda entry: True) -> E | None:
        """Return who would be last of those that fit."""
        return max(filter(fits, self), key=self._place, default=None)

    def remove(self, entry: E) -> bool:
        """Take an entry out that gives up; False if it is not there."""
        group = self._groups.get(entry.sender.group)
        if group is None or entry not in group.waiting:
            return False
        group.waiting.remove(entry)
        return True

    def _due(self) -> int:
        return self._pops + _TIMES * sum(bool(g.waiting) for g in self._groups.values()) + _MORE

    def _place(self, entry: E) -> tuple[int, ...]:
        group = self._groups[entry.sender.group]
        first = (0, group.due) if self._pops > group.due else (1, group.tag)
        then = (0, 0) if group.pops > entry.due else (1, entry.tag)
        # Of equals, the smallest: bodies of the senders' own choice cost them their place.
        return *first, *then, entry.cost * then[0], entry.order

    def _forget(self, group: _Group[E]) -> None:
        if len(group.tags) > _REMEMBERED:
            waiting = {entry.sender.connection for entry in group.waiting}
            group.tags = {name: group.tags[name] for name in waiting}
        if len(self._groups) > _REMEMBERED:
            self._groups = {name: g for name, g in self._groups.items() if g.waiting}
