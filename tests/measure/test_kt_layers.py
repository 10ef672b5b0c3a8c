"""bench/kt_layers.py: layers of experts in turns with those of another program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from monolane.measure import validate_document

pytest.importorskip("gguf", reason="writes GGUF files: pip install gguf")
SCRIPT = Path(__file__).parents[2] / "bench" / "kt_layers.py"

# Answers as bench/_kt_layers.py does, which needs kt-kernel.
PEER = """
import json, sys
sizes = json.loads(sys.argv[2])
print("a greeting", sizes["method"], flush=True)
for line in sys.stdin:
    width, rounds = map(int, line.split())
    print(json.dumps([0.5 * width * sizes["layers"]] * rounds), flush=True)
"""


def run(tmp_path: Path, peer: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "peer"
    file.write_text(f"#!{sys.executable}\n{peer}")
    file.chmod(0o755)
    command = [sys.executable, SCRIPT, "--peer", file, "--shape", "moe-tiny", "--pairs", "2"]
    return subprocess.run(
        [*command, "--type", "Q8_0", "--out", tmp_path / "found.json"],
        capture_output=True,
        text=True,
        env=os.environ | {"MONOLANE_CACHE": str(tmp_path / "cache")},
        check=False,
    )


def test_a_layer_is_timed_beside_the_peer_s(tmp_path: Path) -> None:
    result = run(tmp_path, PEER)
    assert result.returncode == 0, result.stderr
    document = json.loads((tmp_path / "found.json").read_text())
    validate_document(document)
    decode, prefill = document["records"]
    assert (decode["name"], decode["tokens"]) == ("experts_decode", 1)
    assert (prefill["name"], prefill["tokens"]) == ("experts_prefill", 256)
    assert decode["peer_median"] == 1e6  # of two layers
    assert decode["ratio_to_kt_kernel"] * decode["median"] == pytest.approx(1e6, rel=0.5)
    assert decode["bytes"] == 2 * 3 * 256 * 256 // 32 * 34  # two of eight experts of Q8_0
    assert 0 < decode["median"] < prefill["median"] < 10_000  # each pass by itself


def test_a_peer_that_ends_is_told_with_its_exit_code(tmp_path: Path) -> None:
    result = run(tmp_path, "raise SystemExit(3)")
    assert result.returncode == 1
    assert "kt_layers: the peer ended with exit code 3" in result.stderr
