"""What long prompts are made of: names, numbers, words, sentences. All from a seed, all local."""

import random
import re
import string
import uuid
from collections.abc import Sequence
from functools import cache

from monolane.evaluate._windows import help_topics

_FIRST = """
able amber ample arctic autumn basic blunt bold brave brief bright brisk bronze calm candid careful
cheerful civil clean clever cloudy coastal copper cosmic cosy crisp curious daily damp dapper deep
distant dusty eager early earnest elder empty equal exact faint fancy fast fine firm fleet fluent
fond formal frank fresh frosty gentle giant glad golden grand gray great green handy happy hasty
honest humble icy idle inner ivory jolly keen kind large late leafy light little local lofty lonely
loud loyal lucky lunar mellow merry mild misty modern modest mossy narrow neat nimble noble northern
odd old olive open orderly pale patient plain polite prime proper proud quick quiet rapid rare ready
regal rich robust rosy round royal rural rustic sandy scarlet secret serene sharp shy silent silver
simple sleepy slender smooth snowy sober solid spare stable steady stern sturdy subtle sunny swift
tall tame tender thin tidy tiny tranquil true upper urban vast velvet violet vivid warm wary western
white wide wild wise witty wooden young
""".split()
_SECOND = """
anchor apple apron arch arrow badge bakery basin basket beacon bell bench bicycle blanket boat bottle
bridge brook broom bucket button cabin camel candle canoe canvas canyon carpet castle cellar chair
chapel chest clock cloud coast comet compass copper corner cottage crane cradle creek crown cup
curtain desk diary dolphin door dragon drum eagle engine falcon feather fence ferry field finch
flute forest fountain fox garden gate glacier glove goose granite guitar hammer harbor hat hawk hedge
heron hill horse island jacket jar kettle key kite ladder lagoon lake lamp lantern lemon library lion
lizard lobster locket maple market meadow mill mirror mountain needle notebook oak ocean orchard otter
oven owl paddle palace parrot path pebble pencil piano pigeon pillow planet plum pond porch potato
prairie puzzle quarry quilt rabbit raft railway raven reed ribbon river road robin rocket rope saddle
sail school shelf shell ship spoon spring squirrel stable star station stone stove stream swan table
teapot temple thimble thunder ticket tiger tower train trumpet tulip tunnel turtle valley village
violin wagon walnut wheel willow window winter wolf yard
""".split()
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
