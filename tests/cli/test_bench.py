"""``monolane bench`` and ``monolane trace`` at the smallest size: what they print and write."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from monolane.cli._app import app
from monolane.measure import validate_document

SMALL = ("--buffer", 1, "--tokens", 4, "--threads", 2)


def run(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_a_document_of_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "cache"))
    wish = ["bench", "--synthetic", "laneformer-tiny", *SMALL, "--runs", 2, "--startup", 1]
    lengths = ["--before", 8, "--before", 24, "--prefill", 16]
    dtypes = ["--dtype", "bfloat16", "--dtype", "float32"]
    given = ["bench", "org/name", "/home/me/model", "../../me/other", "--out=/home/me/results"]
    monkeypatch.setattr(sys, "argv", ["/opt/bin/monolane", *given])
    result = run(*wish, *lengths, *dtypes, "--json", "-o", tmp_path)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    validate_document(document)
    (written,) = tmp_path.glob("*-synthetic-laneformer-tiny.json")
    assert json.loads(written.read_text()) == document
    assert f"written to {written}" in result.stderr
    assert document["command"] == "monolane bench org/name model other --out=results", "no places"
    records = document["records"]
    assert [(r["name"], r.get("dtype"), r.get("context"), r.get("tokens")) for r in records] == [
        ("read_bandwidth", None, None, None),
        ("decode", "bfloat16", 8, 4),
        ("decode", "bfloat16", 24, 4),
        ("decode", "float32", 8, 4),
        ("decode", "float32", 24, 4),
        ("prefill", "bfloat16", 0, 16),
        ("prefill", "float32", 0, 16),
        ("startup", "bfloat16", None, None),
        ("memory", "bfloat16", 24, None),
        ("startup", "float32", None, None),
        ("memory", "float32", 24, None),
    ]
    assert all(r["runs"] == 2 for r in records[:7])
    assert all(r["model"] == "synthetic-laneformer-tiny" for r in records[1:])


def test_a_table_for_people(tiny_model: Path) -> None:
    result = run("bench", "-m", tiny_model, *SMALL, "--runs", 1, "--startup", 0, "--before", 9)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert re.fullmatch(r".+, \d+ cores, reads [\d.]+ GB/s", lines[0])
    assert re.fullmatch(r"decode +float32 +9 +[\d,.]+ .* [\d.]+%", lines[3])
    assert re.fullmatch(r"prefill +float32 +64 .*tokens/s", lines[4])
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--synthetic", "gpt-5"], "--synthetic: expected one of laneformer-2b"),
        (
            ["-m", "demo", "--synthetic", "laneformer-tiny"],
            "expected --model or --synthetic, got both: demo, laneformer-tiny",
        ),
        (["-m", "demo-that-is-not"], "expected 'demo', 'smollm2', a folder or a .gguf file"),
        (["--before", "0"], "--before and --prefill: expected 1 token or more"),
        (["--runs", "0"], "greater than or equal to 1"),
        (["--output", "/proc/x.json"], "/proc/x.json cannot be written: No such file"),
    ],
)
def test_wishes_that_cannot_be_met(arguments: list[str], message: str) -> None:
    result = run("bench", *arguments)
    assert result.exit_code != 0
    assert message in " ".join(f"{result.output} {result.exception}".replace("│", "").split())


def test_a_context_too_long_for_the_model(tiny_model: Path) -> None:
    result = run("bench", "-m", tiny_model, "--before", 96, "--tokens", 4)
    assert "expected at most 96 tokens" in str(result.exception)


def test_trace_writes_a_file_and_prints_a_table(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    wish = ["--tokens", 3, "--before", 5, "--threads", 2]
    result = run("trace", "-m", tiny_model, "--output", path, *wish)
    assert result.exit_code == 0, result.output
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["tid"] for event in events} == {0, 1}
    assert "3 tokens on 2 workers" in result.stdout
    assert [line.split()[0] for line in result.stdout.splitlines()[2:]] == [
        "EMBED",
        "QKV",
        "ATTEND",
        "OUT",
        "GATE_UP",
        "DOWN",
        "HEAD",
        "CHOOSE",
        "total",
    ]


@pytest.mark.parametrize("command", ["bench", "trace"])
def test_help_is_there(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "--threads" in result.stdout


def test_the_program_starts_without_what_measuring_needs() -> None:
    probe = "import sys, monolane.cli; sys.exit('monolane.measure' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


def test_who_drafts() -> None:
    """A draft model is in the record by its name; a drafter that is not there is refused."""
    wish = [
        "bench",
        "-m",
        "demo",
        *SMALL,
        "--runs",
        1,
        "--startup",
        0,
        "--before",
        8,
        "--prefill",
        8,
    ]
    result = run(*wish, "--draft", "int8", "--speculation", "draft", "--json")
    assert result.exit_code == 0, result.output
    decode = json.loads(result.stdout)["records"][1]
    assert (decode["name"], decode["draft"], decode["drafter"]) == ("decode", "int8", "draft")
    for wrong in (("--speculation", "heads"), ("--draft", "int8", "--speculation", "suffix")):
        assert run(*wish, *wrong).exit_code == 2


@pytest.mark.parametrize(("suffix", "begin"), [("html", "<!DOCTYPE html>"), ("svg", "<svg ")])
def test_a_trace_may_be_a_page_or_a_picture(
    tiny_model: Path, tmp_path: Path, suffix: str, begin: str
) -> None:
    path = tmp_path / f"trace.{suffix}"
    result = run(
        "trace", "-m", tiny_model, "-o", path, "--tokens", 3, "--before", 8, "--threads", 1
    )
    assert result.exit_code == 0, result.output
    text = path.read_text()
    assert text.startswith(begin)
    assert f"{tiny_model} on 1 worker" in text
    assert result.stdout.count("█") > 20  # of the 40 that are the whole time
