"""Which cores get workers: machines as Linux describes them, none of which is here."""

import os
from pathlib import Path

from monolane._processor import read_processor
from tests.trees import write_tree

CPU = "sys/devices/system/cpu"


def machine(root: Path, siblings: list[str], nodes: list[int], **rates: list[int]) -> Path:
    """Write a machine: of each processor its core's threads and its node, and what else is given.

    The package is the node.
    """
    for cpu, (threads, node) in enumerate(zip(siblings, nodes, strict=True)):
        folder = f"{CPU}/cpu{cpu}"
        write_tree(root, {f"{folder}/topology/thread_siblings_list": threads})
        write_tree(root, {f"{folder}/topology/physical_package_id": str(node)})
        (root / folder / f"node{node}").mkdir()
        names = {"clock": "cpufreq/cpuinfo_max_freq", "capacity": "cpu_capacity"}
        for name, values in rates.items():
            write_tree(root, {f"{folder}/{names[name]}": str(values[cpu])})
    return root


def test_one_worker_a_core_where_cores_have_two_threads(tmp_path: Path) -> None:
    """Two sockets of four cores: processors 8 to 15 are the second threads."""
    siblings = [f"{i % 8},{i % 8 + 8}" for i in range(16)]
    found = read_processor(machine(tmp_path, siblings, [i % 8 // 4 for i in range(16)]), range(16))
    assert found.workers == 8
    assert found.place(8) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert found.place(16) == [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]
    assert found.place(4) == []  # Linux finds four that are idle
    assert found.place(17) == []
    assert found.describe() == "8 workers, without 8 second threads of cores"


def test_near_cores_are_beside_each_other(tmp_path: Path) -> None:
    """Some machines number their processors across the sockets in turns."""
    found = read_processor(machine(tmp_path, list("01234567"), [0, 1] * 4), range(8))
    assert found.place(8) == [0, 2, 4, 6, 1, 3, 5, 7]


def test_a_mask_may_leave_one_thread_of_a_core(tmp_path: Path) -> None:
    siblings = [f"{i % 4},{i % 4 + 4}" for i in range(8)]
    found = read_processor(machine(tmp_path, siblings, [0] * 8), [1, 4, 6])
    assert found.place(3) == [1, 4, 6]
    assert found.describe() == "3 workers"


def test_small_cores_get_no_workers(tmp_path: Path) -> None:
    """Two large cores of two threads, four small ones; their clocks are nearly the same."""
    siblings = ["0-1", "0-1", "2-3", "2-3", "4", "5", "6", "7"]
    clocks = [5700000] * 4 + [4600000] * 4
    root = machine(tmp_path, siblings, [0] * 8, clock=clocks, capacity=[1024] * 8)
    write_tree(root, {"sys/devices/cpu_atom/cpus": "4-7"})
    found = read_processor(root, range(8))
    assert found.place(2) == [0, 2]
    assert found.describe() == "2 workers, without 2 second threads of cores and 4 slow cores"
    assert found.place(8) == list(range(8))
    assert read_processor(root, range(4, 8)).place(4) == [4, 5, 6, 7]  # a mask of small cores


def test_slow_cores_by_clock_and_by_capacity(tmp_path: Path) -> None:
    clocks = [5100000, 5000000, 4500000, 3300000]  # the best, two others, a compact one
    mixed = machine(tmp_path / "a", list("0123"), [0] * 4, clock=clocks)
    assert read_processor(mixed, range(4)).place(3) == [0, 1, 2]
    arm = machine(tmp_path / "b", list("0123"), [0] * 4, capacity=[400, 400, 1024, 900])
    assert read_processor(arm, range(4)).place(2) == [2, 3]


def test_a_container_s_share_of_time(tmp_path: Path) -> None:
    """``docker run --cpus 3.4`` on 64 cores: who takes 64 workers stands still most of the time."""
    root = machine(tmp_path, [str(i) for i in range(64)], [0] * 64)
    write_tree(root, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "340000 100000"})
    found = read_processor(root, range(64))
    assert found.workers == 3
    assert found.place(3) == []  # other containers have these cores, too
    assert found.place(64) == []
    assert found.describe() == "3 workers, without what a limit of 3.4 processors' time leaves"
    for share, workers in ((0.2, 1), (1.4, 1), (1.5, 2), (2.5, 3), (63.9, 64), (80, 64)):
        (root / "sys/fs/cgroup/cpu.max").write_text(f"{share * 100000:.0f} 100000")
        assert read_processor(root, range(64)).workers == workers
    assert read_processor(root, range(64)).place(64) == list(range(64))


def test_where_nothing_is_described_each_processor_is_a_core(tmp_path: Path) -> None:
    assert read_processor(tmp_path, [0, 1, 5]).place(3) == [0, 1, 5]


def test_this_machine() -> None:
    found = read_processor()
    allowed = os.sched_getaffinity(0)
    assert {thread for core in found.cores for thread in core.threads} == allowed
    assert 1 <= found.workers <= len(allowed)
