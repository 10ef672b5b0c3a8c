"""bench/versions.py: this version beside itself, and beside one that cannot be run."""

import json
import os
import subprocess
import sys
from pathlib import Path

from monolane.measure import validate_document

SCRIPT = Path(__file__).parents[2] / "bench" / "versions.py"
SMALL = ("--synthetic", "laneformer-tiny", "--pairs", "2", "--runs", "1", "--tokens", "2")


def run(cache: Path, python: str | Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--python", str(python), *SMALL, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"MONOLANE_CACHE": str(cache)},
        check=False,
    )


def test_the_order_is_swapped_and_each_pair_gives_a_ratio(tmp_path: Path) -> None:
    out = tmp_path / "versions.json"
    result = run(tmp_path, sys.executable, "--label", "twin", "--out", str(out))
    assert result.returncode == 0, result.stderr
    turns = [line.rpartition(": ")[2] for line in result.stderr.splitlines() if "pair" in line]
    assert turns == ["other", "this", "this", "other"]
    document = json.loads(out.read_text())
    validate_document(document)
    decode, prefill = document["records"]
    assert (decode["name"], prefill["name"]) == ("decode", "prefill")
    assert decode["runs"] == 2
    assert len(decode["read_bandwidth_gb_s"]) == 4
    assert decode["ratio_to_other_min"] <= decode["ratio_to_other"] <= decode["ratio_to_other_max"]
    assert f"twin {decode['other_median']:.2f}: ratio" in result.stdout


def test_a_version_that_does_not_run_is_named_with_its_last_word(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such module >&2\nexit 3\n")
    broken.chmod(0o755)
    result = run(tmp_path, broken)
    assert result.returncode == 1
    assert f"{broken}: exit code 3: no such module" in result.stderr
