"""Log-probabilities as chat and plain completions spell them."""

from collections.abc import Sequence
from typing import Any

from monolane.engine import TokenLogprob
from monolane.serve._http.logprobs import finite, spelled
from monolane.text import Tokenizer


def chat_logprobs(logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return ``logprobs`` of a chat choice."""
    return {
        "content": [
            {
                **_described(one.token_id, one.logprob, tokenizer),
                "top_logprobs": [_described(*pair, tokenizer) for pair in one.top],
            }
            for one in logprobs
        ]
    }


class CompletionLogprobs:
    """``logprobs`` of a plain completion, part by part: the offsets go on from part to part."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._silent = tokenizer.special_ids if tokenizer else frozenset[int]()  # no text
        self._offset = 0

    def take(self, first: int | None, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return those of the next tokens; ``first``: a prompt's first token, which has none."""
        columns: dict[str, list[Any]] = {
            name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        }
        if first is not None:
            self._add(columns, first, None, None)
        for one in logprobs:
            self._add(columns, one.token_id, finite(one.logprob), self._top(one))
        return columns

    def _add(self, columns: dict[str, list[Any]], token_id: int, *values: Any) -> None:
        text, _ = spelled(token_id, self._tokenizer)
        for column, value in zip(columns.values(), (text, *values, self._offset), strict=True):
            column.append(value)
        self._offset += 0 if token_id in self._silent else len(text)

    def _top(self, one: TokenLogprob) -> dict[str, float]:
        # Best first: where two tokens have one spelling, that of the more probable stays.
        found: dict[str, float] = {}
        for token_id, logprob in (*one.top, (one.token_id, one.logprob)):
            found.setdefault(spelled(token_id, self._tokenizer)[0], finite(logprob))
        return found


def _described(token_id: int, logprob: float, tokenizer: Tokenizer | None) -> dict[str, Any]:
    text, data = spelled(token_id, tokenizer)
    return {
        "token": text,
        "logprob": finite(logprob),
        "bytes": None if data is None else list(data),
    }
