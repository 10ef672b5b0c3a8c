"""The DTP study: what does a delay cost in quality, at equal parameters and equal tokens?

    python studies/dtp/study.py small           # every run that results/small.jsonl lacks
    python studies/dtp/report.py                # the report, from all results

Each variant tries the rates of its size under seed 0, then gets further seeds at the best of them;
"small" has one rate for all, so there nothing is searched. A finished run is a
line of the results file at once, and with --states a begun one keeps its state there, so the study
may be stopped and goes on. --list says what is missing.
Needs ``pip install 'monolane[train]'``.
"""

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rules import apply_rule
from text import Text, read_text
from torch import Tensor
from variants import SIZES, Size, config_fields

from monolane.hf import LaneformerConfig, LaneformerForCausalLM

RESULTS = Path(__file__).parent / "results"

_WARM_UP, _DECAY = 0.05, 0.3  # shares of the steps: warm up, stay, decay to zero
_WEIGHT_DECAY, _BETAS, _CLIP = 0.1, (0.9, 0.95), 1.0  # as in the 2B recipe
_EXAMINED_ROWS = 128
_EXAMS = 4  # of a run, evenly spread, the last at its end
# Of small's measures, processor time on a Zen 4 core that others used too: of lanes, and of dense.
_STEP_SECONDS = (0.53, 0.37)


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


def make_model(size: Size, run: Run) -> LaneformerForCausalLM:
    """Return the model that ``run`` begins with."""
    torch.manual_seed(run.seed)
    model = LaneformerForCausalLM(LaneformerConfig(**config_fields(size, run.variant)))
    apply_rule(model, run.variant)
    return model


def train(
    size: Size, run: Run, text: Text, device: str, state: Path | None = None
) -> dict[str, Any]:
    """Train one model; return its line of the results.

    Its state is kept in the file ``state`` at each exam but the last, and gone on from if it is
    there: to the same bits.
    """
    model = make_model(size, run).to(device)
    optimizer = torch.optim.AdamW(_groups(model), lr=run.learning_rate, betas=_BETAS, fused=True)
    exams = {round(size.steps * (i + 1) / _EXAMS) for i in range(_EXAMS)}
    held_out: list[tuple[int, float]] = []
    losses: list[float] = []
    spent = 0.0
    if state is not None and state.exists():
        kept = torch.load(state)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        held_out, losses, spent = kept["held_out"], kept["losses"], kept["seconds"]
    began = time.perf_counter() - spent
    for step in range(len(losses), size.steps):
        rows_BT = text.batch(run.seed, step, size.rows, size.context)
        loss = _loss(model, rows_BT, device)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, size.steps, run.learning_rate)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step + 1 in exams:
            held_out.append((step + 1, examine(model, size, text, device)))
            if state is not None and step + 1 < size.steps:
                parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                values = {"held_out": held_out, "losses": losses}
                seconds = {"seconds": time.perf_counter() - began}
                torch.save({**parts, **values, **seconds}, state.with_suffix(".part"))
                state.with_suffix(".part").replace(state)
    if state is not None:
        state.unlink(missing_ok=True)
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


def to_do(
    size: Size,
    seeds: int,
    done: Sequence[dict[str, Any]],
    first: int = 1,
    searched: Sequence[dict[str, Any]] = (),
) -> Iterator[Run]:
    """Yield what is missing: the search over rates, then seeds at each variant's best rate.

    A seed is tried on all variants before the next, so that a study that is stopped is fair. After
    the search, processes that begin with different seeds, ``first``, can share the work.
    ``searched`` are the results of the size that the rates are taken from, where that is another.
    """
    have = {Run(line["variant"], line["learning_rate"], line["seed"]) for line in done}
    search = [Run(variant, rate, 0) for rate in size.learning_rates for variant in size.variants]
    if size.rates_of is not None:
        missing = [v for v in size.variants if v not in {line["variant"] for line in searched}]
        if missing:
            raise SystemExit(
                f"{size.name}: expected the rates of {', '.join(missing)} among the results of "
                f"{size.rates_of}, found none; run {size.rates_of} first"
            )
        search = [Run(variant, best_rate(searched, variant), 0) for variant in size.variants]
        done = searched
    yield from (run for run in search if run not in have)
    if size.rates_of is not None or all(run in have for run in search):
        runs = [
            Run(variant, best_rate(done, variant), seed)
            for seed in range(first, seeds)
            for variant in size.variants
        ]
        runs += [
            Run(variant, best_rate(done, "delay 2"), seed)
            for variant in size.controls
            for seed in range(min(2, seeds))
        ]
        yield from (run for run in runs if run not in have)


def forecast(size: Size, seeds: int, done: Sequence[dict[str, Any]], workers: int) -> list[str]:
    """Return a line for each part of what is missing, with its minutes for ``workers`` processes.

    The step times are of ``small``'s measures, and a step is taken to go by its layers; no other
    measure is foretold.
    """
    have = {(line["variant"], line["seed"]) for line in done}
    rates = len({(line["variant"], line["learning_rate"]) for line in done if line["seed"] == 0})
    searches = max(1, len(size.learning_rates)) * len(size.variants)
    rates = min(searches, rates - len({v for v, _ in have} & set(size.controls)))
    further = [(v, s) for v in size.variants for s in range(1, seeds) if (v, s) not in have]
    controls = [(v, s) for v in size.controls for s in range(min(2, seeds)) if (v, s) not in have]
    each = statistics.fmean(_STEP_SECONDS[v == "dense"] for v in size.variants)
    parts = {
        "search and seed 0": (searches - rates) * each,
        "further seeds": sum(_STEP_SECONDS[v == "dense"] for v, _ in further),
        "controls": len(controls) * _STEP_SECONDS[False],
    }
    steps = size.steps * size.layers / SIZES["small"].layers
    minutes = {name: value * steps / 60 / workers for name, value in parts.items()}
    minutes["in all"] = sum(minutes.values())
    return [f"{value:6.1f} min  {size.name}: {name}" for name, value in minutes.items()]


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
    parser.add_argument("--threads", type=int, default=1, help="of a process")
    parser.add_argument("--workers", type=int, default=1, help="processes, each on its own run")
    parser.add_argument("--states", type=Path, help="folder that keeps the state of begun runs")
    parser.add_argument("--list", action="store_true", help="say what is missing, and its minutes")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    size, path = SIZES[options.size], options.out / f"{options.size}.jsonl"
    if options.list:
        lines = forecast(size, options.seeds, read_results(path), options.workers)
        sys.stdout.write("\n".join(lines) + "\n")
        return 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options.out.mkdir(parents=True, exist_ok=True)
    text = _text()
    if any(line["text"] != text.digest[:16] for line in read_results(path)):
        raise SystemExit(
            f"{path}: expected runs on the text {text.digest[:16]}, got another: the standard "
            "library differs; use the Python that began, or another --out"
        )
    while runs := _next(size, options, path):
        for line in _results(size, runs, text, device, options):
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
            sys.stderr.write(
                f"{line['variant']:20} rate {line['learning_rate']:g} seed {line['seed']}: "
                f"{line['held_out_nats']:.4f} nats, {line['seconds']:.0f} s\n"
            )
    return 0


def _next(size: Size, options: argparse.Namespace, path: Path) -> list[Run]:
    searched = [] if size.rates_of is None else read_results(path.with_stem(size.rates_of))
    done = read_results(path)
    return list(to_do(size, options.seeds, done, options.first_seed, searched))


def _text() -> Text:
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(library.rglob("*.py"))
    return read_text([file for file in files if "site-packages" not in file.parts])


def _results(
    size: Size, runs: Sequence[Run], text: Text, device: str, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield the lines of ``runs`` as they come."""
    if options.workers == 1:
        torch.set_num_threads(options.threads)
        for run in runs[:1]:  # another process may do the next one meanwhile
            yield train(size, run, text, device, _state(size, run, options.states))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, context, _begin, (options.threads,)) as pool:
        states = (_state(size, run, options.states) for run in runs)
        jobs = [
            pool.submit(train, size, run, text, device, state)
            for run, state in zip(runs, states, strict=True)
        ]
        try:
            for job in as_completed(jobs):
                yield job.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(threads: int) -> None:
    """Set up a worker: it ends with its launcher, however that ends."""
    torch.set_num_threads(threads)
    launcher = multiprocessing.parent_process()
    assert launcher is not None

    def end() -> None:
        launcher.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _state(size: Size, run: Run, folder: Path | None) -> Path | None:
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{size.name}-{run.variant}-{run.learning_rate:g}-{run.seed}"
    return folder / f"{name.replace(', ', '-').replace(' ', '-')}.pt"


if __name__ == "__main__":
    sys.exit(main())
