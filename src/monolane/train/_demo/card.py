"""The model card: what was measured, said once, next to the weights.

Every figure comes from a :class:`Measured`, which the run also keeps as JSON, so the card can be
written again without training again.
"""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from jinja2 import Environment, StrictUndefined
from pydantic import TypeAdapter

from monolane.errors import CheckpointError
from monolane.train._demo.baseline import Baseline
from monolane.train._demo.library import Document
from monolane.train._demo.recipe import DemoRecipe
from monolane.train._demo.samples import Sample
from monolane.train._evaluate import Score

_NAME = "measured.json"


@dataclass(frozen=True)
class Half:
    """Size of one half of the corpus."""

    files: int
    bytes: int
    tokens: int


@dataclass(frozen=True)
class Measured:
    """Everything about a finished run that its card states."""

    recipe: DemoRecipe
    python: str  # version
    copyright: str  # Python's own notice
    corpus: str  # digest
    train: Half
    held_out: Half
    parameters: int
    weight_bytes: int
    steps: int
    minutes: float  # spent in steps
    threads: int
    processor: str
    precision: str
    compiled: bool
    library: Score  # of held-out files that are not tests
    tests: Score
    baselines: tuple[Baseline, ...]
    samples: tuple[Sample, ...]
    remark: str = ""  # what else the reader of the recipe must know, as a paragraph

    @property
    def score(self) -> Score:
        """The score of all held-out files."""
        return self.library + self.tests

    @property
    def tokens_seen(self) -> int:
        """Tokens that the steps went through."""
        return self.steps * self.recipe.tokens_per_step

    def save(self, folder: Path) -> None:
        """Keep the figures as ``measured.json``."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        (folder / _NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Measured":
        """Read back what :meth:`save` wrote."""
        path = folder / _NAME
        if not path.is_file():
            raise CheckpointError(f"expected {path} of a finished run, found none; train first")
        return TypeAdapter(cls).validate_json(path.read_text(encoding="utf-8"))


def measure_half(documents: Sequence[Document], ids: Sequence[np.ndarray]) -> Half:
    """Count one half of the corpus, as text and as ids."""
    return Half(
        files=len(documents),
        bytes=sum(document.size for document in documents),
        tokens=sum(len(document) for document in ids),
    )


def describe_processor() -> str:
    """Return the processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def write_card(measured: Measured, folder: Path) -> None:
    """Write the card as the folder's README.md."""
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters.update(count="{:,}".format, repr=repr, fenced=_fenced)
    source = resources.files("monolane.train").joinpath("templates/demo_card.md")
    card = environment.from_string(source.read_text("utf-8"))
    text = card.render(it=measured, recipe=measured.recipe)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _fenced(sample: Sample) -> str:
    text = (sample.prompt + sample.text).rstrip("\n")
    ticks = "````" if "```" in text else "```"
    return f"{ticks}python\n{text}\n{ticks}"
