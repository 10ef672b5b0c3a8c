"""Supervised fine-tuning: chats in, a model folder out that ``monolane chat`` runs.

Transformers' Trainer does the steps, as in the recipe of Laneformer 2B; TRL's adds rendering,
masking and packing, and these are ours, because the ids must be those that the engine sees. The
run's state lies next to the folder, in ``<out>.run``: the folder is filled when all is done.
"""

import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import TrainingArguments
from transformers.trainer_callback import PrinterCallback

from monolane._schedule import Wsd
from monolane.data import IGNORED
from monolane.errors import CheckpointError, ConfigError, MissingExtraError, TextError
from monolane.hf import LaneformerForCausalLM, load_whole
from monolane.model import ModelConfig, check_replaceable, open_laneformer
from monolane.text import ChatTemplate
from monolane.train import (
    Observers,
    check_boards,
    deferred_interrupt,
    run_observers,
)
from monolane.tune._generation_template import marked_template
from monolane.tune._lora import add_lora, merged
from monolane.tune._material import (
    Material,
    Row,
    chat_encoder,
    prepare_material,
    row_arrays,
    trained_context,
)
from monolane.tune._recipe import SftRecipe
from monolane.tune._run_state import check_finite, opened_run, weights_digest
from monolane.tune._staging import publish, rounded_tensors
from monolane.tune._trainer import RowStream, StreamTrainer
from monolane.tune._trainer_callback import Report, Score, Watch

_FORMAT = 2  # 1: rows in the Trainer's own order, with a short step at the end of each pass


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
    boards: bool = False,
) -> Tuned:
    """Fine-tune the model of ``source`` on the chats of ``data`` and write the folder ``out``.

    A checkpoint is kept in ``<out>.run`` every ``save_every`` steps; ``resume`` continues from the
    newest whole one and ends in the bits of a run that was never stopped. On SIGINT or SIGTERM the
    step ends, the state is kept, and KeyboardInterrupt follows. ``boards`` shows the run as
    pre-training does: terminal, journal, TensorBoard. ConfigError, TextError and CheckpointError
    say what cannot be tuned, before anything is trained; TrainingError, that the run diverged:
    weights that are not finite are never written.
    """
    _check_installed(recipe)
    if boards:
        check_boards()
    check_replaceable(source, out, overwrite)
    _check_alone()
    config, _ = open_laneformer(source, "tune")
    material = prepare_material(
        data, chat_encoder(source, config), trained_context(config, recipe), recipe
    )
    _check_ids(material, config, source)
    steps = recipe.steps or math.ceil(recipe.epochs * len(material.rows) / recipe.rows_per_step)
    schedule = Wsd.of(steps, recipe.warmup_share, recipe.decay_share)
    facts = {
        "format": _FORMAT,
        "recipe": recipe.to_dict(),
        "data": material.digest,
        "rows": material.rows_digest(),
        "model": weights_digest(source.glob("*.safetensors")),
    }
    with opened_run(out, facts, resume, newer=("rows",)) as opened:
        run, last = opened.folder, opened.newest
        template = ChatTemplate.open(source)
        marked = marked_template(template.source)
        (run / "chat_template.training.jinja").write_text(marked, encoding="utf-8")
        start = 0 if last is None else int(last.name.rpartition("-")[2])
        observers = run_observers(run, start, steps, boards)
        try:
            for line in opened.told:
                observers.event(start, "damaged", line)
            observers.event(start, "resume" if last else "start", "")
            model, losses, logged = _trained(
                source, run, recipe, schedule, material, config, last, save_every, report, observers
            )
            observers.event(steps, "end", "all steps are done")
        finally:
            observers.close()
        adapter = None
        if recipe.lora is not None:
            adapter = run / "adapter"
            model.save_pretrained(adapter)
            model = merged(model)
        check_finite(model)
        tenth = max(1, len(logged) // 10)
        values: dict[str, Any] = {
            "recipe": recipe,
            "material": material,
            "steps": schedule.steps,
            "first": fmean(logged[:tenth]),
            "last": fmean(logged[-tenth:]),
        }
        tensors = rounded_tensors(config, model)
        # A folder without a template of its own was tuned in the default one: it says so from now.
        texts = {"chat_template.jinja": template.source} if template.is_default else {}
        publish(source, out, config, tensors, overwrite, "sft_card", texts=texts, **values)
    return Tuned(material, schedule.steps, tuple(losses), adapter)


def _trained(
    source: Path,
    run: Path,
    recipe: SftRecipe,
    schedule: Wsd,
    material: Material,
    config: ModelConfig,
    last: Path | None,
    save_every: int,
    report: Report | None,
    observers: Observers,
) -> tuple[Any, list[float], list[float]]:
    """Do the steps that are left.

    Returns the model, adapted where LoRA is, their losses, and those of all steps of the run.
    """
    model = load_whole(LaneformerForCausalLM, source, dtype=torch.float32)
    torch.manual_seed(recipe.seed)  # LoRA's first values
    trained: Any = model if recipe.lora is None else add_lora(model, recipe.lora)
    pad_id = config.pad_id or 0
    score = _scorer(material, pad_id) if material.held_out else None
    per_step = recipe.rows_per_step * material.tokens / len(material.rows)
    with deferred_interrupt() as asked:
        watch = Watch(run, observers, asked, per_step, report, score, recipe.evaluate_every)
        length = schedule.steps * recipe.rows_per_step
        trainer = StreamTrainer(
            schedule,
            model=trained,
            args=_arguments(run, recipe, schedule, save_every),
            train_dataset=RowStream(material.rows, length, recipe.seed),
            data_collator=partial(_collate, pad_id),
            callbacks=[watch],
        )
        trainer.remove_callback(PrinterCallback)
        with warnings.catch_warnings(), _write_errors_told(run):
            # Transformers 5.23 reads a checkpoint's config as a plain one, of which the field is
            # not.
            warnings.filterwarnings("ignore", message="`rope_scaling` is deprecated")
            trainer.train(resume_from_checkpoint=None if last is None else str(last))
        if asked():
            text = "asked to stop; the state is kept"
            observers.event(trainer.state.global_step, "stop", text)
            raise KeyboardInterrupt
    # Kept with each checkpoint: a run that was resumed at its end has no step of its own.
    logged = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return trained, watch.losses, logged


def _scorer(material: Material, pad_id: int) -> Score:
    """Return what scores a model on the held-out chats, in nats per token of the answers."""

    def score(model: Any) -> dict[str, float]:
        was_training = model.training
        model.eval()
        nats, spoken = 0.0, 0
        with torch.no_grad():
            for row in material.held_out:
                batch = _collate(pad_id, [row])
                labels = batch["labels"]
                count = int((labels[:, 1:] != IGNORED).sum())
                on_device = {name: part.to(model.device) for name, part in batch.items()}
                nats += model(**on_device, use_cache=False).loss.item() * count
                spoken += count
        model.train(was_training)
        return {"nats_per_token": nats / max(1, spoken)}

    return score


@contextmanager
def _write_errors_told(run: Path) -> Iterator[None]:
    """Turn what the writers of checkpoints say of a full disk into a CheckpointError."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        written = isinstance(error, SafetensorError) or "PytorchStreamWriter" in f"{error}"
        if not written:
            raise
        reason = f"{error}".strip().split("\n")[0]
        raise CheckpointError(
            f"{run}: a checkpoint cannot be written: {reason}; make room, and go on with --resume "
            "from the one before it"
        ) from error


def _check_ids(material: Material, config: ModelConfig, source: Path) -> None:
    """Refuse ids that the model has no row for: tokenizer and weights are of two models."""
    rows = (*material.rows, *material.held_out)
    largest = max(int(chat.ids.max()) for row in rows for chat in row.chats)
    if largest >= config.vocab_size:
        raise TextError(
            f"{source}: expected token ids below vocab_size = {config.vocab_size}, but its "
            f"tokenizer gives {largest}; take the tokenizer that belongs to these weights"
        )


def _arguments(run: Path, recipe: SftRecipe, schedule: Wsd, save_every: int) -> TrainingArguments:
    on_cpu = not torch.cuda.is_available()
    return TrainingArguments(
        output_dir=str(run),
        max_steps=schedule.steps,
        per_device_train_batch_size=recipe.rows_at_once,
        gradient_accumulation_steps=recipe.rows_per_step // recipe.rows_at_once,
        learning_rate=recipe.peak_lr,
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
