"""A token and its log-probability as JSON can hold them."""

import math

from monolane.text import Tokenizer

_LEAST = -9999.0  # stands for "never": JSON has no minus infinity


def spelled(token_id: int, tokenizer: Tokenizer | None) -> tuple[str, bytes | None]:
    """Return a token as text, and its bytes."""
    data = None if tokenizer is None else tokenizer.pieces.get(token_id)
    # Without a token, as vLLM spells ids: a model's vocabulary may be larger than its tokenizer's.
    return f"token_id:{token_id}" if data is None else data.decode("utf-8", "replace"), data


def finite(logprob: float) -> float:
    """Return a log-probability as JSON can hold it."""
    return logprob if math.isfinite(logprob) else _LEAST
