"""What the control groups of this process allow it: time of the processor, and memory.

Containers and services have such limits; ``nproc`` and /proc/meminfo know nothing of them. Both
versions of Linux's interface are read. A group above ours may be the tighter one, so all count:
https://docs.kernel.org/admin-guide/cgroup-v2.html, .../cgroup-v1/memory.html, .../sched-bwc.html
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

_MOUNT = "sys/fs/cgroup"
_ROOT = Path("/")


def processor_share(root: Path = _ROOT) -> float | None:
    """Return how many processors' time the process may use, such as 1.5; None: no limit.

    ``docker run --cpus`` and systemd's ``CPUQuota`` set it. Whoever wants more stands still for the
    rest of each period, 100 ms as a rule.
    """
    shares = []
    for group in _groups(root, "cpu"):
        quota, period = (*read_text(group / "cpu.max").split(), "", "")[:2]  # version 2
        if not quota:
            quota, period = (
                read_text(group / "cpu.cfs_quota_us"),
                read_text(group / "cpu.cfs_period_us"),
            )
        if quota.isdecimal() and period.isdecimal():  # "max" and -1 are no limits
            shares.append(int(quota) / int(period))
    return min(shares, default=None)


def free_memory(root: Path = _ROOT) -> int | None:
    """Return the bytes that the process's groups have left; None: no limit.

    Pages of files count as used, and can be had: those are counted as free.
    """
    free = []
    for group in _groups(root, "memory"):
        names = ("memory.max", "memory.current", "")  # version 2
        if not (group / names[0]).exists():
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        limit, used = read_text(group / names[0]), read_text(group / names[1])
        if limit.isdecimal() and used.isdecimal():
            stat = dict(x.split(" ", 1) for x in read_text(group / "memory.stat").splitlines())
            files = (int(stat.get(f"{names[2]}{x}_file", 0)) for x in ("active", "inactive"))
            free.append(max(0, int(limit) - int(used) + sum(files)))
    return min(free, default=None)


def available_bytes(root: Path = _ROOT) -> int:
    """Return the memory in bytes that can be had without swapping, as Linux estimates it.

    In a container or a service, what that has left where it is less. ``root``: where /proc lies.
    """
    text = read_text(root / "proc/meminfo")  # empty where /proc is not mounted
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)
    unused = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    host = int(found[1]) << 10 if found else unused
    own = free_memory(root)
    return host if own is None else min(host, own)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the groups that limit the process: its own, and those above it.

    Of a container's own group, only the folder at the mount may be there.
    """
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / _MOUNT / (controller if controllers else "")
        own = mount / path.lstrip("/")
        yield from (own, *(x for x in own.parents if x.is_relative_to(mount)))


def read_text(path: Path) -> str:
    """Return what a small file of the system says; nothing where there is none."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
