"""Generated code can do no harm: each sample here tries, and says itself how far it came.

A sample passes only if it saw the guard at work, so each of these tests fails without it.
"""

import os
import subprocess
import sys
import time
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monolane.errors import BackendError
from monolane.evaluate import Guard, Limits
from monolane.evaluate._evalplus.guard import _found_maker

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
    "many_files": """
import io
def f():
    try:
        for i in range(9000):
            io.open(f"/tmp/{i}", "w").close()
    except OSError:
        return "held" if i <= 4096 else i
    return "9,000 files"
""",
    "write_elsewhere": """
import io, sys
def f():
    places = ["/", "/usr/", sys.prefix + "/", "/x/", "/etc/", "/home/", "/dev/", "/root/"]
    for place in [place + "x" for place in places] + [sys.executable, "HERE"]:
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
    full_guard: Guard, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import socket

    monkeypatch.setenv("MY_SECRET", "sk-1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = HOSTILE[name].replace("PORT", str(server.getsockname()[1]))
        (tmp_path / "secret").write_text("x")
        code = code.replace("HERE", str(tmp_path / "secret"))
        verdict = full_guard.score("humaneval", PROBLEM, code, sanitize=False)
    assert verdict["base"] == "pass", verdict  # what it did there may be in its way later


# As the benchmark's own solution, from which EvalPlus takes nothing away; what it raises is told.
VIEW = """
import os, resource, sys
def f():
    kinds = ("AS", "CORE", "CPU", "FSIZE", "NOFILE", "NPROC")
    mine = {path.split("/")[1] for path in (sys.prefix, sys.base_prefix, *sys.path) if path}
    system = {"bin", "dev", "etc", "lib", "lib64", "sbin", "tmp", "usr"}
    found = {
        "folders": sorted(set(os.listdir("/")) - mine - system),
        "devices": sorted(os.listdir("/dev")),
        "variables": sorted(os.environ),
        "limits": [resource.getrlimit(getattr(resource, "RLIMIT_" + kind)) for kind in kinds],
        "users": len({*os.getresuid(), *os.getresgid()}),
        "groups": [group for group in os.getgroups() if group != 65534],
        "processes": (os.getpid(), os.getppid(), os.getsid(0)),
        "folder": os.getcwd(),
    }
    wanted = {
        "folders": [],
        "devices": ["null", "random", "shm", "urandom", "zero"],
        "variables": [
            "HOME", "LANG", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PATH",
            "TMPDIR",
        ],
        "limits": [(n, n) for n in (4 << 30, 0, 240, 64 << 20, 128, 32)],
        "users": 1,
        "groups": [],
        "processes": (1, 0, 0),
        "folder": "/tmp",
    }
    different = {key: found[key] for key in wanted if found[key] != wanted[key]}
    if different:
        raise ValueError(str(different))
    return "held"
"""


def test_each_maker_shows_the_same(full_guard: Guard) -> None:
    problem = PROBLEM | {"canonical_solution": VIEW}
    verdict = full_guard.score("humaneval", problem, "def f():\n    return 'held'\n", False)
    assert verdict["plus"] == "pass"


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
def test_what_only_pretends_fails(any_guard: Guard, code: str, sanitize: bool) -> None:
    if "while True" in code:  # costs all the time that it gets, twice, and on a busy machine again
        any_guard = replace(any_guard, limits=replace(any_guard.limits, least_seconds=0.2))
    verdict = any_guard.score("humaneval", PROBLEM, code, sanitize)
    assert verdict["base"] != "pass"
    assert verdict["plus"] != "pass"


# It starts a process in a session of its own, which starts another, and all wait.
WAITS = """
import ctypes, time
def f():
    libc = ctypes.CDLL(None)
    if libc.fork() == 0:
        libc.setsid()
        libc.fork()
    time.sleep(300)
"""


def test_nothing_is_left_of_a_sample_that_is_not_over_in_time(full_guard: Guard) -> None:
    short = Guard(Limits(seconds=6, least_seconds=60), maker=full_guard.maker)
    others = _started_by(os.getpid())  # what other tests of this process have started
    with ThreadPoolExecutor(1) as pool:
        verdict = pool.submit(short.score, "humaneval", PROBLEM, WAITS, False)
        found: set[int] = set()
        while not verdict.done():
            found |= _started_by(os.getpid(), others)
            time.sleep(0.01)
    assert verdict.result()["reason"] == "not over after 6 s"
    assert len(found) >= 2  # at least bwrap, or who waits for the scorer, and the scorer
    _wait_for_the_end(found)


def test_nothing_is_left_of_a_sample_whose_evaluation_is_killed(full_guard: Guard) -> None:
    code = (
        "from monolane.evaluate import Guard, Limits\n"
        f"guard = Guard(Limits(least_seconds=100), maker={full_guard.maker!r})\n"
        f"guard.score('humaneval', {PROBLEM!r}, {WAITS!r}, False)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    found: set[int] = set()
    while len(found) < 5:  # the outer process, the scorer, the sample, and two of the sample's
        assert process.poll() is None
        found = _started_by(process.pid)
        time.sleep(0.01)
    process.kill()
    process.wait()
    _wait_for_the_end(found)


def _started_by(pid: int, others: Container[int] = ()) -> set[int]:
    """Return the children of a process, and theirs, but for ``others`` and theirs."""
    found: set[int] = set()
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                if child not in others:
                    found |= {child, *_started_by(child, others)}
    return found


def _wait_for_the_end(found: set[int]) -> None:
    """Wait until none of them is there; they were killed, and would sleep for minutes."""
    end = time.monotonic() + 120
    while left := [pid for pid in found if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < end, left
        time.sleep(0.01)


def test_a_scorer_that_cannot_start_is_an_error_and_no_score(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monolane.evaluate._evalplus.guard._OURS", Path("/nowhere"))
    with pytest.raises(BackendError, match="scorer failed"):
        guard.score("humaneval", PROBLEM, "def f():\n    return 'held'\n", sanitize=False)


@pytest.mark.parametrize("broken", [False, True])
def test_without_a_bwrap_that_works_our_own_code_makes_the_jail(
    guard: Guard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: bool
) -> None:
    if broken:
        (tmp_path / "bwrap").write_text("#!/bin/sh\necho no namespaces >&2\nexit 1\n")
        (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    _found_maker.cache_clear()
    try:
        assert guard.describe() == "namespaces of our own and few system calls"
        verdict = guard.score("humaneval", PROBLEM, "def f():\n    return 'held'\n", False)
    finally:
        _found_maker.cache_clear()
    assert verdict["plus"] == "pass"
    reason = Guard(maker="bubblewrap").refusal()
    assert ("no namespaces" if broken else "No such file") in reason


def test_the_weak_guard_refuses_sockets_and_says_what_it_is(guard: Guard) -> None:
    weak = Guard(guard.limits, "weak")
    code = (
        "def f():\n    try:\n        import socket; socket.socket()\n    except PermissionError:\n"
    )
    verdict = weak.score("humaneval", PROBLEM, code + "        return 'held'\n", sanitize=False)
    assert verdict["plus"] == "pass"
