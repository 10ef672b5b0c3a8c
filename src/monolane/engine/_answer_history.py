"""Answers that an engine remembers, for later ones to draft from: agents edit the same files again.

They are hints to the executor and decide about time alone. Still, time tells: so each namespace
has its own, as it has its own prefixes.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from monolane.executor_api import TEXT_END

# Tokens of one namespace, ends of texts included: what csrc/draft/speculation.cpp has room for
# beside a context, read in some milliseconds. At 4 bytes each, 256 namespaces have 8 MB at most.
_MOST, _NAMESPACES = 8192, 256
_LEAST = 8  # tokens of an answer that may be worth to copy from
_END = np.uint32(TEXT_END).tobytes()


class EarlierAnswers:
    """The newest answers of each namespace; for any thread. The oldest are forgotten first."""

    def __init__(self, most: int = _MOST, namespaces: int = _NAMESPACES) -> None:
        self._most, self._namespaces = most, namespaces
        self._lock = threading.Lock()
        # Of each namespace, the least recently used first: answers as the bytes of uint32 [T], the
        # oldest first, and where each began in its sequence.
        self._answers: OrderedDict[str, dict[bytes, int]] = OrderedDict()

    def add(self, namespace: str, begin: int, token_ids: Sequence[int]) -> None:
        """Remember an answer that began behind ``begin`` tokens; of a long one, its end.

        Another of the same tokens takes its place.
        """
        kept = token_ids[-self._most + 1 :]
        if len(kept) < _LEAST:
            return
        with self._lock:
            answers = self._answers.setdefault(namespace, {})
            self._answers.move_to_end(namespace)
            text = np.asarray(kept, np.uint32).tobytes()
            answers.pop(text, None)
            answers[text] = begin + len(token_ids) - len(kept)
            while _tokens(answers) > self._most:
                del answers[next(iter(answers))]
            if len(self._answers) > self._namespaces:
                self._answers.popitem(last=False)

    def texts(self, namespace: str, prompt_ids: Sequence[int]) -> npt.NDArray[np.uint32]:
        """Return the answers that a prompt does not hold at their place, TEXT_END behind each.

        A conversation that is sent whole holds its own.
        """
        with self._lock:
            if namespace in self._answers:
                self._answers.move_to_end(namespace)
            answers = list(self._answers.get(namespace, {}).items())
        prompt = np.asarray(prompt_ids, np.uint32).tobytes() if answers else b""
        others = (text for text, begin in answers if not prompt.startswith(text, 4 * begin))
        return np.frombuffer(b"".join(text + _END for text in others), np.uint32)


def _tokens(answers: dict[bytes, int]) -> int:
    return sum(len(text) // 4 + 1 for text in answers)
