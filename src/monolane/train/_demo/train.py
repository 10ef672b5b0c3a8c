"""The demo model from nothing to a model folder: material, training, figures, card.

The run's state lies next to the folder, in ``<out>.run``: the folder is filled when all is done,
and a killed run goes on from its last checkpoint.
"""

import hashlib
import json
import shutil
import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from monolane.data import write_vocabulary
from monolane.errors import BackendError, ConfigError
from monolane.train._board import standard_listeners
from monolane.train._config import RunConfig, load_config
from monolane.train._convert import read_weights
from monolane.train._demo.card import Measured, measure, write_card
from monolane.train._demo.material import BOS, EOS, prepare_corpus, prepare_material
from monolane.train._demo.pace import measure_pace
from monolane.train._demo.recipe import START, VOCABULARY, WEIGHTS, DemoRecipe
from monolane.train._run import CONFIG, check_new, train_run

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
    _write_model(read_weights(run, progress.step), recipe, material.tokenizer, finished)
    measured = measure(finished, recipe, material, config, progress.seconds)
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
