"""GBNF in Lark, llguidance's language of grammars: the same texts, no more and no fewer."""

from collections.abc import Mapping

from monolane.serve._grammar.gbnf import (
    ROOT,
    Chars,
    Choice,
    Name,
    Node,
    Repeat,
    parts_of,
    read_gbnf,
)
from monolane.serve._grammar.lexeme_conflicts import clashes
from monolane.serve._grammar.lexer_split import Cut, TooManyStepsError

MAX_DEPTH = 15  # of the parts of one rule: llguidance's reader has a bound, too


def lark_of(gbnf: str) -> str:
    """Return a grammar in Lark; ValueError says what is wrong with the one in GBNF."""
    cut = Cut(read_gbnf(gbnf))
    try:
        while broken := clashes(cut):
            cut.broken |= broken
    except TooManyStepsError:
        cut.single = True
    return _Lark(cut).text()


class _Lark:
    """A grammar as it is written: its rules, and its lexemes as regexes."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self._names = {name: f"r{i}" for i, name in enumerate(cut.reached())} | {ROOT: "start"}
        self._deep: list[str] = []  # rules of what is nested deeper than Lark may be
        self._lexemes: dict[str, str] = {}  # regex -> name

    def text(self) -> str:
        rules = [
            f"{called}: {self._part(self._cut.rules[name])}" for name, called in self._names.items()
        ]
        lexemes = [f"{called}: /{regex}/" for regex, called in self._lexemes.items()]
        return "\n".join([*rules, *self._deep, *lexemes])

    def _part(self, node: Node, depth: int = 0) -> str:
        lexeme = self._cut.lexeme(node)
        if lexeme is not None:
            regex = _regex(lexeme, self._cut.rules)
            return self._lexemes.setdefault(regex, f"T{len(self._lexemes)}")
        if isinstance(node, Name):
            return self._names[node.name]
        if depth == MAX_DEPTH:
            rule = self._part(node)
            called = f"d{len(self._deep)}"
            self._deep.append(f"{called}: {rule}")
            return called
        parts = [self._part(part, depth + 1) for part in parts_of(node)]
        if isinstance(node, Repeat):
            # Lark takes no count behind a count.
            return (f"({parts[0]})" if parts[0][-1] in "*+?}" else parts[0]) + _counts(node)
        return f"({(' | ' if isinstance(node, Choice) else ' ').join(parts)})" if parts else '""'


def _regex(node: Node, rules: Mapping[str, Node]) -> str:
    """Return a regex, as Rust's crate reads it, of a part without recursion."""
    if isinstance(node, Chars):
        (low, high), *others = node.ranges
        if low == high and not others:
            return _char(low)
        return f"[{''.join(_range(low, high) for low, high in node.ranges)}]"
    if isinstance(node, Name):
        return _regex(rules[node.name], rules)
    if isinstance(node, Repeat):
        inner = _regex(node.part, rules)
        return (inner if isinstance(node.part, Chars) else f"(?:{inner})") + _counts(node)
    parts = [_regex(part, rules) for part in parts_of(node)]
    return f"(?:{'|'.join(parts)})" if isinstance(node, Choice) else "".join(parts)


def _counts(node: Repeat) -> str:
    if node.most is None and node.least < 2:
        return "*+"[node.least]
    if (node.least, node.most) == (0, 1):
        return "?"
    return f"{{{node.least},{'' if node.most is None else node.most}}}"


def _range(low: int, high: int) -> str:
    return _char(low) if low == high else f"{_char(low)}-{_char(high)}"


def _char(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"
