"""What an operation reads of its model while a pass goes through one layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from monolane.model import LayerRotary, LowRank, ModelConfig, PairStyle, Role
from monolane.reference._cache import Cache
from monolane.reference._operations import Floats, linear, rms_norm, rotate


@dataclass(frozen=True, slots=True)
class LayerPass:
    """One layer in one pass of T tokens."""

    config: ModelConfig
    layer: int
    weights: Mapping[Role, Floats]  # float32, shaped as executors see them
    outer: Mapping[Role, Floats]  # the same of those outside the layers
    experts: Mapping[Role, Sequence[Floats]]  # of each role one for each expert
    cache: Cache
    token_ids: npt.NDArray[np.int64]  # [T]
    stream: Floats  # [L, T, D]: what a module reads, before it is normed
    states: Floats | None = None  # [T, D]: what another model's head read of the tokens before
    # Of the layers before that have an index: which keys each token sees, [T, S].
    seen: dict[int, npt.NDArray[np.bool_]] = field(default_factory=dict)
    # What the sequence's adapter adds to which matrices.
    adapted: Mapping[Role, LowRank] = field(default_factory=dict)

    def product(self, x_LTD: Floats, role: Role) -> Floats:
        """Apply a matrix, and what an adapter adds to it: [L, T, R]."""
        plain = linear(x_LTD, self.weights[role])
        part = self.adapted.get(role)
        return plain if part is None else plain + linear(linear(x_LTD, part.down), part.up)

    def norm(self, x: Floats, scale: Floats, eps: float | None = None) -> Floats:
        """Norm with a scale as files have it; ``eps`` is by default the config's."""
        offset = np.float32(self.config.norm_offset)
        return rms_norm(x, scale + offset, self.config.norm_eps if eps is None else eps)

    def turn(self, x_LTHh: Floats, which: LayerRotary, style: PairStyle | None = None) -> Floats:
        """Turn heads, or the first numbers of each, by their tokens' positions.

        ``style`` of pairs is by default the rotary's.
        """
        if which == "none":
            return x_LTHh
        rotary = self.config.rotary if which == "main" else self.config.local_rotary
        assert rotary is not None
        dim, first = self.config.rotary_dim(which), self.cache.length
        positions_T = np.arange(first, first + x_LTHh.shape[1])
        x_LTHr, rest = np.split(x_LTHh, [dim], axis=-1)
        frequencies = rotary.frequencies(dim)
        turned = rotate(x_LTHr, positions_T, frequencies, style or rotary.style, rotary.amplitude)
        return np.concatenate([turned, rest], axis=-1)
