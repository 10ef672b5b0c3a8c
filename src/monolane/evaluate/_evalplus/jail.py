"""The program in which generated code runs: it shuts itself in, then scores one sample.

A process of its own, started by ``guard.py`` with ``python -I`` and an empty environment; it
imports nothing of monolane. The scorer gets namespaces of its own (no network, no other process to
see or signal, a root folder of tmpfs with the system and this Python read-only), another user, no
capabilities, and limits. ``calls.py`` beside it keeps it from most calls of the kernel. EvalPlus's
own guard only takes functions away from Python, which ``ctypes`` gives back.

The first argument is the way in. ``bubblewrap``: bwrap makes the namespaces and the root folder,
and starts this file again in them (``inside``). ``namespaces``: ``enter`` makes them, where bwrap
is not installed. ``weak``: there are none. All that follows (``settle``, the filter) is the same,
so that the first two cannot differ in a limit. The filter is not handed to bwrap (``--seccomp``):
root has to become another user first, which the filter forbids.
"""

import ctypes
import importlib.util
import json
import os
import platform
import resource
import select
import signal
import sys
import threading
from pathlib import Path
from typing import Any

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER = 0x00020000, 0x04000000, 0x08000000, 0x10000000
_NEWPID, _NEWNET = 0x20000000, 0x40000000
_ALL = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 1, 2, 4, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_MOUNT_SETATTR = 442  # the same number on x86-64 and on AArch64
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_READ_ONLY = 1 | 2  # MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID
_PDEATHSIG, _NO_NEW_PRIVS = 1, 38
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_SCRATCH = ("/tmp", "/dev/shm")
_USER = 1000  # in a user namespace, where it stands for the user outside

_libc = ctypes.CDLL(None, use_errno=True)


class JailError(OSError):
    """The kernel refuses what the jail is built of."""


def _call(what: str, code: int) -> None:
    if code != 0:
        number = ctypes.get_errno()
        raise JailError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    code = _libc.mount(*words, ctypes.c_ulong(flags), None if data is None else data.encode())
    _call(f"mount {target}", code)


def places(*more: str) -> list[str]:
    """Return what the root folder shows read-only, and the links to it: the shortest first."""
    wanted = [path for path in (*_SYSTEM, sys.base_prefix, sys.prefix, *sys.path, *more) if path]
    wanted += [os.path.realpath(path) for path in wanted]
    found: list[str] = []
    for path in sorted({str(Path(path).absolute()) for path in wanted}, key=len):
        if Path(path).exists() and not any((path + "/").startswith(f"{p}/") for p in found):
            found.append(path)
    return found


def start_bubblewrap(program: str) -> None:
    """Become bwrap, which runs this file again in its jail; OSError if there is no such program.

    ``settle`` has rights left for what bwrap cannot do: limit how many files there are, and, as
    root, become another user, for the reason that ``unshare`` gives.
    """
    here, rights = str(Path(__file__).parent), ["CAP_SYS_ADMIN"]
    words = ["--unshare-ipc", "--unshare-net", "--unshare-pid", "--unshare-uts"]
    if os.geteuid() == 0:
        rights += ["CAP_SETUID", "CAP_SETGID"]
    else:
        words += ["--unshare-user", "--uid", str(_USER), "--gid", str(_USER)]
    words += ["--as-pid-1", "--die-with-parent", "--cap-drop", "ALL"]
    words += [word for right in rights for word in ("--cap-add", right)]
    shown = places(here)
    # Else bwrap makes them for its own user alone.
    above = {str(folder) for path in shown for folder in Path(path).parents}
    words += [word for folder in sorted(above - {"/"}) for word in ("--dir", folder)]
    for path in shown:
        if Path(path).is_symlink():
            words += ["--symlink", str(Path(path).readlink()), path]
        else:
            words += ["--ro-bind", path, path]
    words += [word for folder in ("/dev", *_SCRATCH) for word in ("--dir", folder)]
    words += [word for device in _DEVICES for word in ("--dev-bind", device, device)]
    inside = ["inside", str(os.getpid()), str(_counted(os.geteuid() != 0))]
    command = [sys.executable, "-I", str(Path(__file__)), *inside]
    os.execv(program, [program, *words, "--remount-ro", "/", "--", *command])


def unshare() -> bool:
    """Leave the namespaces of this machine; return whether in a user namespace of our own.

    Root leaves without one: its user is exempt from the limit on processes, in any namespace, so it
    has to become another, which a namespace of one user does not have.
    """
    if os.geteuid() == 0 and _libc.unshare(_ALL) == 0:
        return False
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", _libc.unshare(_ALL | _NEWUSER))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{_USER} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{_USER} {gid} 1")
    return True


def build_root(root: str) -> None:
    """Mount the root folder, read-only, with what it shows."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,nr_inodes=4096,mode=755")
    for path in places():
        _show(path, root)
    for device in _DEVICES:
        _bind(device, root)
    for folder in _SCRATCH:
        Path(root + folder).mkdir(parents=True, exist_ok=True)
    flags = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV
    _mount("none", root, None, flags)


def _show(path: str, root: str) -> None:
    if Path(path).is_symlink():
        Path(root + path).parent.mkdir(parents=True, exist_ok=True)
        Path(root + path).symlink_to(Path(path).readlink())
        return
    _bind(path, root)
    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
    code = _libc.syscall(
        _MOUNT_SETATTR, _AT_FDCWD, (root + path).encode(), _AT_RECURSIVE, attributes, 32
    )
    _call(f"{path} read-only", code)


def _bind(path: str, root: str) -> None:
    if Path(path).is_dir():
        Path(root + path).mkdir(parents=True, exist_ok=True)
    else:
        Path(root + path).parent.mkdir(parents=True, exist_ok=True)
        Path(root + path).touch()
    _mount(path, root + path, None, _MS_BIND | _MS_REC)


def drop_rights(own_user: bool, number: int) -> None:
    """Become nobody's user without a capability, for good."""
    if not own_user:
        os.setgroups([])
        for user in (1_000_000_000 + number, 65534):  # of its own, since processes are counted
            try:
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
                break
            except OSError:
                continue
        else:
            raise JailError(1, "setresuid: this root may become no other user")
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _call("capset", _libc.capset(header, (ctypes.c_uint32 * 6)()))
    _call("no_new_privs", _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))


def limit(limits: dict[str, int], counted: int) -> None:
    """Set what one process may use; ``counted``: other processes that count to its user's."""
    for kind, most in (
        (resource.RLIMIT_CPU, limits["seconds"]),
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_FSIZE, limits["disk"]),
        (resource.RLIMIT_NPROC, limits["processes"] + counted),
        (resource.RLIMIT_NOFILE, 128),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def _running() -> int:
    """Return how many threads this user has: older kernels, and no namespace, count them all."""
    count = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except (OSError, ValueError):
            continue
        if int(fields["Uid"].split()[0]) == os.getuid():
            count += int(fields["Threads"])
    return count


def _counted(own_user: bool) -> int:
    """Return ``limit``'s number, in namespaces: from 5.14 on the kernel counts in each apart."""
    major, minor = platform.release().split(".")[:2]
    return _running() if own_user and (int(major), int(minor)) < (5, 14) else 0


def _end_without_reader(pipe: int) -> None:
    """End this process, and with it its namespace, when nobody is left to read its verdict.

    The signal of a parent's death comes only from one that may send it: bwrap of root gives that
    right up, and the scorer becomes another user.
    """
    ends = select.poll()
    ends.register(pipe, 0)  # POLLERR comes unasked
    ends.poll()
    os._exit(1)


def settle(limits: dict[str, int], own_user: bool, number: int, counted: int) -> None:
    """Do what is left of a jail whose root folder stands; ``number`` is no other jail's."""
    for folder in _SCRATCH:
        size = f"size={limits['disk']},nr_inodes=4096,mode=1777"
        _mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, size)
    os.chdir("/tmp")
    limit(limits, counted)
    drop_rights(own_user, number)
    _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # which becoming another user takes back


def enter(root: str, limits: dict[str, int]) -> None:
    """Shut this process in; it returns in a child that is the first process of its namespace.

    When that one ends, the kernel ends all that it started. The parent waits and ends likewise.
    """
    number, own_user = os.getpid(), unshare()
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(min(255, abs(os.waitstatus_to_exitcode(status))))
    counted = _counted(own_user)
    build_root(root)
    os.chroot(root)  # a chroot also keeps it from making namespaces of its own
    settle(limits, own_user, number, counted)


def enter_weakly(limits: dict[str, int]) -> None:
    """Do what is left where the kernel permits no namespaces: limits, besides those on calls."""
    _call("no_new_privs", _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    limit(limits, _running())


def _load(name: str) -> Any:
    """Import a file beside this one: its folder is on no path, where it would hide modules."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Read the job, shut in, and print "ready" and, a line further, the verdict in JSON.

    A job without a problem asks only whether this machine lets itself be left.
    """
    way, *more = sys.argv[1:]
    if way == "bubblewrap":
        start_bubblewrap(*more)
    if way == "compile":  # the modules that are not yet
        _load("scorer").load()
        return
    out, shut = os.dup(1), False
    # The sample's processes are forks: they must not have the pipe that the verdict goes through.
    os.register_at_fork(after_in_child=lambda: os.close(out) if shut else None)
    job = json.load(sys.stdin)
    scorer, calls = _load("scorer"), _load("calls")
    if "problem" in job:
        scorer.load()
    null = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    verdict: dict[str, object] = {}
    try:
        if way == "weak":
            enter_weakly(job["limits"])
            os.environ["TMPDIR"] = job["root"]
        else:
            if way == "inside":
                os.environ.pop("PWD", None)  # which bwrap adds
                number, counted = map(int, more)
                settle(job["limits"], os.geteuid() != 0, number, counted)
            else:
                enter(job["root"], job["limits"])
            os.environ["HOME"] = os.environ["TMPDIR"] = "/tmp"
        if reason := calls.restrict():
            raise JailError(1, reason)
        shut = True
        os.write(out, b"ready\n")
        # Not sooner: a thread has rights, and drops them, for itself alone.
        threading.Thread(target=_end_without_reader, args=(out,), daemon=True).start()
        if "problem" in job:
            verdict = scorer.score(job)
    except JailError as error:
        verdict = {"jail": error.strerror}
    except BaseException as error:
        verdict = {"error": f"{type(error).__name__}: {error}"}
    os.write(out, json.dumps(verdict).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
