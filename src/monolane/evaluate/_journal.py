"""What is done of a task, one line of JSON each: a run that is killed goes on behind the last."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from monolane.errors import RequestError
from monolane.measure import writing_told

Line = dict[str, Any]
# What older journals do not say of how they came about: they are gone on with.
_NEWER = ("text_sha256",)


class Journal:
    """The lines of one task, by (item, sample); each is on disk when ``add`` returns.

    The first line says how the others came about. A last line that a kill has cut is dropped.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Open or begin it. RequestError: what lies there was made with other settings."""
        self._path = path
        self._lines: dict[tuple[str, int], Line] = {}
        with writing_told(path):
            head, whole = self._read()
        wanted = json.loads(json.dumps(settings))
        if head is not None:
            head |= {key: wanted[key] for key in _NEWER if key in wanted and key not in head}
        if head is not None and head != wanted:
            different = [k for k in {*head, *wanted} if head.get(k) != wanted.get(k)]
            name = sorted(different)[0]
            raise RequestError(
                f"{path}: expected a run with the same settings, but {name} is "
                f"{wanted.get(name)!r:.80} and was {head.get(name)!r:.80}; give another "
                "--output, or delete the folder"
            )
        with writing_told(path):
            self._file = path.open("ab")
            if whole != path.stat().st_size:
                self._file.truncate(whole)
        if head is None:
            try:
                self._write(wanted)
            except RequestError:
                self.close()
                raise

    def get(self, item: str, sample: int = 0) -> Line | None:
        """Return what is known of an item, or None."""
        return self._lines.get((item, sample))

    def add(self, item: str, sample: int = 0, **line: Any) -> Line:
        """Keep a line, for good."""
        line = {"item": item, "sample": sample, **line}
        self._write(line)
        self._lines[item, sample] = line
        return line

    def close(self) -> None:
        """Close the file; what could not be written was told when it was added."""
        with suppress(OSError):
            self._file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        with writing_told(self._path):
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def _read(self) -> tuple[Line | None, int]:
        """Fill the lines; return the head, and how many bytes are whole."""
        head: Line | None = None
        whole = 0
        for number, line, end in self._parsed():
            if number == 0:
                head = line
            else:
                self._lines[line["item"], line["sample"]] = line
            whole = end
        return head, whole

    def _parsed(self) -> Iterator[tuple[int, Line, int]]:
        if not self._path.exists():
            return
        end = 0
        lines = self._path.read_bytes().splitlines(keepends=True)
        for number, text in enumerate(lines):
            end += len(text)
            try:
                line = json.loads(text)
            except ValueError:
                line = None
            if not text.endswith(b"\n") or not isinstance(line, dict):
                if number == len(lines) - 1:
                    return
                raise RequestError(
                    f"{self._path}, line {number + 1}: expected a JSON object, got {text[:60]!r}; "
                    "delete the line, or the folder"
                )
            yield number, line, end
