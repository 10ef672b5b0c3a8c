"""Training an EAGLE-3 drafter: one layer that attends, towards what the model says next.

The arithmetic is csrc/draft/eagle_drafter.h's, in float32. All places of a text are drafts'
beginnings at once: their first token is read with the model's streams, those behind with what the
layer made of the one before, as it will be when it drafts (arXiv:2503.01840, 3.2). A drafted token
sees the text up to its draft's beginning, and the tokens of its own draft. What the head says of
each next token is held against the model's own probabilities at that place.

The streams are the reference backend's, which computes any model of one lane, slowly.

Shape legend: P texts of a step, T tokens of one, N drafts of one, D hidden, H query heads, K KV
heads, h head width, R drafted vocabulary, B best.
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
from monolane.engine import Engine
from monolane.model import Eagle, Rotary, Weights, check_eagle, folder_aside
from monolane.tune._attending_drafter import AttendingTraining, attend
from monolane.tune._drafter_run import drafter_run
from monolane.tune._heads_material import Material
from monolane.tune._recipe import DrafterRecipe
from monolane.tune._run_state import check_finite

_EPS = 1e-5


@config
class EagleRecipe(DrafterRecipe):
    """How an EAGLE-3 drafter is trained: ``inner`` is its MLP's, else 2D; a place is a text."""

    places: PositiveInt = 2


@dataclass(frozen=True, slots=True)
class TrainedEagle:
    """What came out: how often each token of a held-out draft is right if those before it are."""

    right_before: list[float]
    right: list[float]


def train_eagle(
    model: str | Path,
    destination: Path,
    recipe: EagleRecipe,
    *,
    text: Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    save_every: int = 200,
    threads: int | None = None,
    report: Callable[[int, float], None] = lambda step, loss: None,
    read: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = lambda line: None,
) -> TrainedEagle:
    """Train an EAGLE-3 drafter of ``model`` and write its folder; parameters as ``train_heads``."""
    with drafter_run(
        model,
        destination,
        recipe,
        check_eagle,
        text=text,
        overwrite=overwrite,
        resume=resume,
        save_every=save_every,
        threads=threads,
        read=read,
        say=say,
    ) as run:
        layers = _layers(run.weights)
        streams = _read_streams(
            run.path, run.material, layers, run.context, run.folder / "streams", run.count
        )
        training = _Training(run.weights, run.material, recipe, layers, streams)
        before = training.measure()
        training.run(run.keeper, run.state(), report)
        check_finite(training.block)
        with folder_aside(destination) as folder:
            training.eagle().write(folder)
        return TrainedEagle(before, training.measure())


def _layers(weights: Weights) -> tuple[int, int, int]:
    """Return the layers before which the stream is read, as published drafters have them."""
    count = weights.config.num_layers
    return 2, count // 2, count - 3


def _read_streams(
    path: Path,
    material: Material,
    layers: tuple[int, int, int],
    context: int,
    folder: Path,
    step: Callable[[], None],
) -> list[npt.NDArray[np.float16]]:
    """Return the three streams of each text's tokens, [T, 3D], those that ``folder`` lacks read."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"text-{number:06}.npy" for number in range(len(material.ends))]
    if not all(map(Path.is_file, paths)):
        with Engine.load(path, "reference", context=context) as engine:
            for span, place in zip(material.ends, paths, strict=True):
                if place.is_file():
                    continue
                ids = material.ids[span.start : span.stop].tolist()
                engine.backend.truncate(0, 0)
                streams = engine.backend.executor.streams(0, ids, layers)
                aside = place.with_suffix(".new")
                with aside.open("wb") as file:
                    np.save(file, streams.astype(np.float16))
                aside.replace(place)
                step()
    return [np.load(place) for place in paths]


class _Layer(nn.Module):
    """The drafter; csrc/draft/eagle_drafter.h."""

    angles: Tensor  # [h / 2], of a token

    def __init__(self, weights: Weights, inner: int, head_RD: Tensor) -> None:
        super().__init__()
        config = weights.config
        attention = next(iter(config.attentions.values()))
        hidden = config.hidden_size
        self.heads, self.kv_heads, self.width = (
            attention.heads,
            attention.kv_heads,
            attention.head_dim,
        )

        def matrix(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, columns) / columns**0.5)

        self.fc = matrix(hidden, 3 * hidden)
        self.q = matrix(self.heads * self.width, 2 * hidden)
        self.k = matrix(self.kv_heads * self.width, 2 * hidden)
        self.v = matrix(self.kv_heads * self.width, 2 * hidden)
        self.o = matrix(hidden, self.heads * self.width)
        self.gate, self.up = matrix(inner, hidden), matrix(inner, hidden)
        self.down = nn.Parameter(torch.zeros(hidden, inner))
        self.head = nn.Parameter(head_RD)
        for name in ("token_norm", "state_norm", "mlp_norm", "final_norm"):
            setattr(self, name, nn.Parameter(torch.ones(hidden)))
        # The model's base alone: a drafter attends within a window, however far the model does.
        self.rotary = Rotary(config.rotary.theta, "half")
        angles = torch.from_numpy(self.rotary.frequencies(self.width))
        self.register_buffer("angles", angles, persistent=False)

    def norm(self, x: Tensor, name: str) -> Tensor:
        scale: Tensor = getattr(self, name)
        return functional.rms_norm(x, x.shape[-1:], scale, _EPS)

    def forward(
        self, x_PND: Tensor, embedded_PND: Tensor, kept: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Return the next states, and logits [P, N, R]; ``kept`` gains keys and values."""
        both = torch.cat(
            [self.norm(embedded_PND, "token_norm"), self.norm(x_PND, "state_norm")], -1
        )
        size = (*x_PND.shape[:2], -1, self.width)
        q, k, v = ((both @ matrix.T).view(size) for matrix in (self.q, self.k, self.v))
        said = attend(q, k, v, self.angles, kept)
        x_PND = x_PND + said @ self.o.T
        normed = self.norm(x_PND, "mlp_norm")
        inner = functional.silu(normed @ self.gate.T) * (normed @ self.up.T)
        x_PND = x_PND + inner @ self.down.T
        return x_PND, self.norm(x_PND, "final_norm") @ self.head.T


class _Training(AttendingTraining):
    """One run's state."""

    block: _Layer

    def __init__(
        self,
        weights: Weights,
        material: Material,
        recipe: EagleRecipe,
        layers: tuple[int, int, int],
        streams: list[npt.NDArray[np.float16]],
    ) -> None:
        super().__init__(weights, material, recipe)
        self._layers, self._streams = layers, streams
        hidden = weights.config.hidden_size
        head_RD = torch.randn(len(self.tokens_R), hidden) / hidden**0.5
        self.block = _Layer(weights, recipe.inner or 2 * hidden, head_RD)

    def states(self, text: int, drafts: int) -> Tensor:
        """Return what the model's streams become."""
        streams = torch.from_numpy(self._streams[text][:drafts].astype(np.float32))[None]
        return streams @ self.block.fc.T

    def eagle(self) -> Eagle:
        """Return what was trained."""
        block = self.block
        weights = {name: x.detach().numpy() for name, x in block.named_parameters()}
        return Eagle(
            weights=weights,
            tokens=self.tokens_R.astype(np.int32),
            vocab_size=len(self._row_V),
            layers=self._layers,
            heads=(block.heads, block.kv_heads, block.width),
            rotary=block.rotary,
            norm_eps=_EPS,
        )
