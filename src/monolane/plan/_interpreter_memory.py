"""What simulated workers share: buffers that are NaN until written, and again when overwritten."""

import numpy as np
import numpy.typing as npt

from monolane.plan._phase import Buffer
from monolane.plan._plan import Plan, PlanError

Floats = npt.NDArray[np.float32]
_LASTING = (Buffer.KEY_VALUE, Buffer.STATE)  # what a sequence keeps from pass to pass


class SharedMemory:
    """Arrays as ``Plan.shape`` gives them; those without slots have none here either."""

    def __init__(self, plan: Plan) -> None:
        self._arrays: dict[Buffer, Floats] = {
            buffer: np.full(plan.shape(buffer), np.nan, np.float32)
            for buffer in Buffer
            if buffer is not Buffer.TOKENS
        }
        self._versions: dict[tuple[Buffer, str], int] = {}
        self.tokens: list[int] = []  # TOKENS

    def read(self, buffer: Buffer, where: tuple[int | slice, ...]) -> Floats:
        """Return a part of a buffer; PlanError if some of it has not been written."""
        part: Floats = self._arrays[buffer][where]
        if np.isnan(part).any():
            raise PlanError(f"reads {buffer.name} before it is written")
        return part

    def write(
        self,
        buffer: Buffer,
        region: tuple[int | slice, ...],
        part: tuple[int | slice, ...],
        values: Floats,
        version: int,
    ) -> None:
        """Write ``values`` into ``part`` of a region, which is poisoned once per version."""
        array = self._arrays[buffer][region]
        key = buffer, str(region)
        if buffer not in _LASTING and self._versions.get(key) != version:
            array[...] = np.nan
            self._versions[key] = version
        array[part] = values
