"""What simulated workers share: buffers that are NaN until written, and again when overwritten."""

from functools import cache
from math import prod

import numpy as np
import numpy.typing as npt

from monolane.ops import Buffer
from monolane.plan._phase import OUTPUTS, Phase
from monolane.plan._plan import Plan, PlanError

Floats = npt.NDArray[np.float32]
Where = tuple[int | slice, ...]

LASTING = (Buffer.KEY_VALUE, Buffer.STATE)  # what a sequence keeps from pass to pass, by layers
SLOTTED = (*OUTPUTS, *LASTING)


class SharedMemory:
    """Buffers as ``Plan.shape`` gives them: of each slot as many numbers as any layer needs."""

    def __init__(self, plan: Plan) -> None:
        self._shape = cache(plan.shape)  # asked at each access, and worked out from the model
        self._arrays: dict[Buffer, Floats] = {
            buffer: np.full((plan.slots(buffer), plan.size(buffer)), np.nan, np.float32)
            for buffer in Buffer
            if buffer is not Buffer.TOKENS
        }
        self._versions: dict[tuple[Buffer, str], int] = {}
        self.tokens: list[int] = []  # TOKENS

    def read(self, buffer: Buffer, where: Where, phase: Phase | None = None) -> Floats:
        """Return a part of a buffer as a phase uses it; PlanError if it is not all written.

        ``where`` begins with the slot, if the buffer has some.
        """
        part = self._part(buffer, where, phase)
        if np.isnan(part).any():
            raise PlanError(f"reads {buffer.name} before it is written")
        return part

    def write(
        self,
        buffer: Buffer,
        region: Where,
        part: Where,
        values: Floats,
        version: int,
        phase: Phase | None = None,
    ) -> None:
        """Write ``values`` into ``part`` of a region, which is poisoned once per version."""
        array = self._part(buffer, region, phase)
        key = buffer, str(region)
        if buffer not in LASTING and self._versions.get(key) != version:
            array[...] = np.nan
            self._versions[key] = version
        array[part] = values

    def _part(self, buffer: Buffer, where: Where, phase: Phase | None) -> Floats:
        slot, *rest = where if buffer in SLOTTED else (0, *where)
        layer, module = (-1, None) if phase is None else (phase.layer, phase.module)
        shape = self._shape(buffer, layer, module)
        numbers = self._arrays[buffer][slot]
        part: Floats = numbers[: prod(shape)].reshape(shape)[tuple(rest)]
        return part
