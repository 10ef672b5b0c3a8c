"""A dense decoder dealt out to lanes: its config, and where each lane's part of a matrix lies.

Lanes that hear each other at once (``NOW``) add up what the dense matrix products add up, in
another order. Heads and inner units are dealt out in order: lane l of L owns the query heads
l * H/L .. (l+1) * H/L - 1, and so on. Of Q, K, V, gate and up that makes rows, of o and down
columns. Fewer KV heads than lanes are repeated until the lanes can share them out: exact, since
each query head reads a copy of its own; it costs cache and reads.

This is the one description of the cut: ``find_lanes`` says into how many, ``lane_cut`` what lies
where, ``LaneCut.of`` applies it to arrays, and the CPU's workers to their own rows
(csrc/ops/packed_weights.h).
"""

import math
from dataclasses import dataclass, replace

from monolane.errors import BackendError, ConfigError
from monolane.model._config import Head, ModelConfig
from monolane.model._reduce import NOW
from monolane.model._safetensors import Array
from monolane.ops import QkNorm, Role


@dataclass(frozen=True, slots=True)
class LaneCut:
    """How the rows of all lanes, lane after lane, are made of the rows of a dense matrix.

    column_parts   lane l has part l of the columns of every row; 1: whole rows
    copies         each run of ``block`` rows comes so many times, one behind the other
    """

    column_parts: int = 1
    copies: int = 1
    block: int = 1

    @property
    def copied(self) -> bool:
        """Whether the lanes' rows are other ones than those that lie there, one after the other."""
        return self.column_parts > 1 or self.copies > 1

    def of(self, rows: Array) -> Array:
        """Return the rows of all lanes, of those of a dense matrix [R, X], or of a vector [R].

        X may count bytes or scales as well as numbers: whatever is as long for each lane.
        [R * copies, X], or [column_parts, R, X / column_parts].
        """
        if self.column_parts > 1:
            return rows.reshape(len(rows), self.column_parts, -1).swapaxes(0, 1)
        if self.copies == 1:
            return rows
        blocks = rows.reshape(-1, self.block, *rows.shape[1:])
        return blocks.repeat(self.copies, axis=0).reshape(-1, *rows.shape[1:])


def in_lanes(dense: ModelConfig, lanes: int) -> ModelConfig:
    """Return the config of a model of one lane cut into several, which share its norms' scales.

    Alone, a lane has nobody to hear, whatever its rules; now all hear each other at once. Each lane
    has a part of the vocabulary where that divides; else one head reads the lanes' mean.
    ConfigError says what does not divide.
    """
    if lanes == 1:
        return dense
    split = dense.vocab_size % max(lanes, 1) == 0
    return replace(
        dense,
        num_lanes=lanes,
        num_kv_heads=_repeated_kv_heads(dense, lanes),
        layers=tuple(replace(x, attention_reduce=NOW, mlp_reduce=NOW) for x in dense.layers),
        head=Head.VOCAB_PARALLEL if split else Head.MEAN,
        norm_scale_per_lane=False,
    )


def find_lanes(config: ModelConfig, parts: int, lanes: int | None, word: str) -> int:
    """Return a model's lanes on so many ranks or devices (``word``), as many of them on each.

    Those of a Laneformer; a model of one lane is cut into ``lanes``, or into one for each.
    BackendError if it cannot be.
    """
    if config.num_lanes > 1:
        if lanes not in (None, config.num_lanes):
            raise BackendError(
                f"lanes: expected None or the {config.num_lanes} that this model has, got {lanes!r}"
            )
        wanted = config.num_lanes
    else:
        wanted = parts if lanes is None else lanes
        try:
            in_lanes(config, wanted)
        except ConfigError as error:
            raise BackendError(
                f"{word}: this model cannot be cut into {wanted} lanes for {parts} {word}: {error}"
            ) from None
    if wanted % parts:
        divisors = [str(n) for n in range(1, wanted + 1) if wanted % n == 0]
        raise BackendError(
            f"{word}: expected one of {', '.join(divisors)}, which divide this model's {wanted} "
            f"lanes, got {parts}"
        )
    return wanted


def lane_cut(dense: ModelConfig, config: ModelConfig, role: Role) -> LaneCut:
    """Return how a tensor of a dense model becomes that of the lanes of ``config``."""
    if config.num_lanes == dense.num_lanes:
        return LaneCut()
    if role in (Role.O, Role.DOWN):
        return LaneCut(column_parts=config.num_lanes)
    repeated = [Role.K, Role.V, Role.K_BIAS, Role.V_BIAS]
    if dense.qk_norm is QkNorm.ALL:  # a mean over repeated heads is the mean over the heads
        repeated.append(Role.K_NORM)
    if role in repeated:
        copies = config.num_kv_heads // dense.num_kv_heads
        return LaneCut(copies=copies, block=config.head_dim)
    return LaneCut()


def _repeated_kv_heads(dense: ModelConfig, lanes: int) -> int:
    """KV heads that the lanes can share out evenly: those there are, or each of them repeated."""
    heads, inner, kv_heads = dense.num_heads, dense.intermediate_size, dense.num_kv_heads
    if lanes < 1 or heads % lanes or inner % lanes:
        fitting = [n for n in range(1, heads + 1) if math.gcd(heads, inner) % n == 0]
        raise ConfigError(
            f"lanes: expected a number that divides num_attention_heads ({heads}) and "
            f"intermediate_size ({inner}), one of {', '.join(map(str, fitting))}; got {lanes}"
        )
    repeated = math.lcm(kv_heads, lanes)
    if heads % repeated:
        raise ConfigError(
            f"lanes: {kv_heads} KV heads for {heads} query heads cannot be shared out to {lanes} "
            f"lanes, not even repeated; give a divisor of {kv_heads}"
        )
    return repeated
