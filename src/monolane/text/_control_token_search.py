"""Finds where the spellings of control tokens begin in a text.

Not an alternation of all spellings: a vocabulary reserves hundreds that begin alike, and a
message of a million ``<`` would try each of them at each place. The pattern is a trie, so one
character of text costs a few steps whatever the number of tokens.
"""

import re
from collections.abc import Collection


class Spellings:
    """A set of spellings, compiled once; it may be empty."""

    def __init__(self, spellings: Collection[str]) -> None:
        self.all = frozenset(spellings)
        body = _pattern(self.all) if self.all else "(?!)"
        self._overlapping = re.compile(f"(?={body})")
        self._beginnings = {text[:cut] for text in self.all for cut in range(1, len(text))}
        self._reach = max((len(text) for text in self.all), default=0)

    def first(self, text: str) -> str | None:
        """Return the spelling that begins first in a text, the longest of those; None if none."""
        found = self._overlapping.search(text)
        if found is None:
            return None
        return max((one for one in self.all if text.startswith(one, found.start())), key=len)

    def starts(self, text: str) -> list[int]:
        """Return each place where a spelling begins, overlapping ones too, or may begin.

        At the end of the text the beginning of a spelling counts: what follows may complete it.
        White space after it does not excuse it: a template may trim.
        """
        found = [match.start() for match in self._overlapping.finditer(text)]
        end = len(text.rstrip())
        tail = range(max(0, end - self._reach), end)
        found += [place for place in tail if text[place:end] in self._beginnings]
        return sorted(set(found))


def _pattern(spellings: Collection[str]) -> str:
    """Return a regular expression that matches any of the spellings."""
    lead = _common(min(spellings), max(spellings))  # so nesting follows branches, not characters
    branches: dict[str, list[str]] = {}
    for rest in (spelling[len(lead) :] for spelling in spellings):
        branches.setdefault(rest[:1], []).append(rest[1:])
    optional = branches.pop("", None) is not None
    if not branches:
        return re.escape(lead)
    options = [re.escape(char) + _pattern(rest) for char, rest in sorted(branches.items())]
    return f"{re.escape(lead)}(?:{'|'.join(options)}){'?' if optional else ''}"


def _common(first: str, last: str) -> str:
    """Return the common beginning of two texts, and so of all that sort between them."""
    count = 0
    while count < len(first) and count < len(last) and first[count] == last[count]:
        count += 1
    return first[:count]
