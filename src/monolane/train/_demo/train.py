"""The demo model from nothing to a model folder: material, training, figures, card.

The run's state lies next to the folder, in ``<out>.run``: the folder is filled when all is done,
and a killed run goes on from its last checkpoint.
"""

import hashlib
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from tokenizers import Tokenizer
from transformers.utils import logging

from monolane.errors import BackendError, ConfigError
from monolane.hf import LaneformerForCausalLM
from monolane.train._config import RunConfig
from monolane.train._config_file import load_config
from monolane.train._convert import read_weights
from monolane.train._demo.baseline import measure_baselines
from monolane.train._demo.card import (
    Measured,
    describe_processor,
    measure_half,
    write_card,
)
from monolane.train._demo.folder import VOCABULARY, WEIGHTS, write_model
from monolane.train._demo.material import Material, prepare_corpus, prepare_material
from monolane.train._demo.pace import measure_pace
from monolane.train._demo.recipe import START, DemoRecipe
from monolane.train._demo.samples import Sample, write_sample
from monolane.train._evaluate import Score, score_documents
from monolane.train._listeners import standard_listeners
from monolane.train._run import CONFIG, check_new, train_run

# A prompt ends with a letter or a mark: a space at its end belongs to the token that follows.
_PROMPTS = (
    ("def main(", 0.0),
    ("def fibonacci(n):\n", 0.8),
    ("class Stack:\n", 0.8),
    ("import unittest\n", 0.8),
)
_SAMPLE_TOKENS = 160
_COMPILERS = ("g++", "clang++")
_BEGINNING = ("config.json", WEIGHTS, VOCABULARY)  # what a model must have to begin with


def train_demo(
    out: Path,
    *,
    minutes: float = 60.0,
    steps: int | None = None,
    seed: int = 0,
    resume: bool = False,
    threads: int | None = None,
    compiled: bool = False,
    recipe: DemoRecipe | None = None,
    begin_with: Path | None = None,
    library: Path | None = None,
    checkpoint_minutes: float = 3.0,
) -> Measured:
    """Train the demo model and write its folder ``out``; return what was measured.

    Without ``steps`` the run is as long as fits into ``minutes``, measured before it starts.
    ``resume`` continues the run of ``out`` where its last checkpoint left it, with its own recipe;
    ``steps`` may then still shorten or extend it, until its decay begins. ``compiled`` lets
    torch.compile fuse the elementwise work (needs a C++ compiler). ``recipe`` replaces the
    demo's own, ``library`` the running Python's standard library. ``begin_with`` is the folder of
    an earlier demo: this run starts from its weights, with a schedule of its own. ``threads`` sets
    torch's for the process.
    """
    _check_options(minutes, steps, threads, compiled)
    if threads is not None:
        torch.set_num_threads(threads)
    run = out.with_name(f"{out.name}.run")
    recipe = DemoRecipe.load(run) if resume else replace(recipe or DemoRecipe(), seed=seed)
    if not resume:
        check_new(run)
    if begin_with is not None and not resume:
        recipe = replace(recipe, begins_with=_keep_start(begin_with, run))
    # A model that goes on keeps its vocabulary: its ids mean what they meant.
    tokenizer = Tokenizer.from_file(str(run / START / VOCABULARY)) if recipe.begins_with else None
    material = prepare_material(recipe, library, tokenizer)
    corpus = prepare_corpus(material, recipe, run, resume)
    if resume:
        config = _resumed(run, recipe, steps, compiled)
    else:
        recipe.save(run)
        config = _planned(recipe, corpus, minutes, steps, compiled, checkpoint_minutes)
    progress = train_run(config, run, standard_listeners(config, run), resume=resume)
    finished = run / "model"
    write_model(read_weights(run, progress.step), recipe, material.tokenizer, finished)
    measured = _measure(finished, recipe, material, config, progress.seconds)
    measured.save(run)
    write_card(measured, finished)
    shutil.copytree(finished, out, dirs_exist_ok=True)
    return measured


def _check_options(minutes: float, steps: int | None, threads: int | None, compiled: bool) -> None:
    """Refuse now what would fail after minutes of preparation."""
    for name, value in (("minutes", minutes), ("steps", steps), ("threads", threads)):
        if value is not None and not value > 0:
            raise ConfigError(f"{name}: expected more than 0, got {value}; mend or leave it out")
    if compiled and not any(map(shutil.which, _COMPILERS)):
        raise BackendError(
            f"expected a C++ compiler ({' or '.join(_COMPILERS)}) for torch.compile, found none; "
            "install one, or train without --compile"
        )


def _keep_start(folder: Path, run: Path) -> str:
    """Copy the model to begin with into the run, which may outlive it; return its SHA-256."""
    missing = [name for name in _BEGINNING if not (folder / name).is_file()]
    if missing:
        raise ConfigError(
            f"{folder}: expected the folder of a demo model to begin with, which lacks "
            f"{', '.join(missing)}; name another one, or leave it out"
        )
    shutil.rmtree(run / START, ignore_errors=True)
    shutil.copytree(folder, run / START)
    return hashlib.sha256((run / START / WEIGHTS).read_bytes()).hexdigest()


def _planned(
    recipe: DemoRecipe,
    corpus: Path,
    minutes: float,
    steps: int | None,
    compiled: bool,
    checkpoint_minutes: float,
) -> RunConfig:
    """Return the run's config; measure this machine where the caller left something open."""
    if steps is not None and recipe.precision != "auto":
        return recipe.run_config(corpus, steps, precision=recipe.precision, compiled=compiled)
    pace = measure_pace(recipe, corpus, compiled)
    steps = pace.steps(recipe, minutes) if steps is None else steps
    every = max(1, int(checkpoint_minutes * 60 / pace.mean(recipe)))
    return recipe.run_config(
        corpus, steps, precision=pace.precision, compiled=compiled, every=every
    )


def _resumed(run: Path, recipe: DemoRecipe, steps: int | None, compiled: bool) -> RunConfig:
    """Return the config of the run in ``run``, of another length where ``steps`` gives one."""
    kept = load_config(run / CONFIG)
    config = replace(kept, compute=replace(kept.compute, compile=compiled))
    if steps is None:
        return config
    other = recipe.run_config(run, steps, precision=config.compute.precision).schedule
    # The warm-up is over or under way: it stays as it was.
    return replace(config, schedule=replace(other, warmup=kept.schedule.warmup))


def _measure(
    folder: Path,
    recipe: DemoRecipe,
    material: Material,
    config: RunConfig,
    seconds: float,
) -> Measured:
    """Judge the folder as it ships: BF16 weights read back, arithmetic in float32."""
    with _no_bar():
        model = LaneformerForCausalLM.from_pretrained(folder, dtype=torch.float32)
    library, tests = _score(model, recipe, material)
    documents = material.library
    return Measured(
        recipe=recipe,
        python=platform.python_version(),
        copyright=sys.copyright.partition("\n\n")[0].replace("\n", " "),
        corpus=documents.digest,
        train=measure_half(documents.train, material.train),
        held_out=measure_half(documents.held_out, material.held_out),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        weight_bytes=(folder / "model.safetensors").stat().st_size,
        steps=config.schedule.steps,
        minutes=seconds / 60,
        threads=torch.get_num_threads(),
        processor=describe_processor(),
        precision=config.compute.precision,
        compiled=config.compute.compile,
        library=library,
        tests=tests,
        baselines=measure_baselines(documents.held_out),
        samples=_samples(model, material),
    )


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
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("score held-out files", total=1.0)
        scores = score_documents(
            model,
            material.held_out,
            [document.size for document in held_out],
            recipe.context,
            lambda done: progress.update(task, completed=done),
        )
    halves = {True: Score(0.0, 0, 0), False: Score(0.0, 0, 0)}
    for document, score in zip(held_out, scores, strict=True):
        halves[document.is_test] += score
    return halves[False], halves[True]


def _samples(model: torch.nn.Module, material: Material) -> tuple[Sample, ...]:
    return tuple(
        write_sample(
            model, material.tokenizer, prompt, tokens=_SAMPLE_TOKENS, temperature=temperature
        )
        for prompt, temperature in _PROMPTS
    )
