"""Pictures of what was measured: every bar and point is one of the figures that were given."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monolane.errors import RequestError
from monolane.measure import plot_bench, trace_page, trace_svg
from monolane.plan import PhaseKind, Slice, Trace

SVG = "{http://www.w3.org/2000/svg}"


def traced() -> Trace:
    """Three passes of two workers; the second is slower, and worker 1 waits for worker 0 in it."""
    phases: list[Any] = [
        SimpleNamespace(index=i, name=name, kind=kind)
        for i, (name, kind) in enumerate((("qkv 0", PhaseKind.QKV), ("head<", PhaseKind.HEAD)))
    ]
    found = []
    for k, start in enumerate((1000, 5000, 20_000)):
        slow = 2 if k == 1 else 1
        for worker in (0, 1):
            middle = start + 1000 * slow
            found.append(Slice(worker, phases[0], start, start, middle - 500 * worker, 4000))
            arrived = middle - 500 * worker
            found.append(Slice(worker, phases[1], arrived, middle, middle + 2000, 8000))
    return Trace(2, 3, tuple(found))


def bars(svg: str) -> list[tuple[str, float, float]]:
    """Return name, begin and width of each bar, in parts of the whole."""
    root = ET.fromstring(svg)
    return [
        (
            title.text or "",
            (float(bar.get("x") or 0) - 74) / 900,
            float(bar.get("width") or 0) / 900,
        )
        for bar in root.iter(f"{SVG}rect")
        if (title := bar.find(f"{SVG}title")) is not None
    ]


def test_a_token_is_drawn_worker_by_worker() -> None:
    svg = trace_svg(traced(), "a <model>")
    assert svg == trace_svg(traced(), "a <model>")
    assert "a &lt;model&gt;: a token of 4.0 µs" in svg
    assert bars(svg) == [  # the middle pass: 4 us in all
        ("qkv 0: 2.00 µs", 0, pytest.approx(0.5, abs=1e-4)),
        ("head<: 2.00 µs", 0.5, pytest.approx(0.5, abs=1e-4)),
        ("qkv 0: 1.50 µs", 0, pytest.approx(0.375, abs=1e-4)),
        ("wait for head<: 0.50 µs", 0.375, pytest.approx(0.125, abs=1e-4)),
        ("head<: 2.00 µs", 0.5, pytest.approx(0.5, abs=1e-4)),
    ]


def test_a_page_has_the_picture_and_the_table() -> None:
    page = trace_page(traced(), "a <model>")
    assert trace_svg(traced(), "a <model>") in page
    assert "<h1>a &lt;model&gt;</h1>" in page
    rows = re.findall(r"<tr><td>(\w+)</td><td>([\d.,]+)</td>.*<td>([\d.]+%)</td></tr>", page)
    # Busy, of two workers over three passes: (1 + 2 + 1 + 0.5 + 1.5 + 0.5) / 6 and 12 / 6 us.
    assert rows == [("QKV", "1.1", "0.0%"), ("HEAD", "2.0", "11.1%")]
    assert not re.search(r"(src|href)=", page)  # nothing beside it


def test_speeds_by_length_and_dtype(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'monolane[plot]'")
    records = [
        {"name": "decode", "dtype": dtype, "context": n, "median": m, "min": m - 5, "max": m + 9}
        for dtype, n, m in (("int8", 512, 90), ("int8", 16, 100), ("bfloat16", 16, 60))
    ]
    records.append(
        {"name": "prefill", "dtype": "int8", "tokens": 64, "median": 900, "min": 800, "max": 950}
    )
    for name in ("a.svg", "b.svg"):
        plot_bench(records, "demo on a machine", tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    for part in ("demo on a machine", "decode: tokens/s", "prefill: tokens/s", "int8", "bfloat16"):
        assert part in text
    with pytest.raises(RequestError, match="plot: expected records named 'decode' or 'prefill'"):
        plot_bench([{"name": "memory"}], "x", tmp_path / "c.svg")
