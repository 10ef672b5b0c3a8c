#!/usr/bin/env python3
"""Writes the small tasks that training runs are validated with: src/monolane/train/tasks/*.jsonl.

The same files on every machine: only random.random() is used, whose numbers Python guarantees.
tests/train/test_tasks.py fails where the committed files are not these.
"""

import argparse
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

FOLDER = Path(__file__).parents[1] / "src" / "monolane" / "train" / "tasks"
T = TypeVar("T")
Example = dict[str, Any]

NAMES = re.findall(
    r"\w+", "total count index value result offset width buffer parser handler token header"
)
WORDS = [
    "river",
    "window",
    "candle",
    "forest",
    "marble",
    "garden",
    "copper",
    "lantern",
    "saddle",
    "pepper",
    "anchor",
    "violin",
]


class Dice:
    """Random choices made of random.random() alone."""

    def __init__(self, task: str) -> None:
        self._random = random.Random(f"monolane {task}")

    def below(self, limit: int) -> int:
        """Return a number from 0 to ``limit`` - 1."""
        return int(self._random.random() * limit)

    def one(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[self.below(len(items))]

    def some(self, items: Sequence[T], count: int) -> list[T]:
        """Return different ones of the items, in any order."""
        pool = list(items)
        return [pool.pop(self.below(len(pool))) for _ in range(count)]


def choose(dice: Dice, context: str, right: str, wrong: Sequence[str]) -> Example:
    """An example of multiple choice, its right answer at a random place."""
    choices = dice.some(list(wrong), len(wrong))
    answer = dice.below(len(choices) + 1)
    choices.insert(answer, right)
    return {"context": context, "choices": choices, "answer": answer}


def brackets(dice: Dice) -> Iterator[Example]:
    """Close what is open, in the right order."""
    pairs = {"(": ")", "[": "]", "{": "}"}
    for _ in range(36):
        name, inner = dice.some(NAMES, 2)
        first, second = dice.one("([{"), dice.one("([{")
        start = f"{name} = {first}{inner}, {second}{dice.below(90) + 10}, {dice.below(90) + 10}"
        right = pairs[second] + pairs[first] + "\n"
        wrong = {a + b + "\n" for a in ")]}" for b in ")]}"} - {right}
        yield choose(dice, start, right, dice.some(sorted(wrong), 3))


def copying(dice: Dice) -> Iterator[Example]:
    """Write a name to its end that was given a moment ago."""
    for _ in range(36):
        first, second, third, called = dice.some(NAMES, 4)
        words = dice.some(WORDS, 3)
        names = [f"{word}_{name}" for word, name in zip(words, (first, second, third), strict=True)]
        target = dice.below(3)
        lines = "".join(f"    {name} = {dice.below(900) + 100}\n" for name in names)
        beginning, end = names[target].split("_")
        context = f"def {called}():\n{lines}    return {beginning}"
        yield {"context": context, "target": f"_{end}"}


def echo(dice: Dice) -> Iterator[Example]:
    """Go on with a list that repeats itself."""
    for _ in range(36):
        period = dice.below(2) + 2
        items = dice.some(WORDS, period)
        shown = items * (dice.below(2) + 3) + items[: dice.below(period)]
        text = ", ".join(f'"{item}"' for item in shown)
        yield {"context": f'words = [{text}, "', "target": items[len(shown) % period]}


def arithmetic(dice: Dice) -> Iterator[Example]:
    """Sums, differences and products of small numbers, after two that are worked out."""
    for _ in range(48):
        sign = dice.one("+-*")
        lines = []
        for _ in range(3):
            a, b = dice.below(11) + 1, dice.below(9) + 1
            a, b = (a + b, b) if sign == "-" else (a, b)
            lines.append((f"{a} {sign} {b} ==", {"+": a + b, "-": a - b, "*": a * b}[sign]))
        done = "".join(f"assert {text} {value}\n" for text, value in lines[:2])
        text, value = lines[2]
        near = [n for n in (value - 2, value - 1, value + 1, value + 2, value + 10) if n >= 0]
        wrong = [f" {n}\n" for n in dice.some(near, 3)]
        yield choose(dice, f"{done}assert {text}", f" {value}\n", wrong)


def syntax(dice: Dice) -> Iterator[Example]:
    """Which piece of Python may follow."""
    lines = [
        ("for {a} in range({n})", ":\n", [")\n", " =\n", ",\n"]),
        ("if {a} is not None and {b} > {n}", ":\n", ["]\n", " in\n", ";;\n"]),
        ("def {a}(self, {b}={n}", "):\n", ["]:\n", " ->\n", "}}:\n"]),
        ("class {A}({B})", ":\n", [" =\n", "::\n", ")\n"]),
        ("with open({a}) as", " {b}:\n", [" {n}:\n", " def:\n", " =:\n"]),
        ("{a} = [{b} for {b}", " in {c}]\n", [" of {c}]\n", " = {c}]\n", " as {c}]\n"]),
        ("from {a} import", " {b}\n", [" {n}\n", " def\n", " = {b}\n"]),
        ("try:\n    {a}()\nexcept", " ValueError:\n", [" while:\n", " = {b}:\n", " {n}\n"]),
        ("while not", " {a}:\n", [" for:\n", " = {a}:\n", " ):\n"]),
        ("return {a} if {b} else", " {c}\n", [" =\n", " if\n", " :\n"]),
        ("{a} = lambda {b}", ": {b} + {n}\n", [" = {b} + {n}\n", "; {b} + {n}\n", "] {b} + {n}\n"]),
        ("{a} = {{'{b}'", ": {n}}}\n", [" = {n}}}\n", " -> {n}}}\n", "; {n}}}\n"]),
    ]
    for line, right, wrong in lines * 3:
        a, b, c = dice.some(NAMES, 3)
        words = {"a": a, "b": b, "c": c, "A": a.title(), "B": b.title(), "n": dice.below(90) + 10}
        wrong = [text.format(**words) for text in wrong]
        yield choose(dice, line.format(**words), right.format(**words), wrong)


def indentation(dice: Dice) -> Iterator[Example]:
    """How far the next line is set in: each of four depths is right as often as the others."""
    for turn in range(40):
        a, b, c = dice.some(NAMES, 3)
        depth = turn % 4 + 1
        loops = "".join(" " * 4 * at + f"for {c} in {b}:\n" for at in range(1, depth))
        context = f"def {a}({b}):\n{loops}"
        if turn % 8 < 4:
            line = f"print({b})\n"
        else:  # which only an if may have before it
            inner = f"if {b}:\n" + " " * 4 * (depth + 1) + f"{c} = {dice.below(90)}\n"
            context += " " * 4 * depth + inner
            line = f"elif {c}:\n"
        right, *wrong = [
            " " * 4 * at + line for at in sorted(range(1, 5), key=lambda n: n != depth)
        ]
        yield choose(dice, context, right, wrong)


def names(dice: Dice) -> Iterator[Example]:
    """Use the name that is in reach, not another one like it."""
    lines = [
        "for {a} in {b}:\n    print(",
        "def {f}({a}):\n    return len(",
        "with open({b}) as {a}:\n    return list(",
        "{a} = {b}[{n}]\nassert isinstance(",
    ]
    for line in lines * 9:
        a, b, *others = dice.some(NAMES, 5)
        f = dice.one(WORDS)
        context = line.format(a=a, b=f"{b}s", f=f, n=dice.below(90))
        yield choose(dice, context, f"{a}", others[:3])


def imports(dice: Dice) -> Iterator[Example]:
    """Which name is in which module of Python's standard library."""
    known = {
        "collections": "OrderedDict defaultdict namedtuple Counter",
        "os.path": "dirname basename splitext expanduser",
        "itertools": "chain islice takewhile groupby",
        "functools": "partial wraps lru_cache reduce",
        "contextlib": "contextmanager ExitStack suppress closing",
        "urllib.parse": "urlparse urlencode quote_plus urljoin",
        "datetime": "timedelta timezone tzinfo datetime",
        "threading": "Thread RLock Semaphore Barrier",
        "subprocess": "Popen PIPE CalledProcessError check_output",
        "unittest": "TestCase TestSuite skipIf mock",
    }
    for module, text in known.items():
        others = [name for other, line in known.items() if other != module for name in line.split()]
        for name in text.split():
            wrong = [f" {other}\n" for other in dice.some(others, 3)]
            yield choose(dice, f"from {module} import", f" {name}\n", wrong)


def agreement(dice: Dice) -> Iterator[Example]:
    """Verbs agree with their subject, however far away; which subject fits is asked (a schema)."""
    nouns = (
        "key keys, child children, teacher teachers, book books, woman women, server servers, "
        "letter letters, mouse mice, file files, tree trees, tooth teeth, picture pictures"
    )
    places = ["near the cabinets", "of the parents", "behind the house", "from the market"]
    verbs = [
        (" is old.", " are old."),
        (" was here.", " were here."),
        (" has moved.", " have moved."),
    ]
    for single, plural in (pair.split() for pair in nouns.split(", ")):
        for verb in verbs:
            number, place = dice.below(2), dice.one(places)
            yield {
                "contexts": [f"The {single} {place}", f"The {plural} {place}"],
                "continuation": verb[number],
                "answer": number,
            }


FACTS = """\
The capital of France is| Paris.| Rome.| Madrid.| Cairo.
The capital of Japan is| Tokyo.| Oslo.| Lima.| Seoul.
The capital of Egypt is| Cairo.| Athens.| Delhi.| Berlin.
The capital of Italy is| Rome.| Vienna.| Paris.| Lisbon.
The capital of Canada is| Ottawa.| Sydney.| Dublin.| London.
The opposite of hot is| cold.| tall.| red.| loud.
The opposite of early is| late.| soft.| round.| heavy.
The opposite of full is| empty.| bright.| sharp.| slow.
The plural of mouse is| mice.| mouses.| mousen.| mouse.
The past tense of go is| went.| goed.| gone.| going.
A week has| seven days.| nine days.| twelve days.| four days.
A year has| twelve months.| ten months.| nine months.| thirty months.
A triangle has| three sides.| five sides.| nine sides.| two sides.
A minute has| sixty seconds.| ten seconds.| ninety seconds.| forty seconds.
A spider has| eight legs.| two legs.| five legs.| thirty legs.
Water freezes at| zero degrees Celsius.| fifty degrees Celsius.| ninety degrees Celsius.\
| thirty degrees Celsius.
The sky on a clear day is| blue.| green.| black.| purple.
Grass is usually| green.| blue.| silver.| pink.
The sun rises in the| east.| west.| north.| south.
Bees make| honey.| milk.| bread.| wool.
Sheep give us| wool.| honey.| eggs.| paper.
The Earth goes around the| Sun.| Moon.| sea.| clock.
The largest planet of the solar system is| Jupiter.| Mars.| Venus.| Mercury.
The author of Hamlet is| William Shakespeare.| Albert Einstein.| Leonardo da Vinci.| Marie Curie.
The chemical symbol of water is| H2O.| CO2.| NaCl.| O3.
The chemical symbol of gold is| Au.| Fe.| Hg.| Pb.
Fish breathe with| gills.| wings.| feathers.| roots.
A doctor works in a| hospital.| bakery.| stable.| mine.
You cut paper with| scissors.| a spoon.| a pillow.| soap.
You read a| book.| chair.| shoe.| potato.
One plus one is| two.| five.| nine.| twelve.
Ten minus three is| seven.| two.| eleven.| thirty.
Monday comes before| Tuesday.| Sunday.| Friday.| Saturday.
After winter comes| spring.| autumn.| Monday.| night.
The heart pumps| blood.| air.| sand.| light.
Ice is frozen| water.| wood.| stone.| fire.
"""


def facts(dice: Dice) -> Iterator[Example]:
    """What everybody knows, written by hand."""
    for line in FACTS.splitlines():
        context, right, *wrong = line.split("|")
        yield choose(dice, context, right, wrong)


TASKS: tuple[Callable[[Dice], Iterator[Example]], ...] = (
    agreement,
    arithmetic,
    brackets,
    copying,
    echo,
    facts,
    imports,
    indentation,
    names,
    syntax,
)


def main() -> None:
    """Write all tasks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to write")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        examples = task(Dice(task.__name__))
        text = "".join(json.dumps(example) + "\n" for example in examples)
        (folder / f"{task.__name__}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
