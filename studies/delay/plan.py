"""Which runs a part has, which are missing, and what fits: from the lines of the results alone.

A line is a whole run. What is missing is what no line holds, on whichever card; a rate, a memory
and the ledger are of one card. Needs no torch.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.delay import stop
from studies.delay.sizes import SEARCH_SEED, SEARCHED, SEEDS, SIZES, VARIANTS, Size

# Of a run: whole; whole, as far as its loss was finite; not whole, to be tried again.
DONE, DIVERGED, FAILED = "done", "diverged", "failed"
HALF_BLOCK = 300.0  # seconds of each of the two commands that a block takes
# Where a study is done: the size of the blocks, and the larger one of the last parts.
_SIZES = {"gpu": ("17M", "33M"), "cpu": ("1M", "1M"), "rehearsal": ("tiny", "tiny-33M")}
START = 35.0  # of a command: imports, the text, the first look at the machine
COMPILED = 40.0  # of a command's first run, where no bring-up has told more
EACH = 20.0  # of a run: its exams, and a margin for its rate
_MOST_COMMAND = 600.0

Line = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One training: a point of the study."""

    part: str
    size: str
    variant: str
    rate: float
    seed: int
    tokens: int

    def key(self) -> dict[str, Any]:
        """What tells a run from another, whichever part wants it."""
        return {
            "size": self.size, "variant": self.variant, "rate": self.rate, "seed": self.seed,
            "tokens": self.tokens,
        }  # fmt: skip

    def is_of(self, line: Line) -> bool:
        """Whether a line is of this run."""
        return all(line[name] == value for name, value in self.key().items())


@dataclass(frozen=True)
class Study:
    """The lines so far, at the sizes of where it is done: gpu, cpu or rehearsal."""

    lines: tuple[Line, ...]
    where: str = "gpu"
    card: str = ""

    @property
    def size(self) -> Size:
        """The size of the blocks."""
        return SIZES[_SIZES[self.where][0]]

    @property
    def larger(self) -> Size:
        """The larger size of the last parts."""
        return SIZES[_SIZES[self.where][1]]

    # ---- what is known ---------------------------------------------------------------------------
    def runs(self, state: str = DONE) -> list[Line]:
        """Lines of runs of these sizes."""
        return [
            x for x in self.lines
            if x["kind"] == "run" and x["state"] == state and x["size"] in _SIZES[self.where]
        ]  # fmt: skip

    def searched(self, variant: str) -> list[Line]:
        """The search's lines of a variant; one that diverged counts as the worst."""
        return [
            x for x in self.lines
            if x["kind"] == "run" and x["size"] == self.size.name and x["variant"] == variant
            and x["seed"] == SEARCH_SEED and x["tokens"] == self.size.search_tokens
            and x["state"] != FAILED
        ]  # fmt: skip

    def best_rate(self, variant: str) -> float | None:
        """The rate of the least held-out loss; None before all were tried, or if none was right."""
        tried = self.searched(variant)
        right = [x for x in tried if x["state"] == DONE]
        if {x["rate"] for x in tried} < set(self.size.rates) or not right:
            return None
        return float(min(right, key=lambda x: float(x["exam_nats"]))["rate"])

    def speed(self, size: Size, variant: str) -> float:
        """Tokens/s of a variant: measured on this card with as many lanes, else estimated."""
        lanes = VARIANTS[variant].lanes
        measured = [
            x["tokens_per_s"] for x in self.lines
            if x["kind"] == "run" and x["size"] == size.name and x.get("card") == self.card
            and VARIANTS[x["variant"]].lanes == lanes and x["tokens_per_s"]
        ]  # fmt: skip
        return float(min(measured[-3:])) if measured else size.estimate[lanes > 1]

    @property
    def start(self) -> float:
        """Seconds of a command before it trains; each machine compiles anew."""
        took = [
            x["compile_s"]
            for x in self.lines
            if x["kind"] == "bring-up" and x["card"] == self.card and x["compile_s"]
        ]
        return START + max([COMPILED, *(1.25 * float(x) for x in took)])

    def tokens(self, size: Size) -> int:
        """Tokens of each run of the blocks: those of the first that was done, else what fits.

        Dense and naive in one command, delay 2 in the other.
        """
        of_blocks = [
            x for x in self.runs()
            if x["size"] == size.name and x["variant"] in SEARCHED
            and x["tokens"] != size.search_tokens
        ]  # fmt: skip
        if of_blocks:
            return int(of_blocks[0]["tokens"])
        if self.where == "cpu":  # a run goes on in the next command, so it is never too long
            return size.tokens
        first = sum(1 / self.speed(size, name) for name in ("dense", "naive 2"))
        most = min(
            (HALF_BLOCK - self.start - 2 * EACH) / first,
            (HALF_BLOCK - self.start - EACH) * self.speed(size, "delay 2"),
        )
        if size is self.larger:  # each run may have a command of its own
            slowest = min(self.speed(size, name) for name in ("dense", "delay 2"))
            most = (_MOST_COMMAND - self.start - EACH) * slowest
        return max(size.grain, min(size.tokens, int(most) // size.grain * size.grain))

    # ---- what is to do ---------------------------------------------------------------------------
    def run(self, part: str, variant: str, seed: int, factor: float = 1.0, large: bool = False
            ) -> Run | None:  # fmt: skip
        """A run of full length at the variant's best rate; None before that is known."""
        size = self.larger if large else self.size
        rate = self.best_rate(VARIANTS[variant].rates_of)
        if rate is None:
            return None
        tokens = int(self.tokens(size) * VARIANTS[variant].share)
        return Run(part, size.name, variant, rate * factor * size.rate_factor, seed, tokens)

    @property
    def is_last(self) -> bool:
        """Whether it was said that no further block will come."""
        return any(x["kind"] == "last look" for x in self.lines)

    def look(self) -> stop.Look:
        """What the stop rule says of the blocks so far."""
        return stop.look(list(self.differences("delay 2", "dense").values()), self.is_last)

    def differences(self, variant: str, base: str) -> dict[int, float]:
        """By seed, a variant's held-out loss less the base's, where a block has both."""
        found: dict[int, float] = {}
        for seed in SEEDS:
            one, other = (self._line_of_block(name, seed) for name in (variant, base))
            if one is not None and other is not None and one["text"] == other["text"]:
                found[seed] = one["exam_nats"] - other["exam_nats"]
        return found

    def _line_of_block(self, variant: str, seed: int) -> Line | None:
        run = self.run("", variant, seed)
        return None if run is None else self.line_of(run)

    def line_of(self, run: Run) -> Line | None:
        """The line of a run that was done."""
        return next((x for x in self.runs() if run.is_of(x)), None)

    def is_settled(self, run: Run) -> bool:
        """Whether a run need not be tried again."""
        return any(x["kind"] == "run" and x["state"] != FAILED and run.is_of(x) for x in self.lines)

    def of_part(self, name: str) -> list[Run] | None:
        """The runs of a part; None while it has to wait for another, or the rule left it out."""
        found = (PARTS | CPU_PARTS)[name].runs(self, name)
        return None if any(run is None for run in found) else [run for run in found if run]

    def missing(self, names: Iterable[str]) -> list[Run]:
        """The runs that are not settled, of parts in this order."""
        return [
            run for name in names for run in self.of_part(name) or () if not self.is_settled(run)
        ]

    def is_done(self, name: str) -> bool:
        """Whether all of a part's runs are settled."""
        runs = self.of_part(name)
        return bool(runs) and not self.missing([name])

    def need(self, run: Run) -> float:
        """Seconds that a run takes."""
        return run.tokens / self.speed(SIZES[run.size], run.variant) + EACH


@dataclass(frozen=True)
class Part:
    """What one window, or a share of it, is for."""

    tells: str
    runs: Callable[[Study, str], Sequence[Run | None]]


def _search(study: Study, part: str) -> Sequence[Run | None]:
    size = study.size
    return [
        Run(part, size.name, variant, rate, SEARCH_SEED, size.search_tokens)
        for variant in SEARCHED for rate in size.rates
    ]  # fmt: skip


def _block(seed: int, factor: float = 1.0) -> Callable[[Study, str], Sequence[Run | None]]:
    def runs(study: Study, part: str) -> Sequence[Run | None]:
        return [study.run(part, variant, seed, factor) for variant in SEARCHED]

    return runs


def _further(seed: int) -> Callable[[Study, str], Sequence[Run | None]]:
    """A block that is trained only while the rule, with the blocks before it, says: go on."""

    def runs(study: Study, part: str) -> Sequence[Run | None]:
        found = study.differences("delay 2", "dense")
        before = [value for other, value in found.items() if other < seed]
        if len(before) < seed - 1 or stop.look(before).stop:
            return [None]
        return _block(seed)(study, part)

    return runs


def _of(
    *names: str, seeds: Sequence[int] = (1,), large: bool = False
) -> Callable[[Study, str], Sequence[Run | None]]:
    def runs(study: Study, part: str) -> Sequence[Run | None]:
        return [study.run(part, name, seed, large=large) for seed in seeds for name in names]

    return runs


# In the order of the ledger.
PARTS = {
    "delay:b0": Part("bring-up, and each variant's best rate at 20 M tokens", _search),
    "delay:b1": Part("a block: dense, naive 2, delay 2; seed 1", _block(1)),
    "delay:b2": Part("a block, seed 2", _block(2)),
    "delay:b3": Part("a block, seed 3; then the first look", _block(3)),
    "delay:b4-best": Part("the best rates at full length, the search's seed", _block(0)),
    "delay:b4-half": Part("half of them", _block(0, 0.5)),
    "delay:b4-double": Part("twice of them", _block(0, 2.0)),
    "delay:more-4": Part("a block, seed 4, if the rule says: go on", _further(4)),
    "delay:more-5": Part("a block, seed 5, likewise", _further(5)),
    "delay:more-6": Part("a block, seed 6, likewise; then the last look", _further(6)),
    "delay:b5": Part(
        "yardsticks: dense with 14 and 13 layers, with 80 % of the tokens",
        _of("dense, 14 layers", "dense, 13 layers", "dense, 80 % of the tokens", seeds=(1, 2)),
    ),
    "delay:b6": Part("delays 1 and 4", _of("delay 1", "delay 4")),
    "delay:b6-early": Part(
        "early exchanges; no root of the lanes", _of("delay 2, early", "delay 2, unscaled")
    ),
    "delay:b7": Part("33 M, seed 1", _of("dense", "delay 2", large=True)),
    "delay:b8": Part("33 M, seed 2", _of("dense", "delay 2", seeds=(2,), large=True)),
}
# Of a study on a processor, in this order: the ledger is of GPUs.
CPU_PARTS = {name: PARTS[name] for name in ("delay:b0", "delay:b1", "delay:b2", "delay:b3")} | {
    "delay:depth": Part(
        "does depth pay at this budget? dense with 8 of 15 layers, the blocks' seeds",
        _of("dense, 8 layers", seeds=(1, 2, 3)),
    ),
}


# ---- the file ------------------------------------------------------------------------------------
def read_lines(path: Path) -> list[Line]:
    """The lines of a results file; none if there is no file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def merged(*several: Sequence[Line]) -> list[Line]:
    """Lines of several files, each once; of a run that was done twice, the first."""
    found: list[Line] = []
    for line in (line for lines in several for line in lines):
        if line in found:
            continue
        twice = line["kind"] == "run" and line["state"] == DONE and any(
            x["kind"] == "run" and x["state"] == DONE and Run("", **_key(x)).is_of(line)
            for x in found
        )  # fmt: skip
        if not twice:
            found.append(line)
    return found


def write_lines(path: Path, lines: Sequence[Line]) -> None:
    """Write a results file anew, so that nobody sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    aside.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    aside.replace(path)


def _key(line: Line) -> dict[str, Any]:
    return {name: line[name] for name in ("size", "variant", "rate", "seed", "tokens")}
