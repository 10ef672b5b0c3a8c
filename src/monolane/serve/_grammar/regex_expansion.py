"""How long a regex is whose counted repeats are written out, as the compiler writes them.

It writes out what has to be there: ``(a{1000}){1000}`` is a text of a million characters, which it
puts together for 8 s before it counts a step. Counted here before: one pass over the regex.
"""

import re

_ENOUGH = 1 << 30  # no need to count further
_PIECE = re.compile(
    r"(?P<open>\((?:\?(?:P?<\w+>|[a-zA-Z-]*:?))?)"
    r"|(?P<close>\))"
    r"|\{\s{0,9}(?P<least>\d{1,9})\s{0,9}(?:,\s{0,9}\d{0,9}\s{0,9})?\}"
    r"|[*?](?P<any>)"
    r"|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]?"
    r"|\\(?:[pPxuU]\{[^}]{0,40}\}|.)"
    r"|.",
    re.DOTALL,
)
_SPACED = re.compile(r"\(\?[a-zA-Z]*x")  # blanks and comments mean nothing, perhaps


def written_out(regex: str) -> int:
    """Return the characters that a regex has at least where each of its branches is in a text."""
    if not _SPACED.search(regex):
        return _characters(regex)
    plain = re.sub(r"\s", "", regex)
    return max(_characters(plain), _characters(re.sub(r"\s|#[^\n]*", "", regex)))


def _characters(regex: str) -> int:
    groups: list[int] = []  # characters so far, of those that are open
    total = last = 0  # of the innermost group, and of its last part
    for piece in _PIECE.finditer(regex):
        if piece["open"] is not None:
            groups.append(total)
            total = last = 0
        elif piece["close"] is not None:
            last, total = total, total + (groups.pop() if groups else 0)
        elif piece["least"] is not None:
            times = max(int(piece["least"]), 1)
            total = min(total + last * (times - 1), _ENOUGH)
            last = min(last * times, _ENOUGH)
        elif piece["any"] is None:
            last = len(piece[0].encode()) if len(piece[0]) == 1 else 1
            total += last
    return total + sum(groups)
