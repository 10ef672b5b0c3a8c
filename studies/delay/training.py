"""One training, from first weights to its line of the results.

Nothing waits for the device within a step: rows are gathered there, losses stay there, the gradient
is clipped by a number that stays there. The clock is read every few steps. A run that would end
after its deadline is given up: half a run compares with nothing. One with a checkpoint goes on.
"""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from monolane._schedule import Wsd
from monolane.hf import LaneformerForCausalLM
from monolane.train._config import Model, Optimizer
from monolane.train._forecast import flops_per_token, peak_flops
from monolane.train._optimiser import Optimiser
from studies.delay.checkpoint import SECONDS, Checkpoint
from studies.delay.model import Mixed, layers_of, logits_of, make_model, nats_of
from studies.delay.plan import DIVERGED, DONE, FAILED, Run
from studies.delay.sizes import SIZES, VARIANTS, Size, Variant
from studies.delay.text import Text

_WARM_UP, _DECAY = 0.05, 0.3  # shares of the steps: warm up, stay, decay to zero
_CHECK = 25  # steps between readings of the clock
_UNTIMED = 10  # steps at a run's begin: compilation, and the allocator's first blocks
_EXAMS = 4  # of a run, evenly spread, the last at its end
_POINTS = 50  # of the kept curve
_NOT_FINITE = "the loss is not finite"


@dataclass
class Clock:
    """Where a run's seconds go; the device is waited for at each reading."""

    device: torch.device
    began: float = field(default_factory=time.perf_counter)
    timed_tokens: int = 0
    timed_seconds: float = 0.0
    exam_seconds: float = 0.0

    def state(self) -> dict[str, float]:
        """What was measured so far, for a checkpoint."""
        return {
            "seconds": self.now(), "timed_tokens": self.timed_tokens,
            "timed_seconds": self.timed_seconds, "exam_seconds": self.exam_seconds,
        }  # fmt: skip

    def go_on(self, state: dict[str, Any]) -> None:
        """Count on from what a checkpoint says."""
        self.began = time.perf_counter() - state["seconds"]
        self.timed_tokens, self.timed_seconds = state["timed_tokens"], state["timed_seconds"]
        self.exam_seconds = state["exam_seconds"]

    def now(self) -> float:
        """Return seconds since the run began, once the device has done all that was asked."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - self.began

    @property
    def rate(self) -> float:
        """Tokens/s of training alone; 0 before anything was timed."""
        return self.timed_tokens / self.timed_seconds if self.timed_seconds else 0.0


def train(
    run: Run,
    text: Text,
    device: torch.device,
    left: Callable[[], float],
    compiled: bool,
    keep: Callable[[LaneformerForCausalLM], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> dict[str, Any] | None:
    """Train one model; return its line of the results.

    ``left`` says how many seconds there are. A run that would not end within them is given up; with
    a ``checkpoint`` it goes on from there, and where the seconds end it is written and None
    returned. ``keep`` is given the trained model.
    """
    size, variant = SIZES[run.size], VARIANTS[run.variant]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    clock = Clock(device)
    mixed = Mixed(make_model(size, variant, run.seed).to(device), size.dtype)
    if compiled:
        compile_layers(mixed.model)
    step_loss = nats_of(size, compiled)
    optimiser = Optimiser(mixed.masters, Optimizer(peak_lr=run.rate))
    steps = size.steps(run.tokens)
    schedule = Wsd.of(steps, _WARM_UP, _DECAY)
    starts_SB = text.order(run.seed, steps, size.rows, size.context)
    passes = size.passes_of(variant.lanes)
    losses_S = torch.zeros(steps, device=device)
    exams = {round(steps * (i + 1) / _EXAMS) for i in range(_EXAMS)}
    if run.tokens == size.search_tokens:
        exams = {steps}
    curve: list[tuple[int, float, float]] = []
    begin, first_step = 0, 0.0
    if checkpoint and (state := checkpoint.read(mixed, optimiser, losses_S)):
        begin, first_step, curve = state["step"], state["first_step"], state["curve"]
        clock.go_on(state["clock"])
        say(f"goes on: {run.variant}, seed {run.seed}, rate {run.rate:g}, step {begin} of {steps}")
    untimed = begin + min(_UNTIMED, (steps - begin) // 2)
    at, since, written = 0.0, 0, clock.now()
    why = ""
    for step in range(begin, steps):
        for starts_B in starts_SB[step].chunk(passes):
            ids_BT = text.rows(starts_B, size.context)
            nats = step_loss(logits_of(mixed.model, ids_BT[:, :-1]), ids_BT[:, 1:])
            nats = nats / size.step_tokens
            nats.backward()  # type: ignore[no-untyped-call]
            losses_S[step] += nats.detach()
            mixed.collect()
        torch.nn.utils.clip_grad_norm_(mixed.masters.parameters(), Optimizer().clip_norm)
        optimiser.step(schedule.rate(run.rate, step))
        mixed.publish()
        done = step + 1
        if done == 1:
            first_step = clock.now()
        if done == untimed:
            at, since = clock.now(), done
        elif done > untimed and (done % _CHECK == 0 or done in exams):
            now = clock.now()
            clock.timed_tokens += (done - since) * size.step_tokens
            clock.timed_seconds += now - at
            at, since = now, done
            there = math.inf if checkpoint else left()
            why = _trouble(losses_S[done - 1], clock, steps - done, size, there)
            if why:
                break
        if done in exams:
            before = clock.now()
            curve.append((done, *examine(mixed.model, text.exam, size.rows // passes)))
            at = clock.now()
            clock.exam_seconds += at - before
        if checkpoint and done < steps and (left() < 0 or clock.now() - written > SECONDS):
            state = {"step": done, "first_step": first_step, "curve": curve, "clock": clock.state()}
            checkpoint.write(mixed, optimiser, losses_S, state)
            written = clock.now()
            if left() < 0:
                return None
    line = _line(run, size, variant, text, mixed, clock, curve, losses_S[:done])
    line |= {"compiled": compiled, "first_step_s": round(first_step, 2)}
    if why:
        return line | {"state": DIVERGED if why.startswith(_NOT_FINITE) else FAILED, "why": why}
    if not math.isfinite(curve[-1][1]):
        return line | {"state": DIVERGED, "why": f"{_NOT_FINITE} in the exam"}
    if keep is not None:
        keep(mixed.model)
    return line | {"state": DONE}


def _trouble(loss: Tensor, clock: Clock, steps: int, size: Size, there: float) -> str:
    """Say why a run is not worth going on with; nothing if it is."""
    value = float(loss)
    if not math.isfinite(value):
        return f"{_NOT_FINITE}: {value}"
    wanted = steps * size.step_tokens / clock.rate
    if wanted > there:
        return f"given up: {wanted:.0f} s to go at {clock.rate:,.0f} tokens/s, {there:.0f} s left"
    return ""


def compile_layers(model: LaneformerForCausalLM) -> None:
    """Compile layer by layer: layers share their code, so a model is four compilations."""
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    for layer in model.model.layers:
        layer.compile(dynamic=False)


@torch.no_grad()
def examine(model: LaneformerForCausalLM, exam: Any, rows: int) -> tuple[float, float]:
    """Return nats a token of the targets that count, and of all."""
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=exam.ids.device)
    with torch.compiler.set_stance("force_eager"):  # no second compilation for a few passes
        for ids_BT, counts_BT in zip(exam.ids.split(rows), exam.counts.split(rows), strict=True):
            logits_BTV = logits_of(model, ids_BT[:, :-1])
            nats_BT = torch.nn.functional.cross_entropy(
                logits_BTV.flatten(0, 1).float(), ids_BT[:, 1:].flatten(), reduction="none"
            ).view(counts_BT.shape)
            sums += torch.stack([(nats_BT * counts_BT).sum(), nats_BT.sum()])
    model.train()
    counted, every = sums.tolist()
    return counted / max(1, int(exam.counts.sum())), every / exam.counts.numel()


def _line(
    run: Run,
    size: Size,
    variant: Variant,
    text: Text,
    mixed: Mixed,
    clock: Clock,
    curve: list[tuple[int, float, float]],
    losses_S: Tensor,
) -> dict[str, Any]:
    """What a run learnt and took, as far as it came."""
    shape = Model(**variant.config_fields(size) | {"num_hidden_layers": layers_of(variant, size)})
    needed = flops_per_token(shape, size.context)
    peak = peak_flops(clock.device)
    cuda = clock.device.type == "cuda"
    memory = torch.cuda.max_memory_allocated(clock.device) / 1e9 if cuda else None
    parts = losses_S.double().cpu().tensor_split(min(_POINTS, len(losses_S)))
    every = curve[-1][2] if curve else math.nan
    return {
        "kind": "run", **run.key(), "part": run.part,
        "parameters": sum(x.numel() for x in mixed.masters.parameters()),
        "steps": size.steps(run.tokens), "text": text.digest,
        "exam_nats": _number(curve[-1][1]) if curve else None, "exam_nats_all": _number(every),
        "bits_per_byte": _number(every / math.log(2) / text.exam.bytes_per_token),
        "exam_curve": [[step, _number(nats)] for step, nats, _ in curve],
        "loss_curve": [_number(float(part.mean())) for part in parts],
        "tokens_per_s": round(clock.rate), "flops_per_token": needed,
        "mfu": round(clock.rate * needed / peak, 4) if peak else None,
        "memory_gb": None if memory is None else round(memory, 2),
        "seconds": round(clock.now(), 1), "exam_s": round(clock.exam_seconds, 2),
    }  # fmt: skip


def _number(value: float) -> float | None:
    """JSON has no word for what is not finite."""
    return round(value, 6) if math.isfinite(value) else None


# ---- whether the machine computes what it should -------------------------------------------------
def first_loss(
    size: Size, variant: Variant, text: Text, device: torch.device, compiled: bool
) -> float:
    """Return the loss of the first pass of a run, and take its gradients, too."""
    model = Mixed(make_model(size, variant, 0).to(device), size.dtype).model
    if compiled:
        compile_layers(model)
    starts_SB = text.order(0, 1, size.rows, size.context)
    ids_BT = text.rows(starts_SB[0][: size.rows // size.passes], size.context)
    nats = nats_of(size, False)(logits_of(model, ids_BT[:, :-1]), ids_BT[:, 1:])
    nats.backward()  # type: ignore[no-untyped-call]
    gradients = [x.grad for x in model.parameters() if x.grad is not None]
    if not all(bool(torch.isfinite(x).all()) for x in gradients):
        raise ValueError(f"{variant.name}: a gradient is not finite")
    return float(nats.detach()) / ids_BT[:, 1:].numel()


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
