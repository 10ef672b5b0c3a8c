"""A server that a benchmark starts, asks, and ends: whatever prints "at URL" and has /health."""

import http.client
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_PAUSE = 0.05  # seconds between two looks
_ANSWER = 5.0  # seconds for /health, which is asked again
_END = 60.0  # seconds for a server to end when it is told to: Ray takes some


@dataclass(frozen=True)
class Address:
    """Where a server that can be asked is."""

    url: str


@dataclass(frozen=True)
class Server(Address):
    """A server of our own, and what runs it."""

    process: "subprocess.Popen[bytes]"


@contextmanager
def server(command: Sequence[str], seconds: float) -> Iterator[Server]:
    """Run a server from when its model is loaded; end it afterwards.

    Raises SystemExit, with all that it has printed, if it ends before that or takes longer than
    ``seconds``.
    """
    with tempfile.NamedTemporaryFile(prefix="monolane-bench-") as file:
        log = Path(file.name)
        process = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            url = _wait_ready(process, log, seconds)
            if url is None:
                raise SystemExit(f"{shlex.join(command)}: {_why(process, seconds)}\n{_text(log)}")
            yield Server(url, process)
        finally:
            _end(process)


def _wait_ready(process: "subprocess.Popen[bytes]", log: Path, seconds: float) -> str | None:
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        # With what follows it: half a line may be half a port.
        found = re.search(r"at (http://\S+:\d+)\s", _text(log))
        if found and _is_ready(found[1]):
            return found[1]
        time.sleep(_PAUSE)
    return None


def _is_ready(url: str) -> bool:
    """Ask /health, past any proxy that the environment names."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_ANSWER)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False  # if it has ended, the next look sees that
    finally:
        connection.close()


def _why(process: "subprocess.Popen[bytes]", seconds: float) -> str:
    code = process.poll()
    return f"not ready within {seconds:g} s" if code is None else f"ended with exit code {code}"


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
