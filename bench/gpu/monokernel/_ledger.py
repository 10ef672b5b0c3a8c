"""What a GPU has answered and what it has still to answer: a file that is committed with results.

    {"parts": [{"part", "window", "value", "seconds", "built",
                "cards": {"H100": {"state", "commit", "sources", "results", "took_s"}}}]}

``window`` is the order over the times that a machine is at hand, ``value`` that within one, and
``seconds`` what a part is expected to take with its share of loading. A part without a card's entry
is pending there. ``built`` false: the part is planned, and there is nothing yet to run. Parts named
``delay:...`` are those of ``studies/delay``, which counts its own windows, and ``training:...``
those of ``bench/gpu/training.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monolane._results import Document

PATH = Path(__file__).resolve().parents[2] / "results" / "gpu-ledger.json"
# They come first whatever else is chosen, unless these very kernels were right on the card before.
TRUTH = ("launch", "first-golden", "first-tokens")
OVERHEAD_SECONDS = 12.0  # of a run: imports, the first part, readings of the clocks
CARDS = ("H100", "H200")

Entry = dict[str, Any]


@dataclass(frozen=True)
class Ledger:
    """The parts, the most valuable of the earliest window first."""

    parts: tuple[Mapping[str, Any], ...]

    @staticmethod
    def read(path: Path = PATH) -> Ledger:
        """From its file."""
        return Ledger(tuple(json.loads(path.read_text(encoding="utf-8"))["parts"]))

    def write(self, path: Path) -> None:
        """To a file, a part a line."""
        lines = ",\n".join(f"  {json.dumps(x)}" for x in self.parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{\n "parts": [\n{lines}\n ]\n}}\n', encoding="utf-8")

    def state(self, part: str, card: str) -> str:
        """Of a part on a card: done, failed, or pending."""
        cards: Mapping[str, Any] = next((x["cards"] for x in self.parts if x["part"] == part), {})
        return str(cards.get(card, {}).get("state", "pending"))

    def folded(self, document: Document, name: str) -> Ledger:
        """With what a results document says of its parts; ``name`` is that of its file."""
        card = card_of(document["device"]["name"])
        records = document["records"]
        sources = next((x["sources"] for x in records if x["name"] == "machine"), "")
        made = []
        for part in self.parts:
            state, took = _came_of(part["part"], records)
            cards = dict(part["cards"])
            if state:
                cards[card] = {
                    "state": state, "commit": document["commit"], "sources": sources,
                    "results": name, "took_s": took,
                }  # fmt: skip
            made.append({**part, "cards": cards})
        return Ledger(tuple(made))

    def choose(self, card: str, seconds: float, sources: str, there: Sequence[str]) -> list[str]:
        """The parts for so many seconds: what is needed for truth, then the most valuable pending.

        ``sources`` names the kernels of now, ``there`` the parts that can be run. What has failed
        is tried again last. Empty if nothing is pending.
        """
        able = [x for x in self.parts if x["built"] and x["part"] in there]
        first = [x for x in able if x["part"] in TRUTH and not self._right(x, card, sources)]
        pending = [x for x in able if x["part"] not in TRUTH]
        pending = [
            x for state in ("pending", "failed") for x in in_order(pending)
            if self.state(x["part"], card) == state
        ]  # fmt: skip
        if not pending and not first:
            return []
        left = seconds - OVERHEAD_SECONDS - sum(x["seconds"] for x in first)
        chosen = [x["part"] for x in first]
        for part in pending:
            if part["seconds"] <= left:
                left -= part["seconds"]
                chosen.append(part["part"])
        return chosen

    @staticmethod
    def _right(part: Mapping[str, Any], card: str, sources: str) -> bool:
        entry = part["cards"].get(card, {})
        return bool(entry.get("state") == "done" and entry.get("sources") == sources)


def in_order(parts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The most valuable of the earliest window first."""
    return sorted(parts, key=lambda x: (x["window"], -x["value"]))


def _came_of(part: str, records: Sequence[Mapping[str, Any]]) -> tuple[str, float]:
    """Whether a part is done or failed, and its seconds; nothing if it was not run."""
    took = [x["took_s"] for x in records if x["name"] == "part" and x["part"] == part]
    told = [x for x in records if x.get("part") == part and x["name"] != "part"]
    if any("error" in x for x in told):
        return "failed", took[0] if took else 0.0
    if not took or not any("not_measured" not in x for x in told):
        return "", 0.0  # nothing came of it: it is still pending
    return "done", took[0]


def card_of(name: str) -> str:
    """The card that a device's name is one of; the name itself for others."""
    return next((card for card in CARDS if card in name), name)
