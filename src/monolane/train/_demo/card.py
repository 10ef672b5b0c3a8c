"""What is measured of a finished demo, and the model card that says it, next to the weights.

Every figure comes from a :class:`Measured`, which the run also keeps as JSON, so the card can be
written again without training again. For judgement there is a floor: what ordinary compressors need
for the same held-out files. Like the model they see each file alone from its start, but unlike it
they know nothing beforehand. And there is text that the model writes, for the eye: numbers do not
show what it learnt.
"""

import bz2
import json
import lzma
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from jinja2 import Environment, StrictUndefined
from pydantic import TypeAdapter
from tokenizers import Tokenizer
from transformers.utils import logging

from monolane._progress import shown_progress
from monolane.errors import CheckpointError
from monolane.hf import LaneformerForCausalLM, load_whole
from monolane.train._config import RunConfig
from monolane.train._demo.material import EOS, Document, Material
from monolane.train._demo.recipe import WEIGHTS, DemoRecipe
from monolane.train._evaluate import Score, score_documents

_NAME = "measured.json"
# A prompt ends with a letter or a mark: a space at its end belongs to the token that follows.
_PROMPTS = (
    ("def main(", 0.0),
    ("def fibonacci(n):\n", 0.8),
    ("class Stack:\n", 0.8),
    ("import unittest\n", 0.8),
)
_SAMPLE_TOKENS = 160
_XZ: Callable[[bytes], bytes] = partial(lzma.compress, preset=9 | lzma.PRESET_EXTREME)


@dataclass(frozen=True)
class Baseline:
    """Bits per byte of one compressor over some documents."""

    name: str
    bits_per_byte: float


@dataclass(frozen=True)
class Sample:
    """A prompt and what the model wrote after it; temperature 0 is greedy."""

    prompt: str
    temperature: float
    seed: int
    text: str


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


def measure(
    folder: Path, recipe: DemoRecipe, material: Material, config: RunConfig, seconds: float
) -> Measured:
    """Judge the folder as it ships: BF16 weights read back, arithmetic in float32."""
    with _no_bar():
        model = load_whole(LaneformerForCausalLM, folder, dtype=torch.float32)
    library, tests = _score(model, recipe, material)
    documents = material.library
    return Measured(
        recipe=recipe,
        python=platform.python_version(),
        copyright=sys.copyright.partition("\n\n")[0].replace("\n", " "),
        corpus=documents.digest,
        train=_half(documents.train, material.train),
        held_out=_half(documents.held_out, material.held_out),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        weight_bytes=(folder / WEIGHTS).stat().st_size,
        steps=config.schedule.steps,
        minutes=seconds / 60,
        threads=torch.get_num_threads(),
        processor=describe_processor(),
        precision=config.compute.precision,
        compiled=config.compute.compile,
        library=library,
        tests=tests,
        baselines=measure_baselines(documents.held_out),
        samples=tuple(
            write_sample(model, material.tokenizer, prompt, tokens=_SAMPLE_TOKENS, temperature=heat)
            for prompt, heat in _PROMPTS
        ),
    )


def measure_baselines(documents: Sequence[Document]) -> tuple[Baseline, ...]:
    """Compress each document by itself with xz and bzip2 at their best level."""
    size = sum(document.size for document in documents)
    return tuple(
        Baseline(name, sum(8 * len(compress(d.text.encode())) for d in documents) / size)
        for name, compress in (("xz -9e", _XZ), ("bzip2 -9", bz2.compress))
    )


@torch.inference_mode()
def write_sample(
    model: torch.nn.Module,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> Sample:
    """Let the model continue ``prompt`` by up to ``tokens`` tokens.

    The whole prefix is computed again for every token. It is slower than a cache of keys and
    values, but this package stays free of the engine, and a few hundred tokens of a small model
    take seconds.
    """
    model.eval()
    ids = list(tokenizer.encode(prompt).ids)
    prompt_length = len(ids)
    generator = torch.Generator().manual_seed(seed)
    while len(ids) < prompt_length + tokens:
        logits_V = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()
        token = _choose(logits_V, temperature, generator)
        if token == EOS:
            break
        ids.append(token)
    return Sample(prompt, temperature, seed, tokenizer.decode(ids[prompt_length:]))


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


def _half(documents: Sequence[Document], ids: Sequence[np.ndarray]) -> Half:
    return Half(len(documents), sum(d.size for d in documents), sum(map(len, ids)))


@contextmanager
def _no_bar() -> Iterator[None]:
    """Keep Transformers' progress bar, of a file that loads at once, from between ours."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _score(model: torch.nn.Module, recipe: DemoRecipe, material: Material) -> tuple[Score, Score]:
    """Score the held-out files: those of the library proper, and its tests."""
    held_out = material.library.held_out
    with shown_progress() as progress:
        scores = score_documents(
            model,
            material.held_out,
            [document.size for document in held_out],
            recipe.context,
            lambda done: progress("scoring held-out files, %", round(100 * done), 100),
        )
    halves = {True: Score(0.0, 0, 0), False: Score(0.0, 0, 0)}
    for document, score in zip(held_out, scores, strict=True):
        halves[document.is_test] += score
    return halves[False], halves[True]


def _choose(logits_V: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_V.argmax())
    probabilities_V = torch.softmax(logits_V / temperature, dim=0)
    return int(torch.multinomial(probabilities_V, 1, generator=generator))
