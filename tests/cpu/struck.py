"""The scripts of bench/ that strike ranks, and what must come of each fault."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@contextmanager
def bench_script(name: str) -> Iterator[Any]:
    """A script as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        yield importlib.import_module(name)


def check(outcome: Any) -> None:
    """The struck one is named, the next request has the same bits, and nothing is left behind."""
    assert outcome.named, outcome
    assert outcome.served, outcome
    assert not any(outcome.left.values()), outcome
