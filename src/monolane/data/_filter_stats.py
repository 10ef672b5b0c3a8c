"""What preparation saw: documents read, and what each filter dropped, with examples.

A task keeps a :class:`Tally`; ``report.json`` of a corpus is the :class:`Summary` of them: what the
manifest does not need and a person wants to see. Beside the manifest, so that opening stays quick.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SUMMARY = "report.json"

_EXAMPLES = 3
_EXCERPT = 300  # characters


@dataclass
class Dropped:
    """What one filter dropped. It is also the "exclusion writer" that datatrove's steps take."""

    documents: int = 0
    bytes: int = 0
    reasons: dict[str, int] = field(default_factory=dict)  # up to a colon, which opens details
    examples: list[dict[str, str]] = field(default_factory=list)  # name, why, text

    def __enter__(self) -> "Dropped":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, document: Any, rank: int = 0) -> None:
        """Note a document of datatrove's that one of its steps drops."""
        self.add(document.id, document.text, document.metadata.get("filter_reason", ""))

    def add(self, name: str, text: str, why: str = "") -> None:
        """Note a document."""
        self.documents += 1
        self.bytes += len(text.encode())
        self._count(why.partition(":")[0], 1)
        if len(self.examples) < _EXAMPLES:
            self.examples.append({"name": name, "why": why, "text": text[:_EXCERPT]})

    def join(self, other: dict[str, Any]) -> None:
        """Add what another task's Dropped held, as plain values."""
        self.documents += other["documents"]
        self.bytes += other["bytes"]
        for why, count in other["reasons"].items():
            self._count(why, count)
        self.examples = [*self.examples, *other["examples"]][:_EXAMPLES]

    def _count(self, why: str, count: int) -> None:
        if why:
            self.reasons[why] = self.reasons.get(why, 0) + count


@dataclass
class Tally:
    """Counts of one task or of a whole source; ``dropped`` by filter, in the order of filters."""

    read: int = 0
    read_bytes: int = 0
    dropped: dict[str, Dropped] = field(default_factory=dict)

    def filter(self, name: str) -> Dropped:
        """Return the record of one filter, which may be new."""
        return self.dropped.setdefault(name, Dropped())

    def join(self, other: dict[str, Any]) -> None:
        """Add another task's tally, as plain values."""
        self.read += other["read"]
        self.read_bytes += other["read_bytes"]
        for name, dropped in other["dropped"].items():
            self.filter(name).join(dropped)


@dataclass
class Summary:
    """Per source: its tally and ``lengths``, as plain values.

    ``lengths[half][k]`` counts documents of 2^k to 2^(k + 1) - 1 tokens.
    """

    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    evaluation: list[dict[str, Any]] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Write a corpus's."""
        text = json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n"
        (folder / SUMMARY).write_text(text, encoding="utf-8")

    @staticmethod
    def read(folder: Path) -> "Summary":
        """Read a corpus's; empty where it was written from ids and has none."""
        path = folder / SUMMARY
        return Summary(**json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {})
