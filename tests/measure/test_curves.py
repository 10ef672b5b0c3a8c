"""The curves in docs/images are drawn of the newest results, and of nothing else."""

import importlib.util
import json
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install 'monolane[plot]'")

ROOT = Path(__file__).parents[2]
ENDING = "-serving.json"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("bench_curves", ROOT / "bench" / "curves.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


curves = load()


def record(policy: str, clients: int) -> dict[str, Any]:
    figures = {"median": 1000.0 / clients, "total_tokens_per_s": 900.0}
    return {"name": "mixed_load", "policy": policy, "clients": clients, **figures}


def write(folder: Path, date: str, *records: dict[str, Any]) -> Path:
    path = folder / f"{date}-box{ENDING}"
    path.write_text(json.dumps({"records": [{"name": "http_stream", "median": 1.0}, *records]}))
    return path


def test_the_committed_pictures_have_not_drifted() -> None:
    assert curves.main(["--check"]) == 0
    for name, picture in curves.PICTURES.items():
        assert (ROOT / "docs" / "images" / name).stat().st_size < 80_000  # of some 25 rows
        assert f"images/{name}" in (ROOT / "docs" / picture.page).read_text()


def test_a_picture_is_of_the_newest_file_and_a_check_sees_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--results", str(tmp_path), "--images", str(tmp_path)]
    write(tmp_path, "2026-01-02", record("latency", 1))
    points = [record(policy, n) for policy in ("share:16", "share:4", "latency") for n in (4, 1)]
    write(tmp_path, "2026-03-01", *points)
    assert curves.main([*options, "--check"]) == 1
    assert curves.main(options) == 0
    assert curves.main([*options, "--check"]) == 0
    picture = tmp_path / "mixed-load.svg"
    text = picture.read_text()
    ElementTree.fromstring(text)
    assert "2026-03-01-box-serving.json" in text
    places = [text.index(f">{policy}<") for policy in ("latency", "share:4", "share:16")]
    assert places == sorted(places)
    assert ">concurrent requests<" in text
    shutil.copy(picture, tmp_path / "before.svg")
    assert curves.main(options) == 0
    assert picture.read_bytes() == (tmp_path / "before.svg").read_bytes()
    write(tmp_path, "2026-03-01", *points, record("latency", 8))
    assert curves.main([*options, "--check"]) == 1
    assert "python bench/curves.py" in capsys.readouterr().err


def test_all_runs_beside_other_engines_are_in_one_picture(tmp_path: Path) -> None:
    def peer(model: str, **more: Any) -> dict[str, Any]:
        case = {"name": "decode", "context": 128, "dtype": "Q8_0", "model": model}
        ratios = {"": 1.5, "_min": 1.2, "_max": 1.9}
        return case | {f"ratio_to_llama_cpp{end}": x for end, x in ratios.items()} | more

    def write(name: str, device: str, *records: dict[str, Any]) -> None:
        document = {"device": {"name": device}, "records": records}
        (tmp_path / name).write_text(json.dumps(document))

    other = {"name": "decode", "context": 128, "dtype": "Q8_0", "model": "none", "engine": "peer"}
    write("2026-01-01-a-peers.json", "AMD EPYC (Zen 4)", peer("llama-1.7b-Q8_0-v3"), other)
    write("2026-02-01-b-peers.json", "Intel(R) Processor", peer("moe.Q8_0", name="prefill"))
    options = ["--results", str(tmp_path), "--images", str(tmp_path)]
    assert curves.main(options) == 0
    text = (tmp_path / "peers.svg").read_text()
    rows = [">moe, Q8_0, Intel(R) Processor<", ">llama-1.7b, Q8_0, Zen 4<"]
    assert sorted(rows, key=text.index) == rows  # from below
    assert ">none" not in text
    write("2025-01-01-c-peers.json", "AMD EPYC", peer("old"))
    assert curves.main([*options, "--check"]) == 1


def test_a_picture_of_two_files_takes_the_later_one_and_says_what_is_modelled(
    tmp_path: Path,
) -> None:
    def overlap(shape: str, ranks: int, rule: str, speed: float) -> dict[str, Any]:
        points = [{"link_us": us, "median": speed, "simulated": speed} for us in (0, 100)]
        model = f"the {shape}, 8xcpu:1"
        return {"shape": shape, "ranks": ranks, "rule": rule, "model": model, "points": points}

    ends = ("dtp-overlap", [overlap("demo", 8, "now", 9.0), overlap("smollm2", 3, "now", 5.0)])
    later = ("dtp-overlap-smollm2", [overlap("smollm2", 3, "now", 77.0)])
    for name, records in (ends, later):
        (tmp_path / f"2026-01-01-box-{name}.json").write_text(json.dumps({"records": records}))
    options = ["--results", str(tmp_path), "--images", str(tmp_path)]
    assert curves.main(options) == 0
    text = (tmp_path / "dtp-overlap.svg").read_text()
    assert "Timed compute: real processes and exchanges, modelled times of phases." in text
    assert "2026-01-01-box-dtp-overlap.json" in text
    assert "2026-01-01-box-dtp-overlap-smollm2.json" in text
    assert ">the smollm2<" in text
    assert ">80<" in text  # of an axis that holds 77
    assert curves.main([*options, "--check"]) == 0
    (tmp_path / "2026-01-01-box-dtp-overlap-smollm2.json").write_text('{"records": []}')
    assert curves.main([*options, "--check"]) == 1


def test_a_newer_run_beside_peers_takes_the_place_of_an_older() -> None:
    figure_module = pytest.importorskip("matplotlib.figure")
    run = {
        "name": "decode",
        "context": 128,
        "model": "box-Q8_0-v3",
        "dtype": "Q8_0",
        "device": "AMD EPYC (Zen 4)",
    }
    ratios = [
        {f"ratio_to_llama_cpp{end}": value for end in ("", "_min", "_max")} for value in (1.5, 2.0)
    ]
    figure = figure_module.Figure()
    curves.draw_peers(figure, [run | ratio for ratio in ratios])
    dots = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert list(dots[0].get_xdata()) == [2.0]
