"""Train a small Llama, convert it to lanes, and see what bringing the delay in costs.

    python examples/retrofit/run.py OUT            some 25 minutes on one core
    python examples/retrofit/run.py OUT --quick    a minute: that it runs, not what it shows

A Llama with the demo's vocabulary learns the source of Python's standard library for some minutes;
its conversion at delay 0 is compared with it; then the delay is switched on at once, and brought in
step by step in several orders, each trained for as long. OUT/results.json holds what came out.
"""

import argparse
import dataclasses
import json
import shutil
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from monolane.hf import LaneformerForCausalLM, load_whole
from monolane.sources import find_model
from monolane.text import Tokenizer
from monolane.tune import AnnealRecipe, Windows, heal, held_out_loss, read_windows, retrofit_folder

SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 2048,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
CONTEXT, LANES = 128, 8
LATE, EARLY = "delay1-vocab_parallel", "delay1-vocab_parallel-early"
# What is compared: conversion, order, objective. The first is the control: what the same
# steps on the same text do for a model without a delay.
RUNS = (
    ("one-lane", "at_once", "finetune"),
    (LATE, "at_once", "finetune"),
    (LATE, "together", "finetune"),
    (LATE, "at_once", "distil"),
    (LATE, "together", "distil"),
    (LATE, "from_top", "distil"),
    (LATE, "from_bottom", "distil"),
    (EARLY, "at_once", "distil"),
    (EARLY, "together", "distil"),
    ("delay1-replicate", "together", "distil"),
    ("delay2-vocab_parallel-early", "together", "distil"),
)


def say(line: str) -> None:
    """Tell how far it is, also where the output is a file."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def train_dense(windows: Windows, steps: int, rows: int, seed: int) -> LlamaForCausalLM:
    """A small Llama from nothing: AdamW, the rate warmed up and decayed to zero."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(steps):
        rate = min((step + 1) / 50, 1.0, (steps - step) / (0.3 * steps))
        optimiser.param_groups[0]["lr"] = 3e-3 * rate
        ids_BC = torch.from_numpy(windows.batch(step, rows))
        loss = model(input_ids=ids_BC, labels=ids_BC, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if step % 50 == 0 or step == steps - 1:
            say(f"dense, step {step}: {loss.item():.3f}")
    return model.eval()


def load(folder: Path) -> LaneformerForCausalLM:
    """A converted model with float32 arithmetic."""
    model: LaneformerForCausalLM = load_whole(LaneformerForCausalLM, folder, dtype=torch.float32)
    return model.eval()


def at_once_losses(source: Path, out: Path, windows: Windows) -> dict[str, float]:
    """What the delay costs before any training, for each way to spell it."""
    found = {}
    for delay in (0, 1, 2):
        for head in ("vocab_parallel", "replicate"):
            for early in (False, True) if delay else (False,):
                name = f"delay {delay}, {head}{', early' if early else ''}"
                folder = out / name.replace(", ", "-").replace(" ", "")
                retrofit_folder(
                    source, folder, lanes=LANES, delay=delay, early=early, head=head, overwrite=True
                )
                found[name] = held_out_loss(load(folder), windows)
                say(f"{name}: {found[name]:.3f}")
    return found


def healed_losses(
    out: Path, windows: Windows, recipe: AnnealRecipe, only: list[int] | None
) -> list[dict[str, Any]]:
    """The same number of steps for each order and objective, from the same weights."""
    teacher = load(out / "one-lane")
    found = []
    for number, (name, order, objective) in enumerate(RUNS):
        if only and number not in only:
            continue
        begin, folder = time.monotonic(), out / name
        chosen = dataclasses.replace(recipe, order=order, objective=objective)
        healed = heal(teacher, load(folder), windows, chosen)
        found.append(
            {
                "folder": folder.name,
                "order": order,
                "objective": objective,
                "source": healed.source,
                "at_once": healed.at_once,
                "after": healed.after,
                "seconds": time.monotonic() - begin,
            }
        )
        say(json.dumps(found[-1]))
    return found


def main() -> None:
    """Run the whole comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true", help="few steps: only that it runs")
    parser.add_argument("--dense-steps", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="*", help="Numbers of the runs, counted from 0.")
    given = parser.parse_args()
    dense_steps, steps = (20, 4) if given.quick else (given.dense_steps, given.steps)
    out: Path = given.out
    out.mkdir(parents=True, exist_ok=True)

    demo = find_model("demo")
    tokenizer = Tokenizer.open(demo)
    assert tokenizer is not None
    library = Path(sysconfig.get_path("stdlib")) / ("email" if given.quick else ".")
    windows = read_windows(_sources(library, out), tokenizer, CONTEXT, given.seed)
    say(f"{len(windows.train_RC)} windows of {CONTEXT} tokens to train on")

    dense = train_dense(windows, dense_steps, 8, given.seed)
    source = out / "llama"
    dense.save_pretrained(source)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(demo / name, source / name)
    with torch.no_grad():
        rows = torch.from_numpy(np.asarray(windows.held_out_RC[:64]))
        loss = dense(input_ids=rows, labels=rows, use_cache=False).loss.item()
    say(f"dense: {loss:.3f} nats per token, held out")

    retrofit_folder(source, out / "one-lane", lanes=1, overwrite=True)
    at_once = at_once_losses(source, out, windows)
    recipe = AnnealRecipe(steps=steps, rows_per_step=8, context=CONTEXT, seed=given.seed)
    runs = healed_losses(out, windows, recipe, given.only)
    results = {"dense": loss, "at_once": at_once, "runs": runs, "steps": steps, "seed": given.seed}
    (out / "results.json").write_text(json.dumps(results, indent=2) + "\n")


def _sources(library: Path, out: Path) -> Path:
    """The top modules of the library, copied: a folder of text and nothing else."""
    folder = out / "text"
    folder.mkdir(exist_ok=True)
    for path in sorted(library.resolve().glob("*.py")):
        shutil.copyfile(path, folder / path.name)
    return folder


if __name__ == "__main__":
    main()
