"""Eleven tasks in the manner of RULER (arXiv 2404.06654): each is made of a size and a seed.

Needles, chains and counts are RULER's: its sizes, its kinds of keys and values, its ways to score.
Words, sentences and instructions are ours, so figures are near, not equal, to those of other
harnesses. Every builder ends for every size: what fits a context is looked for outside.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from monolane.evaluate._ruler import words

_NOISE = (
    "The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.",
    "There and back again.",
)  # fmt: skip
_CHAIN = 4  # hops of variable tracking
_COMMON, _OFTEN, _SELDOM = 10, 30, 3  # words to find, and how often they and the others stand there
_FREQUENT = 3
_ALPHA = 2.0  # of the zeta distribution of coded words


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, the words that its answer begins with, and what the answer has to hold."""

    text: str
    begun: str
    wanted: tuple[str, ...]


Builder = Callable[[random.Random, int], Prompt]


@dataclass(frozen=True, slots=True)
class LongTask:
    """One of the eleven; ``size`` of a prompt is in lines, sentences or words, by its kind."""

    name: str
    build: Builder
    max_tokens: int
    least: int  # size below which there is no such prompt


@dataclass(frozen=True, slots=True)
class Needles:
    """What is hidden and asked for; ``hay``: "noise", "text", or "needles"."""

    hay: str
    keys: int = 1
    values: int = 1
    queries: int = 1
    uuid_keys: bool = False
    uuid_values: bool = False

    def build(self, rng: random.Random, size: int) -> Prompt:
        """Hide needles at random depths among ``size`` lines."""
        count = max(self.keys, self.queries)
        names = self._keys(rng, count)
        kind = "UUID" if self.uuid_values else "number"
        values = self._values(rng, count * self.values)
        pairs = [(names[i // self.values], value) for i, value in enumerate(values)]
        lines = self._hay(rng, size, kind, names)
        for depth, pair in zip(sorted(_depths(rng, len(lines), len(pairs))), pairs, strict=True):
            lines.insert(depth, _needle(kind, *pair))
        asked = rng.sample(names, self.queries)
        wanted = tuple(value for name in asked for key, value in pairs if key == name)
        several = len(wanted) > 1
        kinds, verb = (f"{kind}s", "are") if several else (kind, "is")
        listed = asked[0] if len(asked) == 1 else f"{', '.join(asked[:-1])}, and {asked[-1]}"
        text = (
            f"Some special magic {kinds} are hidden in the text below. Remember them: I will ask "
            f"for them afterwards.\n\n{_text(lines, self.hay)}\n\n"
            f"What {verb} the special magic {kinds} for {listed} in the text above?"
        )
        begun = f"The special magic {kinds} for {listed} in the text above {verb}"
        return Prompt(text, begun, wanted)

    def _keys(self, rng: random.Random, count: int) -> list[str]:
        return words.uuids(rng, count) if self.uuid_keys else words.keys(rng, count)

    def _values(self, rng: random.Random, count: int) -> list[str]:
        return words.uuids(rng, count) if self.uuid_values else words.magic_numbers(rng, count)

    def _hay(self, rng: random.Random, size: int, kind: str, taken: Sequence[str]) -> list[str]:
        if self.hay == "noise":
            return [_NOISE[i % len(_NOISE)] for i in range(size)]
        if self.hay == "text":
            return words.haystack(rng, size, words.sentences())
        others = [key for key in self._keys(rng, size + len(taken)) if key not in taken][:size]
        values = self._values(rng, len(others))
        return [_needle(kind, key, value) for key, value in zip(others, values, strict=True)]


def _depths(rng: random.Random, lines: int, count: int) -> list[int]:
    """Return places for needles, later ones moved on by those before them."""
    return [i + depth for i, depth in enumerate(sorted(rng.choices(range(lines + 1), k=count)))]


def _needle(kind: str, key: str, value: str) -> str:
    return f"One of the special magic {kind}s for {key} is: {value}."


def _text(lines: Sequence[str], hay: str) -> str:
    return ("\n" if hay == "needles" else " ").join(lines)


def track(rng: random.Random, size: int) -> Prompt:
    """Hide a chain of assignments among ``size`` sentences: which variables have its value?"""
    names = words.variable_names(rng, _CHAIN + 1)
    value = str(rng.randrange(10_000, 100_000))
    chain = [f"VAR {names[0]} = {value}."]
    chain += [f"VAR {b} = VAR {a}." for a, b in pairwise(names)]
    lines = [_NOISE[i % len(_NOISE)] for i in range(size)]
    for depth, link in zip(sorted(_depths(rng, size, len(chain))), chain, strict=True):
        lines.insert(depth, link)
    text = (
        "Follow the assignments of variables that are hidden in the text below.\n\n"
        f"{' '.join(lines)}\n\nQuestion: which variables have the value {value} in the text above?"
    )
    begun = f"The variables that have the value {value} are:"
    return Prompt(text, begun, tuple(names))


def common(rng: random.Random, size: int) -> Prompt:
    """List words, ten of them far more often than ``size`` others: which are the ten?"""
    found = words.plain_words(rng, _COMMON + size)
    wanted, others = found[:_COMMON], found[_COMMON:]
    listed = wanted * _OFTEN + others * _SELDOM
    rng.shuffle(listed)
    lines = " ".join(f"{i}. {word}" for i, word in enumerate(listed, 1))
    text = (
        "Below is a numbered list of words. Some stand there more often than others. Remember "
        f"those that are the most common.\n\n{lines}\n\nQuestion: what are the {_COMMON} most "
        "common words in the list above?"
    )
    return Prompt(text, f"The {_COMMON} most common words in the list are:", tuple(wanted))


def frequent(rng: random.Random, size: int) -> Prompt:
    """Write ``size`` coded words with frequencies of a zeta law: which three come most often?"""
    kinds = max(_FREQUENT + 1, min(size // 3, 2000))
    coded = words.coded_words(rng, kinds)
    weights = [(rank + 1) ** -_ALPHA for rank in range(kinds)]
    whole = sum(weights)
    counts = [round(size * weight / whole) for weight in weights]
    for rank in range(_FREQUENT - 1, -1, -1):  # each of the three more often than the next
        counts[rank] = max(counts[rank], counts[rank + 1] + 1)
    text = [word for word, count in zip(coded, counts, strict=True) for _ in range(count)]
    rng.shuffle(text)
    question = (
        "Read the coded text below and keep count of its words; dots mean nothing.\n\n"
        f"{' '.join(_dotted(rng, text))}\n\nQuestion: what are the three words that come most "
        "often in the coded text above?"
    )
    return Prompt(question, "The three words that come most often are:", tuple(coded[:_FREQUENT]))


def _dotted(rng: random.Random, text: Sequence[str]) -> list[str]:
    return [part for word in text for part in ((word, "...") if rng.random() < 0.2 else (word,))]


LONG_TASKS: tuple[LongTask, ...] = (
    LongTask("niah_single_1", Needles("noise").build, 128, 1),
    LongTask("niah_single_2", Needles("text").build, 128, 1),
    LongTask("niah_single_3", Needles("text", uuid_values=True).build, 128, 1),
    LongTask("niah_multikey_1", Needles("text", keys=4).build, 128, 1),
    LongTask("niah_multikey_2", Needles("needles").build, 128, 1),
    LongTask("niah_multikey_3", Needles("needles", uuid_keys=True, uuid_values=True).build, 128, 1),
    LongTask("niah_multiquery", Needles("text", keys=4, queries=4).build, 128, 1),
    LongTask("niah_multivalue", Needles("text", values=4).build, 128, 1),
    LongTask("vt", track, 30, 1),
    LongTask("cwe", common, 120, 1),
    LongTask("fwe", frequent, 50, 20),
)


def match_all(answer: str, wanted: Sequence[str]) -> float:
    """Return which share of the wanted words an answer holds, whatever their case."""
    text = answer.lower()
    return sum(word.lower() in text for word in wanted) / len(wanted)
