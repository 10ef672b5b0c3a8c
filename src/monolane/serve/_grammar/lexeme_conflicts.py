"""Lexemes that would take a character which, in another parse of the same text, is not theirs.

Two parses of one text are followed side by side, character by character, through all that a
grammar allows. They forget which rule they return to, and take counts for "any number": so a clash
may be found that there is not, and none is missed.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from monolane.serve._grammar.gbnf import (
    ROOT,
    Chars,
    Choice,
    Name,
    Node,
    Ranges,
    Repeat,
    parts_of,
)
from monolane.serve._grammar.lexer_split import Cut


@dataclass(slots=True)
class _Edges:
    """How a part begins and ends: places in it, as bits of a number."""

    empty: bool = False  # it may be the empty text
    first: int = 0
    last: int = 0

    def add(self, other: "_Edges") -> None:
        self.empty |= other.empty
        self.first |= other.first
        self.last |= other.last


Link = Callable[[int, int], None]  # is told that any of some places may stand before any of others


def _joined(node: Node, parts: list[_Edges], link: Link) -> _Edges:
    """Return the edges of a row, choice or repeat from those of its parts."""
    found = _Edges(empty=not isinstance(node, Choice))
    for part in parts:
        if isinstance(node, Choice):
            found.add(part)
            continue
        link(found.last, part.first)
        found.first |= part.first if found.empty else 0
        found.last = part.last | (found.last if part.empty else 0)
        found.empty &= part.empty
    if isinstance(node, Repeat):
        if node.most != 1:
            link(found.last, found.first)
        found.empty |= node.least == 0
    return found


class _Lexemes:
    """The lexemes of a cut, by number, and which of them may follow each."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self.nodes: list[Node] = []
        self.follow: list[int] = []
        self.places = _Places(cut)
        self._numbers: dict[Node, int] = {}
        self._rules = dict.fromkeys(cut.reached(), _Edges())
        changed = True
        while changed:
            changed = False
            for name in reversed(self._rules):
                edges = self._edges(cut.rules[name])
                changed |= edges != self._rules[name]
                self._rules[name] = edges
        self.first = self._rules[ROOT].first

    def _edges(self, node: Node) -> _Edges:
        self._cut.step()
        lexeme = self._cut.lexeme(node)
        if lexeme is not None:
            if lexeme not in self._numbers:
                self._numbers[lexeme] = len(self.nodes)
                self.nodes.append(lexeme)
                self.follow.append(0)
                self.places.add(lexeme)
            number = self._numbers[lexeme]
            return _Edges(self.places.edges[number].empty, 1 << number, 1 << number)
        if isinstance(node, Name):
            return self._rules[node.name]
        return _joined(node, [self._edges(part) for part in parts_of(node)], self._link)

    def _link(self, before: int, behind: int) -> None:
        for number in _bits(before):
            self._cut.step()
            self.follow[number] |= behind


class _Places:
    """The characters of all lexemes, each a place: whose it is, what it takes, what follows it."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self.edges: list[_Edges] = []  # of a lexeme
        self.owner: list[int] = []
        self.ranges: list[Ranges] = []
        self.follow: list[int] = []  # in the same lexeme

    def add(self, lexeme: Node) -> None:
        """Add the places of the next lexeme."""
        self.edges.append(self._edges(lexeme, len(self.edges)))

    def _edges(self, node: Node, owner: int) -> _Edges:
        if isinstance(node, Chars):
            self._cut.step(len(node.ranges))
            place = 1 << len(self.owner)
            self.owner.append(owner)
            self.ranges.append(node.ranges)
            self.follow.append(0)
            return _Edges(False, place, place)
        if isinstance(node, Name):
            return self._edges(self._cut.rules[node.name], owner)
        return _joined(node, [self._edges(part, owner) for part in parts_of(node)], self._link)

    def _link(self, before: int, behind: int) -> None:
        for place in _bits(before):
            self._cut.step()
            self.follow[place] |= behind


def clashes(cut: Cut) -> set[Node]:
    """Return lexemes that go on where, in another parse, another or the same has to end."""
    lexemes = _Lexemes(cut)
    if all(isinstance(node, Chars) for node in lexemes.nodes):
        return set()
    places = lexemes.places
    begin = [  # places behind the end of each lexeme
        _union(places.edges[i].first for i in _bits(follow)) for follow in lexemes.follow
    ]
    alike = _Alike(places.ranges)
    lead = [_union(map(_leads, ranges)) for ranges in places.ranges]
    ahead = [_union(lead[i] for i in _bits(follow)) for follow in places.follow]
    beyond = [_union(lead[i] for i in _bits(firsts)) for firsts in begin]

    found: set[Node] = set()
    seen = [0] * len(places.owner)  # of a place: those that another parse of the text may be at
    fresh: dict[int, int] = {}

    def meet(ours: int, theirs: int) -> None:
        for place in _bits(ours):
            cut.step()
            if new := theirs & alike.to(place) & ~seen[place]:
                seen[place] |= new
                fresh[place] = fresh.get(place, 0) | new

    start = _union(places.edges[i].first for i in _bits(lexemes.first))
    meet(start, start)
    while fresh:
        place, others = fresh.popitem()
        owner = places.owner[place]
        ends = bool(places.edges[owner].last >> place & 1)
        for other in _bits(others):
            meet(places.follow[place], places.follow[other])
            theirs = places.owner[other]
            if ends and beyond[owner] & ahead[other]:
                found.add(lexemes.nodes[theirs])
            if ends and places.edges[theirs].last >> other & 1:
                meet(begin[owner], begin[theirs])
    return found


class _Alike:
    """Which places take a character that a place takes."""

    def __init__(self, ranges: list[Ranges]) -> None:
        bounds = sorted({end for one in ranges for low, high in one for end in (low, high + 1)})
        self._sets = [
            _union(
                (1 << bisect_left(bounds, high + 1)) - (1 << bisect_left(bounds, low))
                for low, high in one
            )
            for one in ranges
        ]
        self._places: dict[int, int] = {}  # with exactly these characters
        for place, chars in enumerate(self._sets):
            self._places[chars] = self._places.get(chars, 0) | 1 << place
        self._known: dict[int, int] = {}

    def to(self, place: int) -> int:
        chars = self._sets[place]
        if chars not in self._known:
            self._known[chars] = _union(
                places for others, places in self._places.items() if others & chars
            )
        return self._known[chars]


def _leads(ends: tuple[int, int]) -> int:
    """Return the first bytes, in UTF-8, of a range of characters, as bits of a number."""
    low, high = (chr(end).encode("utf-8", "surrogatepass")[0] for end in ends)
    return (2 << high) - (1 << low)


def _union(sets: Iterable[int]) -> int:
    found = 0
    for one in sets:
        found |= one
    return found


def _bits(number: int) -> Iterator[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
