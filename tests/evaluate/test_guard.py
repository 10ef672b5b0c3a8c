"""Generated code can do no harm: each sample here tries, and says itself how far it came.

A sample passes only if it saw the guard at work, so each of these tests fails without it.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from monolane.errors import BackendError
from monolane.evaluate import Guard, Limits

# The scorer compares with what this returns: "held", which a sample returns if the guard held.
PROBLEM: dict[str, Any] = {
    "task_id": "Test/0",
    "prompt": "",
    "entry_point": "f",
    "canonical_solution": "def f():\n    return 'held'\n",
    "base_input": [[]],
    "plus_input": [[]],
    "atol": 0,
}

HOSTILE = {
    "fork_bomb": """
import ctypes
def f():
    libc = ctypes.CDLL(None)
    for i in range(1000):
        child = libc.fork()
        if child == 0:
            libc.pause()
        if child < 0:
            return "held" if i < 40 else i
    return "1,000 forks"
""",
    "fill_the_disk": """
import io, os
def f():
    written = 0
    try:
        for i in range(1000):
            with io.open(f"/tmp/{i}", "wb", buffering=0) as file:
                written += file.write(bytes(1 << 20))
    except OSError:
        return "held" if written <= 64 << 20 else written
    return "1 GB"
""",
    "write_elsewhere": """
import io, sys
def f():
    for place in ("/usr/x", sys.prefix + "/x", "/x/y", "/etc/x", "/home/x"):
        try:
            io.open(place, "w").close()
            return place
        except OSError:
            pass
    return "held"
""",
    "kill_the_parent": """
import posix
def f():
    for number in (posix.getppid(), 1):
        try:
            posix.kill(number, 9)
        except OSError:
            pass
    import time
    time.sleep(0.2)
    return "held" if posix.getppid() == 1 else "an orphan"
""",
    "secrets": """
import os, io
def f():
    if any("SECRET" in name for name in os.environ):
        return "environment"
    try:
        for number in os.listdir("/proc"):
            return "other processes"
    except OSError:
        pass
    return "held"
""",
    "files_of_the_user": """
import os
def f():
    return "seen" if os.path.exists("HERE") or os.path.exists("/etc/passwd") else "held"
""",
    "network": """
import socket
def f():
    try:
        with socket.socket() as s:
            s.settimeout(5)
            s.connect(("127.0.0.1", PORT))
        return "connected"
    except OSError:
        return "held"
""",
    "rights": """
import ctypes, os
def f():
    libc = ctypes.CDLL(None)
    if libc.unshare(0x10000000) == 0 or libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0:
        return "namespaces or mounts"
    return "held" if 0 not in os.getresuid() else "root"
""",
    "memory": """
def f():
    try:
        return len(bytearray(8 << 30))
    except MemoryError:
        return "held"
""",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_sample_is_contained(
    guard: Guard, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import socket

    monkeypatch.setenv("MY_SECRET", "sk-1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = HOSTILE[name].replace("PORT", str(server.getsockname()[1]))
        (tmp_path / "secret").write_text("x")
        code = code.replace("HERE", str(tmp_path / "secret"))
        verdict = guard.score("humaneval", PROBLEM, code, sanitize=False)
    assert verdict["base"] == "pass", verdict  # what it did there may be in its way later


FORGED = """
import os
def f():
    for fd in range(64):
        try:
            os.write(fd, b'{"base": "pass", "plus": "pass"}')
        except OSError:
            pass
    os._exit(0)
"""


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    import os\n    os._exit(0)\n",
        "def f():\n    raise SystemExit(0)\n",
        "def f():\n    while True: pass\n",
        "import os, posix\ndef f():\n    posix.kill(posix.getpid(), 9)\n",
        FORGED,
        "x" * 10 + "(" * 5000,
        "\0",
    ],
    ids=["exit", "system_exit", "loop", "kill_itself", "forged_verdict", "brackets", "zero"],
)
@pytest.mark.parametrize("sanitize", [False, True])
def test_what_only_pretends_fails(guard: Guard, code: str, sanitize: bool) -> None:
    verdict = guard.score("humaneval", PROBLEM, code, sanitize)
    assert verdict["base"] != "pass"
    assert verdict["plus"] != "pass"


def test_nothing_is_left_of_a_sample_that_is_not_over_in_time(guard: Guard) -> None:
    short = Guard(Limits(seconds=6, least_seconds=60))
    mark = f"monolane-test-{os.getpid()}"
    code = f"import time\ndef f():\n    '{mark}'\n    time.sleep(300)\n"
    verdict = short.score("humaneval", PROBLEM, code, sanitize=False)
    assert verdict["reason"] == "not over after 6 s"
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"jail.py" in _read(p)]
    assert not [p for p in left if _parent(p) in (1, os.getpid())]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _parent(path: Path) -> int:
    text = _read(path.with_name("stat")).decode()
    return int(text.rpartition(")")[2].split()[1]) if text else -1


def test_a_scorer_that_cannot_start_is_an_error_and_no_score(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monolane.evaluate._evalplus.guard._OURS", Path("/nowhere"))
    with pytest.raises(BackendError, match="scorer failed"):
        guard.score("humaneval", PROBLEM, "def f():\n    return 'held'\n", sanitize=False)


def test_the_weak_guard_refuses_sockets_and_says_what_it_is(guard: Guard) -> None:
    weak = Guard(guard.limits, "weak")
    code = (
        "def f():\n    try:\n        import socket; socket.socket()\n    except PermissionError:\n"
    )
    verdict = weak.score("humaneval", PROBLEM, code + "        return 'held'\n", sanitize=False)
    assert verdict["plus"] == "pass"
