"""The memory of sequences: stated before it is taken, and refused where it is not there."""

import logging
from pathlib import Path

import pytest

from monolane import Engine
from monolane.engine import _memory
from monolane.errors import BackendError


def test_what_sequences_take_is_stated(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), Engine.load(tiny_model, "cpu", max_sequences=3) as engine:
        executor = engine.backend.executor
    wanted = (
        f"keys and values of 3 sequences of {executor.context:,} tokens take "
        f"{executor.cache_bytes / 1e6:.2f} MB as they fill; "
    )
    assert wanted in caplog.text


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_what_does_not_fit_is_refused_with_what_would(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    with Engine.load(tiny_model, backend) as engine:
        need, context = engine.backend.executor.cache_bytes, engine.backend.context
    monkeypatch.setattr(_memory, "available_bytes", lambda: need)
    Engine.load(tiny_model, backend, prefix_cache="off").close()
    monkeypatch.setattr(_memory, "available_bytes", lambda: need // 2)
    message = (
        rf"context: expected room for keys and values of 1 sequence of {context:,} tokens, "
        rf".* got .* that is free; use a context of {context // 2:,} or less, fewer sequences"
    )
    with pytest.raises(BackendError, match=message):
        Engine.load(tiny_model, backend)


def test_files_in_memory_count_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's limit counts the pages of mapped weights as used."""
    texts = {
        "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    9000 kB\n",
        "/sys/fs/cgroup/memory.max": "max\n",
        "/sys/fs/cgroup/memory.current": "5000000\n",
        "/sys/fs/cgroup/memory.stat": "anon 1\nactive_file 1000000\ninactive_file 2000000\n",
    }
    monkeypatch.setattr(_memory, "_read", lambda path: texts.get(path, ""))
    assert _memory.available_bytes() == 9000 << 10
    texts["/sys/fs/cgroup/memory.max"] = "6000000\n"
    assert _memory.available_bytes() == 4_000_000
