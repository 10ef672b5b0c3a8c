"""A terminal that lacks letters gets escapes for them; no command ends for that."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-W", "error", "-c", "from monolane.cli import main; main()"]
PLACES = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "locale C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


def run(place: str, *words: str | Path | bytes, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    unset = {"PYTHONIOENCODING", "PYTHONUTF8", "LC_ALL", "LANG"}
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        [*PROGRAM, *words],
        input=stdin,
        capture_output=True,
        timeout=300,
        env=kept | PLACES[place],
        check=False,
    )
    assert b"UnicodeEncodeError" not in done.stderr, done.stderr
    assert b"Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("place", PLACES)
def test_marks_are_escaped(place: str) -> None:
    code, out, _ = run(place, "doctor")
    assert code == 0
    assert rb"\u2713 version" in out


@pytest.mark.parametrize("place", PLACES)
def test_every_help_is_shown(place: str) -> None:
    for words in (("--help",), ("bench", "serve", "--help"), ("eval", "--help"), ("chat", "-h")):
        code, out, err = run(place, *words)
        assert code in (0, 2)
        assert out or err


@pytest.mark.parametrize("place", PLACES)
def test_an_answer_is_escaped_and_its_json_is_json(place: str, tiny_model: Path) -> None:
    # Random weights at a high temperature draw bytes of all kinds.
    words = ("generate", "x", "-m", tiny_model, "-n", "60", "-t", "3", "--ignore-eos")
    code, plain, _ = run(place, *words)
    json_code, text, _ = run(place, *words, "--json")
    assert code == json_code == 0
    answer = json.loads(text.decode("latin-1" if place == "latin-1" else "ascii"))
    letters = {letter for letter in answer["text"] if ord(letter) > 255}
    assert letters  # or the test shows nothing
    assert plain.isascii() or place == "latin-1"
    for letter in letters:
        assert letter.encode("ascii", "backslashreplace") in plain


def test_a_prompt_of_other_letters_is_read(tiny_model: Path) -> None:
    """Python reads them as bytes in the locale C; the model is to see letters."""
    common = ("-m", str(tiny_model), "-n", "4", "--ignore-eos", "--json")
    asked = [run("locale C", "generate", "café ✓".encode(), *common)]
    asked.append(run("locale C", "generate", "-", *common, stdin="café ✓".encode()))
    here = subprocess.run(
        [*PROGRAM, "generate", "café ✓", *common],
        capture_output=True,
        timeout=300,
        env=os.environ | {"PYTHONUTF8": "1"},
        check=True,
    )
    wanted = json.loads(here.stdout)["token_ids"]
    assert [json.loads(out)["token_ids"] for _, out, _ in asked] == [wanted, wanted]


def test_a_system_message_of_other_letters_is_read(tiny_model: Path) -> None:
    words = ("chat", "-m", str(tiny_model), "-n", "4", "--system")
    code, found, err = run("locale C", *words, "café ✓".encode(), stdin=b"x\n")
    assert code == 0, err
    here = subprocess.run(
        [*PROGRAM, *words, "café ✓"],
        input=b"x\n",
        capture_output=True,
        timeout=300,
        env=os.environ | {"PYTHONUTF8": "1"},
        check=True,
    )
    assert found == here.stdout.decode().encode("ascii", "backslashreplace")


def test_chat_goes_on(tiny_model: Path) -> None:
    code, _, err = run("locale C", "chat", "-m", tiny_model, "-n", "4", stdin="é ✓\nx\n".encode())
    assert code == 0
    assert err.count(b"first after") == 2
