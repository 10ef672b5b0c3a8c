"""Choices of a kernel that only a GPU can decide: each shortens a chain of dependent steps.

Every one is a constant of the specialisation (``SWITCH_...``), off in the product until a GPU has
shown that it wins. None changes a bit of any result, and `if constexpr` decides, so that what is
off is not compiled.
"""

from dataclasses import dataclass
from enum import Flag, auto


class Switch(Flag):
    """The switches of a kernel, in the order of what they are expected to be worth."""

    TABLES = auto()
    KEYS = auto()
    NORM = auto()
    LANES = auto()
    TOKEN_END = auto()
    GATE = auto()
    SLOTS = auto()
    IN_FLIGHT = auto()
    PAIRS = auto()


NONE = Switch(0)
ALL = ~NONE


@dataclass(frozen=True, slots=True)
class Prediction:
    """Microseconds a token that a switch is predicted to save: least and most, not measured.

    Of the 2B model, one sequence behind 1,024 tokens, on an H200. Negative: it may cost as much.
    """

    what: str
    bfloat16: tuple[float, float]
    float8: tuple[float, float]

    def of(self, dtype: str) -> tuple[float, float]:
        """Return the prediction for a dtype of weights."""
        return self.float8 if dtype == "float8" else self.bfloat16


# TABLES to SLOTS but for GATE: from stall counts of the machine code and a fluid model of the ring.
# GATE, IN_FLIGHT and PAIRS are guesses from the words and bytes that they spare.
PREDICTIONS = {
    Switch.TABLES: Prediction(
        "norm gains, rotary and shares are in shared memory before the poll", (11, 150), (40, 170)
    ),
    Switch.KEYS: Prediction(
        "K and V by loads of 8 bytes, evict-first; tiles are asked for ahead", (8, 45), (30, 85)
    ),
    Switch.NORM: Prediction(
        "a norm in one batch; squares are summed by their readers, not exchanged",
        (10, 20),
        (15, 30),
    ),
    Switch.LANES: Prediction(
        "outputs of other lanes are asked for before the product", (3, 6), (5, 8)
    ),
    Switch.TOKEN_END: Prediction(
        "requests are in shared memory; control is asked for early", (5, 8), (5, 8)
    ),
    Switch.GATE: Prediction(
        "who has waited in vain asks for one pair until it is there", (-10, 10), (-10, 15)
    ),
    Switch.SLOTS: Prediction("ring slots of 12 KB, and so a longer ring", (0, 2), (0, 2)),
    Switch.IN_FLIGHT: Prediction(
        "at most 72 KB of weights on their way, however long the ring", (-5, 20), (-5, 30)
    ),
    Switch.PAIRS: Prediction(
        "two numbers of 16 bits in a word, of hidden units and of K and V", (0, 3), (0, 3)
    ),
}
