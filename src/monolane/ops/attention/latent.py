"""Latent attention: keys and values of all heads are made of one short vector a token, the latent.

With x the normed stream of a token and H heads:

    l, t = parts of kv_down(x)          # the latent [R], and a key [r] that all heads share
    l = norm(l)                         # of these two vectors of R + r numbers a cache keeps
    t = turned by the rotary embedding
    q = q(norm(q_down(x))), or q(x)     # [H, n + r]; the last r of each head are turned
    key of head i   = k_up[i] l, then t              # [n + r]
    value of head i = v_up[i] l                      # [v]

Scores and sums over them are as in all attention, by 1 / sqrt(n + r). The absorbed form multiplies
the query by k_up instead of each key: q_i . (k_up[i] l) = (k_up[i]^T q_i) . l. The cached vectors
are then the keys of one KV head for all, their first R numbers its values, and v_up is applied to
their weighted sum. So a key is widened for no head, and what is read a token is R + r numbers.
"""

from dataclasses import dataclass

from monolane.errors import ConfigError
from monolane.ops._spec import MAX_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """The sizes of latent attention. ConfigError if they make no sense."""

    rank: int  # R, of the latent of keys and values
    query_rank: int | None  # Q, of the queries' own latent; None: queries are made of the stream
    plain: int  # n, numbers of a head's query and key that are not turned
    turned: int  # r, those that are; the keys' are shared by all heads
    value: int  # v, of a head's value
    norm_eps: float = 1e-6  # of the norms of both latents

    def __post_init__(self) -> None:
        for name in ("rank", "query_rank", "plain", "turned", "value"):
            size = getattr(self, name)
            if size is not None and not 1 <= size <= MAX_SIZE:
                raise ConfigError(f"latent: expected a {name} of 1 to {MAX_SIZE}, got {size}")
        if self.turned % 2:
            raise ConfigError(
                f"latent: expected an even part that is turned, as rotary pairs need, got "
                f"{self.turned}"
            )
        if not 0 < self.norm_eps < 1:
            raise ConfigError(f"latent: expected a norm_eps between 0 and 1, got {self.norm_eps}")

    @property
    def head(self) -> int:
        """Width of a head's query and key, n + r."""
        return self.plain + self.turned

    @property
    def cached(self) -> int:
        """Numbers that a cache keeps of a token, R + r."""
        return self.rank + self.turned
