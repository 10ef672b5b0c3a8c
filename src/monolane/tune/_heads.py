"""Training heads that draft: a chain of one gated block, towards what the model says next.

The arithmetic is csrc/draft/heads_drafter.h's, in float32. Each place of a text is a draft's
beginning: the state is what the model's head read there, and the tokens that the text goes on with
are fed one by one; what the block's head says of each next token is held against the model's own
probabilities at that place. So a token is learnt from ``depth`` times, and no text needs to be the
model's own, though one that is tells more.

Shape legend: N places of a step, D hidden, F inner, R drafted vocabulary, V vocabulary, B best.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from monolane._toml import config
from monolane.errors import ConfigError
from monolane.model import Heads, Role, Weights, folder_aside
from monolane.tune._draft_training import LATER, DraftTraining, most_said, widened
from monolane.tune._drafter_run import drafter_run
from monolane.tune._heads_material import Material
from monolane.tune._run_state import check_finite

_HELD_OUT = 20  # every so manieth text, at least one
_EPS = 1e-5
_EVALUATED = 4096  # held-out places at most


@config
class HeadsRecipe:
    """How heads are trained.

    texts, context   material: texts, and tokens of each at most
    vocabulary       R: tokens that can be drafted, those that the model says most
    inner            F, a multiple of 32; None: the model's hidden size
    depth            tokens of a draft that are learnt
    places           N: beginnings of drafts in a step
    """

    texts: PositiveInt = 400
    context: PositiveInt = 256
    vocabulary: PositiveInt = 4096
    inner: PositiveInt | None = None
    depth: PositiveInt = 4
    steps: PositiveInt = 2000
    places: PositiveInt = 256
    peak_lr: PositiveFloat = 1e-3
    seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.inner is not None and self.inner % 32:
            raise ConfigError(f"inner: expected a multiple of 32, got {self.inner}")


@dataclass(frozen=True, slots=True)
class TrainedHeads:
    """What came out: how often each token of a held-out draft is right if those before it are."""

    right_before: list[float]
    right: list[float]
    places: int
    bytes: int  # that a drafted token streams, in the core's int8


def train_heads(
    model: str | Path,
    destination: Path,
    recipe: HeadsRecipe,
    *,
    text: Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    save_every: int = 200,
    threads: int | None = None,
    report: Callable[[int, float], None] = lambda step, loss: None,
    read: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = lambda line: None,
) -> TrainedHeads:
    """Train heads of ``model`` and write their folder.

    text      what to learn from, all of it where it gives fewer texts; None: what the model says
    threads   of torch; None: all cores
    report    told (step, loss) of each step; ``read`` called after each text; ``say`` told of what
              is damaged

    Texts as they are read, and a state every ``save_every`` steps and when a signal asks to stop,
    are kept in ``<destination>.run``; ``resume`` goes on from there to the same bits, and refuses
    another model (by the sums of its files), text or recipe.
    """
    with drafter_run(
        model,
        destination,
        recipe,
        _check,
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
        heads = training.heads()
        with folder_aside(destination) as folder:
            heads.write(folder)
        size = sum(x.size for x in (heads.gate, heads.up, heads.down, heads.head))
        return TrainedHeads(before, training.measure(), len(training.held_out), size)


def _check(weights: Weights, source: str) -> None:
    """ConfigError for a model of which no heads are made."""
    if (hidden := weights.config.hidden_size) % 32:
        raise ConfigError(
            f"{source}: hidden_size: expected a multiple of 32 for heads, got {hidden}"
        )


class _Block(nn.Module):
    """The chain; csrc/draft/heads_drafter.h."""

    def __init__(self, inner: int, head_RD: Tensor) -> None:
        super().__init__()
        hidden = head_RD.shape[1]
        self.gate = nn.Parameter(torch.randn(inner, 2 * hidden) / (2 * hidden) ** 0.5)
        self.up = nn.Parameter(torch.randn(inner, 2 * hidden) / (2 * hidden) ** 0.5)
        self.down = nn.Parameter(torch.zeros(hidden, inner))
        self.head = nn.Parameter(head_RD)

    def forward(self, state_ND: Tensor, embedding_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next state and the logits [N, R] behind a token."""
        input_N2D = torch.cat([state_ND, embedding_ND], dim=1)
        gated_NF = functional.silu(input_N2D @ self.gate.T) * (input_N2D @ self.up.T)
        state_ND = state_ND + gated_NF @ self.down.T
        return state_ND, normed(state_ND) @ self.head.T


def normed(x: Tensor) -> Tensor:
    """Return rows divided by their root mean square."""
    return functional.rms_norm(x, x.shape[-1:], eps=_EPS)


class _Training(DraftTraining):
    """One run's state."""

    block: _Block

    def __init__(self, weights: Weights, material: Material, recipe: HeadsRecipe) -> None:
        super().__init__(recipe.steps, recipe.places, recipe.peak_lr, recipe.seed)
        self._recipe, self._material = recipe, material
        texts = len(material.starts)
        share = max(1, texts // _HELD_OUT)
        self.places = material.places(recipe.depth, slice(0, texts - share))
        held_out = material.places(recipe.depth, slice(texts - share, texts))
        self.held_out = held_out[:: max(1, len(held_out) // _EVALUATED)]
        if not len(self.places) or not len(self.held_out):
            raise ConfigError(
                f"texts: expected some with more than depth = {recipe.depth} tokens to learn from "
                "and to measure on; take more or longer texts"
            )
        self._vocab = weights.config.vocab_size
        self._embedding_VD = widened(weights, Role.EMBEDDING)
        self.tokens_R = most_said(material, self._vocab, recipe.vocabulary)
        self._row_V = torch.full((self._vocab,), -1, dtype=torch.int64)
        self._row_V[torch.from_numpy(self.tokens_R).long()] = torch.arange(len(self.tokens_R))
        hidden = weights.config.hidden_size
        torch.manual_seed(recipe.seed)
        self.block = _Block(recipe.inner or hidden, self._first_head(weights, hidden))

    def _first_head(self, weights: Weights, hidden: int) -> Tensor:
        """The model's own rows, where it has one for each token, for normed inputs."""
        tied = Role.HEAD not in weights.outer and (Role.HEAD, None) not in weights.quantized
        head = widened(weights, Role.EMBEDDING if tied else Role.HEAD)
        rows = np.asarray(self.tokens_R)
        if head.reshape(-1, head.shape[-1]).shape != (self._vocab, hidden):
            return torch.randn(len(rows), hidden) / hidden**0.5
        sizes = np.square(self._material.hidden[self.places[::7]].astype(np.float32)).mean(axis=1)
        scale = float(np.sqrt(sizes).mean())
        return torch.from_numpy(head.reshape(-1, hidden)[rows] * np.float32(scale))

    def loss(self, places_N: npt.NDArray[np.int64]) -> tuple[Tensor, list[float]]:
        """Return the loss, and of each token of a draft how often it is right."""
        material = self._material
        state_ND = normed(torch.from_numpy(material.hidden[places_N].astype(np.float32)))
        loss, weight, right = torch.zeros(()), 1.0, []
        for i in range(1, self._recipe.depth + 1):
            tokens_N = material.ids[places_N + i]
            embedding_ND = normed(torch.from_numpy(self._embedding_VD[tokens_N]))
            state_ND, logits_NR = self.block(state_ND, embedding_ND)
            rows_NB = self._row_V[torch.from_numpy(material.best[places_N + i]).long()]
            chance_NB = torch.from_numpy(material.chance[places_N + i]) * (rows_NB >= 0)
            logs_NB = functional.log_softmax(logits_NR, dim=1).gather(1, rows_NB.clamp(min=0))
            loss = loss - weight * (chance_NB * logs_NB).sum(1).mean()
            weight *= LATER
            right.append(float((logits_NR.argmax(1) == rows_NB[:, 0]).float().mean()))
        return loss, right

    @torch.no_grad()
    def measure(self) -> list[float]:
        """Return how often a held-out draft's tokens are the model's most probable ones."""
        return [round(share, 4) for share in self.loss(self.held_out)[1]]

    def heads(self) -> Heads:
        """Return what was trained."""
        block = self.block
        gate, up, down, head = (
            x.detach().numpy() for x in (block.gate, block.up, block.down, block.head)
        )
        return Heads(gate, up, down, head, self.tokens_R, self._vocab, _EPS)
