"""The ways that a thread of a litmus test may go, with what it reads left open."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from bench.gpu.litmus.program import Address, Instruction, Litmus

_ROUNDS = 2  # times that an instruction is come to in one way at most: a loop may turn back once


@dataclass(frozen=True, slots=True)
class Value:
    """A number: a constant and multiples of what some of the thread's reads find."""

    constant: int = 0
    reads: tuple[tuple[int, int], ...] = ()  # (number of the thread's event, factor)

    def plus(self, other: "Value", factor: int = 1) -> "Value":
        """Return the sum with so many times another."""
        reads = dict(self.reads)
        for event, own in other.reads:
            reads[event] = reads.get(event, 0) + factor * own
        kept = tuple(sorted((e, f) for e, f in reads.items() if f))
        return Value(self.constant + factor * other.constant, kept)


@dataclass(frozen=True, slots=True)
class Event:
    """What a thread does to memory, or for its order.

    kind      "R", "W", "F" a fence, "B" a barrier
    address   of R and W
    value     of W what is written; of B the resource
    of        of W: the event of the read that it makes one with; None: it stands alone
    needs     events of reads that decide about it, or about what it writes
    label     of B: what it is called
    quorum    of B: threads that it waits for; None: all that have it
    arrives   of B: does not wait
    """

    kind: str
    order: str
    scope: str
    proxy: str = "generic"
    address: Address | None = None
    value: Value = Value()
    of: int | None = None
    needs: frozenset[int] = frozenset()
    label: str = ""
    quorum: Value | None = None
    arrives: bool = False


@dataclass(frozen=True, slots=True)
class Path:
    """One way: its events, what must hold of the numbers read, and registers in the end."""

    events: tuple[Event, ...] = ()
    demands: tuple[tuple[Value, bool], ...] = ()  # each is 0, or is not
    registers: dict[str, Value] = field(default_factory=dict)
    stuck: bool = False  # its last event is a read by a loop that never ends

    @property
    def decided(self) -> frozenset[int]:
        """Return the reads by which the way was chosen so far."""
        return frozenset(event for value, _ in self.demands for event, _ in value.reads)

    def value(self, name: str) -> Value:
        """Return what an operand stands for; a register that was not set holds 0."""
        if name.lstrip("-").isdigit():
            return Value(int(name))
        return self.registers.get(name, Value())

    def demanding(self, value: Value, zero: bool) -> "Path | None":
        """Return it with one more demand; None if that cannot be."""
        if not value.reads:
            return self if (value.constant == 0) == zero else None
        return replace(self, demands=(*self.demands, (value, zero)))

    def doing(self, event: Event) -> "Path":
        """Return it with one more event."""
        needs = self.decided | {read for read, _ in event.value.reads}
        return replace(self, events=(*self.events, replace(event, needs=needs)))

    def setting(self, name: str, value: Value) -> "Path":
        """Return it with a register set."""
        return replace(self, registers=self.registers | {name: value})


def paths(test: Litmus, thread: int) -> list[Path]:
    """Return all ways of a thread."""
    code = test.threads[thread].code
    labels = {one.names[0]: i for i, one in enumerate(code) if one.kind == "label"}
    return list(_from(test, code, labels, 0, Path(), (0,) * len(code)))


def _from(
    test: Litmus,
    code: tuple[Instruction, ...],
    labels: dict[str, int],
    at: int,
    path: Path,
    rounds: tuple[int, ...],
) -> Iterator[Path]:
    if at == len(code):
        yield path
        return
    if rounds[at] == _ROUNDS:
        return
    rounds = (*rounds[:at], rounds[at] + 1, *rounds[at + 1 :])
    one = code[at]
    if one.kind == "goto":
        yield from _from(test, code, labels, labels[one.names[0]], path, rounds)
    elif one.kind == "branch":
        gap = path.value(one.names[0]).plus(path.value(one.names[1]), -1)
        for zero in (True, False):
            further = path.demanding(gap, zero)
            to = labels[one.names[2]] if zero == (one.how == "eq") else at + 1
            if further is not None:
                yield from _from(test, code, labels, to, further, rounds)
    else:
        for further in _done(test, one, path):
            if further.stuck:
                yield further
            else:
                yield from _from(test, code, labels, at + 1, further, rounds)


def _done(test: Litmus, one: Instruction, path: Path) -> Iterator[Path]:
    """Yield the ways that go on behind an instruction that is no jump."""
    names = one.names
    address = None
    number = len(path.events)  # of what it does first
    event = Event("F", one.order, one.scope, one.proxy)
    match one.kind:
        case "label":
            yield path
        case "set":
            yield path.setting(names[0], path.value(names[1]))
        case "add":
            yield path.setting(names[0], path.value(names[1]).plus(path.value(names[2])))
        case "fence":
            yield path.doing(event)
        case "barrier" | "arrive":
            yield path.doing(
                replace(
                    event,
                    kind="B",
                    order="barrier",
                    label=names[0],
                    value=path.value(names[1]) if len(names) > 1 else Value(),
                    quorum=path.value(names[2]) if len(names) > 2 else None,
                    arrives=one.kind == "arrive",
                )
            )
        case "store":
            address = test.addresses[names[0]]
            value = path.value(names[1])
            yield path.doing(replace(event, kind="W", address=address, value=value))
        case "load":
            address = test.addresses[names[1]]
            yield path.doing(replace(event, kind="R", address=address)).setting(
                names[0], Value(0, ((number, 1),))
            )
        case "await":
            address, found = test.addresses[names[1]], Value(0, ((number, 1),))
            read = path.doing(replace(event, kind="R", address=address)).setting(names[0], found)
            gap = found.plus(path.value(names[2]), -1)
            for zero in (True, False):
                further = read.demanding(gap, zero)
                assert further is not None
                yield replace(further, stuck=not zero)
        case "atom":
            yield from _atom(test, one, path)
        case _:
            raise ValueError(f"expected an instruction, got {one}")


def _atom(test: Litmus, one: Instruction, path: Path) -> Iterator[Path]:
    register, place, *operands = one.names
    number, found = len(path.events), Value(0, ((len(path.events), 1),))
    acquires = one.order if one.order == "acquire" else "relaxed"
    releases = one.order if one.order == "release" else "relaxed"
    if one.order == "acq_rel":
        acquires, releases = "acquire", "release"
    read = Event("R", acquires, one.scope, one.proxy, test.addresses[place])
    write = replace(read, kind="W", order=releases, of=number)
    first = path.value(operands[0])
    path = path.doing(read)
    if one.how == "cas":
        gap, value = found.plus(first, -1), path.value(operands[1])
        other = path.demanding(gap, False)
        assert other is not None
        yield other.setting(register, found)
        same = path.demanding(gap, True)
        assert same is not None
        yield same.doing(replace(write, value=value)).setting(register, found)
        return
    values = {"add": found.plus(first), "sub": found.plus(first, -1), "exch": first}
    yield path.doing(replace(write, value=values[one.how])).setting(register, found)
