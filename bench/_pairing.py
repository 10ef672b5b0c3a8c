"""A case of ours beside the same case of each peer, and the file that keeps their rounds.

A run over large files takes longer than a shared machine stays quiet. With a journal each round is
kept as it ends, so that the run can be made in pieces: the next one goes on where this one ended.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _llama import LlamaCase

from monolane.measure import Case, DecodeCase, PrefillCase, ReadProbe


@dataclass(frozen=True, slots=True)
class Pairing:
    """A case of ours and the same case of each peer."""

    own: DecodeCase | PrefillCase
    peers: tuple[LlamaCase, ...]

    @property
    def cases(self) -> list[Case]:
        """All, ours first."""
        return [self.own, *self.peers]

    @property
    def rounds(self) -> int:
        """Rounds that all have taken."""
        return min(len(case.samples) for case in self.cases)

    def is_steady(self, limit: float) -> bool:
        """Whether the memory was as fast for all in the last round, but for a factor ``limit``.

        Cores of a virtual machine may move to where two of them share what one has elsewhere.
        """
        reads = [read for peer in self.peers if peer.reads for read in peer.reads[-1]]
        if isinstance(self.own, DecodeCase):
            reads += self.own.reads[-1]
        return not reads or max(reads) <= limit * min(reads)

    def forget(self) -> None:
        """Take the last round back."""
        for case in self.cases:
            case.forget()

    def key(self, model: str) -> list[Any]:
        """What must be the same for rounds to be of one table: model, case and peers."""
        name = "prefill" if isinstance(self.own, PrefillCase) else "decode"
        context = 0 if isinstance(self.own, PrefillCase) else self.own.context
        workers = self.own.model.workers
        return [model, name, context, self.own.tokens, workers, [p.name for p in self.peers]]

    def last_round(self) -> dict[str, Any]:
        """Return the last round in the words of JSON."""
        kept: dict[str, Any] = {
            "sample": self.own.samples[-1],
            "arithmetic": self.own.arithmetic[-1],
            "peers": [[peer.samples[-1], peer.build, peer.reads[-1:]] for peer in self.peers],
        }
        if isinstance(self.own, DecodeCase):
            kept["share"] = self.own.shares[-1]
            kept["reads"] = self.own.reads[-1]
            kept["token_us"] = self.own.token_us[-(self.own.tokens - 1) :]
        return kept

    def restore(self, kept: dict[str, Any]) -> None:
        """Take up a round that was kept."""
        self.own.samples.append(kept["sample"])
        self.own.arithmetic.append(kept["arithmetic"])
        for peer, (sample, build, reads) in zip(self.peers, kept["peers"], strict=True):
            peer.samples.append(sample)
            peer.build = build
            peer.reads += map(tuple, reads)
        if isinstance(self.own, DecodeCase):
            self.own.shares.append(kept["share"])
            self.own.reads.append(tuple(kept["reads"]))
            self.own.token_us += kept["token_us"]


class Journal:
    """A file of rounds: a line for each round of a pairing, or for a reading of the memory."""

    def __init__(self, path: Path | None) -> None:
        """``path``: None keeps nothing."""
        self._path = path

    def restore(self, model: str, probe: ReadProbe, pairings: Sequence[Pairing], runs: int) -> None:
        """Take up what was kept of these pairings, at most ``runs`` rounds of each."""
        if self._path is None or not self._path.is_file():
            return
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        probe.samples += [line["read"] for line in lines if line["key"] == _read_key(model, probe)]
        for pairing in pairings:
            kept = [line["round"] for line in lines if line["key"] == pairing.key(model)]
            for found in kept[:runs]:
                pairing.restore(found)

    def keep(self, model: str, probe: ReadProbe, pairings: Sequence[Pairing]) -> None:
        """Add the last round of each."""
        if self._path is None:
            return
        lines: list[dict[str, Any]] = [
            {"key": p.key(model), "round": p.last_round()} for p in pairings
        ]
        lines.append({"key": _read_key(model, probe), "read": probe.samples[-1]})
        with self._path.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def _read_key(model: str, probe: ReadProbe) -> list[Any]:
    return [model, "read_bandwidth", probe.workers, probe.size]
