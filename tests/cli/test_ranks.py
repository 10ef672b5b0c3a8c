"""``--ranks`` on the command line: the same text, and wrong numbers without a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

from monolane.cpu import CpuExecutor
from monolane.errors import RequestError
from monolane.model import Weights
from monolane.sources import find_model

PROGRAM = [sys.executable, "-W", "error", "-c", "from monolane.cli import main; main()"]


def generate(model: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, "generate", "abc", "--model", str(model), "-n", "12", "--ignore-eos"]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


def test_the_text_is_that_of_one_process(tiny_model: Path) -> None:
    alone, together = generate(tiny_model, "--backend", "cpu"), generate(tiny_model, "--ranks", "2")
    assert (together.returncode, together.stdout) == (0, alone.stdout)


def test_wrong_numbers_of_ranks(tiny_model: Path) -> None:
    divides = "ranks: expected one of 1, 2, which divide this model's 2 lanes, got 3"
    for code, options, told in (
        (1, ("--ranks", "3"), divides),
        (2, ("--ranks", "2", "--backend", "reference"), "ranks: expected backend cpu"),
    ):
        done = generate(tiny_model, *options)
        assert done.returncode == code
        assert told in done.stderr
        assert "Traceback" not in done.stderr


def test_the_text_is_that_of_one_process_with_a_rank_by_address(
    tiny_model: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef\n")
    command = [*PROGRAM, "rank", "--model", str(tiny_model), "--key-file", str(key)]
    listen = ["--listen", "127.0.0.1:0"]
    with subprocess.Popen([*command, *listen], stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        address = rank.stdout.readline().split()[-1]
        together = generate(tiny_model, "--ranks", address, "--key-file", str(key))
        key.write_text("another key 9abcdef\n")
        without = generate(tiny_model, "--ranks", address, "--key-file", str(key))
        rank.terminate()  # not Ctrl-C, which what runs in the background of a shell does not hear
        try:
            assert rank.wait(60) == 130
        finally:
            rank.kill()
    alone = generate(tiny_model, "--backend", "cpu")
    assert (together.returncode, together.stdout) == (0, alone.stdout), together.stderr
    assert without.returncode == 1
    assert f"rank 1 at {address} has another key" in without.stderr


def test_a_rank_without_a_key_makes_one_and_prints_it(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MONOLANE_RANK_KEY", raising=False)
    command = [*PROGRAM, "rank", "--model", str(tiny_model), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        address = rank.stdout.readline().split()[-1]
        name, _, key = rank.stdout.readline().strip().partition("=")
        assert (name, len(key)) == ("MONOLANE_RANK_KEY", 64)
        without = generate(tiny_model, "--ranks", address)
        monkeypatch.setenv(name, key)
        together = generate(tiny_model, "--ranks", address)
        rank.terminate()
        try:
            assert rank.wait(60) == 130
        finally:
            rank.kill()
    assert without.returncode == 1
    assert "key: expected one that all ranks share, got none" in without.stderr
    assert together.returncode == 0, together.stderr


def test_what_an_address_needs(tiny_model: Path) -> None:
    for options, code, told in (
        (("--ranks", "127.0.0.1:7000"), 1, "key: expected one that all ranks share, got none"),
        (("--ranks", "two"), 2, "ranks: expected a number, or host:port,host:port, got 'two'"),
        (("--ranks", "2", "--key-file", "k"), 2, "--key-file: expected ranks with addresses"),
    ):
        done = generate(tiny_model, *options)
        assert (done.returncode, told in done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize("ranks", [(), ("--ranks", "1"), ("--ranks", "127.0.0.1:7000")])
def test_a_link_delay_needs_ranks_of_this_host(
    tmp_path: Path, ranks: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong usage whatever the model is: nothing is read, and nobody is joined."""
    monkeypatch.setenv("MONOLANE_RANK_KEY", "0123456789abcdef")
    command = [*PROGRAM, "bench", "-m", str(tmp_path / "none"), "--link-delay", "5", *ranks]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    words = " ".join(done.stderr.replace("\u2502", " ").split())  # as the frame breaks it
    assert "--link-delay: expected --ranks 2 or more on this host" in words


def test_a_link_delay_in_one_process_is_refused() -> None:
    weights = Weights.open(find_model("demo"))
    with pytest.raises(RequestError, match="link_delay: expected 2 or more ranks, got 1"):
        CpuExecutor(weights, context=16, slots=1, link_delay=1e-6)
