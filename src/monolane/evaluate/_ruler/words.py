"""What long prompts are made of: names, numbers, words, sentences. All from a seed, all local."""

import random
import re
import string
import uuid
from collections.abc import Sequence
from functools import cache
from importlib import resources

from monolane.evaluate._windows import help_topics

# Two paragraphs: what a name's first word may be, and its second.
_FIRST, _SECOND = (
    paragraph.split()
    for paragraph in resources.files("monolane.evaluate")
    .joinpath("templates/names.txt")
    .read_text("utf-8")
    .split("\n\n")
)
_VOWELS, _CONSONANTS = "aeiou", "bdfgklmnprstvz"


def keys(rng: random.Random, count: int) -> list[str]:
    """Return different names of two words; where there are too few, a number is added."""
    most = len(_FIRST) * len(_SECOND)
    numbers = rng.sample(range(most), min(count, most))
    names = [f"{_FIRST[i % len(_FIRST)]}-{_SECOND[i // len(_FIRST)]}" for i in numbers]
    return names + [f"{names[i % most]}-{i // most + 1}" for i in range(most, count)]


def magic_numbers(rng: random.Random, count: int) -> list[str]:
    """Return different numbers of seven digits."""
    return [str(number) for number in rng.sample(range(1_000_000, 10_000_000), count)]


def uuids(rng: random.Random, count: int) -> list[str]:
    """Return random UUIDs."""
    return [str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(count)]


def variable_names(rng: random.Random, count: int) -> list[str]:
    """Return different names of five capitals."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choices(string.ascii_uppercase, k=5))] = None
    return list(found)


@cache
def english() -> tuple[str, ...]:
    """Return words of the local text, of 4 to 10 letters."""
    text = " ".join(text.text for text in help_topics())
    return tuple(sorted(set(re.findall(r"\b[a-z]{4,10}\b", text)) | set(_FIRST) | set(_SECOND)))


def plain_words(rng: random.Random, count: int) -> list[str]:
    """Return different words: English ones, then made-up ones that can be spoken."""
    known = english()
    found = dict.fromkeys(rng.sample(known, min(count, len(known))))
    while len(found) < count:
        pair = [rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.randint(3, 4))]
        found["".join(pair)] = None
    return list(found)


def coded_words(rng: random.Random, count: int) -> list[str]:
    """Return different words of six letters that mean nothing."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choices(string.ascii_lowercase, k=6))] = None
    return list(found)


@cache
def sentences() -> tuple[str, ...]:
    """Return the sentences of the local text, in their order: Python's help on its language."""
    text = " ".join(" ".join(text.text.split()) for text in help_topics())
    return tuple(part for part in re.split(r"(?<=[.!?]) +", text) if 20 <= len(part) <= 400)


def haystack(rng: random.Random, count: int, source: Sequence[str]) -> list[str]:
    """Return ``count`` sentences in a row, from anywhere in a text that begins again at its end."""
    start = rng.randrange(len(source))
    return [source[(start + i) % len(source)] for i in range(count)]
