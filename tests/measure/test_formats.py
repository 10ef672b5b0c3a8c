"""bench/formats.py: runs of parts and of formats add up to one file."""

import argparse
import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def formats(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("gguf")
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("formats")


def test_a_run_adds_to_what_the_file_has(formats: Any, tmp_path: Path) -> None:
    out = tmp_path / "formats.json"

    def keep(part: str, kind: str, figure: float) -> None:
        name = "accuracy" if part == "accuracy" else "decode"
        options = argparse.Namespace(out=out, part=part)
        formats.keep(options, kind, [{"name": name, "figure": figure}])

    keep("accuracy", "Q4_0", 1)
    keep("speed", "Q4_0", 2)
    keep("accuracy", "Q8_0", 3)
    keep("accuracy", "Q4_0", 4)  # in place of the first
    document = formats.read_document(out)
    found = {(one["name"], one["dtype"]): one["figure"] for one in document["records"]}
    assert found == {("decode", "Q4_0"): 2, ("accuracy", "Q8_0"): 3, ("accuracy", "Q4_0"): 4}
    assert set(document["commands"]) == {"accuracy", "speed"}
    assert len({one["commit"] for one in document["records"]}) == 1


def test_a_llama_cpp_that_is_not_built_is_named(formats: Any, tmp_path: Path) -> None:
    with pytest.raises(formats.PeerError, match=r"c\+\+ .*llama_logits.*exit code 1"):
        formats.compile_logits(tmp_path, tmp_path)
