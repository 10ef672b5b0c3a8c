"""Long commands say how far they are where stderr is no terminal; stdout is for the answer."""

import os
import re
import subprocess
import sys
from pathlib import Path

PROGRAM = [sys.executable, "-W", "error", "-c", "from monolane.cli import main; main()"]
SMALL_BENCH = ("--runs", "1", "--tokens", "2", "--before", "2", "--prefill", "2", "--buffer", "1")


def stderr_of(*words: str | Path) -> str:
    done = subprocess.run(
        [*PROGRAM, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"TERM": "xterm"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stderr
    return done.stderr


def test_quantize(tmp_path: Path) -> None:
    words = ("quantize", "-m", "demo", "-o", tmp_path / "out", "--dtype", "int8")
    assert re.search(r"^quantizing: (\S+) of \1 MB$", stderr_of(*words), re.MULTILINE)
    more = ("--overwrite", "--json")
    assert stderr_of(*words, *more) == ""


def test_lossless(tiny_model: Path) -> None:
    said = stderr_of("verify", "-m", tiny_model, "--lossless", "--tokens", "2")
    first, *_, last = re.findall(r"^prompts: (\d+) of (\d+)$", said, re.MULTILINE)
    assert first == ("0", last[1])
    assert last[0] == last[1]


def test_bench(tiny_model: Path) -> None:
    said = stderr_of("bench", "-m", tiny_model, *SMALL_BENCH, "--startup", "1")
    assert re.findall(r"^measuring: \d+ of 6$", said, re.MULTILINE)[-1] == "measuring: 6 of 6"
    assert "starting processes: 2 of 2\n" in said
