"""Curves are drawn from the records alone: the same records, the same bytes."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from monolane.errors import RequestError
from monolane.measure import plot_load

pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install 'monolane[plot]'")


def record(clients: int, label: str, **more: Any) -> dict[str, Any]:
    spread = {"p50": 5.0 * clients, "p90": 7.0, "p99": 9.0 * clients, "max": 10.0}
    figures = {"median": 1000 / clients, "total_tokens_per_s": 900.0, "first_ms": spread}
    return {
        "name": "serve",
        "label": label,
        "clients": clients,
        "rate": None,
        "prompt_wanted": 64,
        **figures,
        **more,
    }


def test_a_line_for_each_label_and_length(tmp_path: Path) -> None:
    records = [record(n, label) for label in ("latency", "share:4") for n in (4, 1, 2)]
    records += [record(1, "latency", prompt_wanted=512)]
    records += [{"name": "serve", "error": "x"}, {"name": "decode", "median": 3.0}]
    path = tmp_path / "new" / "a.svg"
    plot_load(records, path)
    text = path.read_text()
    ElementTree.fromstring(text)
    words = ["latency, prompt of 64", "latency, prompt of 512", "share:4, prompt of 64"]
    words += ["concurrent requests", "one request: tokens/s, median", "all requests: tokens/s"]
    assert all(f">{word}<" in text for word in words)
    plot_load(records[::-1][::-1], tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_bytes() == path.read_bytes()


def test_a_rate_is_drawn_by_its_rate(tmp_path: Path) -> None:
    plot_load([record(1, "x") | {"clients": None, "rate": 2.5}], tmp_path / "a.svg")
    assert ">requests/s<" in (tmp_path / "a.svg").read_text()


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="expected records named 'serve' with figures"):
        plot_load([{"name": "serve", "error": "x"}], tmp_path / "a.svg")
