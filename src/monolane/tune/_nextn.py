"""Training a layer that predicts further ahead of a model (NextN, MTP; arXiv:2412.19437, 2.2).

It begins as a copy of the model's last layer and learns what the model says behind the next token
(ops/ahead/spec.py has its arithmetic, here in float32). For the tokens of a draft behind the first
its own state, normed, stands for the model's. Embedding and head are the model's and stay.

Shape legend: P texts of a step, N drafts of one, D hidden, H query heads, K KV heads, h head width,
R tokens of the head that are learnt.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from monolane._toml import config
from monolane.model import Role, Weights, check_nextn, folder_aside, paired, write_nextn
from monolane.tune._attending_drafter import AttendingTraining, Kept, attend
from monolane.tune._draft_training import widened
from monolane.tune._drafter_run import drafter_run
from monolane.tune._heads_material import Material
from monolane.tune._recipe import DrafterRecipe
from monolane.tune._run_state import check_finite

_MATRICES = (Role.Q, Role.K, Role.V, Role.O, Role.GATE, Role.UP, Role.DOWN)
_NORMS = (Role.ATTENTION_NORM, Role.MLP_NORM)


@config
class NextNRecipe(DrafterRecipe):
    """How such a layer is trained; a place is a text, ``inner`` is the model's."""

    places: PositiveInt = 2


@dataclass(frozen=True, slots=True)
class TrainedNextN:
    """What came out: how often each token of a held-out draft is right if those before it are."""

    right_before: list[float]
    right: list[float]


def train_nextn(
    model: str | Path,
    destination: Path,
    recipe: NextNRecipe,
    *,
    text: Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    save_every: int = 200,
    threads: int | None = None,
    report: Callable[[int, float], None] = lambda step, loss: None,
    read: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = lambda line: None,
) -> TrainedNextN:
    """Train such a layer of ``model`` and write its folder; parameters as ``train_heads``."""
    with drafter_run(
        model,
        destination,
        recipe,
        check_nextn,
        text=text,
        overwrite=overwrite,
        resume=resume,
        save_every=save_every,
        threads=threads,
        read=read,
        say=say,
    ) as run:
        training = _Training(run.weights, run.material, recipe)
        before = training.measure()
        training.run(run.keeper, run.state(), report)
        check_finite(training.block)
        with folder_aside(destination) as folder:
            write_nextn(folder, run.weights.config, training.block.arrays())
        return TrainedNextN(before, training.measure())


class _Layer(nn.Module):
    """The layer, with the model's head for the tokens that are learnt."""

    angles: Tensor  # [h / 2], of a token
    head: Tensor  # [R, D]

    def __init__(self, weights: Weights, tokens_R: npt.NDArray[np.int32]) -> None:
        super().__init__()
        config, last = weights.config, weights.config.num_layers - 1
        attention, hidden = config.attention(last), config.hidden_size
        self.width, self.eps = attention.head_dim, config.norm_eps

        def copied(role: Role) -> nn.Parameter:
            found = widened(weights, role, last)[0]
            if role in (Role.Q, Role.K) and config.rotary.style != "half":
                found = paired(found, self.width, "half")
            return nn.Parameter(torch.from_numpy(found.copy()))

        self.model = nn.ParameterDict({role.name: copied(role) for role in (*_MATRICES, *_NORMS)})
        half = torch.eye(hidden) / 2**0.5
        self.joined = nn.Parameter(torch.cat([half, half], 1))
        self.token_norm = nn.Parameter(torch.ones(hidden))
        self.state_norm = nn.Parameter(torch.ones(hidden))
        norm = widened(weights, Role.FINAL_NORM)[0]
        self.final_norm = nn.Parameter(torch.from_numpy(norm.copy()))
        head = widened(weights, Role.HEAD)[0][tokens_R]
        self.register_buffer("head", torch.from_numpy(head.copy()), persistent=False)
        angles = torch.from_numpy(config.rotary.frequencies(self.width))
        self.register_buffer("angles", angles, persistent=False)

    def normed(self, x: Tensor, scale: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], scale, self.eps)

    def forward(self, x_PND: Tensor, embedded_PND: Tensor, kept: Kept) -> tuple[Tensor, Tensor]:
        """Return the next states, and logits [P, N, R]; ``kept`` gains keys and values."""
        both = [self.normed(embedded_PND, self.token_norm), self.normed(x_PND, self.state_norm)]
        x_PND = torch.cat(both, -1) @ self.joined.T
        read = self.normed(x_PND, self.model["ATTENTION_NORM"])
        size = (*x_PND.shape[:2], -1, self.width)
        q, k, v = ((read @ self.model[name].T).view(size) for name in "QKV")
        x_PND = x_PND + attend(q, k, v, self.angles, kept) @ self.model["O"].T
        read = self.normed(x_PND, self.model["MLP_NORM"])
        inner = functional.silu(read @ self.model["GATE"].T) * (read @ self.model["UP"].T)
        x_PND = x_PND + inner @ self.model["DOWN"].T
        state_PND = self.normed(x_PND, self.final_norm)
        return state_PND, state_PND @ self.head.T

    def arrays(self) -> dict[Role, npt.NDArray[np.float32]]:
        """Return what was trained, by roles."""
        own = {
            Role.AHEAD_IN: self.joined,
            Role.AHEAD_TOKEN_NORM: self.token_norm,
            Role.AHEAD_STATE_NORM: self.state_norm,
            Role.FINAL_NORM: self.final_norm,
        }
        own |= {role: self.model[role.name] for role in (*_MATRICES, *_NORMS)}
        return {role: x.detach().numpy() for role, x in own.items()}


class _Training(AttendingTraining):
    """One run's state."""

    block: _Layer

    def __init__(self, weights: Weights, material: Material, recipe: NextNRecipe) -> None:
        super().__init__(weights, material, recipe)
        self.block = _Layer(weights, self.tokens_R)

    def states(self, text: int, drafts: int) -> Tensor:
        """Return what the model's head read of the first tokens of a text."""
        begin = self._material.ends[text].start
        hidden = self._material.hidden[begin : begin + drafts].astype(np.float32)
        return torch.from_numpy(hidden)[None]
