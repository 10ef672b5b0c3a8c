"""Which parts of a grammar are lexemes, so that no greed of the lexer's leads astray.

llguidance parses in two levels: a lexer cuts a text into lexemes, each of them as long as it can
be, and Earley's parser takes those. In ``num ::= [0-9]+ ws`` and ``ws ::= [ \\n]*``, a lexeme of
the rule ``num`` takes each line break that follows, also one that another rule has to have. With a
lexeme for each character any grammar is followed exactly, but a mask takes long: every token of
the vocabulary is parsed character by character, not only read. So lexemes are as large as they may
be: at first each largest part without recursion is one, and those that clash (``clashes``) are
broken into their parts, until none does.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from monolane.serve._grammar.gbnf import ROOT, Chars, Name, Node, Repeat, names_in, parts_of

MAX_LEXEME = 2_000  # ranges of characters in one lexeme, its rules written out
MAX_UNROLLED = 20_000  # the same with each part as often as it has to be there
MAX_GRAMMAR = 1_000_000  # the same of a rule, lexeme or not: the compiler writes out fixed texts
MAX_DEPTH = 100  # of what is written out
MAX_STEPS = 100_000  # to find clashes: 0.2 s


class TooManyStepsError(Exception):
    """More steps than ``MAX_STEPS``."""


@dataclass(frozen=True, slots=True)
class _Extent:
    """How large a part without recursion is, its rules written out."""

    ranges: int
    unrolled: int
    depth: int

    def fits(self) -> bool:
        return (
            self.ranges <= MAX_LEXEME and self.unrolled <= MAX_UNROLLED and self.depth <= MAX_DEPTH
        )


class Cut:
    """Which parts of a grammar are lexemes."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self.rules = rules
        self.broken: set[Node] = set()
        self.single = False  # each lexeme is one character
        self._steps = 0
        self._extents: dict[Node, _Extent | None] = {}  # None: with recursion
        self._ready: set[str] = set()  # rules without recursion
        self._measure()

    def lexeme(self, node: Node) -> Node | None:
        """Return the node that is the lexeme here, None where its parts are."""
        if isinstance(node, Chars):
            return node
        extent = None if self.single else self._extent(node)
        if extent is None or extent.ranges == 0 or not extent.fits():
            return None
        while isinstance(node, Name):
            node = self.rules[node.name]
        return None if node in self.broken else node

    def reached(self) -> list[str]:
        """Return the rules that are no part of a lexeme, root first."""
        found = {ROOT: None}
        waiting = [ROOT]
        while waiting:
            for name in self._names(self.rules[waiting.pop()]):
                if name not in found:
                    found[name] = None
                    waiting.append(name)
        return list(found)

    def step(self, count: int = 1) -> None:
        """Count steps; TooManyStepsError where there are too many."""
        self._steps += count
        if self._steps > MAX_STEPS:
            raise TooManyStepsError

    def _names(self, node: Node) -> Iterator[str]:
        if self.lexeme(node) is not None:
            return
        if isinstance(node, Name):
            yield node.name
        for part in parts_of(node):
            yield from self._names(part)

    def _measure(self) -> None:
        """Find the extents of the rules without recursion, first of those without names."""
        waiting = {name: set(names_in(node)) for name, node in self.rules.items()}
        users: dict[str, list[str]] = {name: [] for name in self.rules}
        for name, needs in waiting.items():
            for need in needs:
                users[need].append(name)
        ready = [name for name, needs in waiting.items() if not needs]
        while ready:
            name = ready.pop()
            self._ready.add(name)
            extent = self._extent(self.rules[name])
            if extent is not None and extent.unrolled > MAX_GRAMMAR:
                raise ValueError(
                    f"Expected rules of at most {MAX_GRAMMAR} characters with what they repeat "
                    f"written out, got more in {name!r}; repeat less"
                )
            for user in users[name]:
                waiting[user].discard(name)
                if not waiting[user]:
                    ready.append(user)

    def _extent(self, node: Node) -> _Extent | None:
        """Return the extent of a part, None if it has recursion."""
        if node not in self._extents:
            self._extents[node] = self._measured(node)
        return self._extents[node]

    def _measured(self, node: Node) -> _Extent | None:
        if isinstance(node, Chars):
            return _Extent(len(node.ranges), len(node.ranges), 1)
        if isinstance(node, Name):
            parts = [self._extent(self.rules[node.name]) if node.name in self._ready else None]
        else:
            parts = [self._extent(part) for part in parts_of(node)]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        times = max(node.least, 1) if isinstance(node, Repeat) else 1
        return _Extent(
            sum(part.ranges for part in known),
            sum(part.unrolled for part in known) * times,
            max((part.depth for part in known), default=0) + 1,
        )
