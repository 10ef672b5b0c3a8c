"""PTX's memory model: which executions it allows.

The axioms are those of the PTX ISA ("Memory Consistency Model"), formalised by D. Lustig, S.
Sahasrabuddhe and O. Giroux, "A Formal Analysis of the NVIDIA PTX Memory Consistency Model" (ASPLOS
2019) and, with the ways to memory that PTX calls proxies, by D. Lustig, S. Cooksey and O. Giroux,
"Mixed-Proxy Extensions for the NVIDIA PTX Memory Consistency Model" (ISCA 2022).

An execution is what happened: which write each read found (rf), in which order writes to a place
took effect (co), in which order fences.sc did. Nothing here depends on an order in time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from bench.gpu.litmus._paths import Event
from bench.gpu.litmus._relation import Relation

_STRONG = ("relaxed", "acquire", "release")


@dataclass(frozen=True, slots=True)
class Placed:
    """An event of an execution; thread -1 wrote what was there first."""

    thread: int
    cta: tuple[int, int]  # and the GPU's number
    event: Event


class Structure:
    """What the events are by themselves: all but what reads found and in which order writes came.

    events      of each thread in its order, one thread behind the other
    atomic      (read, write) of each that makes one of both
    needed      (read, event): the read decides about the event
    """

    def __init__(
        self,
        events: Sequence[Placed],
        atomic: Sequence[tuple[int, int]],
        needed: Sequence[tuple[int, int]],
    ) -> None:
        self.events = events
        self.count = count = len(events)
        kinds = [x.event.kind for x in events]
        self.reads = [i for i in range(count) if kinds[i] == "R"]
        self.writes = [i for i in range(count) if kinds[i] == "W"]
        self.R, self.W = _bits(self.reads), _bits(self.writes)
        self.all = (1 << count) - 1
        self.rmw = Relation.of(atomic, count)
        self.dep = Relation.of(needed, count)
        self.po = Relation.where(
            lambda i, j: i < j and events[i].thread == events[j].thread >= 0, count
        )
        self.loc = Relation.where(lambda i, j: self._same(i, j, "place"), count)
        self.vloc = Relation.where(lambda i, j: self._same(i, j, "generic"), count)
        self.same_cta = Relation.where(lambda i, j: events[i].cta == events[j].cta, count)
        self.same_proxy = Relation.where(
            lambda i, j: (
                events[i].event.proxy == events[j].event.proxy
                and events[i].event.proxy != "alias"
                and "B" not in (kinds[i], kinds[j])
            ),
            count,
        )
        self.generic = _bits(
            i for i in range(count) if events[i].event.proxy == "generic" and kinds[i] != "B"
        )
        self.alias = _bits(i for i in range(count) if events[i].event.proxy == "alias")

    def _same(self, i: int, j: int, what: str) -> bool:
        one, other = self.events[i].event.address, self.events[j].event.address
        return one is not None and other is not None and getattr(one, what) == getattr(other, what)

    def _ordered(self, kind: str, *orders: str) -> int:
        return _bits(
            i for i, x in enumerate(self.events) if x.event.kind == kind and x.event.order in orders
        )

    @cached_property
    def morally_strong(self) -> Relation:
        """Pairs that synchronise, or race by rule: strong, each in the other's scope."""
        strong = self._ordered("R", *_STRONG) | self._ordered("W", *_STRONG)
        strong |= self._ordered("F", "acq_rel", "sc", "proxy")
        near = Relation.where(self._in_scope, self.count).within(strong, strong)
        memory = self.R | self.W
        either = self.po | self.po.inverse() | near
        overlap = Relation.where(
            lambda i, j: not (memory >> i & 1 and memory >> j & 1) or self.vloc.has(i, j),
            self.count,
        )
        return (either & self.same_proxy & overlap) - Relation.identity(
            range(self.count), self.count
        )

    def _in_scope(self, i: int, j: int) -> bool:
        return self._reaches(i, j) and self._reaches(j, i)

    def _reaches(self, i: int, j: int) -> bool:
        one, other = self.events[i], self.events[j]
        if one.event.scope == "cta":
            return one.cta == other.cta
        return one.event.scope == "sys" or one.cta[1] == other.cta[1]

    @cached_property
    def release_pattern(self) -> Relation:
        """From what gives its past away to the write that carries it."""
        strong = self._ordered("W", *_STRONG)
        same = (self.po & self.vloc).optional()
        by_store = same.within(self._ordered("W", "release"), strong)
        return by_store | self.po.within(self._ordered("F", "acq_rel", "sc"), strong)

    @cached_property
    def acquire_pattern(self) -> Relation:
        """From the read that brings a past to what takes it."""
        strong = self._ordered("R", *_STRONG)
        same = (self.po & self.vloc).optional()
        by_load = same.within(strong, self._ordered("R", "acquire"))
        return by_load | self.po.within(strong, self._ordered("F", "acq_rel", "sc"))

    @cached_property
    def fence_pairs(self) -> list[tuple[int, int]]:
        """Return the fences.sc that come one before the other, as pairs without an order."""
        fences = self._ordered("F", "sc")
        return [(i, j) for i, j in self.morally_strong.within(fences, fences).pairs() if i < j]

    @cached_property
    def strong_writes(self) -> list[tuple[int, int]]:
        """Return the writes to a place that have an order, as pairs without it."""
        pairs = (self.morally_strong & self.loc).within(self.W, self.W).pairs()
        return [(i, j) for i, j in pairs if i < j]

    @cached_property
    def proxy_fences(self) -> Relation:
        """From a fence to the accesses that go the way that it is for, in its CTA."""
        fences = self._ordered("F", "acq_rel", "sc", "proxy")
        return (self.same_proxy & self.same_cta).within(fences, self.R | self.W)

    def causalities(self, rf: Relation, barriers: Relation) -> Iterator[Relation]:
        """Yield what may come before what beside these reads, once for each order of fences.sc.

        ``barriers``: pairs of events that meet, from who arrives to who waits.
        """
        fences = self._ordered("F", "sc")
        for order in _oriented(Relation.none(self.count), self.fence_pairs):
            cause = self._causality(rf, order | barriers)
            agrees = (order | cause.within(fences, fences)).is_acyclic()
            if agrees and (rf @ cause).is_irreflexive():
                yield cause

    def _causality(self, rf: Relation, met: Relation) -> Relation:
        strong = self.morally_strong
        observation = (strong & rf) | self.rmw
        sync = strong & (self.release_pattern @ observation.plus() @ self.acquire_pattern)
        own = self.po.optional()
        base = (own @ (((sync | met) @ own).plus())) | self.po
        return observation.optional() @ self._kept(base)

    def _kept(self, base: Relation) -> Relation:
        """Return the pairs of base causality that hold though ways to memory differ."""
        memory, generic, all_ = self.R | self.W, self.generic, self.all
        near = base.within(generic, generic) & self.vloc
        near |= (self.same_proxy & self.same_cta & self.vloc & base).within(memory, memory)
        if generic == self.all & ~self._barriers:
            return near
        fence = self.proxy_fences
        leaving = base & fence.inverse()  # from an access to its fence
        coming = base & fence
        # Each end is generic, or has a fence of its own way.
        begin = base.within(generic, all_) | (leaving @ base)
        near |= self.vloc & (leaving @ base).within(all_, generic)
        near |= self.vloc & (base @ coming).within(generic, all_)
        near |= self.vloc & (leaving @ base @ coming)
        through = begin.within(all_, self.alias) @ base
        near |= self.loc & through.within(all_, generic)
        near |= self.loc & (through @ coming)
        return near

    @cached_property
    def _barriers(self) -> int:
        return _bits(i for i, x in enumerate(self.events) if x.event.kind == "B")

    def orders_of_writes(self, rf: Relation, cause: Relation) -> Iterator[Relation]:
        """Yield the least orders of writes that the axioms allow beside these reads."""
        first = [i for i in self.writes if self.events[i].thread < 0]
        forced = (cause & self.loc).within(self.W, self.W)
        forced |= Relation.of(
            ((i, j) for i in first for j in self.writes if i != j and self.loc.has(i, j)),
            self.count,
        )
        for co in _oriented(forced, self.strong_writes):
            if self._allows(rf, cause, co):
                yield co

    def _allows(self, rf: Relation, cause: Relation, co: Relation) -> bool:
        """Return whether coherence, atomicity and causality hold."""
        fr = rf.inverse() @ co
        if not ((rf | fr) @ cause).is_irreflexive():
            return False
        strong = self.morally_strong
        return not ((strong & fr) @ (strong & co)) & self.rmw


def _oriented(forced: Relation, pairs: Sequence[tuple[int, int]]) -> Iterator[Relation]:
    """Yield the transitive orders with ``forced`` in them that order each of ``pairs``."""
    closed = forced.plus()
    if not closed.is_irreflexive():
        return
    open_ = [(i, j) for i, j in pairs if not closed.has(i, j) and not closed.has(j, i)]
    if not open_:
        yield closed
        return
    i, j = open_[0]
    for pair in ((i, j), (j, i)):
        yield from _oriented(closed | Relation.of([pair], len(closed.rows)), open_[1:])


def _bits(events: Sequence[int] | Iterator[int]) -> int:
    found = 0
    for event in events:
        found |= 1 << event
    return found
