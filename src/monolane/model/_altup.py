"""AltUp: several streams of which layers work on the first, and the others follow (Gemma 3n).

Alternating updates (arXiv:2301.13310). With A streams h of D numbers each:

    r(x) = tanh(router(norm(x)) / D)                        # A numbers
    p_i = h_i + sum over j of (predict r(h_0))_ij h_j       # before a layer, whose stream is p_0
    e = y - p_0                                             # y what the layer makes of p_0
    h_i = p_i + (1 + (correct r(y))_i) e                    # behind its MLP

What the layer's last module, its per-layer embeddings, makes of h_0, scaled by ``scale`` [D] where
``scaled``, is added to all streams but the first. Behind the layer's second module its stream is
multiplied by sqrt(1 / 2). Streams begin as the embedding and A - 1 products of it, and end as the
mean of the first and A - 1 products of the others; each product is made as long as the first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from monolane.errors import ConfigError
from monolane.ops import JOINED, Role, Shapes

IN, OUT = JOINED[Role.ALTUP_IN], JOINED[Role.ALTUP_OUT]
PLACES = 4  # modules of a layer: attention, laurel, MLP, per-layer embeddings
STEPS = (0, PLACES - 1)  # before which of these streams are predicted, and corrected


@dataclass(frozen=True, slots=True)
class AltUp:
    """How many streams there are. ConfigError if it makes no sense."""

    # By what the layer's stream is multiplied behind the module in a place.
    FACTORS: ClassVar[Mapping[int, float]] = {1: 0.5**0.5}

    streams: int  # A
    scaled: bool = True

    def __post_init__(self) -> None:
        if not 2 <= self.streams <= len(IN) + 1:
            raise ConfigError(
                f"altup: expected 2 to {len(IN) + 1} streams, got {self.streams}: no published "
                "model has more"
            )

    def outer(self, hidden: int) -> Shapes:
        """Return the shapes of the weights that all layers share."""
        others = self.streams - 1
        return dict.fromkeys((*IN[:others], *OUT[:others]), (1, hidden, hidden))

    def joined(self, hidden: int) -> Shapes:
        """Return the shapes of what files have in the place of those: see JOINED."""
        rows = (self.streams - 1) * hidden
        return dict.fromkeys((Role.ALTUP_IN, Role.ALTUP_OUT), (1, rows, hidden))

    def tensors(self, hidden: int) -> Shapes:
        """Return the shapes of a layer's weights."""
        count = self.streams
        scale: Shapes = {Role.ALTUP_SCALE: (1, hidden)} if self.scaled else {}
        return {
            Role.ALTUP_NORM: (1, hidden),
            Role.ALTUP_ROUTER: (1, count, hidden),
            Role.ALTUP_PREDICT: (1, count * count, count),
            Role.ALTUP_CORRECT: (1, count, count),
            **scale,
        }
