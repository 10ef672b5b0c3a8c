"""An executor that decodes nothing, for processes that read prompts and answer none."""

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from monolane.errors import BackendError
from monolane.executor_api import Advance, Executor, Guide, TokenEvent


class NoExecutor(Executor):
    """Knows how long a context is, and refuses all else."""

    name, dtype = "none", "none"

    def __init__(self, context: int) -> None:
        self.context, self.slots = context, 1

    def length(self, slot: int) -> int:
        """Return 0."""
        del slot
        return 0

    def truncate(self, slot: int, length: int) -> None:
        """Refuse."""
        self._refuse()

    def logits(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Refuse."""
        self._refuse()

    def start(self, advances: Sequence[Advance]) -> None:
        """Refuse."""
        self._refuse()

    def read(self, seconds: float) -> bool:
        """Say that nothing runs."""
        del seconds
        return True

    def take(self) -> list[TokenEvent]:
        """Return no tokens."""
        return []

    def guide(self, slot: int, guide: Guide) -> None:
        """Refuse."""
        self._refuse()

    def interrupt(self) -> None:
        """Do nothing: nothing runs."""

    def _refuse(self) -> NoReturn:
        raise BackendError("this engine reads prompts and answers none; load one with a backend")
