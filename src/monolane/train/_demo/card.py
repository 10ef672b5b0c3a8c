"""The model card: what was measured, said once, next to the weights.

Every figure comes from a :class:`Measured`, which the run also keeps as JSON, so the card can be
written again without training again.
"""

import dataclasses
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

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
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        parts = {
            "recipe": DemoRecipe.from_dict(values["recipe"]),
            "train": Half(**values["train"]),
            "held_out": Half(**values["held_out"]),
            "library": Score(**values["library"]),
            "tests": Score(**values["tests"]),
            "baselines": tuple(Baseline(**one) for one in values["baselines"]),
            "samples": tuple(Sample(**one) for one in values["samples"]),
        }
        return cls(**{**values, **parts})


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
    sections = (
        _FRONT,
        _summary(measured),
        _quality(measured),
        _samples(measured.samples),
        _recipe(measured),
        _data(measured),
        _licence(measured),
        _LIMITS,
    )
    text = "\n\n".join(section.strip("\n") for section in sections)
    (folder / "README.md").write_text(text + "\n", encoding="utf-8")


_FRONT = """
---
license: other
license_name: psf-2.0
license_link: LICENSE
language:
- code
pipeline_tag: text-generation
library_name: monolane
tags:
- laneformer
- python
- code
- demo
---

# monolane demo: a small Laneformer that writes Python
"""

_CHOICE = """
Each is the first draw of its prompt. The prompts were chosen on the first demo, the greedy one out
of four: the others led into a loop even sooner.
""".strip()

_LIMITS = """
## Limits

- It is a demonstration of the architecture and of the engine: real weights, so that decoding,
  sampling and speculation act on text and not on noise. It is no coding assistant.
- It knows the manner of the standard library, not its meaning: names, indentation and idioms hold
  over some dozen lines, arguments and logic do not.
- Greedy text soon repeats itself; a temperature of 0.5 to 1 reads better. A prompt should not end
  in a space, which belongs to the token of the word that follows: after a space alone the model
  guesses, and often a digit.
- It has read whole source files only. It was never trained on a chat; the header tokens in its
  vocabulary are there so that the chat template has something to encode, and are untrained.
- It can repeat passages of its training data word for word.
- The held-out files come from the same library as the training files: the same authors, the same
  licence headers, the same helpers. Bits per byte on other code will be higher.
"""


def _summary(measured: Measured) -> str:
    recipe, delay = measured.recipe, measured.recipe.broadcast_delay
    threads = "one CPU thread" if measured.threads == 1 else f"{measured.threads} CPU threads"
    after = ", after an earlier demo" if recipe.begins_with else ""
    return f"""
{measured.parameters / 1e6:.2f} M parameters, {recipe.num_lanes} lanes, delay {delay},
trained for {measured.minutes:.0f} minutes on {threads}{after}, on the source files of
Python's standard library and on nothing else. It ships with monolane as `demo`:

```console
$ monolane generate --model demo "class Stack:"
```

Held-out bits per byte: **{measured.score.bits_per_byte:.3f}**.
"""


def _quality(measured: Measured) -> str:
    parts = (
        ("all held-out files", measured.score),
        ("library files", measured.library),
        ("test files", measured.tests),
    )
    rows = [
        *((f"this model, {name}", score.bits_per_byte) for name, score in parts if score.bytes),
        *((baseline.name, baseline.bits_per_byte) for baseline in measured.baselines),
    ]
    table = "\n".join(f"| {name} | {value:.3f} |" for name, value in rows)
    score = measured.score
    return f"""
## Quality

| | bits per byte |
|---|---|
{table}

Measured on {measured.held_out.files} files that training never saw ({score.bytes:,} bytes,
{score.tokens:,} tokens), with the shipped BF16 weights in float32 arithmetic. Each file is scored
from its start in windows of {measured.recipe.context} tokens that overlap by half; the end of the
file is scored too. The compressors also see one file at a time, but know nothing beforehand: they
say how much of a file is plain repetition.
"""


def _samples(samples: Sequence[Sample]) -> str:
    blocks = []
    for sample in samples:
        how = (
            "greedy"
            if sample.temperature == 0
            else f"temperature {sample.temperature}, seed {sample.seed}"
        )
        blocks.append(f"{how}, after `{sample.prompt!r}`:\n\n{_fence(sample)}")
    return f"## Samples\n\n{_CHOICE}\n\n" + "\n\n".join(blocks)


def _fence(sample: Sample) -> str:
    text = (sample.prompt + sample.text).rstrip("\n")
    ticks = "````" if "```" in text else "```"
    return f"{ticks}python\n{text}\n{ticks}"


def _recipe(measured: Measured) -> str:
    recipe = measured.recipe
    rate = measured.tokens_seen / (measured.minutes * 60)
    how = "torch.compile" if measured.compiled else "no compilation"
    threads = "one thread" if measured.threads == 1 else f"{measured.threads} threads"
    begun = " --from START" if recipe.begins_with else ""
    first = (
        "The first weights are those of an earlier demo, START, whose `model.safetensors` has the\n"
        f"SHA-256 `{recipe.begins_with}`.\n\n"
        if recipe.begins_with
        else ""
    )
    rows = dataclasses.asdict(recipe)
    table = "\n".join(f"| `{name}` | {value} |" for name, value in rows.items())
    return f"""
## Recipe

```console
$ monolane train --demo DIR --compile --steps {measured.steps} --seed {recipe.seed}{begun}
```

trains it again; another processor rounds differently, so expect these figures, not these bits.
{measured.steps:,} steps of {recipe.tokens_per_step:,} tokens: {measured.tokens_seen:,} tokens seen,
{measured.tokens_seen / measured.train.tokens:.1f} times the training text, in
{measured.minutes:.1f} minutes of steps ({rate:,.0f} tokens/s, {measured.precision} matrix
products, {how}, {threads} of a shared {measured.processor} machine). The learning
rate warms up, stays, and decays to zero. The last {recipe.long_share:.0%} of the steps use the
whole context, the others rows of {recipe.short_context} tokens. Muon updates the matrices of the
layers, each lane's by itself; AdamW updates the embeddings, the head and the norms.

{first}{measured.remark}

| field | value |
|---|---|
{table}
"""


def _data(measured: Measured) -> str:
    train, held_out = measured.train, measured.held_out
    learnt = (
        "that of START" if measured.recipe.begins_with else "trained on the training files alone"
    )
    return f"""
## Data

The `.py` files of the standard library of Python {measured.python}, its own tests included;
without installed packages, generated tables and settings, files that are not UTF-8, fixtures that
are not meant to parse, and exact copies. The hash of a file's content decides whether it is held
out.

| | files | bytes | tokens |
|---|---|---|---|
| training | {train.files:,} | {train.bytes:,} | {train.tokens:,} |
| held out | {held_out.files:,} | {held_out.bytes:,} | {held_out.tokens:,} |

SHA-256 of the corpus: `{measured.corpus}`. The vocabulary ({measured.recipe.vocab_size:,} tokens,
byte-level BPE) is {learnt}; a token stands for
{train.bytes / train.tokens:.2f} bytes.
"""


def _licence(measured: Measured) -> str:
    return f"""
## Licence and notice

The training text is the source of Python {measured.python}, under the Python Software Foundation
License Version 2; some files carry notices of their own authors.

> {measured.copyright}

The weights and the vocabulary are a derivative of that text and
are offered under the same licence, whose text is in `LICENSE` next to this card. Summary of the
changes made to Python: its library's source files were tokenized and a language model was fitted to
them; no file of Python is included. The code of monolane, with which it was trained, is under
Apache-2.0. Neither the model nor monolane is endorsed by the Python Software Foundation.
"""
