"""What training has in common for drafters of one layer that attends (EAGLE-3, NextN).

All places of a text are drafts' beginnings at once: their first token is read with a state of the
model's, those behind with what the layer made of the one before, as it will be when it drafts
(arXiv:2503.01840, 3.2). A drafted token sees the text up to its draft's beginning, and the tokens
of its own draft.

Shape legend: P texts of a step, N drafts of one, D hidden, H query heads, K KV heads, h head width.
"""

from abc import abstractmethod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from monolane.model import Weights
from monolane.tune._draft_training import DraftTraining, most_said
from monolane.tune._heads_material import Material
from monolane.tune._recipe import DrafterRecipe

Kept = list[tuple[Tensor, Tensor]]  # keys and values of each token of the drafts so far


def attend(q_PNHh: Tensor, k_PNKh: Tensor, v_PNKh: Tensor, angles: Tensor, kept: Kept) -> Tensor:
    """Return what attention says, [P, N, Hh]; ``kept`` gains keys and values.

    angles   [h / 2], of a token: by which a head turns
    """
    later, count = len(kept), q_PNHh.shape[1]
    group = q_PNHh.shape[2] // k_PNKh.shape[2]
    k_PNHh, v_PNHh = (
        x.repeat_interleave(group, 2) for x in (_turned(k_PNKh, angles, later), v_PNKh)
    )
    kept.append((k_PNHh, v_PNHh))
    q_PNHh = _turned(q_PNHh, angles, later)
    scores = [_causal(torch.einsum("pihd,pjhd->phij", q_PNHh, kept[0][0]))]
    # Of its own draft's tokens each sees those of its own place alone.
    scores += [torch.einsum("pihd,pihd->phi", q_PNHh, k)[..., None] for k, _ in kept[1:]]
    chance = (torch.cat(scores, -1) / q_PNHh.shape[-1] ** 0.5).softmax(-1)
    said = torch.einsum("phij,pjhd->pihd", chance[..., :count], kept[0][1])
    for i, (_, v) in enumerate(kept[1:]):
        said = said + chance[..., count + i].transpose(1, 2)[..., None] * v
    return said.flatten(2)


def _turned(x_PNHh: Tensor, angles: Tensor, later: int) -> Tensor:
    """Turn heads by their places, ``later`` tokens behind the beginnings of their drafts."""
    at = torch.arange(x_PNHh.shape[1]) + later
    angle = at[:, None].float() * angles  # [N, h/2]
    cosine, sine = angle.cos()[:, None], angle.sin()[:, None]
    first, second = x_PNHh.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def _causal(scores_PHij: Tensor) -> Tensor:
    count = scores_PHij.shape[-1]
    after = torch.ones(count, count, dtype=torch.bool).triu(1)
    return scores_PHij.masked_fill(after, float("-inf"))


class AttendingTraining(DraftTraining):
    """One run's state; a place is the number of a text."""

    def __init__(self, weights: Weights, material: Material, recipe: DrafterRecipe) -> None:
        tokens_R = most_said(material, weights.config.vocab_size, recipe.vocabulary)
        super().__init__(weights, material, recipe, np.sort(tokens_R))
        texts = len(material.ends)
        learnt = texts - self.texts_held_out
        long = [i for i in range(texts) if self._drafts(i) > 0]
        self.places = np.array([i for i in long if i < learnt], np.int64)
        self.held_out = np.array([i for i in long if i >= learnt], np.int64)
        self.check_places(f"depth + 2 = {recipe.depth + 2}")
        torch.manual_seed(recipe.seed)

    @abstractmethod
    def states(self, text: int, drafts: int) -> Tensor:
        """Return what drafts begin with, of the first tokens of a text: [1, N, D]."""

    def _drafts(self, text: int) -> int:
        """Drafts that a text has: each reads a token, and has ``depth`` more behind it."""
        return len(self._material.ends[text]) - 1 - self._recipe.depth

    def loss(self, places_N: npt.NDArray[np.int64]) -> tuple[Tensor, list[float]]:
        """Return the loss, and of each token of a draft how often it is right."""
        # Texts differ in length: one by one, so that none is padded.
        parts = [self._loss_of(int(text)) for text in places_N]
        right = np.mean([right for _, right in parts], axis=0)
        return torch.stack([loss for loss, _ in parts]).mean(), [float(x) for x in right]

    def _loss_of(self, text: int) -> tuple[Tensor, list[float]]:
        material, span, drafts = self._material, self._material.ends[text], self._drafts(text)
        ids = material.ids[span.start : span.stop]
        x_PND = self.states(text, drafts)
        # Of a prompt nothing is learnt: nobody drafts it.
        learnt = torch.arange(drafts) + 1 >= material.starts[text].start - span.start
        lost, right = [], []
        kept: Kept = []
        for i in range(1, self._recipe.depth + 1):
            at = np.arange(i, i + drafts)
            embedded = torch.from_numpy(self._embedding_VD[ids[at]])[None]
            x_PND, logits_PNR = self.block(x_PND, embedded, kept)
            lost_N, hit_N = self.score(logits_PNR[0], span.start + at)
            lost.append(lost_N[learnt].mean())
            right.append(float(hit_N[learnt].mean()))
        return self.sum_up(lost), right
