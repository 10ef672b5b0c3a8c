"""The script for machines with several GPUs, without any: its parts, its page, and a rehearsal of
the whole on two emulated ones."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.gpu._campaign import find_part
from bench.gpu._stage import Budget, CheckError, NotMeasuredError, Stage
from bench.gpu.monokernel import _several, devices
from bench.gpu.monokernel._scale import REHEARSAL
from bench.gpu.monokernel._several_page import render
from monolane import _results
from monolane._results import Record
from monolane.measure import synthetic_config
from monolane.model import find_lanes

SCRIPT = Path(devices.__file__)


def stage(work: Path, records: list[Record]) -> Stage:
    return Stage(REHEARSAL, work, Budget(100.0), records.append, {"engine": "monolane"})


def test_every_part_has_its_function() -> None:
    for emulated in (False, True):
        for part in devices.parts(emulated):
            assert callable(part.function())
    names = [part.name for part in devices.parts(False)]
    assert names == [
        "build", "links", "bits:2", "bits:4", "bits:8",
        "decode:1", "decode:2", "decode:4", "decode:8",
    ]  # fmt: skip
    assert find_part(devices.parts(True), "decode:2")


def test_what_is_timed_fits_into_the_context() -> None:
    for rehearse in (False, True):
        scale = devices.make_stage("", rehearse, Path(), Budget(1.0), lambda _: None).scale
        longest = max(scale.contexts) + scale.tokens
        assert longest < scale.context
        for config in (scale.config, _several.dense_config(rehearse)):
            assert scale.context <= config.max_positions
            for count in _several.COUNTS[: 2 if rehearse else None]:
                assert find_lanes(config, count, None, "devices") % count == 0


def test_the_dense_model_is_that_of_the_bench_command() -> None:
    config = _several.dense_config(emulated=False)
    assert replace(config, max_positions=4096) == synthetic_config("dense-2b")


def test_more_gpus_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(NotMeasuredError, match="8 GPUs: this machine has 2"):
        _several.decode(stage(tmp_path, []), "decode:8")


class Drawn:
    """In a model's place: other logits, or other tokens, on two GPUs."""

    def __init__(self, _: Stage, *, devices: int, differ: str, **wish: object) -> None:
        self._odd = devices > 1 and differ

    def random_tokens(self, count: int) -> tuple[int, ...]:
        return (1,) * count

    def logits(self, slot: int, tokens: tuple[int, ...]) -> np.ndarray:  # type: ignore[type-arg]
        found = np.ones((len(tokens), 3), np.float32)
        found[0, 1] += np.float32(2.0**-23) if self._odd == "logits" else np.float32(0)
        return found

    def run(self, *advances: object) -> list[object]:
        class Event:
            token_id = 2 if self._odd == "tokens" else 1

        return [Event()]

    def empty(self, slot: int) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("differ", "message"),
    [
        ("logits", "expected the bits of one GPU, got 1 other logits"),
        ("tokens", "expected the tokens of one GPU, 1, 2"),
        ("", ""),
    ],
)
def test_other_bits_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differ: str, message: str
) -> None:
    from bench.gpu.monokernel._random_weights import make_block, random_weights

    make_block(REHEARSAL.config, tmp_path)
    weights = random_weights(REHEARSAL.config, tmp_path)
    monkeypatch.setattr(_several, "Model", lambda *x, **wish: Drawn(*x, differ=differ, **wish))
    if differ:
        with pytest.raises(CheckError, match=message):
            _several.same_bits(stage(tmp_path, []), 2, weights, None)
    else:
        found = _several.same_bits(stage(tmp_path, []), 2, weights, None)
        assert found["tokens_drawn"] == 1


def test_the_page_shows_what_is_wrong_and_what_several_gain() -> None:
    speeds = [
        {"name": "decode", "engine": "monolane", "model": "m", "context": 8, "devices": n,
         "min": v, "median": v, "max": v, "tokens_per_s": v, "us_per_token": 1e6 / v}
        for n, v in ((1, 100.0), (2, 150.0))
    ]  # fmt: skip
    records: list[Record] = [
        *speeds,
        {"name": "bits", "engine": "monolane", "model": "m", "devices": 2, "error": "no"},
        {"name": "topology", "engine": "monolane", "gpus": ["A", "A"], "unreachable": ["0 to 1"],
         "matrix": ["GPU0 NV18"]},
    ]  # fmt: skip
    device = {"name": "x", "driver": None, "cores": 1, "memory_gb": 1.0}
    page = render(_results.build_document(device, "c", records, "abc"))
    assert "**WRONG**: no" in page
    assert "| 6,666.7 | 1.50 |" in page
    assert "- cannot reach: 0 to 1" in page
    assert "GPU0 NV18" in page


# The kernels that it compiles are kept from run to run; cold it takes half a minute of a core.
@pytest.mark.slow
def test_the_rehearsal(kernel_cache: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--rehearse", "--out", str(tmp_path), "--commit", "abc"]
    done = subprocess.run(
        [*command, "--work", str(kernel_cache)],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    (path,) = tmp_path.glob("*-emulated-devices.json")
    document = json.loads(path.read_text())
    _results.validate_document(document)
    records = document["records"]
    assert [r for r in records if "error" in r] == [], done.stdout + done.stderr
    assert done.returncode == 0
    dense = _several.dense_name(True)
    right = {(r["model"], r["devices"]) for r in records if r["name"] == "bits"}
    assert right == {("no_comm", 2), (REHEARSAL.model, 2), (dense, 2)}
    timed = {(r["model"], r["devices"]) for r in records if r["name"] == "decode" and "median" in r}
    assert timed == {(model, n) for model in (REHEARSAL.model, dense) for n in (1, 2)}
    assert [r["pair"] for r in records if r["name"] == "link" and "median" in r] == ["0-1"]
    page = path.with_suffix(".md").read_text()
    for title in ("Right or wrong", "Decode, one sequence", "Links", "Topology"):
        assert f"## {title}" in page, title
    assert "WRONG" not in page
