"""Litmus tests: a few threads, and a condition on what they find. Written as text:

    test MP-gpu
    x=0 y=0                                          # first values; "s=surface:x": another address
    0.0 | st.weak x 1; st.release.gpu y 1            # CTA.GPU of a thread, and what it does
    0.0 | ld.acquire.gpu r1 y; ld.weak r2 x
    never 1:r1=1 & 1:r2!=1

A part of a protocol stands in brackets, with its name and with what is weaker, where it is not
left out: ``[free: ld.acquire.cta r0 e -> ld.relaxed.cta r0 e]``, ``[met: bar.sync 1]``. All of one
name are one part.

Instructions are PTX's, but for these: ``set`` and ``add`` of registers, labels, ``await`` (a loop
that loads until a place holds a value), and of the barrier ``bar.sync ID [RESOURCE [QUORUM]]``. A
condition is a sum ("|") of products ("&") of ``THREAD:REGISTER=VALUE`` (or another register),
``PLACE=VALUE`` (what is there in the end) and ``stuck`` (a thread's ``await`` never ends). It
``may`` hold, ``never`` does, ``always`` does, or ``not-always``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

PROXIES = ("generic", "surface", "texture", "constant", "async")
_PROXY_OF = {"suld": "surface", "sust": "surface", "tld": "texture", "cold": "constant"}
_PROXY_OF |= {"bulk_ld": "async", "bulk_st": "async"}
_LOADS = ("ld", "suld", "tld", "cold", "bulk_ld")
_STORES = ("st", "sust", "bulk_st")
_TERM = re.compile(r"(?:(\d+):)?(\w+)(!=|=)(?:(-?\d+)|(\d+):(\w+))")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One of a thread's.

    kind      load, store, atom, fence, barrier, arrive, await, branch, goto, label, set, add
    order     weak, relaxed, acquire, release, acq_rel, sc
    scope     cta, gpu, sys
    proxy     the way to memory; of a proxy fence the one that it is for, or "alias"
    names     operands as written: registers, places, numbers, labels
    how       of atom: add, sub, exch, cas; of branch: eq, ne
    """

    kind: str
    names: tuple[str, ...]
    order: str = "weak"
    scope: str = "sys"
    proxy: str = "generic"
    how: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """What an instruction is of a protocol, and what stands there without that."""

    name: str
    weaker: Instruction | None


@dataclass(frozen=True, slots=True)
class Thread:
    """What one thread does, and where it runs."""

    cta: tuple[int, int]  # its number, and its GPU's
    code: tuple[Instruction, ...]
    parts: tuple[Part | None, ...]  # of each instruction

    def without(self, name: str) -> "Thread":
        """Return it with one part left out, or weaker."""
        code, parts = [], []
        for instruction, part in zip(self.code, self.parts, strict=True):
            if part is None or part.name != name:
                code.append(instruction)
                parts.append(part)
            elif part.weaker is not None:
                code.append(part.weaker)
                parts.append(None)
        return Thread(self.cta, tuple(code), tuple(parts))


@dataclass(frozen=True, slots=True)
class Address:
    """What a name stands for: a place in memory, and the generic address it is reached by."""

    place: str
    generic: str


@dataclass(frozen=True, slots=True)
class Term:
    """One demand: a thread's register, a place (thread None), or that some thread is stuck.

    What it is held against is a number, or another thread's register.
    """

    thread: int | None
    name: str
    equal: bool
    value: int | tuple[int, str]


@dataclass(frozen=True, slots=True)
class Condition:
    """A sum of products of terms, and whether it may, must never or must always hold."""

    mode: str
    products: tuple[tuple[Term, ...], ...]


@dataclass(frozen=True, slots=True)
class Litmus:
    """A test."""

    name: str
    first: dict[str, int]  # of each place
    addresses: dict[str, Address]
    threads: tuple[Thread, ...]
    condition: Condition

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of its parts, in the order in which they stand."""
        names = [part.name for thread in self.threads for part in thread.parts if part]
        return tuple(dict.fromkeys(names))

    def without(self, name: str) -> "Litmus":
        """Return it with one part left out, or weaker."""
        return replace(self, threads=tuple(thread.without(name) for thread in self.threads))


def read_litmus(text: str) -> Iterator[Litmus]:
    """Yield the tests of a text; ValueError names the line that cannot be read."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    blocks: list[list[str]] = []
    for line in lines:
        if line.startswith("test "):
            blocks.append([line])
        elif line:
            if not blocks:
                raise ValueError(f"expected 'test NAME' first, got {line!r}")
            blocks[-1].append(line)
    for block in blocks:
        yield _litmus(block)


def _litmus(lines: list[str]) -> Litmus:
    name = lines[0].removeprefix("test ").strip()
    begin = 1 if "|" in lines[1] else 2
    values, addresses = _first(lines[1] if begin == 2 else "")
    threads = tuple(_thread(line) for line in lines[begin:-1])
    for thread in threads:  # a place that has no first value holds 0
        for instruction in thread.code:
            for place in places_of(instruction):
                addresses.setdefault(place, Address(place, place))
                values.setdefault(addresses[place].place, 0)
    return Litmus(name, values, addresses, threads, _condition(lines[-1]))


def _first(line: str) -> tuple[dict[str, int], dict[str, Address]]:
    values: dict[str, int] = {}
    addresses: dict[str, Address] = {}
    for part in line.split():
        name, what = part.split("=")
        if ":" not in what:
            values[name] = int(what)
            addresses[name] = Address(name, name)
            continue
        proxy, of = what.split(":")
        other = addresses.setdefault(of, Address(of, of))
        # Surfaces, textures and constants are reached by an address that belongs to a generic one.
        addresses[name] = Address(other.place, name if proxy == "generic" else other.generic)
    return values, addresses


def _thread(line: str) -> Thread:
    where, code = line.split("|", 1)
    cta, gpu = (int(x) for x in where.split("."))
    read = [_step(one.strip()) for one in code.split(";") if one.strip()]
    return Thread((cta, gpu), tuple(one for one, _ in read), tuple(part for _, part in read))


def _step(text: str) -> tuple[Instruction, Part | None]:
    if not text.startswith("["):
        return _instruction(text.split()), None
    name, _, rest = text.strip("[]").partition(":")
    strong, _, weaker = rest.partition("->")
    part = Part(name.strip(), _instruction(weaker.split()) if weaker else None)
    return _instruction(strong.split()), part


def _instruction(words: list[str]) -> Instruction:
    head, *names = words
    op, *rest = head.split(".")
    operands = tuple(names)
    if op in ("set", "add", "goto", "label"):
        return Instruction(op, operands)
    if op in ("beq", "bne"):
        return Instruction("branch", operands, how=op[1:])
    if op == "bar":
        return Instruction("arrive" if rest[0] == "arrive" else "barrier", operands, scope="cta")
    if op == "fence" and rest[0] == "proxy":
        return Instruction("fence", (), order="proxy", proxy=rest[1])
    if op == "fence":
        return Instruction("fence", (), *rest)
    scope = rest[1] if len(rest) > 1 else "sys"
    if op in ("atom", "red"):
        operands = operands if op == "atom" else ("_", *operands)
        return Instruction("atom", operands, rest[0], rest[1], how=rest[2])
    if op == "await":
        return Instruction("await", operands, rest[0], scope)
    if op in _LOADS or op in _STORES:
        kind = "load" if op in _LOADS else "store"
        return Instruction(kind, operands, rest[0], scope, _PROXY_OF.get(op, "generic"))
    raise ValueError(f"expected an instruction, got {' '.join(words)!r}")


def places_of(instruction: Instruction) -> tuple[str, ...]:
    """Return the names of places that an instruction touches."""
    match instruction.kind:
        case "load" | "await":
            return instruction.names[1:2]
        case "store":
            return instruction.names[:1]
        case "atom":
            return instruction.names[1:2]
    return ()


def _condition(line: str) -> Condition:
    mode, _, text = line.partition(" ")
    if mode not in ("may", "never", "always", "not-always"):
        raise ValueError(f"expected may, never, always or not-always, got {line!r}")
    products = []
    for product in text.split("|"):
        terms = []
        for term in product.split("&"):
            if term.strip() == "stuck":
                terms.append(Term(None, "stuck", True, 1))
                continue
            found = _TERM.fullmatch(term.strip())
            if found is None:
                raise ValueError(f"expected THREAD:REGISTER=VALUE, got {term.strip()!r}")
            thread, name, sign, number, other, register = found.groups()
            value = (int(other), register) if number is None else int(number)
            terms.append(Term(None if thread is None else int(thread), name, sign == "=", value))
        products.append(tuple(terms))
    return Condition(mode, tuple(products))
