"""An EAGLE-3 drafter as its definition (arXiv:2503.01840): a pass over tokens, nothing kept.

Shape legend: T tokens, D hidden, R drafted vocabulary, H query heads, K KV heads, h head width.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from monolane.model import Eagle
from monolane.reference._operations import Floats, attend, linear, rms_norm, rotate, silu

Rounding = Callable[[Floats], Floats]
Choose = Callable[[Floats, int], int]


class ReferenceEagle:
    """Computes a drafter of a model whose embedding is ``embedding_VD``, in float32.

    ``rounded`` is what products make of their matrices [R, C] and rows [T, C] first, those that
    round them to codes.
    """

    def __init__(
        self,
        eagle: Eagle,
        embedding_VD: npt.NDArray[np.generic],
        rounded: tuple[Rounding, Rounding] = (lambda x: x, lambda x: x),
    ) -> None:
        self.eagle = eagle
        self._embedding = np.asarray(embedding_VD, np.float32)
        of_weights, self._rounded = rounded
        floats = {name: array.astype(np.float32) for name, array in eagle.weights.items()}
        self._weights = {name: of_weights(x) if x.ndim > 1 else x for name, x in floats.items()}

    def forward(self, token_ids: npt.ArrayLike, streams_T3D: Floats) -> tuple[Floats, Floats]:
        """Read tokens, each with three streams of the token before it, one behind the other.

        Return logits over the drafted vocabulary [T, R], of what is behind each token, and what a
        drafted token is read with in place of the streams [T, D].
        """
        return self._layer(token_ids, self._product(streams_T3D, "fc"))

    def draft(
        self,
        token_ids: npt.ArrayLike,
        streams_T3D: Floats,
        count: int,
        choose: Choose = lambda logits_R, _: int(logits_R.argmax()),
    ) -> list[int]:
        """Return the model's ids of ``count`` tokens drafted behind those given.

        ``choose`` tells the row of a token from its logits [R] and its place in the draft.
        """
        ids, drafted = [int(token) for token in np.asarray(token_ids)], []
        read_TD = self._product(streams_T3D, "fc")
        for i in range(count):
            logits, states = self._layer(ids, read_TD)
            drafted.append(int(self.eagle.tokens[choose(logits[-1], i)]))
            ids.append(drafted[-1])
            read_TD = np.concatenate([read_TD, states[-1:]])
        return drafted

    def _layer(self, token_ids: npt.ArrayLike, x_TD: Floats) -> tuple[Floats, Floats]:
        ids_T = np.asarray(token_ids, np.int64)
        heads, kv_heads, width = self.eagle.heads
        read_TD = self._norm(x_TD, "state_norm")
        both = np.concatenate([self._norm(self._embedding[ids_T], "token_norm"), read_TD], axis=-1)
        q, k, v = (
            self._product(both, name).reshape(1, len(ids_T), count, width)
            for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        rotary, at = self.eagle.rotary, np.arange(len(ids_T))
        q, k = (
            rotate(x, at, rotary.frequencies(width), rotary.style, rotary.amplitude) for x in (q, k)
        )
        x_TD = read_TD if self.eagle.norm_joins else x_TD
        x_TD = x_TD + self._product(attend(q, k, v, 0, None)[0], "o")
        normed = self._norm(x_TD, "mlp_norm")
        inner = silu(self._product(normed, "gate")) * self._product(normed, "up")
        x_TD = x_TD + self._product(inner, "down")
        return self._product(self._norm(x_TD, "final_norm"), "head"), x_TD

    def _norm(self, x_TD: Floats, name: str) -> Floats:
        normed: Floats = rms_norm(x_TD[None], self._weights[name][None], self.eagle.norm_eps)[0]
        return normed

    def _product(self, x_TC: Floats, name: str) -> Floats:
        product: Floats = linear(self._rounded(x_TC)[None], self._weights[name][None])[0]
        return product
