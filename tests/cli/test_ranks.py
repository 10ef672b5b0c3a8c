"""``--ranks`` on the command line: the same text, and wrong numbers without a traceback."""

import subprocess
import sys
from pathlib import Path

PROGRAM = [sys.executable, "-W", "error", "-c", "from monolane.cli import main; main()"]


def generate(model: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, "generate", "abc", "--model", str(model), "-n", "12", "--ignore-eos"]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


def test_the_text_is_that_of_one_process(tiny_model: Path) -> None:
    alone, together = generate(tiny_model, "--backend", "cpu"), generate(tiny_model, "--ranks", "2")
    assert (together.returncode, together.stdout) == (0, alone.stdout)


def test_wrong_numbers_of_ranks(tiny_model: Path) -> None:
    for options, told in (
        (("--ranks", "3"), "ranks: expected one of 1, 2, which divide this model's 2 lanes, got 3"),
        (("--ranks", "2", "--backend", "reference"), "ranks: expected backend cpu"),
    ):
        done = generate(tiny_model, *options)
        assert done.returncode == 1
        assert told in done.stderr
        assert "Traceback" not in done.stderr
