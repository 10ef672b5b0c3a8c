r"""How long a tokenizer's regular expressions may take, judged before any of them is compiled.

The library runs them with Oniguruma, which tries one way after the other. ``(a|a)*\d`` has 2^n
ways to match n letters, of which 2^20 take a tenth of a second; beyond 10^7 steps Oniguruma gives
up, and the library panics. Texts with many words just below that are not even refused. So each
expression is read here, and one is refused whose ways are not bounded by a power of the text's
length, times a constant.

Not by running it on samples: a sample says nothing of the text that is to come. And not by a list
of those that are published alone: a new model would need a new release.

Two ways are told apart where plain characters say which: ``(?:\r?\n)+`` has one way to match a
line end. Otherwise both count. So what is let through takes at most a power of a run's length, as
``\s+$`` takes the square, which published tokenizers have.

What Oniguruma reads: https://github.com/kkos/oniguruma/blob/master/doc/RE, syntax Ruby. What is not
read here (references, calls, conditions, callouts, absence, comments) is refused.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from monolane.errors import TextError
from monolane.text._growth import parts_of
from monolane.text._pre_tokenizers import PRE_TOKENIZERS

# K-EXAONE's repeats what repeats, and has one way all the same: what is repeated begins with a
# letter outside, and with a space inside. Classes are not told apart here, so the cuts that GGUF
# files name are let through by their text.
_KNOWN = frozenset(pattern for row in PRE_TOKENIZERS.values() for pattern in row.patterns)

MOST_CHARACTERS = 1 << 14  # of an expression; the longest published one has some 1,000
MOST_DEPTH = 40  # of groups and classes
MOST_STEPS = 10_000  # characters that one must match at most before it repeats
MOST_WAYS = 10_000  # beside those that go with the text's length; published ones have some 20
MOST_DEGREE = 3  # of the text's length, in the steps from one beginning; published ones have 2

_GROUPS = ("?:", "?=", "?!", "?<=", "?<!", "?>")
_SETTLED = ("?=", "?!", "?<=", "?<!", "?>")  # once they match, no other way is tried
_BRACED = "pPxou"  # escapes that braces may follow
_REFUSED = "gkKXRyY0123456789"  # references, calls and what is not of one length
_CONTROLS = "cCM"  # \C-\M-x: what follows has another meaning than elsewhere
_ESCAPED = {"r": "\r", "n": "\n", "t": "\t"}
_NAMED_CLASS = re.compile(r":\^?[a-z]+:\]")
_MANY = 1 << 62


@dataclass(frozen=True, slots=True)
class Cost:
    """What a part costs: its ways to match n characters, and the steps to try them all.

    degree   its ways grow as n to this power
    ways     and by this factor
    work     its steps grow as n to this power
    steps    characters that it matches at most, each unbounded repeat counted once
    first    the characters that it may begin with, in one case; None: any
    empty    it may match nothing
    open     it repeats, in one way, what begins so: a look at what follows may tell how often
    """

    degree: int = 0
    ways: int = 1
    work: int = 0
    steps: int = 0
    first: frozenset[str] | None = frozenset()
    empty: bool = True
    open: bool = False

    def then(self, other: "Cost") -> "Cost":
        """Return the cost of this, and of another behind it for each way of this."""
        return Cost(
            self.degree + other.degree,
            min(_MANY, self.ways * other.ways),
            max(self.work, self.degree + other.work),
            min(_MANY, self.steps + other.steps),
            _either(self.first, other.first) if self.empty else self.first,
            self.empty and other.empty,
        )

    def or_else(self, other: "Cost") -> "Cost":
        """Return the cost of this or another."""
        told = not self.empty and not other.empty and _apart(self.first, other.first)
        return Cost(
            max(self.degree, other.degree),
            max(self.ways, other.ways) if told else min(_MANY, self.ways + other.ways),
            max(self.work, other.work),
            min(_MANY, self.steps + other.steps),
            _either(self.first, other.first),
            self.empty or other.empty,
        )

    def before(self, rest: "Cost") -> "Cost":
        """Return the cost before ``rest``, where that tells how often this is repeated."""
        told = self.open and not rest.empty and _apart(self.first, rest.first)
        return self.settled() if told else self

    def settled(self) -> "Cost":
        """Return the cost where the first way counts."""
        return replace(self, degree=0, ways=1)

    def repeated(self, least: int, most: int | None, last: bool) -> "Cost | None":
        """Return the cost of a repeat, or None if its ways have no bound.

        ``last``: nothing behind it can fail, so that only what is tried for the first one counts.
        """
        alone = self.degree == 0 and self.ways == 1
        empty = self.empty or least == 0
        if most is None:
            if not alone and not (last and least <= 1):
                return None
            steps = min(_MANY, self.steps * max(1, least))
            return Cost(1, 1, self.work + 1, steps, self.first, empty, alone)
        spread = most - least + 1
        ways = spread if alone else spread * _power(self.ways, most)
        degree = self.degree * max(1, most)
        work = self.work + degree - self.degree
        steps = min(_MANY, self.steps * max(1, most))
        return Cost(degree, min(_MANY, ways), work, steps, self.first, empty, alone)


def _either(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    return None if one is None or other is None else one | other


def _apart(one: frozenset[str] | None, other: frozenset[str] | None) -> bool:
    return one is not None and other is not None and one.isdisjoint(other)


def _one(char: str | None) -> Cost:
    """Return the cost of one character; None: of a class, whose characters are not known."""
    # In one case, and of what is more than one letter then, the first: two that a pattern may take
    # for the same are the same here.
    return Cost(
        steps=1, first=None if char is None else frozenset(char.casefold()[:1]), empty=False
    )


def check_patterns(data: Mapping[str, Any]) -> None:
    """TextError for an expression of a tokenizer.json that might take too long."""
    for place, pattern in _patterns(data):
        if pattern in _KNOWN:
            continue
        try:
            _Reader(pattern).check()
        except TextError as error:
            raise TextError(f"{place}: {error}") from None


def _patterns(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for place, kind in (
        ("normalizer", "normalizers"),
        ("pre_tokenizer", "pretokenizers"),
        ("decoder", "decoders"),
    ):
        for part in parts_of(data.get(place), kind, place):
            pattern = part.get("pattern")
            found = pattern.get("Regex") if isinstance(pattern, dict) else None
            if isinstance(found, str):
                yield place, found


def _power(base: int, exponent: int) -> int:
    if base < 2 or exponent == 0:
        return 1
    return _MANY if exponent > 62 else min(_MANY, base**exponent)


class _Reader:
    """Reads one expression from its beginning to its end."""

    def __init__(self, pattern: str) -> None:
        self._text, self._at = pattern, 0

    def check(self) -> None:
        if len(self._text) > MOST_CHARACTERS:
            raise TextError(
                f"expected a regular expression of at most {MOST_CHARACTERS} characters, got "
                f"{len(self._text)}"
            )
        cost = self._alternatives(0, settled=True)
        if self._at < len(self._text):
            raise self._refusal("an open parenthesis for each that closes")
        if cost.degree > MOST_DEGREE or cost.work > MOST_DEGREE or cost.ways > MOST_WAYS:
            raise self._refusal("one with fewer repeats and choices behind each other")
        if cost.steps > MOST_STEPS:
            raise self._refusal(f"repeats of at most {MOST_STEPS} characters")

    def _refusal(self, expected: str) -> TextError:
        return TextError(
            f"regular expression {self._text!r:.80}: expected {expected}, for it might take too "
            f"long or be read in two ways (character {self._at})"
        )

    def _peek(self, count: int = 1) -> str:
        return self._text[self._at : self._at + count]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise self._refusal("an end to each group, class and escape")
        self._at += 1
        return char

    def _alternatives(self, depth: int, settled: bool) -> Cost:
        """Read up to a closing parenthesis or the end; ``settled``: there no way is tried again."""
        if depth > MOST_DEPTH:
            raise self._refusal(f"groups of at most {MOST_DEPTH} in each other")
        cost = self._branch(depth, settled)
        while self._peek() == "|":
            self._at += 1
            cost = cost.or_else(self._branch(depth, settled))
        return cost

    def _branch(self, depth: int, settled: bool) -> Cost:
        parts = []
        while self._peek() and self._peek() not in "|)":
            parts.append(self._repeats(self._atom(depth), settled))
        cost = Cost()
        for part in reversed(parts):
            cost = part.before(cost).then(cost)
        return cost

    def _atom(self, depth: int) -> Cost:
        char = self._take()
        if char == "(":
            return self._group(depth)
        if char == "[":
            self._class(depth + 1)
            return _one(None)
        if char == "\\":
            return _one(self._escape())
        if char in "*+?":
            raise self._refusal("something to repeat")
        return _one(None if char in ".^$" else char)

    def _group(self, depth: int) -> Cost:
        begin = self._at - 1
        kind = next((kind for kind in _GROUPS if self._peek(len(kind)) == kind), "")
        self._at += len(kind)
        if not kind and self._peek() == "?":
            self._at += 1
            while self._peek() in tuple("ims-"):
                self._at += 1
            if self._peek() == ")" and begin == 0:  # of all that follows
                self._at += 1
                return Cost()
            if self._take() != ":":
                raise self._refusal(
                    "groups of (?:), (?=), (?!), (?<=), (?<!), (?>) and (?ims-ims:)"
                )
        elif self._peek() == "*":
            raise self._refusal("no callouts")
        settled = kind in _SETTLED
        cost = self._alternatives(depth + 1, settled)
        if self._take() != ")":
            raise self._refusal("an end to each group")
        if kind in ("", "?:", "?>"):
            return cost.settled() if settled else cost
        return replace(cost.settled(), first=None)  # looks, and takes nothing

    def _class(self, depth: int) -> None:
        if depth > MOST_DEPTH:
            raise self._refusal(f"classes of at most {MOST_DEPTH} in each other")
        if self._peek() == "^":
            self._at += 1
        if self._peek() == "]":
            raise self._refusal("classes that begin with another character than ]")
        while (char := self._take()) != "]":
            if char == "\\":
                self._escape(inside=True)
            elif char == "[" and (named := _NAMED_CLASS.match(self._text, self._at)):
                self._at = named.end()
            elif char == "[":
                self._class(depth + 1)

    def _escape(self, inside: bool = False) -> str | None:
        """Read what is behind a backslash; return the character that it stands for, or None."""
        char = self._take()
        if char in _CONTROLS or (char in _REFUSED and not inside):
            raise self._refusal(f"no \\{char}")
        if char in _BRACED and self._peek() == "{":
            end = self._text.find("}", self._at)
            if end < 0:
                raise self._refusal("an end to {")
            self._at = end + 1
        return _ESCAPED.get(char, None if char.isalnum() else char)

    def _repeats(self, cost: Cost, settled: bool) -> Cost:
        """Read what is said of how often an atom comes; one repeat may stand behind another."""
        while (bounds := self._bounds()) is not None:
            least, most, braced = bounds
            mode = self._peek() if self._peek() in ("?", "+") else ""
            # Behind braces a plus is one more repeat, and a question mark may be one.
            possessive = mode == "+" and not braced
            if mode == "?" or possessive:
                self._at += 1
            last = possessive or (settled and self._peek() in ("", "|", ")"))
            found = cost.repeated(least, most, last)
            if found is None:
                raise self._refusal("no repeats of what repeats, or is a choice")
            cost = found.settled() if possessive else found
        return cost

    def _bounds(self) -> tuple[int, int | None, bool] | None:
        """Return least, most and whether they were in braces; None if there is no repeat."""
        char = self._peek()
        if char in ("*", "+", "?"):
            self._at += 1
            return (1 if char == "+" else 0), (1 if char == "?" else None), False
        if char != "{":
            return None
        end = self._text.find("}", self._at)
        least, comma, most = self._text[self._at + 1 : max(end, 0)].partition(",")
        if end < 0 or not all(x.isascii() and (x.isdigit() or not x) for x in (least, most)):
            return None  # a brace of its own
        if not least and not most:
            return None
        self._at = end + 1
        low = min(_MANY, int(least[:19] or 0))
        if not comma:
            return low, low, True
        high = min(_MANY, int(most[:19])) if most else None
        return (low, high, True) if high is None else (min(low, high), max(low, high), True)
