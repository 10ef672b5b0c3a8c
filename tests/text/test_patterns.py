r"""Regular expressions of a tokenizer that might take for ever are refused before they are built.

What the library makes of one that is refused was seen with tokenizers 0.23 (Oniguruma 6.9):
``(a|a)*\d`` takes 0.12 s for ten words of 18 letters, twice that for each letter more, and panics
beyond 10^7 steps.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from monolane.errors import TextError
from monolane.text import Tokenizer
from monolane.text._patterns import MOST_CHARACTERS, MOST_DEPTH, check_patterns
from monolane.text._pre_tokenizers import PRE_TOKENIZERS

DEMO = Path(__file__).parents[2] / "src" / "monolane" / "demo" / "tokenizer.json"
DATA: dict[str, Any] = json.loads(DEMO.read_text(encoding="utf-8"))


def split(pattern: str) -> dict[str, Any]:
    part = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [part]}}


def replace(pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": "x"}


PUBLISHED = sorted({pattern for row in PRE_TOKENIZERS.values() for pattern in row.patterns})
OTHERS = [
    r"(?:\p{L}\p{M}*)+",  # marks of Indic scripts
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",  # digits from the right
    r"(?=(\d{3})+(?!\d))",
    r"\p{N}{1,3}+",  # of tiktoken; Ruby's syntax has no possessive braces
    r"[^\r\n\p{L}\p{N}]?+\p{L}++| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$",
    r"(?i)'s|(?i:'t)|\w+(?<!x)",
    r"[[:alpha:]&&[^\]a]]+|a{|a{,3}b|\{\}",
    r"(?>a|ab)*c",
    r"[+-]?\d*\.?\d+(?:[eE][+-]?\d+)?",
]
MANY_WAYS = [
    r"(a|a)*\d",
    r"(?:a*)*\d",
    r"(?:a+)+$",
    r"(?:a?a)*\d",
    r"(?:a|aa){2,}\d",
    r"(?:a|a){40}",
    r"(?:a?){30}a{30}",
    "a?" * 30 + "a" * 30,
    r"\p{N}{1,3}+b",
    r"(?=(?:a|a)*\d)x",
    r"(?:(?=(?:a|a)*b)a)+",
    "a*" * 5 + r"\d",
    r"(?:(?=.*(?=.*(?=.*\d)))a)*",
    r"((\d{1000}){1000}){100}",
    r".{100000}",
]
UNREAD = [
    r"(a)\1",
    r"(?<x>a\g<x>?b)",
    r"(?<x>a)\k<x>",
    r"(?x)(?:a # )*",
    r"a(?i)b|c",
    r"(?~abc)",
    r"(?(1)a|b)",
    r"(?{code})",
    r"(*FAIL)",
    r"(?#x)",
    r"[]a]",
    r"[^]a]",
    r"\c[(?:a|a)*\d",
    r"a)",
    r"(a",
    r"[a",
    r"[[:a]",
    r"\p{L",
    "\\",
    r"*a",
    r"(|+)",
    "(" * (MOST_DEPTH + 1) + ")" * (MOST_DEPTH + 1),
    "[" * 5000,
    "a" * (MOST_CHARACTERS + 1),
]


@pytest.mark.parametrize("pattern", PUBLISHED + OTHERS)
def test_what_published_tokenizers_have_is_let_through(pattern: str) -> None:
    check_patterns(split(pattern))


@pytest.mark.parametrize("pattern", MANY_WAYS + UNREAD)
def test_others_are_refused(pattern: str) -> None:
    with pytest.raises(TextError, match=r"pre_tokenizer: .*regular expression"):
        check_patterns(split(pattern))


def test_a_class_is_left_where_it_ends() -> None:
    """What looks like the name of a class does not hide what follows."""
    with pytest.raises(TextError, match="no repeats of what repeats"):
        check_patterns(split(r"[[:a]](?:x|x)*[:]\d"))
    with pytest.raises(TextError, match="no repeats of what repeats"):
        check_patterns(split(r"[\]](?:x|x)*\d"))


@pytest.mark.parametrize("place", ["normalizer", "pre_tokenizer", "decoder"])
def test_wherever_it_stands_and_before_it_is_built(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monolane.text._tokenizer._load", lambda data, path: pytest.fail("built"))
    pattern = r"(a|a)*\d"
    change = split(pattern) if place == "pre_tokenizer" else {place: replace(pattern)}
    (tmp_path / "tokenizer.json").write_text(json.dumps(DATA | change), encoding="utf-8")
    with pytest.raises(TextError, match=rf"tokenizer\.json: {place}: regular expression"):
        Tokenizer.open(tmp_path)
