"""The shared memory of a block: what lies where."""

from dataclasses import dataclass

HELD_STOPS = 32  # stop tokens that a block keeps in shared memory, with TOKEN_END
_BANKS = 128  # bytes: shared memory serves 32 words at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Byte offsets within a block's shared memory."""

    ring: int
    barriers: int
    activations: int  # 16-bit [T][stride]; in memory in a wide pass
    stage: int  # wide passes: the activations of two ring slots
    partial: int  # float: the parts of a phase's sums, or attention's partial results
    stream: int  # float [T][own rows]: the block's rows of the stream; in memory in a wide pass
    gained: int  # the same of what a module adds to them, where that is normed
    query: int  # 16-bit [T][query heads of a KV head][query stride]
    scales: int  # float: of the rows of a phase's product, where rows have scales
    gains: int  # 16-bit [D]: of the next norm, with TABLES
    rotary: int  # float [T][h]: of the pass's positions, with TABLES
    shares: int  # [tables of a layer, or of all]: the block's own, with TABLES
    rounds: int  # u8 [4 x ways of sharing out + 1]: the block's own, where blocks differ
    requests: int  # Advance [T], then the first stop tokens, with TOKEN_END
    squares: int  # float [2][B], then the first rows of a lane's blocks [B + 1], with NORM
    state: int
    total: int


def aligned(size: int) -> int:
    """Return bytes rounded up to all banks."""
    return -(-size // _BANKS) * _BANKS


def stride(least: int) -> int:
    """Return bytes >= least such that eight tokens' 32-byte pieces fall on different banks."""
    return aligned(least - 32) + 32 if least > 32 else 32
