"""A DFlash or DSpark drafter as its definition: one pass over a block, nothing kept.

Shape legend: S tokens that the model has read, B rows of a block, D hidden, V vocabulary, n
streams, H query heads, K KV heads, h head width.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from monolane.model import Dflash, MarkovHead
from monolane.reference._operations import Floats, attend_seen, linear, rms_norm, rotate, silu

Rounding = Callable[[Floats], Floats]


class ReferenceDflash:
    """Computes a drafter of a model whose embedding and head are given, in float32.

    ``rounded`` is what products make of their matrices [R, C] and rows [T, C] first, those that
    round them to codes; the head's, which is the model's, does not.
    """

    def __init__(
        self,
        dflash: Dflash,
        embedding_VD: npt.NDArray[np.generic],
        head_VD: npt.NDArray[np.generic],
        rounded: tuple[Rounding, Rounding] = (lambda x: x, lambda x: x),
    ) -> None:
        self.dflash = dflash
        self._embedding = np.asarray(embedding_VD, np.float32)
        self._head = np.asarray(head_VD, np.float32)
        self._of_weights, self._rounded = rounded

    def forward(self, token_id: int, streams_SnD: Floats) -> tuple[Floats, Floats]:
        """Draft behind S tokens that the model has read, with n streams each, and one more.

        Return logits of the tokens that follow that one, [B - 1, V] or of DSpark [B, V], and what
        the head reads of all rows [B, D].
        """
        dflash = self.dflash
        ids_B = [token_id] + [dflash.mask] * (dflash.block - 1)
        x_BD = self._embedding[ids_B]
        context_SD = self._norm(self._product(streams_SnD, dflash.fc), dflash.context_norm)
        for i, layer in enumerate(dflash.layers):
            normed_BD = self._norm(x_BD, layer["input_norm"])
            x_BD = x_BD + self._attention(i, layer, normed_BD, context_SD)
            normed_BD = self._norm(x_BD, layer["mlp_norm"])
            inner = silu(self._product(normed_BD, layer["gate"])) * self._product(
                normed_BD, layer["up"]
            )
            x_BD = x_BD + self._product(inner, layer["down"])
        read_BD = self._norm(x_BD, dflash.final_norm)
        return linear(read_BD[None, -dflash.drafted :], self._head[None])[0], read_BD

    def moved(self, token_id: int) -> Floats:
        """Return what of DSpark a token adds to the logits of the next, [V]."""
        markov = self._markov()
        before, after = (x.astype(np.float32) for x in (markov.before, markov.after))
        moved: Floats = after @ before[token_id]
        return moved

    def chance(self, token_id: int, read_D: Floats) -> float:
        """Return what of DSpark the confidence says of what is drafted behind a token."""
        markov = self._markov()
        if markov.confidence is None:
            raise ValueError("chance: expected a drafter with a confidence, got one without")
        row = markov.before[token_id].astype(np.float32)
        said = np.concatenate([read_D, row, [1]]) @ markov.confidence
        return float(1 / (1 + np.exp(-said)))

    def _markov(self) -> MarkovHead:
        if self.dflash.markov is None:
            raise ValueError("markov: expected a DSpark drafter, got a DFlash drafter")
        return self.dflash.markov

    def _attention(
        self, i: int, layer: Mapping[str, npt.NDArray[np.generic]], x_BD: Floats, context_SD: Floats
    ) -> Floats:
        attention = self.dflash.config.attention(i)
        count, block = len(context_SD), len(x_BD)
        keys_TD = np.concatenate([context_SD, x_BD])
        q_BHh = self._heads(layer, "q", x_BD, attention.heads)
        k_TKh = self._heads(layer, "k", keys_TD, attention.kv_heads)
        v_TKh = self._heads(layer, "v", keys_TD, attention.kv_heads)
        q_BHh = self._turned(self._norm(q_BHh, layer["query_norm"]), count)
        k_TKh = self._turned(self._norm(k_TKh, layer["key_norm"]), 0)
        key, row = np.arange(count + block)[None], np.arange(count, count + block)[:, None]
        hidden = key > row if self.dflash.causal else np.zeros((block, count + block), np.bool_)
        if attention.window is not None:
            hidden = hidden | (key <= row - attention.window)
        scale = attention.head_dim**-0.5
        said_BD = attend_seen(q_BHh[None], k_TKh[None], v_TKh[None], hidden, scale)[0]
        return self._product(said_BD, layer["o"])

    def _heads(
        self, layer: Mapping[str, npt.NDArray[np.generic]], name: str, x_TD: Floats, count: int
    ) -> Floats:
        return self._product(x_TD, layer[name]).reshape(len(x_TD), count, -1)

    def _turned(self, x_TKh: Floats, first: int) -> Floats:
        rotary, at = self.dflash.config.rotary, np.arange(first, first + len(x_TKh))
        turned: Floats = rotate(
            x_TKh[None], at, rotary.frequencies(x_TKh.shape[-1]), rotary.style, rotary.amplitude
        )[0]
        return turned

    def _norm(self, x: Floats, scale: npt.NDArray[np.generic]) -> Floats:
        floats = np.asarray(scale, np.float32)
        normed: Floats = rms_norm(x[None], floats[None], self.dflash.config.norm_eps)[0]
        return normed

    def _product(self, x_TC: Floats, matrix_RC: npt.NDArray[np.generic]) -> Floats:
        floats = self._of_weights(np.asarray(matrix_RC, np.float32))
        product: Floats = linear(self._rounded(x_TC)[None], floats[None])[0]
        return product
