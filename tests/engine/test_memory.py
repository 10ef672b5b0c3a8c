"""The memory of sequences: stated before it is taken, and refused where it is not there."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monolane import Engine
from monolane.engine import _memory
from monolane.errors import BackendError
from tests.trees import write_tree


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


def test_experts_may_have_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    weights: Any = SimpleNamespace(expert_bytes=3_000_000)
    monkeypatch.setattr(_memory, "available_bytes", lambda: 2_000_000)
    assert _memory.expert_budget("1M", weights) == 1 << 20
    message = r"expert_memory: expected at most 2\.00 MB, which are free, got 3\.00 MB; the rest"
    with pytest.raises(BackendError, match=message):
        _memory.expert_budget("1G", weights)
    monkeypatch.setattr(_memory, "available_bytes", lambda: 3_000_000)
    assert _memory.expert_budget("1G", weights) == 1 << 30  # all of them


def test_a_container_s_memory_is_what_can_be_had(tmp_path: Path) -> None:
    write_tree(tmp_path, {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    9000 kB\n"})
    assert _memory.available_bytes(tmp_path) == 9000 << 10
    group = {"memory.max": "6000000", "memory.current": "5000000", "memory.stat": "anon 1\n"}
    write_tree(tmp_path, {"proc/self/cgroup": "0::/\n"})
    write_tree(tmp_path / "sys/fs/cgroup", group)
    assert _memory.available_bytes(tmp_path) == 1_000_000
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("60000000\n")
    assert _memory.available_bytes(tmp_path) == 9000 << 10


def test_this_machine_has_memory() -> None:
    assert _memory.available_bytes() > 1 << 20
