"""Native core of monolane."""

from typing import Annotated

import numpy
from numpy.typing import NDArray


def gumbel_noise(seed: int, position: int, first_token: int, count: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C')]:
    """
    Gumbel noise, float32 [count], of the tokens first_token .. first_token + count - 1 at a position under a 64-bit seed. Defined in docs/sampling.md.
    """
