"""Hyper-connections: several streams that each module reads as one and writes to all (DeepSeek-V4).

Manifold-constrained hyper-connections (arXiv:2512.24880). With A streams h of D numbers each, and
n all of them side by side, normed as one and without scales, in float32:

    a, b, c = parts of fn n              # A, A and A*A numbers
    a = sigmoid(a scale_0 + base) + eps
    b = 2 sigmoid(b scale_1 + base)
    c = softmax of each row of (c scale_2 + base) + eps
    c = c with columns that add up to 1, then ``rounds`` - 1 times with rows, then columns that do
    x = sum over i of a_i h_i            # what a module reads
    h_k = b_k y + sum over j of c_jk h_j # y what it says

Each of a layer's two modules has ``fn``, ``base`` and ``scale`` of its own. Where columns or rows
are divided by their sums, eps is added to these. Streams begin as the embedding, all alike, and end
as a sum of them, whose shares are made as a is, of weights of their own.
"""

from dataclasses import dataclass

from monolane.errors import ConfigError
from monolane.ops import MAX_SIZE, Role, Shapes

# Of each of a layer's modules: fn, base, scale.
HYPER = (
    (Role.HYPER_1, Role.HYPER_1_BASE, Role.HYPER_1_SCALE),
    (Role.HYPER_2, Role.HYPER_2_BASE, Role.HYPER_2_SCALE),
)
HYPER_OUT = (Role.HYPER_OUT, Role.HYPER_OUT_BASE, Role.HYPER_OUT_SCALE)
_MOST = 64  # streams; bounds what a hostile config can make us allocate


@dataclass(frozen=True, slots=True)
class Hyper:
    """How many streams there are, and how they are mixed. ConfigError if it makes no sense."""

    streams: int  # A
    rounds: int  # in which columns and rows are made to add up to 1
    eps: float

    def __post_init__(self) -> None:
        if not 1 <= self.streams <= _MOST or not 1 <= self.rounds <= MAX_SIZE:
            raise ConfigError(
                f"hyper: expected 1 to {_MOST} streams and 1 round or more, got {self.streams} and "
                f"{self.rounds}"
            )
        if not 0 < self.eps < 1:
            raise ConfigError(f"hyper: expected an eps between 0 and 1, got {self.eps}")

    def outer(self, hidden: int) -> Shapes:
        """Return the shapes of the weights outside the layers."""
        count = self.streams
        fn, base, scale = HYPER_OUT
        return {fn: (1, count, count * hidden), base: (1, count), scale: (1, 1)}

    def tensors(self, hidden: int) -> Shapes:
        """Return the shapes of a layer's weights."""
        rows = (2 + self.streams) * self.streams
        shapes: Shapes = {}
        for fn, base, scale in HYPER:
            shapes |= {fn: (1, rows, self.streams * hidden), base: (1, rows), scale: (1, 3)}
        return shapes
