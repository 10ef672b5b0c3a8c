"""The DTP study: what does a delay cost in quality, at equal parameters and equal tokens?

    python studies/dtp/study.py small           # every run that results/small.jsonl lacks
    python studies/dtp/report.py                # the report, from all results

Each variant tries the rates of its size under seed 0, then gets further seeds at the best of them;
"small" has one rate for all, so there nothing is searched. A finished run is a
line of the results file at once, so the study may be stopped and goes on.
Needs ``pip install 'monolane[train]'``.
"""

import argparse
import json
import math
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from text import Text, read_text
from torch import Tensor
from variants import SIZES, VARIANTS, Size, config_fields

from monolane.hf import LaneformerConfig, LaneformerForCausalLM

RESULTS = Path(__file__).parent / "results"

_WARM_UP, _DECAY = 0.05, 0.3  # shares of the steps: warm up, stay, decay to zero
_WEIGHT_DECAY, _BETAS, _CLIP = 0.1, (0.9, 0.95), 1.0  # as in the 2B recipe
_EXAMINED_ROWS = 128
_EXAMS = 4  # of a run, evenly spread, the last at its end


@dataclass(frozen=True)
class Run:
    """One training: a point of the study."""

    variant: str
    learning_rate: float
    seed: int


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Return the rate of step ``step``, counted from 0."""
    warm, decay = max(1, int(steps * _WARM_UP)), max(1, int(steps * _DECAY))
    return peak * min(1.0, (step + 1) / warm, (steps - step) / decay)


def train(size: Size, run: Run, text: Text, device: str) -> dict[str, Any]:
    """Train one model; return its line of the results."""
    torch.manual_seed(run.seed)
    model = LaneformerForCausalLM(LaneformerConfig(**config_fields(size, run.variant))).to(device)
    optimizer = torch.optim.AdamW(_groups(model), lr=run.learning_rate, betas=_BETAS, fused=True)
    exams = {round(size.steps * (i + 1) / _EXAMS) for i in range(_EXAMS)}
    held_out: list[tuple[int, float]] = []
    losses: list[float] = []
    began = time.perf_counter()
    for step in range(size.steps):
        rows_BT = text.batch(run.seed, step, size.rows, size.context)
        loss = _loss(model, rows_BT, device)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, size.steps, run.learning_rate)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step + 1 in exams:
            held_out.append((step + 1, examine(model, size, text, device)))
    nats = held_out[-1][1]
    return {
        "size": size.name,
        "variant": run.variant,
        "learning_rate": run.learning_rate,
        "seed": run.seed,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tokens": size.tokens,
        "text": text.digest[:16],
        "held_out_nats": nats,
        "held_out_bits_per_byte": nats / math.log(2) / text.held_out_bytes_per_token,
        "held_out_curve": held_out,
        "train_nats_last_tenth": float(np.mean(losses[-max(1, size.steps // 10) :])),
        "seconds": round(time.perf_counter() - began, 1),
        "device": device,
    }


@torch.inference_mode()
def examine(model: torch.nn.Module, size: Size, text: Text, device: str) -> float:
    """Return the held-out loss in nats per token."""
    model.eval()
    rows_BT = text.examination(_EXAMINED_ROWS, size.context)
    parts = [
        _loss(model, rows_BT[at : at + size.rows], device).item()
        for at in range(0, len(rows_BT), size.rows)
    ]
    model.train()
    return float(np.mean(parts))


def _loss(model: torch.nn.Module, rows_BT: np.ndarray, device: str) -> Tensor:
    ids_BT = torch.from_numpy(rows_BT.astype(np.int64)).to(device)
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        loss: Tensor = model(input_ids=ids_BT, labels=ids_BT, use_cache=False).loss
    return loss


def _groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Decay matrices and tables, not norm scales."""
    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if "norm" not in n], "weight_decay": _WEIGHT_DECAY},
        {"params": [p for n, p in named if "norm" in n], "weight_decay": 0.0},
    ]


def to_do(size: Size, seeds: int, done: Sequence[dict[str, Any]], first: int = 1) -> Iterator[Run]:
    """Yield what is missing: the search over rates, then seeds at each variant's best rate.

    A seed is tried on all variants before the next, so that a study that is stopped is fair. After
    the search, processes that begin with different seeds, ``first``, can share the work.
    """
    have = {Run(line["variant"], line["learning_rate"], line["seed"]) for line in done}
    search = [Run(variant, rate, 0) for rate in size.learning_rates for variant in VARIANTS]
    yield from (run for run in search if run not in have)
    if all(run in have for run in search):
        for seed in range(first, seeds):
            for variant in VARIANTS:
                run = Run(variant, best_rate(done, variant), seed)
                if run not in have:
                    yield run


def _next(size: Size, options: argparse.Namespace, path: Path) -> Run | None:
    return next(to_do(size, options.seeds, read_results(path), options.first_seed), None)


def best_rate(done: Sequence[dict[str, Any]], variant: str) -> float:
    """Return the rate with the lowest held-out loss under seed 0."""
    tried = [line for line in done if line["variant"] == variant and line["seed"] == 0]
    best = min(tried, key=lambda line: float(np.nan_to_num(line["held_out_nats"], nan=np.inf)))
    return float(best["learning_rate"])


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the finished runs of a file; none if there is no file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def main(arguments: list[str] | None = None) -> int:
    """Do the runs that are missing."""
    parser = argparse.ArgumentParser(description="Train all variants of one size.")
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1, help="of those after the search")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, path = SIZES[options.size], options.out / f"{options.size}.jsonl"
    options.out.mkdir(parents=True, exist_ok=True)
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(library.rglob("*.py"))
    text = read_text([file for file in files if "site-packages" not in file.parts])
    if any(line["text"] != text.digest[:16] for line in read_results(path)):
        raise SystemExit(
            f"{path}: expected runs on the text {text.digest[:16]}, got another: the standard "
            "library differs; use the Python that began, or another --out"
        )
    while (run := _next(size, options, path)) is not None:
        line = train(size, run, text, device)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        sys.stderr.write(
            f"{run.variant:15} rate {run.learning_rate:g} seed {run.seed}: "
            f"{line['held_out_nats']:.4f} nats, {line['seconds']:.0f} s\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
