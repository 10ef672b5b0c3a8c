"""Training a converted model back to its source while the delay comes in, step by step.

Switching the delay on at once breaks a trained model: every stream loses what the others said in
the last layers. So each module's exchange is, for a while,

    (1 - share) * (sum over all lanes, at once)  +  share * (what the delayed rule gives)

with a share that goes from 0 to 1. At 0 the model is the dense one, at 1 the plain Laneformer with
this delay: nothing of the mixing is left, and the weights are exported as they are.

Teacher: the conversion without a delay, which is the source (one lane will do, and is the fastest).
Student: the same weights with the delay, mixed in over the first part of the run. A plain loop and
not the Trainer: two models and a share that changes every step are all of it.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from monolane._schedule import Wsd
from monolane.errors import BackendError, RequestError, TextError
from monolane.hf import LaneformerForCausalLM, load_whole
from monolane.model import check_replaceable, open_laneformer
from monolane.train import deferred_interrupt
from monolane.tune._divergence import divergence
from monolane.tune._fast_cpu_model import swift
from monolane.tune._lora import low_rank
from monolane.tune._precision import products_dtype
from monolane.tune._recipe import AnnealRecipe, Objective, Order
from monolane.tune._run_state import (
    Gradients,
    Keeper,
    check_finite,
    opened_run,
    weights_digest,
)
from monolane.tune._staging import publish, rounded_tensors
from monolane.tune._teacher_topk import BestTokens
from monolane.tune._windows import Windows, open_tokenizer, read_windows

_ROWS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Healed:
    """Held-out losses, in nats per token: of the source, with the delay at once, and at the end."""

    source: float
    at_once: float
    after: float
    curve: tuple[tuple[int, float, float], ...]  # (step, training loss, share of the last layer)


class MixedReduce(nn.Module):
    """An exchange between "all at once" (share 0) and ``rule``, the delayed one (share 1)."""

    def __init__(self, rule: nn.Module) -> None:
        super().__init__()
        self.rule = rule
        self.share = 0.0

    def forward(self, o_LBTD: Tensor, late_LBTD: Tensor | None) -> Tensor:
        """Return what each lane adds to its stream, [L, B, T, D] or [1, B, T, D]."""
        if self.share == 1:
            return self.rule(o_LBTD, late_LBTD)
        now_1BTD = o_LBTD.sum(0, keepdim=True)
        if self.share == 0:
            return now_1BTD
        return now_1BTD.lerp(self.rule(o_LBTD, late_LBTD), self.share)


class Annealing:
    """The mixed exchanges of one model, and how far each has gone."""

    def __init__(self, model: LaneformerForCausalLM, order: Order) -> None:
        self._order = order
        self._layers: list[Any] = list(model.model.layers)
        for layer in self._layers:
            layer.attention_reduce = MixedReduce(layer.attention_reduce)
            layer.mlp_reduce = MixedReduce(layer.mlp_reduce)

    def advance(self, progress: float) -> None:
        """Set the shares for ``progress``, 0 (the dense model) to 1 (the delayed one)."""
        for i, layer in enumerate(self._layers):
            share = layer_share(self._order, i, len(self._layers), progress)
            layer.attention_reduce.share = layer.mlp_reduce.share = share

    def end(self) -> None:
        """Put the plain exchanges back."""
        for layer in self._layers:
            layer.attention_reduce = layer.attention_reduce.rule
            layer.mlp_reduce = layer.mlp_reduce.rule

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each layer, first to last."""
        return tuple(layer.attention_reduce.share for layer in self._layers)


def layer_share(order: Order, layer: int, layers: int, progress: float) -> float:
    """Return the share of one layer when ``progress``, 0 to 1, of the annealing is done.

    ``together``: all layers alike. ``from_top``: one layer after the other, the last layer first;
    ``from_bottom``: the first layer first. ``at_once``: every layer from the start.
    """
    if order == "at_once":
        return 1.0
    if order == "together":
        return min(max(progress, 0.0), 1.0)
    place = layers - 1 - layer if order == "from_top" else layer
    return min(max(progress * layers - place, 0.0), 1.0)


@contextmanager
def annealed(model: LaneformerForCausalLM, order: Order) -> Iterator[Annealing]:
    """Mix the exchanges of ``model`` inside the block; afterwards it is plain again."""
    annealing = Annealing(model, order)
    annealing.advance(0.0)
    try:
        yield annealing
    finally:
        annealing.end()


def distil_folder(
    dense: Path,
    delayed: Path,
    data: Path,
    destination: Path,
    recipe: AnnealRecipe,
    *,
    overwrite: bool = False,
    report: Callable[[int, float, float], None] | None = None,
    resume: bool = False,
    save_every: int = 50,
    device: str = "auto",
    say: Callable[[str], None] = lambda line: None,
    kept: Path | None = None,
) -> Healed:
    """Train the weights of ``delayed`` towards ``dense``, both made by ``retrofit_folder``.

    ``data`` is text (see ``read_windows``). The result, a plain Laneformer, goes to
    ``destination``; ``report`` is told (step, loss, share) of each step. A state is kept in
    ``<destination>.run`` every ``save_every`` steps and when a signal asks to stop; ``resume``
    goes on from the newest whole one, to the same bits, and ``say`` tells of damaged ones.
    ``device`` is auto (a GPU, where there is one), cpu or cuda. The teacher's best tokens are kept
    in ``kept``, which runs on the same text may share; else in the run.
    """
    check_replaceable(delayed, destination, overwrite)
    open_laneformer(dense, "learn from")
    shape, _ = open_laneformer(delayed, "train")
    place = _device(device)
    dtype = products_dtype(recipe.precision, place)
    tokenizer = open_tokenizer(delayed, "the text")
    windows = read_windows(data, tokenizer, recipe.context, recipe.seed)
    largest = int(max(windows.train_RC.max(), windows.held_out_RC.max()))
    if largest >= shape.vocab_size:
        raise TextError(
            f"{delayed}: expected token ids below vocab_size = {shape.vocab_size}, but its "
            f"tokenizer gives {largest}; take the tokenizer that belongs to these weights"
        )
    facts = {
        # Without what older runs did not know: they go on.
        "recipe": {name: value for name, value in asdict(recipe).items() if value is not None},
        "products": str(dtype).removeprefix("torch."),  # what "auto" was on this machine
        "data": hashlib.sha256(windows.train_RC.tobytes()).hexdigest(),
        "model": hashlib.sha256((delayed / "config.json").read_bytes()).hexdigest(),
        "teacher": weights_digest(dense.glob("*.safetensors")),
        "student": weights_digest(delayed.glob("*.safetensors")),
    }
    with (
        opened_run(destination, facts, resume, newer=("teacher", "student")) as run,
        deferred_interrupt() as asked,
    ):
        keeper = Keeper(run.folder, save_every, asked)
        for line in run.told:
            say(line)
        teacher, student = _load(dense).to(place), _load(delayed).to(place)
        best = None
        if recipe.objective == "distil" and recipe.best:
            best = BestTokens(kept or run.folder / "best", teacher, windows, recipe.best, dtype)
        healed = heal(teacher, student, windows, recipe, report, keeper, run.state(), best)
        check_finite(student)
        tensors = rounded_tensors(shape, student)
        values: dict[str, Any] = {"recipe": recipe, "healed": healed}
        publish(delayed, destination, shape, tensors, overwrite, "distil_card", **values)
    return healed


def _device(name: str) -> torch.device:
    if name not in ("auto", "cpu", "cuda"):
        raise RequestError(f"device: expected one of auto, cpu, cuda, got {name!r}; mend it")
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise BackendError(
            "device: expected a GPU that torch can use, found none; install a torch build for it, "
            "or use cpu"
        )
    return torch.device("cuda" if there and name != "cpu" else "cpu")


def heal(
    teacher: LaneformerForCausalLM,
    student: LaneformerForCausalLM,
    windows: Windows,
    recipe: AnnealRecipe,
    report: Callable[[int, float, float], None] | None = None,
    keeper: Keeper | None = None,
    state: dict[str, Any] | None = None,
    best: BestTokens | None = None,
) -> Healed:
    """Train ``student`` in place; it ends as a plain model with its own delay.

    ``keeper`` keeps states, of which ``state`` is one to go on from. With ``best`` the student is
    trained towards the teacher's best tokens, else towards all its logits, computed at each step.
    A gradient that is not finite updates nothing; TrainingError after several in a row.
    """
    teacher.eval()
    lora = recipe.lora
    with nullcontext() if lora is None else low_rank(student, lora, recipe.seed):
        source, at_once, curve = _steps(
            teacher, student, windows, recipe, report, keeper, state, best
        )
    student.eval()
    return Healed(source, at_once, held_out_loss(student, windows, recipe.examined), tuple(curve))


def _steps(
    teacher: LaneformerForCausalLM,
    student: LaneformerForCausalLM,
    windows: Windows,
    recipe: AnnealRecipe,
    report: Callable[[int, float, float], None] | None,
    keeper: Keeper | None,
    state: dict[str, Any] | None,
    best: BestTokens | None,
) -> tuple[float, float, list[tuple[int, float, float]]]:
    """Do the steps that are left; return both losses before the first, and what each step had."""
    dtype = products_dtype(recipe.precision, student.device)
    schedule = Wsd.of(recipe.steps, recipe.warmup_share, recipe.decay_share)
    optimiser = torch.optim.AdamW(
        [weight for weight in student.parameters() if weight.requires_grad],
        lr=recipe.peak_lr,
        betas=(0.9, 0.95),
        weight_decay=recipe.weight_decay,
        fused=True,
    )
    curve: list[tuple[int, float, float]] = []
    if state is None:
        source, at_once = (
            held_out_loss(model, windows, recipe.examined) for model in (teacher, student)
        )
    else:
        source, at_once = state["source"], state["at_once"]
        curve = [(int(step), float(loss), float(share)) for step, loss, share in state["curve"]]
        student.load_state_dict(state["student"])
        optimiser.load_state_dict(state["optimiser"])
    gradients = Gradients()

    def kept() -> dict[str, Any]:
        parts = {"student": student.state_dict(), "optimiser": optimiser.state_dict()}
        return {**parts, "source": source, "at_once": at_once, "curve": curve}

    student.train()
    with annealed(student, recipe.order) as annealing, swift(student, dtype):
        for step in range(len(curve), recipe.steps):
            annealing.advance(recipe.progress(step))
            places_B = windows.places(step, recipe.rows_per_step)
            ids_BC = torch.from_numpy(windows.train_RC[places_B]).to(student.device)
            if best is None:
                loss = _loss(teacher, student, ids_BC, recipe.objective)
            else:
                loss = divergence(student, ids_BC, *best.take(places_B), dtype=dtype)
            loss.backward()
            if gradients.usable(student.parameters(), step + 1):
                torch.nn.utils.clip_grad_norm_(student.parameters(), recipe.clip_norm)
            for group in optimiser.param_groups:
                group["lr"] = schedule.rate(recipe.peak_lr, step)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            curve.append((step, loss.item(), annealing.shares[-1]))
            if report is not None:
                report(*curve[-1])
            if keeper is not None:
                keeper.after(step + 1, step + 1 == recipe.steps, kept)
    return source, at_once, curve


def _loss(
    teacher: LaneformerForCausalLM,
    student: LaneformerForCausalLM,
    ids_BC: Tensor,
    objective: Objective,
) -> Tensor:
    """The divergence from the teacher, or the loss on the text; nats per token."""
    logits_BCV = student(input_ids=ids_BC, use_cache=False).logits
    if objective == "finetune":
        return functional.cross_entropy(logits_BCV[:, :-1].flatten(0, 1), ids_BC[:, 1:].flatten())
    with torch.no_grad():
        wanted_BCV = teacher(input_ids=ids_BC, use_cache=False).logits.log_softmax(-1)
    found_BCV = logits_BCV.log_softmax(-1)
    divergence = functional.kl_div(found_BCV, wanted_BCV, log_target=True, reduction="none")
    return divergence.sum(-1).mean()


@torch.no_grad()
def held_out_loss(model: LaneformerForCausalLM, windows: Windows, rows: int = 64) -> float:
    """Return the mean loss on ``rows`` held-out windows at most, in nats per token."""
    was_training = model.training
    model.eval()
    rows_RC = torch.from_numpy(windows.held_out_RC[:rows]).to(model.device)
    total = 0.0
    for ids_BC in rows_RC.split(_ROWS_AT_ONCE):
        with swift(model):
            logits_BCV = model(input_ids=ids_BC, use_cache=False).logits
        total += functional.cross_entropy(
            logits_BCV[:, :-1].flatten(0, 1), ids_BC[:, 1:].flatten(), reduction="sum"
        ).item()
    model.train(was_training)
    return total / rows_RC[:, 1:].numel()


def _load(folder: Path) -> LaneformerForCausalLM:
    model: LaneformerForCausalLM = load_whole(LaneformerForCausalLM, folder, dtype=torch.float32)
    return model
