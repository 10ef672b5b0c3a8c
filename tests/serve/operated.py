"""``monolane serve`` as an operator starts it: a process of its own, with options and variables."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 120.0
COMMAND = "from monolane.cli import main; main()"


class Process:
    """``monolane serve`` of the tiny model at a free port; its stderr is a file."""

    def __init__(self, model: Path, *options: str, **environment: str) -> None:
        self.log = tempfile.NamedTemporaryFile(prefix="monolane-operators-")  # noqa: SIM115
        words = ("serve", "--model", str(model), "--port", "0", "--no-bandwidth", *options)
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=self.log,
        )

    @property
    def lines(self) -> list[str]:
        return Path(self.log.name).read_text().splitlines()

    def wait_for(self, part: str) -> str:
        """Return the first line that has a part, once there is one."""
        end = time.monotonic() + PATIENCE
        while not (found := [line for line in self.lines if part in line]):
            assert self.process.poll() is None, self.lines
            assert time.monotonic() < end, self.lines
            time.sleep(0.02)
        return found[0]

    def wait_ready(self) -> str:
        """Return the URL, when the model is loaded."""
        line = self.wait_for("monolane is ready at ")
        return line.partition("ready at ")[2].strip('"}')

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE)


Start = Callable[..., Process]
