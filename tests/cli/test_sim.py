"""``monolane sim`` as a user runs it, in this process."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from monolane.cli._app import app
from monolane.errors import RequestError


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["sim", *map(str, arguments)])


def test_eight_gpus_are_predicted() -> None:
    result = run("--model", "laneformer-2b", "--device", "8xH200", "--reduce", "after:2")
    assert result.exit_code == 0
    assert "8xh200: 8 groups of 1 lane x 128 workers · reduce: never, after 2" in result.stdout
    assert "predicted: nothing of this project has run on such a device" in result.stdout
    assert "1,024 tokens in the sequence" in result.stdout
    for part in ("streaming", "chain", "wait_group", "wait_all", "choose", "launch"):
        assert f"\n{part} " in result.stdout
    assert result.stdout.rstrip().count("\n") == 16  # three uncertainties at the end


def test_json_adds_up() -> None:
    result = run("-d", "8xmi300x", "--reduce", "now", "--context", 512, "--json")
    record = json.loads(result.stdout)
    assert record["model"] == "laneformer-2b"
    assert record["predicted"] is True
    assert record["context"] == 512
    assert sum(record["parts_us"].values()) == pytest.approx(record["us_per_pass"], rel=1e-6)
    assert record["tokens_per_s"] == pytest.approx(1e6 / record["us_per_pass"])
    assert record["tokens_per_s_low"] < record["tokens_per_s"] < record["tokens_per_s_high"]


def test_stated_figures_and_a_model_folder(tiny_model: Path) -> None:
    base = ("-m", tiny_model, "-d", "2xcpu:1", "--reduce", "now", "--context", 32, "--json")
    slow, fast = (
        json.loads(run(*base, "--link-latency", us).stdout)["us_per_pass"] for us in ("50", "0")
    )
    links = 2 * 4 + 2  # two a layer, for the choice, and for the pass that the leader lays out
    assert slow - fast == pytest.approx(links * 50, rel=0.01)


def test_this_processor_counts_at_the_bandwidth_that_it_reads(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    from monolane import measure

    class Probe:
        def __init__(self, workers: int, size: int) -> None:
            assert size > 1 << 28  # beyond every cache

        def warm_up(self) -> None:
            pass

        def measure(self) -> float:
            return 20e9

    monkeypatch.setattr(measure, "ReadProbe", Probe)
    monkeypatch.setattr(measure, "describe_machine", lambda: {"name": "AMD EPYC"})
    base = ("-m", tiny_model, "--dtype", "bfloat16", "--context", 32, "--json")
    result = run(*base, "-d", "here")
    here = json.loads(result.stdout)
    assert "here: AMD EPYC, " in result.stderr
    assert " threads, which read 20 GB/s just now" in result.stderr
    assert here["device"].startswith("amd-epyc:")
    said = json.loads(run(*base, "-d", here["device"], "--bandwidth", 20).stdout)
    assert here == said


def test_a_trace_has_a_track_for_each_group(tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    result = run("-d", "8xh200", "--trace", out)
    assert result.exit_code == 0
    document = json.loads(out.read_text())
    assert document["otherData"]["standing"].startswith("predicted")
    tracks = [event for event in document["traceEvents"] if event["ph"] == "M"]
    assert len(tracks) == 8
    names = {event["name"] for event in document["traceEvents"]}
    assert {"QKV 0", "DOWN 14", "CHOOSE", "wait for CHOOSE"} <= names


def test_a_sweep(tiny_model: Path) -> None:
    result = run("-m", tiny_model, "-d", "2xcpu:1", "--context", 32, "--sweep", "bandwidth")
    assert result.exit_code == 0
    assert "bandwidth, by the constant's · reduce after:2" in result.stdout
    record = json.loads(
        run("-m", tiny_model, "-d", "cpu:2", "--sweep", "width", "--context", 64, "--json").stdout
    )
    assert set(record) == {"title", "axis", "lines", "left_out"}


@pytest.mark.parametrize(
    "more", [(), ("--sweep", "link"), ("--report", "seeds")], ids=["figures", "sweep", "report"]
)
def test_ten_thousand_tokens_a_second_are_spelled_as_such(
    more: tuple[str, ...], tiny_model: Path
) -> None:
    fast = () if "--report" in more else ("-m", tiny_model, "-d", "2xh200", "--context", 32)
    said = run(*fast, *more).stdout
    assert re.search(r"\b\d\d,\d{3}\b", said)
    assert "e+" not in said


def test_the_report() -> None:
    result = run("--report", "seeds")
    assert result.exit_code == 0
    assert "Mixtures of experts at 36% of the bandwidth" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-d", "gpu"], "device: expected one of h200"),
        (["-d", "h200:4"], "device: expected one of h200"),
        (["--reduce", "soon"], "reduce: expected now, never or after:D"),
        (["--lanes", "1", "--reduce", "now"], "expected a model of several lanes, got one lane"),
        (["--lanes", "7"], "7"),
        (["--context", "5000"], "context: expected None or 1 to 4096"),
        (["--context", "4", "--width", "8"], "context: expected at least the width, 8, got 4"),
        (["--dtype", "fp8"], "dtype: expected one of"),
        (["--sweep", "speed"], "sweep: expected one of delay"),
        (["--report", "all"], "report: expected seeds, got 'all'"),
        (["--trace", "."], "expected a file to write, got a folder"),
        (
            ["--plot", "/proc/none/x.svg"],
            "/proc/none/x.svg: expected a folder /proc/none, got none",
        ),
        (["--plot", "/proc/x.svg"], "/proc/x.svg cannot be written: No such file"),
        (["--trace", "/proc/x.json"], "/proc/x.json cannot be written: No such file"),
    ],
)
def test_wishes_that_cannot_be_met(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert message in str(result.exception)
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-d", "9999xh200"], "devices: expected 1 to 4096"),
        (["-d", "0xh200"], "devices: expected 1 to 4096, got 0"),
        (["-d", "cpu:0"], "workers: expected 1 to 4096, got 0"),
        (["--bandwidth", "0"], "bandwidth_gb_s: expected a finite number above zero, got 0"),
        (["--bandwidth", "inf"], "bandwidth_gb_s: expected a finite number above zero, got inf"),
        (["--link-latency", "inf"], "link_us: expected a finite number of zero or more, got inf"),
        (["-d", "cpu:2", "--link-latency", "5"], "a link: expected several devices"),
        (["-d", "cpu:2", "--sweep", "link"], "sweep: link: expected several devices"),
        (["--sweep", "link", "--link-latency", "5"], "sweep: link takes values of its own"),
        (["--sweep", "delay", "--reduce", "now"], "sweep: delay takes values of its own"),
        (["--sweep", "link", "--trace", "x"], "trace: expected no sweep beside it"),
        (
            ["--report", "seeds", "-d", "h200", "--width", "2", "--json"],
            "report: expected --json alone beside it, got --device, --width;",
        ),
    ],
)
def test_what_cannot_be_meant(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, RequestError)  # for which ``monolane`` ends with 2
    assert message in str(result.exception)


@pytest.mark.parametrize("option", ["--link-latency", "--link-bandwidth"])
@pytest.mark.parametrize("value", ["-1", "nan"])
def test_a_link_has_no_less_than_nothing(option: str, value: str) -> None:
    assert run(option, value).exit_code == 2


def test_the_page_shows_what_the_command_says() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "simulator.md").read_text()
    said = run("-m", "laneformer-2b", "-d", "8xh200", "--reduce", "after:2", "--context", 1024)
    assert said.stdout.rstrip() in page
    (speed,) = (line for line in said.stdout.splitlines() if line.endswith("139.2 us"))
    picture = (root / "docs" / "images" / "sim-8xh200.svg").read_text()
    assert speed.split(" · ")[0] in picture
