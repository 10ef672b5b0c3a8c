"""Whether PTX allows what a litmus test asks about, by trying all executions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

from bench.gpu.litmus._paths import Event, Path, Value, paths
from bench.gpu.litmus._ptx import Placed, Structure
from bench.gpu.litmus._relation import Relation
from bench.gpu.litmus.program import Litmus, Term


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a test.

    executions  that the model allows, orders of writes to one place counted once
    witness     one in which the condition holds (of ``always``: does not); None: there is none
    """

    test: Litmus
    executions: int
    witness: str | None

    @property
    def holds(self) -> bool:
        """Return whether the test's claim is true."""
        return (self.witness is not None) == (self.test.condition.mode in ("may", "not-always"))


def check(test: Litmus) -> Verdict:
    """Try all executions of a test."""
    ways = [paths(test, thread) for thread in range(len(test.threads))]
    count, witness = 0, None
    for chosen in product(*ways):
        for meeting in _meetings(test, chosen):
            for outcome in _Executions(test, meeting).outcomes():
                count += 1
                if witness is None and _met(test, outcome) != ("always" in test.condition.mode):
                    witness = outcome.told
    return Verdict(test, count, witness)


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Ways of all threads, cut where a barrier is never passed, and which barriers meet."""

    ways: tuple[Path, ...]
    pairs: tuple[tuple[tuple[int, int], tuple[int, int]], ...]  # ((thread, event), ...)
    stuck: bool


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What was there in the end."""

    registers: tuple[Mapping[str, int | None], ...]
    places: Mapping[str, tuple[int, ...]]  # of writes that no order tells apart, each
    stuck: bool
    told: str


def _met(test: Litmus, outcome: _Outcome) -> bool:
    """Return whether a condition's sum holds. Of a stuck execution nothing else is asked."""
    return any(all(_is(test, outcome, term) for term in terms) for terms in test.condition.products)


def _is(test: Litmus, outcome: _Outcome, term: Term) -> bool:
    if term.name == "stuck":
        return outcome.stuck
    if outcome.stuck:
        return False
    if term.thread is not None:
        found = outcome.registers[term.thread].get(term.name, 0)
        if isinstance(term.value, tuple):
            other = outcome.registers[term.value[0]].get(term.value[1], 0)
            return None not in (found, other) and (found == other) == term.equal
        return found is not None and (found == term.value) == term.equal
    there = outcome.places[test.addresses[term.name].place]
    return any((value == term.value) == term.equal for value in there)


# ---- barriers ----------------------------------------------------------------------------------
def _meetings(test: Litmus, ways: Sequence[Path]) -> Iterator[_Meeting]:
    """Yield how the barriers of these ways may meet. Who waits for ever goes no further."""
    places = [
        (thread, number, event)
        for thread, path in enumerate(ways)
        for number, event in enumerate(path.events)
        if event.kind == "B"
    ]
    if any(event.quorum is not None for _, _, event in places):
        yield from _by_quorum(ways, places)
        return
    ways = list(ways)
    while (cut := _starved(test, ways)) is not None:
        thread, number = cut
        ways[thread] = replace(ways[thread], events=ways[thread].events[: number + 1], stuck=True)
    # Who is stuck at a barrier has not passed it: that barrier orders nothing for it.
    met: dict[tuple[str, tuple[int, int], int], list[tuple[int, int]]] = {}
    for thread, path in enumerate(ways):
        for number, instance in _instances(path):
            key = (path.events[number].label, test.threads[thread].cta, instance)
            met.setdefault(key, []).append((thread, number))
    pairs = [(a, b) for group in met.values() for a in group for b in group if a[0] != b[0]]
    pairs = [(a, b) for a, b in pairs if not ways[b[0]].events[b[1]].arrives]
    stuck = any(path.stuck for path in ways)
    if _passable(ways, list(met.values())):
        yield _Meeting(tuple(ways), tuple(pairs), stuck)
    else:
        yield _Meeting(tuple(ways), (), True)


def _instances(path: Path) -> Iterator[tuple[int, int]]:
    """Yield of each barrier its event, and how many of its name came before."""
    seen: dict[str, int] = {}
    for number, event in enumerate(path.events):
        if event.kind == "B":
            yield number, seen.get(event.label, 0)
            seen[event.label] = seen.get(event.label, 0) + 1


def _starved(test: Litmus, ways: Sequence[Path]) -> tuple[int, int] | None:
    """Return a barrier whose thread has more behind it, and that a stuck thread never comes to."""
    for thread, path in enumerate(ways):
        for number, instance in _instances(path):
            event = path.events[number]
            if event.arrives or (number == len(path.events) - 1 and path.stuck):
                continue
            for other, of in enumerate(ways):
                if other == thread or test.threads[other].cta != test.threads[thread].cta:
                    continue
                code = test.threads[other].code
                has = any(
                    x.kind in ("barrier", "arrive") and x.names[0] == event.label for x in code
                )
                reached = [
                    n
                    for n, i in _instances(of)
                    if of.events[n].label == event.label and i >= instance
                ]
                if has and of.stuck and not reached:
                    return thread, number
    return None


def _passable(ways: Sequence[Path], met: Sequence[Sequence[tuple[int, int]]]) -> bool:
    """Return whether threads can pass their barriers in some order."""
    index = {
        (t, n): i
        for i, (t, n) in enumerate((t, n) for t, p in enumerate(ways) for n in range(len(p.events)))
    }
    pairs = []
    of = {member: group[0] for group in met for member in group}
    for thread, path in enumerate(ways):
        for number in range(len(path.events) - 1):
            a, b = (thread, number), (thread, number + 1)
            if not path.events[number].arrives:
                pairs.append((index[of.get(a, a)], index[of.get(b, b)]))
    return Relation.of(pairs, len(index)).is_acyclic()


def _by_quorum(
    ways: Sequence[Path], places: Sequence[tuple[int, int, Event]]
) -> Iterator[_Meeting]:
    """Yield the groups that may meet, of as many as are waited for; one barrier a thread."""
    wanted = places[0][2].quorum
    assert wanted is not None
    for group in combinations([(t, n) for t, n, _ in places], wanted.constant):
        cut = list(ways)
        for thread, number, _ in places:
            if (thread, number) not in group:
                cut[thread] = replace(cut[thread], events=cut[thread].events[:number])
        yield _Meeting(tuple(cut), tuple((a, b) for a in group for b in group if a != b), False)


# ---- executions --------------------------------------------------------------------------------
class _Executions:
    """All executions of one choice of ways."""

    def __init__(self, test: Litmus, meeting: _Meeting) -> None:
        self._test, self._meeting = test, meeting
        self._places = list(test.first)
        begin = [
            Placed(-1, (-1, -1), Event("W", "weak", "sys", address=test.addresses[place]))
            for place in self._places
        ]
        self._base: list[int] = []  # the first event of each thread
        events = begin
        for thread, path in enumerate(meeting.ways):
            self._base.append(len(events))
            events = events + [Placed(thread, test.threads[thread].cta, x) for x in path.events]
        at = self._at
        self._structure = Structure(
            events,
            [(at(x.thread, x.event.of), i) for i, x in enumerate(events) if x.event.of is not None],
            [(at(x.thread, read), i) for i, x in enumerate(events) for read in x.event.needs],
        )

    def _at(self, thread: int, number: int) -> int:
        return self._base[thread] + number

    def outcomes(self) -> Iterator[_Outcome]:
        """Yield what comes of each execution that is allowed."""
        structure = self._structure
        sources = [
            [w for w in structure.writes if structure.loc.has(w, r)] for r in structure.reads
        ]
        for chosen in product(*sources):
            rf = Relation.of(zip(chosen, structure.reads, strict=True), structure.count)
            if not (rf | structure.dep).is_acyclic():  # no value comes out of thin air
                continue
            values = self._values(dict(zip(structure.reads, chosen, strict=True)))
            if values is None:
                continue
            for cause in structure.causalities(rf, self._met(values)):
                for co in structure.orders_of_writes(rf, cause):
                    if self._stays(rf, co):
                        yield self._outcome(values, dict(rf.inverse().pairs()), co)

    def _values(self, source: Mapping[int, int]) -> dict[int, int] | None:
        """Return what each event reads or writes; None if a way's demands are not met."""
        events, found = self._structure.events, dict[int, int]()

        def of(value: Value, thread: int) -> int:
            return value.constant + sum(f * get(self._at(thread, r)) for r, f in value.reads)

        def get(event: int) -> int:
            if event not in found:
                placed = events[event]
                if placed.event.kind == "R":
                    found[event] = get(source[event])
                elif placed.thread < 0:
                    found[event] = self._test.first[self._places[event]]
                else:
                    found[event] = of(placed.event.value, placed.thread)
            return found[event]

        for thread, path in enumerate(self._meeting.ways):
            inside = len(path.events)
            for value, zero in path.demands:
                if any(read >= inside for read, _ in value.reads):
                    continue  # behind a barrier that it never passed
                if (of(value, thread) == 0) != zero:
                    return None
        for event in (*self._structure.reads, *self._structure.writes):
            get(event)
        return found

    def _met(self, values: Mapping[int, int]) -> Relation:
        """Return which barriers meet: those of one resource."""

        def resource(thread: int, number: int) -> int:
            value = self._meeting.ways[thread].events[number].value
            return value.constant + sum(f * values[self._at(thread, r)] for r, f in value.reads)

        pairs = [(a, b) for a, b in self._meeting.pairs if resource(*a) == resource(*b)]
        return Relation.of(((self._at(*a), self._at(*b)) for a, b in pairs), self._structure.count)

    def _stays(self, rf: Relation, co: Relation) -> bool:
        """Return whether a loop that never ends looks at what stays there for ever."""
        for thread, path in enumerate(self._meeting.ways):
            if not path.stuck or path.events[-1].kind != "R":
                continue
            last = self._at(thread, len(path.events) - 1)
            write = next(w for w, r in rf.pairs() if r == last)
            if co.rows[write]:
                return False
        return True

    def _outcome(
        self, values: Mapping[int, int], source: Mapping[int, int], co: Relation
    ) -> _Outcome:
        structure = self._structure
        registers = tuple(
            {
                name: value.constant + sum(f * values[self._at(thread, r)] for r, f in value.reads)
                if all(r < len(path.events) for r, _ in value.reads)
                else None  # behind a barrier that was never passed
                for name, value in path.registers.items()
            }
            for thread, path in enumerate(self._meeting.ways)
        )
        last: dict[str, tuple[int, ...]] = {}
        for write in structure.writes:
            address = structure.events[write].event.address
            assert address is not None
            if not co.rows[write]:
                last[address.place] = (*last.get(address.place, ()), values[write])
        told = "; ".join(
            f"{placed.thread}: {placed.event.kind} {placed.event.address.place}={values[i]}"
            + (f" from {structure.events[source[i]].thread}" if i in source else "")
            for i, placed in enumerate(structure.events)
            if placed.thread >= 0 and placed.event.address is not None
        )
        return _Outcome(registers, last, self._meeting.stuck, told)
