"""The first event that is wrong, in program order, and how much is wrong behind it.

A word is wrong if its stamp is another one than predicted, or its value lies beyond its bound.
Behind a wait that starved blocks go on with garbage, whose stamps nobody awaits; in program order
the word that did not come stands before all that came of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.gpu.monokernel._bound import Codes, decode
from bench.gpu.monokernel._events import (
    NOBODY,
    Event,
    Kind,
    Numbers,
    Words,
    column_name,
    events_of,
    kinds_of,
)
from monolane._results import Record
from monolane.cuda._layout import Layout
from monolane.cuda._program import Exchange

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Prediction:
    """What one case exchanges, and how far off a value may be."""

    seed: int  # of the prompts
    tokens: tuple[tuple[int, int], ...]  # (slot, token) as drawn
    words: Words
    bounds: dict[Exchange, Codes]
    logits: npt.NDArray[np.float32]  # [draws, V] of the first sequence
    sizes: dict[str, int]  # words of each buffer, by which a layout is known

    @property
    def first_pass(self) -> int:
        """Its number: those before fed what lies behind, and are a multiple of those kept."""
        stamps = self.words.stamps[Exchange.STREAM]
        pass_stamps = stamps.shape[1] + 1  # PASS_STAMPS: an event more than there are streams
        return (int(stamps[stamps > 0].min()) - 1) // int(pass_stamps)

    def pack(self, prefix: str) -> dict[str, Any]:
        """Return arrays for a file, their names with a prefix."""
        facts = {"seed": self.seed, "tokens": self.tokens, "sizes": self.sizes}
        found: dict[str, Any] = {"facts": np.array(json.dumps(facts)), "logits": self.logits}
        for what, values in self.words.values.items():
            found[f"{what.name}.value"] = values
            found[f"{what.name}.stamp"] = self.words.stamps[what]
            found[f"{what.name}.bound"] = self.bounds[what]
        return {prefix + name: array for name, array in found.items()}

    @staticmethod
    def unpack(file: Mapping[str, Any], prefix: str) -> Prediction:
        """Return what `pack` packed."""
        facts = json.loads(str(file[prefix + "facts"]))
        parts: dict[str, dict[Exchange, Any]] = {"value": {}, "stamp": {}, "bound": {}}
        for name in file:
            what, _, part = name.removeprefix(prefix).partition(".")
            if name.startswith(prefix) and part in parts:
                parts[part][Exchange[what]] = file[name]
        tokens = tuple((slot, token) for slot, token in facts["tokens"])
        words = Words(parts["value"], parts["stamp"])
        logits = file[prefix + "logits"]
        return Prediction(facts["seed"], tokens, words, parts["bound"], logits, facts["sizes"])


@dataclass
class Difference:
    """What is wrong in a launch; nothing if `first` is empty."""

    compared: int = 0  # words
    unequal: int = 0  # of them, within their bounds but with other bits
    nearest: float = 0.0  # the largest difference as a share of its bound
    first: Record = field(default_factory=dict)
    wrong: dict[str, Counter[str]] = field(default_factory=dict)  # by kind: stamp, value, ...
    reached: list[str] = field(default_factory=list)  # by block: its last event that is right

    def fields(self) -> Record:
        """Return what a record tells."""
        wrong = {kind: dict(counts) for kind, counts in self.wrong.items()}
        record: Record = {
            "words_compared": self.compared,
            "words_unequal": self.unequal,
            "largest_share_of_bound": self.nearest,
            "words_wrong": wrong,
        }
        return record | ({"first": self.first, "reached": self.reached} if self.first else {})

    def sentence(self) -> str:
        """Return the first event in words."""
        x = self.first
        return (
            f"first wrong: {x['event']}, pass {x['pass']}, lane {x['lane']}, block {x['block']}, "
            f"row {x['row']}, {x['column']}: expected {x['expected']}, got {x['got']} "
            f"({x['why']}); {x['wrong']} of {x['words']} words of this event are wrong, of blocks "
            f"{x['blocks']}"
        )


def compare(
    layout: Layout, prediction: Prediction, got: Words, last: int | None = None
) -> Difference:
    """Compare all passes, or those up to the `last` one, in which a wait starved."""
    found, kinds = Difference(), kinds_of(layout)
    workers = layout.plan.groups.workers
    reached, alive = ["nothing"] * workers, np.ones(workers, np.bool_)
    passes = next(iter(prediction.words.stamps.values())).shape[0]
    first = prediction.first_pass
    last = first + passes - 1 if last is None else last
    for number in range(first, min(first + passes, last + 1)):
        for event in events_of(layout):
            one = _Compared(layout, kinds[event.what], event, number, prediction, got)
            found.compared += int(one.there.sum())
            found.unequal += int(one.within.sum())
            found.nearest = max(found.nearest, one.nearest)
            for block in one.blocks(one.there | one.wrong):
                if one.wrong[one.owners == block].any():
                    alive[block] = False
                elif alive[block]:
                    reached[block] = f"{event.name}, pass {number}"
            if not one.wrong.any():
                continue
            counts = found.wrong.setdefault(event.what.name, Counter())
            counts.update({why: int(mask.sum()) for why, mask in one.reasons.items() if mask.any()})
            found.first = found.first or one.describe()
    found.reached = reached
    return found


class _Compared:
    """The words of one event of one pass: [L, T, C] each."""

    def __init__(
        self,
        layout: Layout,
        kind: Kind,
        event: Event,
        number: int,
        prediction: Prediction,
        got: Words,
    ) -> None:
        what = event.what
        at = number % prediction.words.stamps[what].shape[0], event.turn
        self.layout, self.kind, self.event, self.number = layout, kind, event, number
        self.stamps = prediction.words.stamps[what][at], got.stamps[what][at]
        self.raw = prediction.words.values[what][at], got.values[what][at]
        self.owners = np.broadcast_to(kind.owners_in(event.turn), self.stamps[0].shape)
        self.there = (self.stamps[0] != 0) & (self.owners != NOBODY)
        self.bound = decode(prediction.bounds[what][at])
        self.expected, self.got = (kind.numbers(values, layout) for values in self.raw)
        stale = self.stamps[0] != self.stamps[1]
        with np.errstate(invalid="ignore"):
            apart = ~(np.abs(self.expected - self.got) <= self.bound)
        apart &= (self.raw[0] != self.raw[1]) & self.there & ~stale
        if what is Exchange.CANDIDATES:
            self._forgive_ties(apart, prediction)
        self.reasons: dict[str, Mask] = {
            "missing": stale & (self.stamps[1] == 0),
            "stamp": stale & (self.stamps[1] != 0),
            "value": apart,
        }
        self.wrong = stale | apart
        self.within = self.there & ~self.wrong & (self.raw[0] != self.raw[1])

    def _forgive_ties(self, apart: Mask, prediction: Prediction) -> None:
        """Take another token where its own predicted logit is as good, within the bound."""
        stamps = prediction.words.stamps[Exchange.CANDIDATES]
        values = prediction.words.values[Exchange.CANDIDATES]
        drawn = [p for p in range(len(stamps)) if values[p, 0, 0, 0, ::2].any()]
        copy = self.number % len(stamps)
        if copy not in drawn:
            return
        logits = prediction.logits[drawn.index(copy)]
        for column in np.flatnonzero(apart[0, 0, 1::2]) * 2:
            token, best = int(self.raw[1][0, 0, column + 1]), self.expected[0, 0, column]
            if token < len(logits) and best - logits[token] <= self.bound[0, 0, column]:
                apart[0, 0, column + 1] = False

    @property
    def nearest(self) -> float:
        """The largest difference within its bound, as a share of that."""
        some = self.within & (self.bound > 0)
        shares = np.abs(self.expected[some] - self.got[some]) / self.bound[some]
        return float(shares.max(initial=0.0))

    def blocks(self, mask: Mask) -> list[int]:
        """Return whose words these are."""
        return [int(x) for x in np.unique(self.owners[mask]) if x != NOBODY]

    def describe(self) -> Record:
        """Return the first word that is wrong, by lane, block and row, and how many are."""
        places = np.argwhere(self.wrong)
        owners = self.owners[self.wrong]
        order = np.lexsort((places[:, 2], places[:, 1], owners, places[:, 0]))
        lane, row, column = (int(i) for i in places[order[0]])
        at = lane, row, column
        why = next(why for why, mask in self.reasons.items() if mask[at])
        block = int(self.owners[at])
        shown = [_shown(self.kind, x[at], y[at]) for x, y in
                 zip((self.expected, self.got), self.raw, strict=True)]  # fmt: skip
        if why != "value":
            shown = [f"stamp {int(x[at])}" for x in self.stamps]
            shown[1] += ", no word" if why == "missing" else ""
        phase, _, layer = self.event.step.partition(" ")
        return {
            "event": self.event.name,
            "kind": self.event.what.name,
            "phase": phase,
            "layer": int(layer) if layer.isdigit() else None,
            "pass": self.number,
            "lane": block // self.layout.blocks,
            "block": block,
            "row": row,
            "column": column_name(self.kind, self.layout, column),
            "why": why if why != "value" else f"bound {self.bound[at]:.3g}",
            "expected": shown[0],
            "got": shown[1],
            "bound": float(self.bound[at]),
            "wrong": int(self.wrong.sum()),
            "words": int(self.there.sum()),
            "blocks": self.blocks(self.wrong),
        }


def _shown(kind: Kind, number: float, raw: int) -> str:
    """Return a value, and its bits where they say more."""
    return f"{number:.8g} ({int(raw):#010x})" if np.isfinite(number) else f"{int(raw):#010x}"


__all__ = ["Difference", "Numbers", "Prediction", "compare"]
