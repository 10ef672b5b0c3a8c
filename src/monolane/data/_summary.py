"""``report.json`` of a corpus: what the manifest does not need and a person wants to see.

Histograms of lengths, examples of what each filter dropped, and what was known of the evaluation
sets. Kept beside the manifest, so that opening a corpus stays quick.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monolane.data._tally import Tally

SUMMARY = "report.json"


@dataclass
class Summary:
    """Per source: ``read_bytes``, ``dropped`` by filter, ``lengths`` by half, as plain values."""

    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    evaluation: list[dict[str, Any]] = field(default_factory=list)

    def add(self, source: str, tally: Tally, lengths: Mapping[str, list[int]]) -> None:
        """Add a source; ``lengths[half][k]`` counts documents of 2^k to 2^(k + 1) - 1 tokens."""
        self.sources[source] = {**tally.to_dict(), "lengths": dict(lengths)}

    def write(self, path: Path) -> None:
        """Write it."""
        value = {"sources": self.sources, "evaluation": self.evaluation}
        path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def read(folder: Path) -> "Summary":
        """Read a corpus's; empty where it was written from ids and has none."""
        path = folder / SUMMARY
        return (
            Summary(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else Summary()
        )
