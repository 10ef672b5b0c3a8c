"""What generated code may ask of the kernel, under each guard: samples try, and say how far.

The secret is a real one of this session, which this process reads. Each sample passes only if the
call is held; without the filter these tests fail wherever the kernel has the call.
"""

import ctypes
import platform
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from monolane.evaluate import Guard
from monolane.evaluate._evalplus import calls

NAME, SECRET = b"monolane-test-secret", b"sk-1"
_SESSION, _READ, _UNLINK = -3, 11, 9  # KEY_SPEC_SESSION_KEYRING, KEYCTL_READ, KEYCTL_UNLINK
_ADD_KEY, _REQUEST_KEY, _KEYCTL = {
    "x86_64": (248, 249, 250),
    "aarch64": (217, 218, 219),
}[platform.machine()]
PROBLEM: dict[str, Any] = {
    "task_id": "Test/0",
    "prompt": "",
    "entry_point": "f",
    "canonical_solution": "def f():\n    return 'held'\n",
    "base_input": [[]],
    "plus_input": [[]],
    "atol": 0,
}
# Calls by number, so that nothing of the C library stands between; the number of each machine.
HEAD = """
import ctypes, errno, mmap, platform
libc = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == "aarch64"
def call(number, *words):
    number = number[ARM] if isinstance(number, tuple) else number
    words = [ctypes.c_long(w) if isinstance(w, int) else w for w in words]
    found = libc.syscall(ctypes.c_long(number), *words)
    return found if found >= 0 else -ctypes.get_errno()
def held(*found):
    return "held" if all(each in (-errno.ENOSYS, -errno.EPERM) for each in found) else str(found)
"""
TRIES = {
    "the session's keys": """
def f():
    key = call((249, 218), b"user", b"NAME", None, 0)
    into = ctypes.create_string_buffer(64)
    shown = [call((250, 219), 11, each, into, 64) for each in (key, -3, -4, -5, KEY)]
    return held(key, *shown) if b"sk-1" not in into.raw else "the secret"
""",
    "a key of its own": """
def f():
    return held(call((248, 217), b"user", b"x", b"y", 1, -3), call((250, 219), 1, None))
""",
    "vsock": "def f():\n    return held(call((41, 198), 40, 1, 0))\n",
    "netlink": "def f():\n    return held(call((41, 198), 16, 3, 0))\n",
    "internet and unix sockets": """
def f():
    return held(*(call((41, 198), family, 1, 0) for family in (1, 2, 10, 17)))
""",
    "io_uring": """
def f():
    return held(call(425, 4, ctypes.create_string_buffer(120)), call(426, 0, 0, 0, 0, None, 0))
""",
    "userfaultfd": """
def f():
    return held(call((323, 282), 0), call((323, 282), 1))
""",
    "namespaces": """
def f():
    flags = 0x10000000
    return held(call((272, 97), flags), call((56, 220), flags | 17, None, None, None, None),
                call(435, ctypes.create_string_buffer(88), 88))
""",
    "other processes and the kernel": """
def f():
    none = [call((101, 117), 0, 0, 0, 0), call((310, 270), 1, None, 0, None, 0, 0),
            call((321, 280), 0, None, 0), call((298, 241), None, 0, -1, -1, 0),
            call(434, 1, 0), call((135, 92), 0x0400000), call((302, 261), 1, 0, None, None),
            call((165, 40), None, None, None, 0, None), call((157, 167), 1, 0)]
    return held(*none)
""",
    "a line pushed into a terminal": """
def f():
    return held(call((16, 29), 0, 0x5412, b"x"))
""",
    "x32": """
def f():
    # getpid, socket and keyctl as calls of x32.
    return held(*(call(0x40000000 + n, 40, 1, 0) for n in (39, 41, 250))) if not ARM else "held"
""",
    "32-bit": """
import os
CODE = bytes.fromhex("53 89f8 89f3 89d1 31d2 31f6 31ff cd80 4898 5b c3")
def f():
    if ARM:
        return "held"  # a processor of 64 bits runs 32-bit code as a program alone
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(CODE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(page))
    old = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_int)(at)
    # getpid; the keys; socketcall would make any socket; unshare. A kernel without calls of
    # 32 bits ends the process that makes one.
    child = libc.fork()
    if child == 0:
        found = [old(20, 0, 0), old(288, 0, -3), old(102, 1, 0), old(310, 0x10000000, 0)]
        libc._exit(0 if held(*found) == "held" else 1)
    status = ctypes.c_int()
    libc.waitpid(child, ctypes.byref(status), 0)
    return "held" if status.value in (0, 11) else str(status.value)
""",
}
NEEDED = {
    "threads": """
import threading, queue
from concurrent.futures import ThreadPoolExecutor
def f():
    with ThreadPoolExecutor(4) as pool:
        return "held" if sum(pool.map(len, ["ab"] * 9)) == 18 else "wrong"
""",
    "files": """
import tempfile, pathlib, os, io
Folder, stat = tempfile.mkdtemp, os.stat
def f():
    path = pathlib.Path(Folder()) / "x"
    with io.open(path, "w") as file:
        file.write("y" * 9999)
    with tempfile.TemporaryFile() as file:
        file.write(b"z")
    return "held" if stat(path).st_size == 9999 and list(path.parent.iterdir()) == [path] else "no"
""",
    "numpy": """
import numpy as np
def f():
    a = np.arange(40000.0).reshape(200, 200) + np.eye(200)
    return "held" if np.allclose(np.linalg.inv(np.eye(200) * 2) @ a * 2, a) else "wrong"
""",
    "asyncio": """
import asyncio, signal, time
async def g():
    await asyncio.sleep(0.001)
    return await asyncio.to_thread(len, "abcd")
def f():
    return "held" if asyncio.run(g()) == 4 else "wrong"
""",
    "another program": """
import subprocess, sys, posix
def f():
    child = posix.fork()
    if child == 0:
        posix.execv(sys.executable, [sys.executable, "-I", "-c", "import json, random, sqlite3"])
    return "held" if posix.waitpid(child, 0)[1] == 0 else "it failed"
""",
}


@pytest.fixture(scope="module")
def key() -> Iterator[int]:
    """The number of a key in the session keyring of this process, which can read it."""
    libc = ctypes.CDLL(None, use_errno=True)
    session = ctypes.c_long(_SESSION)
    number = libc.syscall(_ADD_KEY, b"user", NAME, SECRET, len(SECRET), session)
    if number < 0:
        pytest.skip("needs a kernel with keys (add_key), and leave to use it")
    into = ctypes.create_string_buffer(64)
    assert libc.syscall(_REQUEST_KEY, b"user", NAME, None, 0) == number
    assert libc.syscall(_KEYCTL, _READ, number, into, 64) == len(SECRET)
    assert into.value == SECRET
    yield number
    libc.syscall(_KEYCTL, _UNLINK, number, session)


def join(samples: dict[str, str]) -> str:
    """One sample of several, which ``f`` tells apart by their names: a start takes a second."""
    parts = ["SAMPLES = {}"]
    for name, code in samples.items():
        parts.append(f"{code}\nSAMPLES[{name!r}] = f")
    return "\n".join([*parts, "def f(name):\n    return SAMPLES[name]()\n"])


def not_held(guard: Guard, head: str, samples: dict[str, str]) -> list[str]:
    """Return the samples that do not say "held": each is run alone, should not all do together."""
    names = [[name] for name in samples]
    problem = PROBLEM | {
        "canonical_solution": "def f(name):\n    return 'held'\n",
        "base_input": names,
        "plus_input": names,
    }
    verdict = guard.score("humaneval", problem, head + join(samples), sanitize=False)
    if (verdict["base"], verdict["plus"]) == ("pass", "pass"):
        return []
    if len(samples) == 1:
        return list(samples)
    alone = [name for each in samples.items() for name in not_held(guard, head, dict([each]))]
    return alone or ["all together"]


def test_no_call_reaches_the_user_or_the_kernel(any_guard: Guard, key: int) -> None:
    samples = {
        name: code.replace("NAME", NAME.decode()).replace("KEY", str(key))
        for name, code in TRIES.items()
    }
    assert not_held(any_guard, HEAD, samples) == []


def test_what_programs_need_is_there(any_guard: Guard) -> None:
    assert not_held(any_guard, "", NEEDED) == []


def test_what_is_not_held_is_named(guard: Guard) -> None:
    samples = {"one": "def f():\n    return 'held'\n", "two": "def f():\n    return 'not'\n"}
    assert not_held(guard, "", samples) == ["two"]


# What EvalPlus takes from a sample, but the filter does not: programs and pools of processes.
POOLS = """
import ctypes, importlib.util, multiprocessing, subprocess, sys, tempfile
spec = importlib.util.spec_from_file_location("calls", sys.argv[1])
calls = importlib.util.module_from_spec(spec)
spec.loader.exec_module(calls)
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # no_new_privs
assert calls.restrict() == ""
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(abs, range(-9, 0)) == list(range(9, 0, -1))
done = subprocess.run([sys.executable, "-c", "print(3)"], capture_output=True, timeout=300)
assert done.stdout == b"3\\n", done
done = subprocess.run("cat < /proc/self/status | grep Seccomp:", shell=True, capture_output=True)
assert done.stdout.split() == [b"Seccomp:", b"2"], done
"""


def test_programs_and_pools_run_behind_the_filter() -> None:
    command = [sys.executable, "-I", "-c", POOLS, str(calls.__file__)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_sound(machine: str) -> None:
    """Read as the kernel reads it: jumps lead forward to an instruction, and all ways return."""
    program = calls.program(machine)
    assert len(program) <= 4096
    assert program[-1][0] == calls._RETURN
    for place, (code, yes, no, _) in enumerate(program):
        if code in (calls._EQUAL, calls._ANY):
            assert place + 1 + max(yes, no) < len(program)


def run(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """Return what the filter answers to a call: an instruction at a time, as in the kernel."""
    data = {0: number, 4: calls._MACHINES[machine][1] if arch is None else arch}
    data |= {16 + 8 * i: value & 0xFFFFFFFF for i, value in enumerate(arguments)}
    program, place, held = calls.program(machine), 0, 0
    while True:
        code, yes, no, value = program[place]
        if code == calls._RETURN:
            return value
        if code == calls._LOAD:
            held, place = data.get(value, 0), place + 1
        else:
            found = held == value if code == calls._EQUAL else held & value
            place += 1 + (yes if found else no)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_each_call_gets_its_answer(machine: str) -> None:
    """Also on the other kind of processor than this one."""
    column, arch, seccomp, keyctl = calls._MACHINES[machine]
    listed = calls.allowed(machine)
    assert len(set(listed.values())) == len(listed)
    given = {name: numbers[column] for name, *numbers, _, _ in calls._IF}
    for number in range(1024):
        if number in listed.values():
            assert run(machine, number) == calls._ALLOW
        elif number not in (*given.values(), calls._CLONE[column]):
            assert run(machine, number) == calls._ERROR | 38
        assert run(machine, number, arch=arch ^ 1) == calls._ERROR | 38
        assert run(machine, number | 0x40000000) == calls._ERROR | 38  # x32
    assert keyctl not in listed.values()
    assert seccomp not in listed.values()
    clone = calls._CLONE[column]
    assert run(machine, clone, 17) == run(machine, clone, 0x3D0F00) == calls._ALLOW
    for bit in (17, 25, 26, 27, 28, 29, 30):  # mounts, cgroups, uts, ipc, user, pid, net
        assert run(machine, clone, 1 << bit | 17) == calls._ERROR | 1
    assert run(machine, given["socketpair"], 1) == calls._ALLOW
    assert {run(machine, given["socket"], n) for n in range(64)} == {calls._ERROR | 1}
    assert run(machine, given["ioctl"], 0, 0x5412) == calls._ERROR | 1  # TIOCSTI
    assert run(machine, given["prlimit64"], 0) == calls._ALLOW
    assert run(machine, given["prlimit64"], 7) == calls._ERROR | 1
