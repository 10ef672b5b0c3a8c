"""Limits of control groups, of both versions: own groups, those above, and none."""

from pathlib import Path

import pytest

from monolane._cgroup import free_memory, processor_share
from tests.trees import write_tree

GROUPS = "sys/fs/cgroup"


def version_2(root: Path, own: str, **limits: str) -> Path:
    """A tree with one hierarchy; ``limits``: cpu.max of each group, "_" for "/"."""
    write_tree(root, {"proc/self/cgroup": f"0::{own}"})
    paths = {f"{GROUPS}{name.replace('_', '/')}/cpu.max": text for name, text in limits.items()}
    write_tree(root, paths)
    return root


def version_1(root: Path, own: str, **files: str) -> Path:
    """A tree with a hierarchy for each controller; ``files``: of the group at the mount."""
    lines = (f"{i}:{name}:{own}" for i, name in enumerate(("pids", "cpu,cpuacct", "memory"), 1))
    write_tree(root, {"proc/self/cgroup": "\n".join((*lines, "0::/"))})
    for name, text in files.items():
        controller, _, file = name.partition("_")
        write_tree(root, {f"{GROUPS}/{controller}/{controller}.{file}": text})
    return root


def test_a_limit_is_read_where_it_stands(tmp_path: Path) -> None:
    assert processor_share(version_2(tmp_path, "/", _="150000 100000")) == 1.5


def test_a_service_s_limit_is_below_the_root(tmp_path: Path) -> None:
    """systemd's CPUQuota: the root has no such file, and the service's own says its limit."""
    assert processor_share(version_2(tmp_path, "/system/ours", _system_ours="200000 100000")) == 2


def test_the_tightest_of_all_groups_above_counts(tmp_path: Path) -> None:
    root = version_2(tmp_path, "/a/b", _a_b="max 100000", _a="50000 100000", _="400000 100000")
    assert processor_share(root) == 0.5


def test_no_limit(tmp_path: Path) -> None:
    assert processor_share(tmp_path) is None
    assert free_memory(tmp_path) is None
    assert processor_share(version_2(tmp_path, "/a", _a="max 100000")) is None


@pytest.mark.parametrize("quota", ["-1", "300000"])
def test_version_1_in_a_container(tmp_path: Path, quota: str) -> None:
    """The path is the host's, and the container sees its group at the mount."""
    root = version_1(tmp_path, "/docker/0123", cpu_cfs_quota_us=quota, cpu_cfs_period_us="100000")
    assert processor_share(root) == (None if quota == "-1" else 3)


def test_files_in_memory_count_as_free(tmp_path: Path) -> None:
    """A container's limit counts the pages of mapped weights as used."""
    stat = "anon 1\nactive_file 1000000\ninactive_file 2000000"
    files = {"memory.max": "6000000", "memory.current": "5000000", "memory.stat": stat}
    write_tree(tmp_path / GROUPS, files)
    write_tree(tmp_path, {"proc/self/cgroup": "0::/"})
    assert free_memory(tmp_path) == 4_000_000
    (tmp_path / GROUPS / "memory.max").write_text("max\n")
    assert free_memory(tmp_path) is None


def test_version_1_s_memory(tmp_path: Path) -> None:
    root = version_1(
        tmp_path,
        "/docker/0123",
        memory_limit_in_bytes="6000000",
        memory_usage_in_bytes="5500000",
        memory_stat="active_file 7\ntotal_active_file 100\ntotal_inactive_file 200",
    )
    assert free_memory(root) == 500_300
