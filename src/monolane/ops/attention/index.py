"""An index: what chooses the keys that latent attention sees (DeepSeek's sparse attention, DSA).

With x the normed stream of a token, c the normed latent of its queries, and H heads of width d:

    k = turned(layer_norm(index_k(x)))   # [d], which a cache keeps of each token
    q = turned(index_q(c))               # [H, d]
    w = index_weights(x) / sqrt(H)       # [H]
    score of a key = sum over the heads of w_h max(0, q_h . k / sqrt(d))

Of the keys that it may see a token sees the ``chosen`` with the largest scores, all where there are
no more; of equal ones the first. The norm has a bias. Of each head the first numbers are turned, as
many as of attention's heads, and by the same angles; ``style`` says which of them pair up.

A layer may have no index, and see what an earlier layer's has chosen (GLM-5).

Sources: arXiv:2512.02556, arXiv:2603.12201.
"""

from dataclasses import dataclass
from typing import Literal

from monolane.errors import ConfigError
from monolane.ops._spec import MAX_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """The sizes of an index. ConfigError if they make no sense."""

    heads: int  # H
    width: int  # d
    chosen: int  # keys that a token sees at most
    style: Literal["half", "interleaved"]  # of rotary pairs
    norm_eps: float = 1e-6  # of the keys' norm

    def __post_init__(self) -> None:
        for name in ("heads", "width", "chosen"):
            if not 1 <= getattr(self, name) <= MAX_SIZE:
                raise ConfigError(
                    f"index: expected {name} of 1 to {MAX_SIZE}, got {getattr(self, name)}"
                )
