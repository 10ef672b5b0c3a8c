"""The demo model from nothing to a model folder: material, training, figures, card.

The run's state lies next to the folder, in ``<out>.run``: the folder is filled when all is done,
and a killed run goes on from its last checkpoint.
"""

import hashlib
import json
import math
import shutil
import sysconfig
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from monolane.data import write_vocabulary
from monolane.errors import BackendError, ConfigError
from monolane.model import check_place, open_laneformer
from monolane.train._checkpoints import Progress
from monolane.train._config import RunConfig, load_config
from monolane.train._convert import read_weights
from monolane.train._demo.card import Measured, measure, write_card
from monolane.train._demo.material import BOS, EOS, prepare_corpus, prepare_material
from monolane.train._demo.pace import Pace, measure_pace
from monolane.train._demo.recipe import START, VOCABULARY, WEIGHTS, DemoRecipe
from monolane.train._loggers import check_boards, standard_listeners
from monolane.train._run import CONFIG, check_new, disk_errors_told, train_run

_COMPILERS = ("g++", "clang++")
_AFTER = 0.1  # share of the minutes that scoring and writing get, or more where that takes longer
_FEW = 100  # steps, below which nothing is learnt
_LOOKS = (0.2, 0.6, 0.95)  # of the steps before the decay: when the time left is measured again
_SHORTER = 0.95  # of the planned steps: a smaller change is not worth another plan
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
    say: Callable[[str], object] = lambda line: None,
    clock: Callable[[], float] = time.monotonic,
) -> Measured:
    """Train the demo model and write its folder ``out``; return what was measured.

    Without ``steps`` the run is as long as fits into ``minutes``, preparation and scoring included:
    measured before it starts, and again before its decay begins, when a machine that has
    become slower shortens it. ``say`` is told of each phase; ``clock`` gives seconds.
    ``resume`` continues the run of ``out`` where its last checkpoint left it, with its own recipe;
    ``steps`` may then still shorten or extend it, until its decay begins. ``compiled`` lets
    torch.compile fuse the elementwise work (needs a C++ compiler). ``recipe`` replaces the
    demo's own, ``library`` the running Python's standard library. ``begin_with`` is the folder of
    an earlier demo: this run starts from its weights, with a schedule of its own. ``threads`` sets
    torch's for the process.
    """
    began = clock()
    check_place(out)
    _check_options(minutes, steps, threads, compiled)
    check_boards()
    if threads is not None:
        torch.set_num_threads(threads)
    run = out.with_name(f"{out.name}.run")
    recipe = DemoRecipe.load(run) if resume else replace(recipe or DemoRecipe(), seed=seed)
    if not resume:
        check_new(run)
    if begin_with is not None and not resume:
        recipe = replace(recipe, begins_with=_keep_start(begin_with, run))
    every = checkpoint_minutes * 60
    # A model that goes on keeps its vocabulary: its ids mean what they meant.
    tokenizer = Tokenizer.from_file(str(run / START / VOCABULARY)) if recipe.begins_with else None
    with disk_errors_told(run):
        say("reading the library and preparing the corpus")
        material = prepare_material(recipe, library, tokenizer)
        corpus = prepare_corpus(material, recipe, run, resume)
        if resume:
            config = _resumed(run, recipe, steps, compiled)
            say(f"training on, to step {config.schedule.steps}")
            progress = train_run(config, run, standard_listeners(config, run), resume=True)
        elif steps is not None:
            recipe.save(run)
            config = _planned(recipe, corpus, steps, compiled, every)
            say(f"training {steps} steps")
            progress = train_run(config, run, standard_listeners(config, run))
        else:
            recipe.save(run)
            say("measuring how many steps fit into the time")
            pace = measure_pace(recipe, corpus, compiled)
            tokens = sum(map(len, material.held_out))
            end = began + minutes * 60 - max(_AFTER * minutes * 60, _scoring(tokens, pace, recipe))
            config = _laid_out(recipe, corpus, pace, None, end - clock(), compiled, every)
            _say_length(config.schedule.steps, minutes, say)
            slower = pace.long / pace.short
            config, progress = _train_in_time(
                config, recipe, run, slower, end, compiled, say, clock
            )
        say("scoring the held-out files")
        finished = run / "model"
        _write_model(read_weights(run, progress.step), recipe, material.tokenizer, finished)
        measured = measure(finished, recipe, material, config, progress.seconds)
        measured.save(run)
        write_card(measured, finished)
        shutil.copytree(finished, out, dirs_exist_ok=True)
    return measured


def _scoring(tokens: int, pace: Pace, recipe: DemoRecipe) -> float:
    """Return about how many seconds it takes to score so many held-out tokens.

    Windows overlap by half, so each goes through the model twice; a forward pass is a third of a
    step's arithmetic.
    """
    return 2 * tokens / recipe.tokens_per_step * pace.long / 3


def _say_length(steps: int, minutes: float, say: Callable[[str], object]) -> None:
    say(f"training {steps} steps, as many as fit into {minutes:g} minutes")
    if steps < _FEW:
        say(
            f"warning: fewer than {_FEW} steps teach a model next to nothing: give more --minutes, "
            "or more of the machine"
        )


def _train_in_time(
    config: RunConfig,
    recipe: DemoRecipe,
    run: Path,
    slower: float,
    end: float,
    compiled: bool,
    say: Callable[[str], object],
    clock: Callable[[], float],
) -> tuple[RunConfig, Progress]:
    """Train until about ``end`` on ``clock``; shorten the run where the machine became slower.

    ``slower``: how many times as long as a short step one at the full context takes.
    """
    first = config.schedule.first_change
    done, since = 0, clock()
    for part in _LOOKS:
        look = int(part * first)
        if look <= done or config.schedule.steps <= look:
            continue
        listeners = standard_listeners(config, run)
        progress = train_run(config, run, listeners, resume=done > 0, until=look)
        now = clock()
        each, done, since = (now - since) / (look - done), look, now
        share = recipe.long_share  # of the steps: those at the end, at the full context
        fit = (done + max(0.0, end - now) / each) / (1 - share + share * slower)
        # What is left must hold the decay that the steps' shares ask for, from here on.
        steps = max(int(fit), math.ceil(done / (1 - recipe.decay_share)) + 1)
        if steps < _SHORTER * config.schedule.steps:
            say(f"the machine became slower: {steps} steps instead of {config.schedule.steps}")
            config = _resumed(run, recipe, steps, compiled)
    listeners = standard_listeners(config, run)
    progress = train_run(config, run, listeners, resume=done > 0)
    return config, progress


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
    open_laneformer(folder, "begin with")
    shutil.rmtree(run / START, ignore_errors=True)
    shutil.copytree(folder, run / START)
    return hashlib.sha256((run / START / WEIGHTS).read_bytes()).hexdigest()


def _planned(
    recipe: DemoRecipe, corpus: Path, steps: int, compiled: bool, every: float
) -> RunConfig:
    """Return the config of a run of ``steps`` steps; measure this machine for the rest.

    ``every``: seconds between checkpoints.
    """
    if recipe.precision != "auto":
        return recipe.run_config(corpus, steps, precision=recipe.precision, compiled=compiled)
    pace = measure_pace(recipe, corpus, compiled)
    return _laid_out(recipe, corpus, pace, steps, 0.0, compiled, every)


def _laid_out(
    recipe: DemoRecipe,
    corpus: Path,
    pace: Pace,
    steps: int | None,
    seconds: float,
    compiled: bool,
    every: float,
) -> RunConfig:
    """Return the config of a run of ``steps`` steps, or as long as fits into ``seconds``."""
    return recipe.run_config(
        corpus,
        pace.steps(recipe, max(0.0, seconds) / 60) if steps is None else steps,
        precision=pace.precision,
        compiled=compiled,
        every=max(1, int(every / pace.mean(recipe))),
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


def _write_model(
    weights: dict[str, torch.Tensor], recipe: DemoRecipe, tokenizer: Tokenizer, folder: Path
) -> None:
    """Write a folder in Hub layout, all but the card: BF16 weights, config, tokenizer, licence.

    ``config.json`` is written from the recipe, not by transformers: its spelling of the fields
    changes between versions, and this folder ships.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rounded = {name: weight.bfloat16().contiguous() for name, weight in weights.items()}
    save_file(rounded, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # written for the owner alone; it is to be shared
    config = {
        "architectures": ["LaneformerForCausalLM"],
        "model_type": "laneformer",
        **recipe.config_fields(),
        "torch_dtype": "bfloat16",
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"bos_token_id": BOS, "eos_token_id": EOS})
    write_vocabulary(tokenizer, folder, recipe.context)
    # Python's licence, which its terms want kept with derivatives; some builds lack it.
    licence = Path(sysconfig.get_path("stdlib")) / "LICENSE.txt"
    if licence.is_file():
        shutil.copyfile(licence, folder / "LICENSE")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
