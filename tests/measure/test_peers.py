"""bench/peers.py with a llama-bench that only pretends; the real one is not needed to test ours."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from monolane.measure import synthetic_config, validate_document

BENCH = Path(__file__).parents[2] / "bench"

# Answers as llama-bench of July 2025 does, as far as it is read; its speed depends on the format.
FAKE = """#!{python}
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert given["-o"] == "json" and given["-r"] == "1" and given["-ngl"] == "0", given
speed = {{"BF16": 10.0, "Q8_0": 20.0}}[{dtype}]
print("warming up", file=sys.stderr)
print(json.dumps([{{"build_commit": "abc1234", "model_type": "llama ?B", "n_threads": 2,
    "n_prompt": int(given["-p"]), "n_gen": int(given["-n"]), "n_depth": int(given["-d"]) + {off},
    "avg_ns": 1, "stddev_ns": 0, "avg_ts": speed, "stddev_ts": 0.0, "samples_ns": [1]}}]))
sys.exit({code})
"""


def fake(folder: Path, off: int = 0, code: int = 0) -> Path:
    path = folder / "llama-bench"
    text = FAKE.format(python=sys.executable, dtype='"BF16"', off=off, code=code)
    path.write_text(text)
    path.chmod(0o755)
    return path


def run(cache: Path, *arguments: str | Path | int) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-W", "error", str(BENCH / "peers.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"MONOLANE_CACHE": str(cache)},
        check=False,
    )


SMALL = ("--model", "laneformer-tiny", "--context", 4, "--prefill", 8, "--tokens", 3)
SMALL = (*SMALL, "--runs", 2, "--buffer", 1, "--threads", 2, "--dtype", "BF16")


def test_both_take_turns_and_the_ratio_is_ours_by_theirs(tmp_path: Path) -> None:
    out = tmp_path / "peers.json"
    wish = ["--llama-bench", fake(tmp_path), "--gguf", "any.gguf", *SMALL, "--out", out]
    result = run(tmp_path, *wish)
    assert result.returncode == 0, result.stderr
    document = json.loads(out.read_text())
    validate_document(document)
    assert str(tmp_path) not in out.read_text()
    read, decode, prefill, their_decode, their_prefill = document["records"]
    assert read["name"] == "read_bandwidth"
    for ours, theirs in ((decode, their_decode), (prefill, their_prefill)):
        assert theirs["engine"] == "llama.cpp"
        assert theirs["build"] == "abc1234"
        assert ours["name"] == theirs["name"]
        assert ours["tokens"] == theirs["tokens"]
        assert (theirs["runs"], theirs["median"], theirs["dtype"]) == (2, 10.0, "BF16")
        assert ours["ratio_to_llama_cpp"] == pytest.approx(ours["median"] / 10)
        assert ours["ratio_to_llama_cpp_min"] == pytest.approx(ours["min"] / 10)
        assert ours["ratio_to_llama_cpp_max"] == pytest.approx(ours["max"] / 10)
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == ["decode", "prefill"]


def test_a_ratio_is_of_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine halves its speed in the second round, between the two of the third, and stays."""
    monkeypatch.syspath_prepend(str(BENCH))
    from peers import ratio_figures

    found = ratio_figures([20.0, 10.0, 20.0], [16.0, 8.0, 8.0])
    assert found == {
        "ratio_to_llama_cpp": 1.25,  # that of the medians is 2.5
        "ratio_to_llama_cpp_min": 1.25,
        "ratio_to_llama_cpp_max": 2.5,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"off": 1}, "expected a test of {'n_prompt': 0, 'n_gen': 3, 'n_depth': 4}, got"),
        ({"code": 3}, "exit code 3: warming up"),
    ],
)
def test_a_peer_that_does_something_else(
    tmp_path: Path, options: dict[str, int], message: str
) -> None:
    program = fake(tmp_path, **options)
    result = run(tmp_path, "--llama-bench", program, "--gguf", "any.gguf", *SMALL)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    result = run(tmp_path, "--llama-bench", tmp_path / "none", "--gguf", "any.gguf", *SMALL)
    assert "none: cannot be run: No such file" in result.stderr
    if importlib.util.find_spec("gguf") is None:
        result = run(tmp_path, "--llama-bench", fake(tmp_path), *SMALL)
        assert "pip install gguf, or pass --gguf-py" in result.stderr


@pytest.mark.parametrize("dtype", ["BF16", "Q8_0", "Q4_0"])
def test_the_random_gguf_has_the_sizes_of_the_config(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = pytest.importorskip("gguf", reason="needs llama.cpp's gguf package")
    monkeypatch.syspath_prepend(str(BENCH))
    from _gguf import random_gguf

    config = synthetic_config("laneformer-tiny")
    path = random_gguf(gguf, tmp_path, "tiny", config, dtype)
    assert random_gguf(gguf, tmp_path, "tiny", config, dtype) == path
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    reader = gguf.GGUFReader(path)
    shapes = {tensor.name: tuple(map(int, tensor.shape)) for tensor in reader.tensors}
    assert len(shapes) == 3 + 9 * config.num_layers
    assert shapes["blk.3.ffn_down.weight"] == (512, 256)  # columns first
    assert shapes["token_embd.weight"] == (256, 2048)
    kinds = {tensor.tensor_type.name for tensor in reader.tensors if "norm" not in tensor.name}
    assert kinds == {dtype}
    assert reader.fields["llama.attention.head_count_kv"].parts[-1][0] == 8
