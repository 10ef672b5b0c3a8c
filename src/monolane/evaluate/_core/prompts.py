"""What is shown of an item of CORE, and which tokens of it are scored.

As nanochat's ``core_eval.py`` (github.com/karpathy/nanochat at 11493e2, MIT) has it: the rules are
its own, the code is not. Solved items come first, an empty line after each.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from monolane.evaluate._core.bundle import Part, Row

_SHOTS_SEED = 1234  # nanochat's; an item's own is this plus its number
Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Scored:
    """Tokens of one way to complete an item, of which the last ``count`` are scored."""

    ids: list[int]
    count: int


def solved_items(part: Part, number: int) -> list[Row]:
    """Return the solved items that stand before item ``number``: others of the same task."""
    others = [i for i in range(len(part.rows)) if i != number]
    drawn = random.Random(_SHOTS_SEED + number).sample(others, part.shots) if part.shots else []
    return [part.rows[i] for i in drawn]


def render(part: Part, number: int) -> list[str]:
    """Return the whole texts of an item: one for each choice, or each context.

    Of a language modelling item two: without its continuation, and with it.
    """
    row, between = part.rows[number], part.delimiter
    shown = "".join(f"{_solved(part, each)}\n\n" for each in solved_items(part, number))
    if part.kind == "multiple_choice":
        return [f"{shown}{row['query']}{between}{choice}" for choice in row["choices"]]
    if part.kind == "schema":
        contexts = row["context_options"]
        return [f"{shown}{context}{between}{row['continuation']}" for context in contexts]
    begun = f"{shown}{row['context'].strip()}{between}"
    # A space at the end would be part of the continuation's first token.
    return [begun.strip(), begun + row["continuation"]]


def scored_tokens(part: Part, number: int, encode: Encode) -> list[Scored]:
    """Return what is scored of an item: one for each choice or context; else its continuation.

    A choice begins at the first token in which the choices differ, a schema's continuation at the
    last one from which on they agree. Of each at least one token is scored.
    """
    ways = [encode(text) for text in render(part, number)]
    shortest = min(map(len, ways))
    if part.kind == "schema":
        count = min(_agree([way[::-1] for way in ways]), shortest - 1)
        return [Scored(way, count) for way in ways]
    if part.kind == "multiple_choice":
        begin = min(_agree(ways), shortest - 1)
        return [Scored(way, len(way) - begin) for way in ways]
    whole = ways[1]
    return [Scored(whole, len(whole) - min(_agree(ways), len(whole) - 1))]


def _solved(part: Part, row: Row) -> str:
    if part.kind == "multiple_choice":
        return f"{row['query']}{part.delimiter}{row['choices'][row['gold']]}"
    if part.kind == "schema":
        return f"{row['context_options'][row['gold']]}{part.delimiter}{row['continuation']}"
    return f"{row['context'].strip()}{part.delimiter}{row['continuation']}"


def _agree(ways: Sequence[Sequence[int]]) -> int:
    """Return how many tokens all begin with."""
    count = 0
    for tokens in zip(*ways, strict=False):
        if len(set(tokens)) > 1:
            break
        count += 1
    return count
