"""Supervised fine-tuning: chats in, a model folder out that ``monolane chat`` runs.

Transformers' Trainer does the steps, as in the recipe of Laneformer 2B; TRL's adds rendering,
masking and packing, and these are ours, because the ids must be those that the engine sees. The
run's state lies next to the folder, in ``<out>.run``: the folder is filled when all is done.
"""

import contextlib
import json
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from monolane._schedule import Wsd
from monolane.errors import CheckpointError, ConfigError, MissingExtraError
from monolane.hf import LaneformerForCausalLM
from monolane.model import ModelConfig, check_replaceable, read_config
from monolane.text import ChatTemplate
from monolane.tune._lora import add_lora, merged
from monolane.tune._marked import marked_template
from monolane.tune._material import (
    Material,
    Row,
    chat_encoder,
    prepare_material,
    row_arrays,
    trained_context,
)
from monolane.tune._recipe import SftRecipe
from monolane.tune._staging import publish, rounded_tensors

_RUN = "run.json"
_FORMAT = 1
Report = Callable[[int, dict[str, float]], None]  # (step, what the Trainer logs of it)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a fine-tuning did: its material, its length, and the losses of its steps."""

    material: Material
    steps: int
    losses: tuple[float, ...]  # of each step since the start or the resumption
    adapter: Path | None  # PEFT's layout, where LoRA was used


def tune_folder(
    source: Path,
    data: Path,
    out: Path,
    recipe: SftRecipe,
    *,
    resume: bool = False,
    overwrite: bool = False,
    save_every: int = 50,
    report: Report | None = None,
) -> Tuned:
    """Fine-tune the model of ``source`` on the chats of ``data`` and write the folder ``out``.

    A checkpoint is kept in ``<out>.run`` every ``save_every`` steps; ``resume`` continues from the
    last one and ends in the bits of a run that was never stopped. ConfigError, TextError and
    CheckpointError say what cannot be tuned, before anything is trained.
    """
    _check_installed(recipe)
    check_replaceable(source, out, overwrite)
    _check_alone()
    config = _tunable(source)
    material = prepare_material(
        data, chat_encoder(source, config), trained_context(config, recipe), recipe
    )
    steps = recipe.steps or math.ceil(recipe.epochs * len(material.rows) / recipe.rows_per_step)
    schedule = Wsd.of(steps, recipe.warmup_share, recipe.decay_share)
    run = out.with_name(f"{out.name}.run")
    last = _open_run(run, source, recipe, material, resume)
    marked = marked_template(ChatTemplate.open(source).source)
    (run / "chat_template.training.jinja").write_text(marked, encoding="utf-8")
    losses = _Losses(report)
    model = LaneformerForCausalLM.from_pretrained(source, dtype=torch.float32)
    torch.manual_seed(recipe.seed)  # LoRA's first values
    trained: Any = model if recipe.lora is None else add_lora(model, recipe.lora)
    trainer = Trainer(
        model=trained,
        args=_arguments(run, recipe, schedule, save_every),
        train_dataset=material.rows,
        data_collator=partial(_collate, config.pad_id or 0),
        callbacks=[losses],
    )
    trainer.remove_callback(PrinterCallback)
    with warnings.catch_warnings():
        # Transformers 5.23 reads a checkpoint's config as a plain one, of which the field is not.
        warnings.filterwarnings("ignore", message="`rope_scaling` is deprecated")
        trainer.train(resume_from_checkpoint=last)
    adapter = None
    if recipe.lora is not None:
        adapter = run / "adapter"
        trained.save_pretrained(adapter)
        model = merged(trained)
    kept, tenth = losses.values, max(1, len(losses.values) // 10)
    values = {
        "recipe": recipe,
        "material": material,
        "steps": schedule.steps,
        # A run that was resumed at its end has no step of its own.
        "first": fmean(kept[:tenth]) if kept else math.nan,
        "last": fmean(kept[-tenth:]) if kept else math.nan,
    }
    publish(source, out, config, rounded_tensors(config, model), overwrite, "sft_card", **values)
    return Tuned(material, schedule.steps, tuple(losses.values), adapter)


def _tunable(source: Path) -> ModelConfig:
    config = read_config(source)
    if config.quantization is not None:
        raise ConfigError(
            f"{source}: expected float weights to tune, got {config.quantization.bits}-bit codes; "
            "tune the folder that was quantised, and quantise the result"
        )
    return config


def _open_run(
    run: Path, source: Path, recipe: SftRecipe, material: Material, resume: bool
) -> str | None:
    """Return the checkpoint to go on from; hold a resumed run to what it began with."""
    facts = {
        "format": _FORMAT,
        "recipe": json.loads(json.dumps(recipe.to_dict())),
        "data": material.digest,
        "model": _weights_digest(source),
    }
    path = run / _RUN
    if not resume:
        if path.exists():
            raise CheckpointError(
                f"{run}: expected no run there, found one; continue it with --resume, or remove "
                "the folder to start anew"
            )
        run.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        return None
    if not path.is_file():
        raise CheckpointError(
            f"{run}: expected a run to resume, found none; start without --resume"
        )
    kept = json.loads(path.read_text(encoding="utf-8"))
    for name, value in facts.items():
        if kept.get(name) != value:
            raise CheckpointError(
                f"{path}: {name}: expected what the run began with, got something else; resume "
                "with the same model, data and recipe, or start anew"
            )
    return _last_checkpoint(run)


def _last_checkpoint(run: Path) -> str | None:
    """Return the newest checkpoint that was written to its end; the Trainer's state comes last."""
    whole: dict[int, Path] = {}
    for state in run.glob("checkpoint-*/trainer_state.json"):
        with contextlib.suppress(ValueError):  # killed in the middle of this file
            whole[int(json.loads(state.read_text(encoding="utf-8"))["global_step"])] = state.parent
    return str(whole[max(whole)]) if whole else None


def _weights_digest(source: Path) -> list[list[Any]]:
    """Sizes and names, not contents: reading 4 GB to resume would cost more than it tells."""
    files = sorted(source.glob("*.safetensors"))
    return [[path.name, path.stat().st_size] for path in files]


def _arguments(run: Path, recipe: SftRecipe, schedule: Wsd, save_every: int) -> TrainingArguments:
    on_cpu = not torch.cuda.is_available()
    return TrainingArguments(
        output_dir=str(run),
        max_steps=schedule.steps,
        per_device_train_batch_size=recipe.rows_at_once,
        gradient_accumulation_steps=recipe.rows_per_step // recipe.rows_at_once,
        learning_rate=recipe.peak_lr,
        lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs={"num_decay_steps": schedule.decay, "decay_type": "linear"},
        warmup_steps=schedule.warmup,
        weight_decay=recipe.weight_decay,
        adam_beta1=recipe.beta1,
        adam_beta2=recipe.beta2,
        max_grad_norm=recipe.clip_norm,
        optim="adamw_torch",
        bf16=recipe.precision == "bfloat16",
        seed=recipe.seed,
        data_seed=recipe.seed,
        save_strategy="steps",
        save_steps=save_every,
        save_total_limit=2,
        logging_steps=1,
        logging_nan_inf_filter=False,  # a loss that is no number must show as one
        report_to="none",
        disable_tqdm=True,
        use_cpu=on_cpu,
        dataloader_pin_memory=not on_cpu,
        remove_unused_columns=False,
    )


def _check_installed(recipe: SftRecipe) -> None:
    """The Trainer, and LoRA, need packages that Transformers itself does not."""
    for package in ("accelerate", "peft") if recipe.lora else ("accelerate",):
        if find_spec(package) is None:
            raise MissingExtraError("fine-tuning", "sft")


def _check_alone() -> None:
    """One process, one device: every process of a launcher would write the same folders."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count != 1:
        raise ConfigError(
            f"expected one process, got {count} (WORLD_SIZE): start monolane sft without a launcher"
        )
    if torch.cuda.device_count() > 1:
        raise ConfigError(
            f"expected one GPU, got {torch.cuda.device_count()}, which would share out a step's "
            "rows: set CUDA_VISIBLE_DEVICES to one of them"
        )


def _collate(pad_id: int, rows: list[Row]) -> dict[str, torch.Tensor]:
    """Return rows as tensors. No attention mask: the positions say where a chat begins."""
    arrays = row_arrays(rows, pad_id)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


class _Losses(TrainerCallback):
    """Keeps the loss of every step and passes on what is logged."""

    def __init__(self, report: Report | None) -> None:
        self.values: list[float] = []
        self._report = report

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Take one step's log; the summary at the end has no loss of a step."""
        if "loss" in (logs or {}):
            self.values.append(logs["loss"])
            if self._report is not None:
                self._report(state.global_step, logs)
