"""A factor of queries that grows with their position (Llama 4, Ministral 3)."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monolane.errors import ConfigError
from monolane.ops._spec import MAX_SIZE


@dataclass(frozen=True, slots=True)
class Temperature:
    """Queries, turned, are multiplied by 1 + ``growth`` ln(1 + floor(position / ``context``)).

    ``ahead`` is added to positions first; with ``unturned_alone`` layers with a rotary have none.

    So scores keep their spread among more keys than a model was first trained with. ConfigError if
    the numbers make no sense.
    """

    growth: float
    context: int  # positions before the factor leaves 1, and between its steps
    ahead: int = 0
    unturned_alone: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.growth < math.inf or not 1 <= self.context <= MAX_SIZE:
            raise ConfigError(
                f"attention_temperature: expected a growth above 0 and a context of 1 to "
                f"{MAX_SIZE}, got {self.growth} and {self.context}"
            )

    def meets(self, unturned: bool) -> bool:
        """Tell whether a layer has it, in which queries are turned or not."""
        return unturned or not self.unturned_alone

    def factors(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the factor of each position, worked out in float64 and rounded once."""
        steps = (positions + self.ahead) // self.context
        found: npt.NDArray[np.float32] = (1 + self.growth * np.log(1.0 + steps)).astype(np.float32)
        return found
