"""What a person sees of a run: lines in a log file, a view on a terminal, nothing on stdout."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from monolane.train._record import StepRecord
from monolane.train._terminal import Terminal, sparkline


def record(step: int, loss: float) -> StepRecord:
    return StepRecord(step, loss, 0.0, 0.7, 1e-3, step * 256, 1234.0, 0.315, 30.0)


def test_lines_now_and_then_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal = Terminal(steps=5)
    for step in range(1, 4):
        terminal.step(record(step, 2.5))  # the first is shown; the others follow too soon
    terminal.validation(3, {"bits_per_byte": 1.5, "bits_per_byte/web": 1.5})
    terminal.event(3, "checkpoint", "step 3")
    terminal.close()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "step 1/5  loss 2.500  1,234 tokens/s  lr 1.00e-03",
        "step 3  bits_per_byte 1.5000",
        "step 3  checkpoint: step 3",
    ]


def test_the_view_holds_what_the_run_said_last() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, height=40)
    terminal = Terminal(steps=1000, console=console)
    assert terminal.is_live
    terminal.event(0, "start", "2 processes")
    for step in range(1, 11):
        terminal.step(record(step, 3.0 - step / 10))
    terminal.validation(10, {"bits_per_byte": 1.25, "centred_accuracy": 0.5})
    terminal.event(8, "checkpoint", "")
    terminal.step(record(9, 9.0))  # after a rollback
    terminal.close()
    view = screen.getvalue()[screen.getvalue().rindex("step 9 / 1,000") :]
    for shown in (
        "▂▂▂▁▁▁▁▁█",  # the losses of nine steps, the ninth twice done
        "9.0000 nats/token",
        "1,234 tokens/s, 31.5% of the device's peak",
        "8 h 15 min",  # 991 steps of 30 s
        "last checkpoint  8",
        "bits_per_byte 1.2500  centred_accuracy 0.5000",
        "step 0  start: 2 processes",
    ):
        assert shown in view, view


def test_memory_and_rows_that_come_too_slowly_have_lines() -> None:
    def view(**more: Any) -> str:
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=True, width=100, height=40)
        terminal = Terminal(steps=10, console=console)
        terminal.step(replace(record(1, 3.0), **more))
        terminal.close()
        return screen.getvalue()

    shown = view(waited=3.0, memory=3 << 30, reserved=5 << 30)
    assert "3.0 GiB at the peak, 5.0 held" in shown
    assert "waited for rows" in shown
    assert "10% of the step" in shown
    quiet = view(waited=0.3)
    assert "memory" not in quiet
    assert "waited" not in quiet


class _Gone(io.StringIO):
    """A terminal that was closed, or a pipe that nobody reads."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error
        self.tries = 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "Input/output error")])
def test_a_run_goes_on_where_nobody_reads(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _Gone(error)
    monkeypatch.setattr("os.dup2", lambda *_: 0)  # rich points stdout at /dev/null
    terminal = Terminal(steps=5, console=Console(file=file))
    for step in range(3):
        terminal.event(step, "checkpoint", "")
    terminal.close()
    assert file.tries == 1


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert not Terminal(steps=5, console=Console(file=io.StringIO(), force_terminal=True)).is_live


def test_a_sparkline_folds_what_does_not_fit() -> None:
    assert sparkline([], 10) == ""
    assert sparkline([1.0, 1.0], 10) == "▁▁"
    assert sparkline([0.0, 7.0], 10) == "▁█"
    assert sparkline(list(range(80)), 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0, float("nan"), 7.0, float("inf")], 10) == "▁!█!"
