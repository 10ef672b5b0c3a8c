"""The demo model from nothing to a model folder: material, training, figures, card.

The run's state lies next to the folder, in ``<out>.run``: the folder is filled when all is done,
and a killed run goes on from its last checkpoint.
"""

import platform
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from monolane.errors import BackendError, CheckpointError, ConfigError
from monolane.hf import LaneformerConfig, LaneformerForCausalLM
from monolane.train._baseline import measure_baselines
from monolane.train._card import (
    Measured,
    describe_processor,
    measure_half,
    write_card,
)
from monolane.train._checkpoint import Checkpoint
from monolane.train._evaluate import Score, score_documents
from monolane.train._folder import write_model
from monolane.train._journal import Journal
from monolane.train._loop import Keeper, Loop, advance
from monolane.train._material import Material, prepare_material
from monolane.train._pace import measure_pace
from monolane.train._packing import Packing
from monolane.train._recipe import DemoRecipe
from monolane.train._samples import Sample, write_sample
from monolane.train._schedule import Schedule

# A prompt ends with a letter or a mark: a space at its end belongs to the token that follows.
_PROMPTS = (
    ("def main(", 0.0),
    ("def fibonacci(n):\n", 0.8),
    ("class Stack:\n", 0.8),
    ("import unittest\n", 0.8),
)
_SAMPLE_TOKENS = 160
_COMPILERS = ("g++", "clang++")


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
    library: Path | None = None,
    checkpoint_minutes: float = 3.0,
) -> Measured:
    """Train the demo model and write its folder ``out``; return what was measured.

    Without ``steps`` the run is as long as fits into ``minutes``, measured before it starts.
    ``resume`` continues the run of ``out`` where its last checkpoint left it, with its own recipe;
    ``steps`` may then still shorten or extend it, until its decay begins. ``compiled`` lets
    torch.compile fuse the elementwise work (needs a C++ compiler). ``recipe`` replaces the
    demo's own, ``library`` the running Python's standard library. ``threads`` sets torch's for the
    process.
    """
    _check_options(minutes, steps, threads, compiled)
    if threads is not None:
        torch.set_num_threads(threads)
    run = out.with_name(f"{out.name}.run")
    kept = _kept(run, resume)
    recipe = kept.recipe if kept else replace(recipe or DemoRecipe(), seed=seed)
    material = prepare_material(recipe, library)
    packing = Packing(material.train, recipe.context, recipe.seed)
    model = new_model(recipe)
    plan = (
        _resumed(kept, steps, material.corpus.digest)
        if kept
        else _planned(model, packing, recipe, minutes, steps, compiled)
    )
    loop = Loop(model, recipe, packing, plan.schedule, plan.precision, compiled=compiled)
    if kept:
        model.load_state_dict(kept.model)
        loop.optimiser.load(kept.optimiser)
    keeper = Keeper(run, recipe, material.corpus.digest, plan.precision, checkpoint_minutes * 60)
    with Journal(run, plan.schedule.steps, plan.start) as journal:
        seconds = advance(loop, keeper, journal, plan.schedule.steps, plan.start, plan.seconds)
    finished = run / "model"
    write_model(model.state_dict(), recipe, material.tokenizer, finished)
    measured = _measure(finished, recipe, material, plan, seconds, compiled)
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


def new_model(recipe: DemoRecipe) -> LaneformerForCausalLM:
    """Return the untrained model of a recipe; its seed decides the weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return LaneformerForCausalLM(LaneformerConfig(**recipe.config_fields()))


@dataclass(frozen=True)
class _Plan:
    """How long the run is, where it starts, and in which precision it computes."""

    schedule: Schedule
    precision: str
    start: int = 0
    seconds: float = 0.0  # spent before the start


def _kept(run: Path, resume: bool) -> Checkpoint | None:
    if resume:
        return Checkpoint.load(run)
    if Checkpoint.exists(run):
        raise CheckpointError(
            f"{run}: expected no run there, found a checkpoint; continue it with --resume, or "
            "remove the folder to start anew"
        )
    return None


def _planned(
    model: torch.nn.Module,
    packing: Packing,
    recipe: DemoRecipe,
    minutes: float,
    steps: int | None,
    compiled: bool,
) -> _Plan:
    """Measure this machine where the caller left something open."""
    if steps is not None and recipe.precision != "auto":
        return _Plan(Schedule.of(recipe, steps), recipe.precision)
    pace = measure_pace(model, recipe, packing, compiled)
    steps = pace.steps(recipe, minutes) if steps is None else steps
    return _Plan(Schedule.of(recipe, steps), pace.precision)


def _resumed(kept: Checkpoint, steps: int | None, corpus: str) -> _Plan:
    """Go on with the run of a checkpoint, which must read the same corpus."""
    if kept.corpus != corpus:
        raise CheckpointError(
            f"expected the corpus {kept.corpus[:12]} that the run began with, got {corpus[:12]}; "
            "resume with the same Python installation, or start anew"
        )
    schedule = Schedule.of(kept.recipe, kept.steps)
    if steps is not None and steps != kept.steps:
        before, schedule = schedule, Schedule.of(kept.recipe, steps)
        if kept.step > min(s.first_change for s in (before, schedule)):
            raise ConfigError(
                f"steps: expected {kept.steps}, as the run is at step {kept.step} and past the "
                f"point where {steps} steps would have differed; leave --steps out"
            )
    return _Plan(schedule, kept.precision, kept.step, kept.seconds)


def _measure(
    folder: Path,
    recipe: DemoRecipe,
    material: Material,
    plan: _Plan,
    seconds: float,
    compiled: bool,
) -> Measured:
    """Judge the folder as it ships: BF16 weights read back, arithmetic in float32."""
    model = LaneformerForCausalLM.from_pretrained(folder, dtype=torch.float32)
    library, tests = _score(model, recipe, material)
    corpus = material.corpus
    return Measured(
        recipe=recipe,
        python=platform.python_version(),
        copyright=sys.copyright.partition("\n\n")[0].replace("\n", " "),
        corpus=corpus.digest,
        train=measure_half(corpus.train, material.train),
        held_out=measure_half(corpus.held_out, material.held_out),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        weight_bytes=(folder / "model.safetensors").stat().st_size,
        steps=plan.schedule.steps,
        minutes=seconds / 60,
        threads=torch.get_num_threads(),
        processor=describe_processor(),
        precision=plan.precision,
        compiled=compiled,
        library=library,
        tests=tests,
        baselines=measure_baselines(corpus.held_out),
        samples=_samples(model, material),
    )


def _score(model: torch.nn.Module, recipe: DemoRecipe, material: Material) -> tuple[Score, Score]:
    """Score the held-out files: those of the library proper, and its tests."""
    held_out = material.corpus.held_out
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("score held-out files", total=len(held_out))
        scores = score_documents(
            model,
            material.held_out,
            [document.size for document in held_out],
            recipe.context,
            lambda: progress.advance(task),
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
