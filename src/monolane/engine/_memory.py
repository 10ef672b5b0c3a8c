"""The memory that sequences will take: stated, and refused, before any of it is taken.

An executor's cache costs nothing until it is filled (csrc/memory/arena.h), so whether it fits is
asked when the model has been loaded and no token has been read.
"""

import logging
import re

from monolane._cgroup import available_bytes
from monolane.errors import BackendError, RequestError
from monolane.executor_api import Executor
from monolane.model import Weights

log = logging.getLogger("monolane.engine")

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def check_cache(executor: Executor) -> None:
    """Say what the sequences will take at most; BackendError if that is not free."""
    need, free = executor.cache_bytes, available_bytes()
    if not need:
        return
    sequences = f"{executor.slots} sequence{'s' if executor.slots > 1 else ''}"
    what = f"keys and values of {sequences} of {executor.context:,} tokens"
    if need > free:
        raise BackendError(
            f"context: expected room for {what}, {_size(need)}, got {_size(free)} of memory that "
            f"is free; use a context of {int(executor.context * free / need):,} or less, fewer "
            "sequences, or a smaller cache_dtype (int8, int4)"
        )
    log.info("%s take %s as they fill; %s are free", what, _size(need), _size(free))


def expert_budget(wanted: str | int, weights: Weights) -> int:
    """Return the bytes that experts may have; RequestError for no number, BackendError if too many.

    A number beyond what the experts take is as good as that.
    """
    size = read_bytes(wanted)
    if size is None:
        raise RequestError(
            f"expert_memory: expected bytes, such as 512M or 8G, or None, got {wanted!r:.80}"
        )
    need, free = min(size, weights.expert_bytes), available_bytes()
    if need > free:
        raise BackendError(
            f"expert_memory: expected at most {_size(free)}, which are free, got {_size(need)}; "
            "the rest of the model and its keys and values have to fit beside it"
        )
    return size


def read_bytes(wanted: str | int) -> int | None:
    """Return bytes that are given as such, or as text such as "512M"; None if it is neither."""
    found = re.fullmatch(r"(\d{1,15})([KMGT]?)", str(wanted).upper())
    if found is None or isinstance(wanted, bool):
        return None
    return int(found[1]) * _UNITS[found[2]]


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"
