"""``monolane plan`` as a user runs it, in this process: nothing in it needs one of its own."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from monolane.cli._app import app
from monolane.plan import c_header


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


def test_the_floor_of_laneformer_2b_on_one_h200() -> None:
    result = run("show", "-m", "laneformer-2b", "-d", "h200", "--context", 1024)
    assert result.exit_code == 0
    assert "h200: 8 groups of 1 lane x 16 workers · 3,838 GB/s" in result.stdout
    assert "GATE_UP x 15  2,264.924" in result.stdout
    assert "15 group + 13 all" in result.stdout
    assert "4.538 GB per token" in result.stdout
    assert "floor 1,182.5 us · 846 tokens/s" in result.stdout


def test_json_adds_up() -> None:
    result = run("show", "-m", "laneformer-2b", "-d", "8xh200", "--dtype", "int4", "--json")
    record = json.loads(result.stdout)
    assert record["groups"] == {"count": 8, "lanes": 1, "workers": 128}
    assert record["device"]["devices"] == 8
    assert len(record["phases"]) == 78
    for key in ("bytes", "operations", "floor_us"):
        total = sum(phase[key] for phase in record["phases"])
        assert record["total"][key] == pytest.approx(total)
    assert record["total"]["tokens_per_s"] == pytest.approx(1e6 / record["total"]["floor_us"])
    assert record["phases"][14]["waits"] == {"group": 14, "all": 4}


def test_a_folder_and_all_its_phases(tiny_model: Path) -> None:
    result = run("show", "-m", tiny_model, "-d", "cpu:3", "--all", "--width", 4, "--bandwidth", 20)
    assert result.exit_code == 0
    assert "float32 · 96 tokens in the sequence · 4 in the pass" in result.stdout
    assert "1 group of 2 lanes x 3 workers · 20 GB/s" in result.stdout
    assert "GATE_UP 3" in result.stdout
    assert "per pass of 4 tokens" in result.stdout


def test_the_header_is_printed() -> None:
    assert run("header").stdout == c_header()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-d", "gpu"], "device: expected cpu"),
        (["--width", "97"], "max_width: expected 1 to 96, got 97"),
        (["--context", "5000"], "context: expected None or 1 to 4096"),
        (["--dtype", "fp8"], "dtype: expected one of"),
        (["--bandwidth", "0"], "bandwidth: expected a finite number above zero, got 0"),
        (["--bandwidth", "inf"], "bandwidth: expected a finite number above zero, got inf"),
    ],
)
def test_wishes_that_cannot_be_met(arguments: list[str], message: str) -> None:
    result = run("show", "-m", "laneformer-2b", *arguments)
    assert message in str(result.exception)


def test_a_pass_wider_than_the_sequence() -> None:
    result = run("show", "-m", "laneformer-2b", "--width", 8, "--context", 4)
    assert result.exit_code == 2
    assert "expected at least --width (8), got 4" in result.output
