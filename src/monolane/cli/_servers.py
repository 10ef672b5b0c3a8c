"""The servers of this user: each has a file, which it holds locked for as long as it lives.

The kernel lets go of a lock when its holder dies in whatever way, so what a killed server leaves
is known for what it is, and removed.
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from monolane._env import CACHE

_FOLDER = "servers"


@contextmanager
def registered(model: str, url: str) -> Iterator[None]:
    """Have ``running_servers`` name this process in here; a disk that is full stops no server."""
    path = CACHE.get() / _FOLDER / f"{os.getpid()}.json"
    said = {"process": os.getpid(), "model": model, "url": url, "began": time.time()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w", encoding="utf-8")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(json.dumps(said))
        file.flush()
    except OSError:
        yield
        return
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        file.close()


def running_servers() -> list[dict[str, Any]]:
    """Return process, model, url, began (s since 1970) and memory_bytes of each, oldest first."""
    found = [x for path in (CACHE.get() / _FOLDER).glob("*.json") if (x := _read(path))]
    return sorted(found, key=lambda x: x["began"])


def _read(path: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError), path.open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            said: dict[str, Any] = json.loads(file.read())
            return said | {"memory_bytes": _memory(said["process"])}
        path.unlink()  # nobody holds it
    return None


def _memory(process: int) -> int:
    """Return the bytes of a process that are in memory, mapped files among them; 0: not known."""
    with suppress(OSError):
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
        if found := re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE):
            return int(found[1]) << 10
    return 0
