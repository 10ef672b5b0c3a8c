"""What drafts win and lose where the core chooses how many are verified, counted without a clock.

    python bench/losses.py [--each N] [--costs FILE] [--out DIR]

The traces of bench/speculation.py are replayed through the core's own choice
(csrc/draft/speculation.h, as ``SpeculationReplay``): a pass takes what its width costs in a results
file of bench/speculation.py, or 1 % more for each row, and a look for drafts a set part of a pass.
Beside edits and prose stands a text made to mislead: it has what is drafted as long as nobody
verifies it, and something else then. The least of all texts is told, too: no text may lose 1 %.
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from _document import publish
from _program import run_script
from speculation import SEED, Text, texts_of
from trees import COSTS, costs_of

from monolane._core import SpeculationReplay
from monolane.measure import Record

PASS = 1_000_000  # ns of a pass of one row
LOOKS = (0.0005, 0.02)  # of such a pass: of a model of 8 ms and one of 0.2 ms, some 4 us
MOST = 32  # drafted tokens of a pass
MISLED = 2000  # tokens of the text made to mislead

Costs = Sequence[float]  # of a pass by width, in passes of one row
# From a place of the answer on, what is drafted and how much of it is verified: what comes.
Next = Callable[[int, list[int], int], Sequence[int]]


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description="What drafts win and lose, by counting.")
    parser.add_argument("--tokenizer", default="smollm2", help="model whose tokenizer is used")
    parser.add_argument("--each", type=int, default=15, help="traces of each kind of edit")
    parser.add_argument("--costs", type=Path, default=COSTS, help="results of bench/speculation.py")
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    options.own = 0
    texts = texts_of(options, False)
    measured = costs_of(options.costs)
    machines = {
        "measured costs": [cost / measured[1] for cost in measured],
        "1 % a row": [0.99 + width / 100 for width in range(MOST + 2)],
    }
    records = [
        record
        for machine, costs in machines.items()
        for look in LOOKS
        for record in count(texts, machine, [*costs, costs[-1]], look)
    ]
    about = {"tokenizer": options.tokenizer, "seed": SEED, "costs": options.costs.name}
    publish(records, "speculation-losses", options.out, timed=False, **about)


def count(texts: Sequence[Text], machine: str, costs: Costs, look: float) -> list[Record]:
    """Replay all texts one after the other; return a record for each kind."""
    replay = SpeculationReplay(64, 1 << 14)
    found: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for kind, prompt, answer in texts:
        known = answer.tolist()
        passes = follow(replay, prompt.tolist(), len(known), costs, look, from_text(known))
        found["prose" if kind == "prose" else "edits"].append((len(known), passes))
    rng = random.Random(SEED)
    noise = [rng.randrange(60) for _ in range(300)]
    passes = follow(replay, noise, MISLED, costs, look, misleading(rng))
    found["made to mislead"].append((MISLED, passes))
    return [
        {
            "name": f"speculation_losses {kind}, a look {look:.2%} of a pass, {machine}",
            "costs": machine,
            "look": look,
            "kind": kind,
            "texts": len(each),
            "tokens": sum(tokens for tokens, _ in each),
            "times_plain": round(sum(t for t, _ in each) / sum(p for _, p in each), 4),
            "times_plain_least": round(min(tokens / passes for tokens, passes in each), 4),
        }
        for kind, each in found.items()
    ]


def follow(
    replay: SpeculationReplay,
    prompt: list[int],
    tokens: int,
    costs: Costs,
    look: float,
    ahead: Next,
) -> float:
    """Return how many passes of one row an answer of so many tokens takes."""
    replay.begin(prompt)
    passes, drawn = 0.0, 0
    while drawn < tokens:
        found = replay.draft(min(MOST, tokens - drawn - 1), round(look * PASS))
        drafted, verified = found or ([], 0)
        coming = ahead(drawn, drafted, verified)
        right = 0
        while right < verified and drafted[right] == coming[right]:
            right += 1
        replay.draw(list(coming[: right + 1]), round(costs[1 + verified] * PASS))
        passes += costs[1 + verified] + (look if found is not None else 0.0)
        drawn += right + 1
    return passes


def from_text(known: list[int]) -> Next:
    """A known answer."""
    return lambda at, drafted, verified: known[at : at + verified + 1]


def misleading(rng: random.Random) -> Next:
    """What is drafted, as long as nobody verifies it; then another token."""

    def ahead(at: int, drafted: list[int], verified: int) -> list[int]:
        return [drafted[0] + (verified > 0) if drafted else rng.randrange(60)]

    return ahead


if __name__ == "__main__":
    run_script(main)
