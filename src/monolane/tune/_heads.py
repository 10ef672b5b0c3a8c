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
from torch import Tensor, nn
from torch.nn import functional

from monolane._toml import config
from monolane.model import Heads, Role, Weights, check_heads, folder_aside
from monolane.tune._draft_training import DraftTraining, most_said, widened
from monolane.tune._drafter_run import drafter_run
from monolane.tune._heads_material import Material
from monolane.tune._recipe import DrafterRecipe
from monolane.tune._run_state import check_finite

_EPS = 1e-5
_EVALUATED = 4096  # held-out places at most


@config
class HeadsRecipe(DrafterRecipe):
    """How heads are trained: ``inner`` is F, by default D; a place begins a draft."""


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
        check_heads,
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
        tokens_R = most_said(material, weights.config.vocab_size, recipe.vocabulary)
        super().__init__(weights, material, recipe, tokens_R)
        texts = len(material.starts)
        learnt = texts - self.texts_held_out
        self.places = material.places(recipe.depth, slice(0, learnt))
        held_out = material.places(recipe.depth, slice(learnt, texts))
        self.held_out = held_out[:: max(1, len(held_out) // _EVALUATED)]
        self.check_places(f"depth = {recipe.depth}")
        hidden = weights.config.hidden_size
        torch.manual_seed(recipe.seed)
        self.block = _Block(recipe.inner or hidden, self._first_head(weights, hidden))

    def _first_head(self, weights: Weights, hidden: int) -> Tensor:
        """The model's own rows, where it has one for each token, for normed inputs."""
        tied = Role.HEAD not in weights.outer and (Role.HEAD, None) not in weights.quantized
        head = widened(weights, Role.EMBEDDING if tied else Role.HEAD)
        rows = np.asarray(self.tokens_R)
        if head.reshape(-1, head.shape[-1]).shape != (len(self._row_V), hidden):
            return torch.randn(len(rows), hidden) / hidden**0.5
        sizes = np.square(self._material.hidden[self.places[::7]].astype(np.float32)).mean(axis=1)
        scale = float(np.sqrt(sizes).mean())
        return torch.from_numpy(head.reshape(-1, hidden)[rows] * np.float32(scale))

    def loss(self, places_N: npt.NDArray[np.int64]) -> tuple[Tensor, list[float]]:
        """Return the loss, and of each token of a draft how often it is right."""
        material = self._material
        state_ND = normed(torch.from_numpy(material.hidden[places_N].astype(np.float32)))
        lost, right = [], []
        for i in range(1, self._recipe.depth + 1):
            tokens_N = material.ids[places_N + i]
            embedding_ND = normed(torch.from_numpy(self._embedding_VD[tokens_N]))
            state_ND, logits_NR = self.block(state_ND, embedding_ND)
            lost_N, hit_N = self.score(logits_NR, places_N + i)
            lost.append(lost_N.mean())
            right.append(float(hit_N.mean()))
        return self.sum_up(lost), right

    def heads(self) -> Heads:
        """Return what was trained."""
        block = self.block
        gate, up, down, head = (
            x.detach().numpy() for x in (block.gate, block.up, block.down, block.head)
        )
        return Heads(gate, up, down, head, self.tokens_R, len(self._row_V), _EPS)
