"""Runs of training as a picture: what is read of their journals, and what is drawn."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from monolane.cli._app import app
from monolane.errors import CheckpointError, RequestError
from monolane.train import plot_runs, read_curves


def run(*arguments: str | Path) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(app, [str(x) for x in arguments])


def step(number: int, loss: float, **other: Any) -> dict[str, Any]:
    """A journal's line of a step."""
    fixed = {"z_loss": 0.0, "norm": 1.5, "learning_rate": 1e-3, "tokens_per_s": 900.0}
    return fixed | {"step": number, "loss": loss, "tokens": 100 * number, "seconds": 2.0} | other


def write_run(folder: Path, *lines: dict[str, Any], torn: str = "") -> Path:
    """A run's folder with such a journal."""
    folder.mkdir()
    (folder / "log.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines) + torn)
    return folder


def event(number: int, kind: str) -> dict[str, Any]:
    """A journal's line of an event."""
    return {"step": number, "event": kind, "text": "", "time": "2026-01-31T12:00:00.000+00:00"}


def test_what_was_done_again_counts_once(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "run",
        *(step(n, 4.0 - n) for n in (1, 2, 3)),
        {"step": 3, "validation": {"bits_per_byte": 9.0, "bits_per_byte/web": 8.0}},
        event(3, "spike"),
        event(1, "rollback"),
        step(2, 7.0),
        {"step": 2, "validation": {"bits_per_byte": 2.0}},
        torn='{"step": 3, "lo',
    )
    curves = read_curves(folder)
    assert {n: line["loss"] for n, line in curves.steps.items()} == {1: 3.0, 2: 7.0}
    assert curves.held_out == {2: 2.0}
    assert curves.events == [(3, "spike"), (1, "rollback")]


@pytest.mark.parametrize("journal", [None, [event(0, "start")]])
def test_a_folder_without_steps_is_refused(
    tmp_path: Path, journal: list[dict[str, Any]] | None
) -> None:
    folder = tmp_path / "run" if journal is None else write_run(tmp_path / "run", *journal)
    with pytest.raises(RequestError, match="expected the folder of a run") as caught:
        read_curves(folder)
    assert str(folder) in str(caught.value)


def drawn(picture: str) -> set[str]:
    """The words of a picture."""
    words = re.findall(r"<text [^>]*>([^<]+)</text>", picture)
    return {word.removeprefix("\N{ZERO WIDTH SPACE}") for word in words}


def test_runs_are_drawn_together(tmp_path: Path) -> None:
    first = write_run(
        tmp_path / "dense",
        *(step(n, 5.0 / n) for n in range(1, 30)),
        {"step": 20, "validation": {"bits_per_byte": 2.0}},
    )
    second = write_run(tmp_path / "lanes", *(step(n, 4.0 / n) for n in range(1, 30)))
    runs = {"dense": read_curves(first), "lanes": read_curves(second)}
    picture = plot_runs(runs, "tokens")
    wanted = {"dense", "lanes", "loss: nats per token", "held-out text: bits per byte", "tokens"}
    assert wanted <= drawn(picture)
    assert picture == plot_runs(runs, "tokens")
    alone = plot_runs({"lanes": runs["lanes"]}, "step")
    assert "held-out text: bits per byte" not in drawn(alone)


def test_runs_are_called_as_they_are(tmp_path: Path) -> None:
    curves = read_curves(write_run(tmp_path / "run", *(step(n, 3.0) for n in (1, 2))))
    assert {"_first", "$x$"} <= drawn(plot_runs({"_first": curves, "$x$": curves}, "step"))


@pytest.mark.parametrize(("by", "last"), [("step", 40), ("tokens", 4000), ("seconds", 80)])
def test_what_lies_on_the_axes(tmp_path: Path, by: str, last: int) -> None:
    folder = write_run(tmp_path / "run", *(step(n, 3.0) for n in range(1, 41)))
    out = tmp_path / "board.svg"
    result = run("board", folder, "--by", by, "-o", out)
    assert result.exit_code == 0, result.output
    assert "written to" in result.stderr
    assert str(last) in drawn(out.read_text())


def test_a_long_run_is_a_small_picture_with_its_spikes(tmp_path: Path) -> None:
    losses = {n: 3.0 + (n == 7_777) * 50.0 for n in range(1, 10_001)}
    folder = write_run(tmp_path / "run", *(step(n, loss) for n, loss in losses.items()))
    picture = plot_runs({"run": read_curves(folder)}, "step")
    assert len(picture) < 100_000
    assert "50" in drawn(picture)  # on the axis of a loss that is 3 but once


def test_what_changed_the_course_is_marked(tmp_path: Path) -> None:
    steps = [step(n, 3.0) for n in range(1, 10)]
    plain = read_curves(write_run(tmp_path / "plain", *steps))
    marked = read_curves(write_run(tmp_path / "marked", *steps, event(5, "resume")))
    saved = read_curves(write_run(tmp_path / "saved", *steps, event(5, "checkpoint")))
    lines = {}
    for name, curves in {"plain": plain, "marked": marked, "saved": saved}.items():
        lines[name] = plot_runs({"run": curves}, "step").count("stroke-dasharray")
    assert lines["marked"] == lines["plain"] + 3  # loss, gradients, speed
    assert lines["saved"] == lines["plain"]


@pytest.mark.parametrize("line", [{"step": 1}, {"step": 1, "loss": 2.0}, {"step": 1, "event": 3}])
def test_a_line_that_is_no_journals_is_named(tmp_path: Path, line: dict[str, Any]) -> None:
    folder = write_run(tmp_path / "run", step(1, 3.0), line)
    with pytest.raises(CheckpointError, match=r"log.jsonl: expected a step with loss"):
        read_curves(folder)


@pytest.mark.parametrize("name", ["board.svg", "board.png"])
def test_nothing_is_written_of_what_is_wrong(tmp_path: Path, name: str) -> None:
    lines = [step(1, 3.0)] if name == "board.png" else []
    result = run("board", write_run(tmp_path / "run", *lines), "-o", tmp_path / name)
    assert isinstance(result.exception, RequestError)  # which the program says on one line
    assert not (tmp_path / name).exists()
