"""One optimizer step: read rows, add up gradients over passes, clip, update.

Everything is summed over all processes and passes before it is divided, so the same rows give the
same step however they are cut; what differs is the order of float32 additions. A mean per pass
would weigh a pass with few targets as much as one with many.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from monolane.data import IGNORED, Rows
from monolane.errors import ConfigError, DataError
from monolane.hf import LaneformerForCausalLM
from monolane.train._attention import document_masks
from monolane.train._build import build_model, check_start, model_config
from monolane.train._checkpoints import named_checkpoint, read_tensors
from monolane.train._config import RunConfig, load_config
from monolane.train._optimiser import Optimiser
from monolane.train._process_group import World

Result = TypeVar("Result")


@dataclass(frozen=True)
class Outcome:
    """What one step measured, over all processes and with the same bits on each."""

    loss: float  # cross entropy, nats per token
    z_loss: float  # as it was added to the loss
    norm: float  # of the gradient, before clipping
    tokens: int  # targets that counted
    interrupted: bool  # whether any process was asked to stop


class Trainer:
    """A sharded model and its optimizer, advanced step by step."""

    def __init__(self, config: RunConfig, world: World, *, resumed: bool = False) -> None:
        """``resumed``: a checkpoint of this run will be read, so there are no first weights."""
        self.config = config
        self.world = world
        begun = None if resumed else _begun(config)
        self.model: LaneformerForCausalLM = build_model(
            config, world, fill=not resumed and begun is None
        )
        self.optimiser = Optimiser(self.model, config.optimizer)
        if begun is not None:
            carried = self.tensors()
            if config.optimizer.moments == "restart":
                carried = {name: t for name, t in carried.items() if name.startswith("model.")}
            hint = "use the optimizer.name of that run, or set optimizer.moments to 'restart'"
            read_tensors(begun, carried, world.files, hint)
        attention = config.compute.attention  # flex_attention trains on GPUs only
        self._flex = attention == "flex" or (attention == "auto" and world.device.type == "cuda")
        if self._flex:
            self.model.config._attn_implementation = "flex_attention"
        self._losses = torch.compile(summed_losses) if config.compute.compile else summed_losses

    def step(self, index: int, rows: Rows, asked_to_stop: Callable[[], int] = lambda: 0) -> Outcome:
        """Do step ``index``, counted from 0, with this process's share of its rows [R, T].

        A gradient that is not finite updates nothing: the outcome says so, and the weights stay.
        """
        if rows.ids.size and int(rows.ids.max()) >= self.config.model.vocab_size:
            raise DataError(
                f"step {index + 1}: expected token ids below model.vocab_size = "
                f"{self.config.model.vocab_size}, got {rows.ids.max()} in the corpus; prepare it "
                "again ('monolane data report CORPUS --verify' looks for damage)"
            )
        losses, counted = self.add_gradients(index, rows)
        totals = self.world.total(losses, float(bool(asked_to_stop())))
        norm = self.norm()
        # The one time in a step that a number comes back: the device is waited for here.
        nats, squares, stop, tokens, size = torch.cat(
            [totals, counted, norm.double()[None]]
        ).tolist()
        self.update(self.rate(index), norm, math.isfinite(size))
        return Outcome(
            loss=nats / max(tokens, 1.0),
            z_loss=self.config.optimizer.z_loss * squares / max(tokens, 1.0),
            norm=size,
            tokens=int(tokens),
            interrupted=stop > 0,
        )

    def add_gradients(self, index: int, rows: Rows) -> tuple[Tensor, Tensor]:
        """Add up the gradients of a step's rows.

        Returns this process's summed losses [2] and how many targets all of them have [1].
        """
        self.model.train()
        counted = self.world.total(float((rows.targets != IGNORED).sum()))
        # FSDP averages over the processes; times their number that is the sum.
        scale = (self.world.size / counted.clamp_min(1)).float()[0]
        losses = torch.zeros(2, dtype=torch.float64, device=self.world.device)
        batches = [*self._passes(index, rows)]
        for place, batch in enumerate(batches):
            self._reduce_after(place == len(batches) - 1)
            losses += self._backward(batch, scale)
        return losses, counted

    def rate(self, index: int) -> float:
        """Return the learning rate of step ``index``, counted from 0."""
        return self.config.schedule.rate(self.config.optimizer.peak_lr, index)

    def tensors(self) -> dict[str, Tensor]:
        """Return the live weights and optimizer state by name, for a checkpoint to save or fill."""
        weights = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        state = {f"optimizer.{name}": value for name, value in self.optimiser.state().items()}
        return weights | state

    def evaluate(self, score: Callable[[LaneformerForCausalLM], Result]) -> Result:
        """Call ``score`` without gradients and in evaluation mode; every process must."""
        self.model.eval()
        # Not compiled: its rows have many lengths, and each would be compiled for itself.
        stance = torch.compiler.set_stance(
            "force_eager" if self.config.compute.compile else "default"
        )
        with torch.no_grad(), stance:
            result = score(self.model)
        self.model.reshard()  # frees the whole weights that the last forward pass left
        return result

    def _passes(self, index: int, rows: Rows) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield ids, targets and documents [B, T] of what the device holds at once."""
        schedule, length = self.config.schedule, self.config.data.sequence_length
        short = schedule.short_length if index < schedule.short_until else length
        parts = [part.reshape(-1, short) for part in (rows.ids, rows.targets, rows.documents)]
        size = self.config.compute.rows_per_pass * (length // short)
        for at in range(0, len(parts[0]), size):
            ids, targets, documents = (self._on_device(part[at : at + size]) for part in parts)
            yield ids, targets, documents

    def _on_device(self, part: np.ndarray) -> Tensor:
        """Return a part on the device; a copy to a GPU goes on while earlier passes are computed.

        Integers of a few bytes a token: those of all passes of a step take little memory there.
        """
        here = torch.from_numpy(np.ascontiguousarray(part))
        if self.world.device.type == "cuda":
            here = here.pin_memory()
        return here.to(self.world.device, non_blocking=True)

    def _reduce_after(self, last: bool) -> None:
        """Say whether the gradients of the next pass are added up over the processes behind it."""
        once = self.config.parallel.reduce == "step"
        self.model.set_requires_gradient_sync(last or not once)

    def _backward(self, batch: tuple[Tensor, Tensor, Tensor], scale: Tensor) -> Tensor:
        """Add the gradients of one pass, scaled; return its summed losses [2]."""
        nats, squares = self._losses(self.logits(batch[0], batch[2]), batch[1])
        objective = nats + self.config.optimizer.z_loss * squares
        (objective * scale).backward()
        return torch.stack([nats, squares]).detach().double()

    def logits(self, ids_BT: Tensor, documents_BT: Tensor) -> Tensor:
        """Return the logits [B, T, V] of rows, masked by document where the config says so."""
        masks: Any = None
        if self.config.data.document_mask or self._flex:
            if not self.config.data.document_mask:
                documents_BT = torch.zeros_like(documents_BT)
            masks = document_masks(self.model.config, documents_BT, self._flex)
        with warnings.catch_warnings():
            # A layer's outputs are views, and FSDP fears an update in place: the model has none.
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
            logits: Tensor = self.model(
                input_ids=ids_BT, attention_mask=masks, use_cache=False
            ).logits
        return logits

    def norm(self) -> Tensor:
        """Return the norm of the whole gradient."""
        gradients = [one.grad for one in self.model.parameters() if one.grad is not None]
        total: Any = torch.nn.utils.get_total_norm(gradients)
        return total.full_tensor() if isinstance(total, DTensor) else total

    def update(self, rate: float, norm: Tensor, finite: bool) -> None:
        """Clip, then step; drop gradients whose norm is not finite."""
        if not finite:
            self.optimiser.clear()
            return
        limit = self.config.optimizer.clip_norm
        torch.nn.utils.clip_grads_with_norm_(list(self.model.parameters()), limit, norm)
        self.optimiser.step(rate)


def _begun(config: RunConfig) -> Path | None:
    """Return the checkpoint that the config begins with, if it is one.

    ConfigError: it is of another shape, or lacks what ``optimizer.moments`` wants.
    """
    given = Path(config.model.init_from).expanduser()
    begun = named_checkpoint(given) if config.model.init_from else None
    if begun is not None:
        kept = load_config(begun.parents[1] / "config.toml")
        check_start(given, model_config(kept.model), config.model)
    elif config.optimizer.moments == "carry":
        raise ConfigError(
            "optimizer.moments: expected a run as model.init_from, whose moments go on, got "
            f"{config.model.init_from or 'no folder'!r}; name a run, or set it to 'restart'"
        )
    return begun


def summed_losses(logits_BTV: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return, summed over the targets that count: cross entropy in nats, and logsumexp squared.

    The second is what the z-loss weighs (PaLM, 2022): it holds the normaliser near 1, so that
    logits do not drift to where 16 bits are coarse.
    """
    counts_BT = targets_BT != IGNORED
    logits_BTV = logits_BTV.float()
    normaliser_BT = logits_BTV.logsumexp(-1)
    target_BT = logits_BTV.gather(-1, targets_BT.clamp_min(0)[..., None])[..., 0]
    nats = ((normaliser_BT - target_BT) * counts_BT).sum()
    return nats, (normaliser_BT.square() * counts_BT).sum()
