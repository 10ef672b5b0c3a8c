"""A task whose data, or packages, cannot be had here: a line of the report, instead of a gap."""

from pathlib import Path

from monolane.evaluate._target import Subject
from monolane.evaluate._task import Outcome, Progress, Task


class MissingTask(Task):
    """Finds nothing, and says why."""

    def __init__(self, name: str, why: str) -> None:
        self.name = self.title = name
        self._why = why

    def run(self, subject: Subject, folder: Path, progress: Progress) -> Outcome:
        """Return an outcome without figures."""
        return Outcome(self.name, self.title, (), {}, {}, (f"Not measured: {self._why}",))
