"""Experts of which some are in memory and all are in a file: the same bits, whatever fits."""

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from random_weights import weights_of

from monolane.cpu import CpuExecutor
from monolane.engine import Engine
from monolane.errors import BackendError, RequestError
from monolane.executor_api import Advance
from monolane.model import Experts, Weights

from .test_experts import IDS, config_of

LAYERS, EXPERTS = 2, 7  # that are mixtures
# Bytes of an expert: 3 matrices of 64 x 64.
BYTES = {"bfloat16": 3 * 64 * 64 * 2, "int8": 3 * 64 * 64 * 34 // 32}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path))


@pytest.fixture(scope="module")
def weights() -> Weights:
    experts = Experts(EXPERTS, 3, 64, True)
    config = config_of(hidden_size=64, intermediate_size=96, experts=experts)
    return weights_of(config, ml_dtypes.bfloat16)


def load(weights: Weights, dtype: str, memory: int | None, workers: int = 2) -> CpuExecutor:
    return CpuExecutor(weights, dtype, context=400, slots=1, workers=workers, expert_memory=memory)


def draw(executor: CpuExecutor, count: int) -> list[int]:
    executor.truncate(0, 0)
    executor.start([Advance(slot=0, token_ids=tuple(IDS[:9].tolist()), budget=count)])
    while not executor.read(0.1):
        pass
    return [event.token_id for event in executor.take()]


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])  # as the file has them, and copies
@pytest.mark.parametrize("workers", [1, 3])
def test_bits_do_not_depend_on_what_is_in_memory(
    weights: Weights, dtype: str, workers: int
) -> None:
    whole = load(weights, dtype, None, workers)
    logits, drawn = whole.logits(0, IDS.tolist()), draw(whole, 40)
    assert whole.expert_counts == (0, 0, 0)
    for experts in (0, 1, 5, LAYERS * EXPERTS):
        memory = 4 * experts * BYTES[dtype]  # workers have whole panels of rows, and whole pages
        executor = load(weights, dtype, memory, workers)
        np.testing.assert_array_equal(executor.logits(0, IDS.tolist()), logits)
        assert draw(executor, 40) == drawn
        found, missed, brought = executor.expert_counts
        assert found + missed > 40 * 3 * LAYERS
        if experts == 0:
            assert brought <= missed
        if experts == LAYERS * EXPERTS:
            assert missed == brought <= workers * LAYERS * EXPERTS


def test_what_is_used_again_and_again_stays(weights: Weights) -> None:
    """A token uses 6 experts, 3 of each mixture, in turn; of 3 places the newest never serve."""
    executor = load(weights, "bfloat16", 3 * BYTES["bfloat16"], 1)
    for _ in range(30):
        executor.truncate(0, 0)
        executor.logits(0, [5])  # the same 6
    found, missed, brought = executor.expert_counts
    assert (found, missed, brought) == (29 * 3, 3 + 30 * 3, 3)


def test_nothing_is_left_in_the_cache_folder(weights: Weights, tmp_path: Path) -> None:
    executor = load(weights, "int8", 0)
    executor.logits(0, [1])
    assert not list((tmp_path / "experts").iterdir())


def test_what_is_refused(tmp_path: Path, tiny_model: Path, monkeypatch: Any) -> None:
    with pytest.raises(RequestError, match="expert_memory: expected a mixture of experts, got a"):
        Engine.load(tiny_model, "cpu", expert_memory="1G")
    with pytest.raises(BackendError, match="expert_memory: expected the cpu backend"):
        Engine.load(tiny_model, "reference", expert_memory=5)
    for wrong in ("much", -1, True, "1.5G"):
        with pytest.raises(RequestError, match="expert_memory: expected bytes, such as 512M or 8G"):
            Engine.load(tiny_model, "cpu", expert_memory=wrong)


def test_a_folder_that_cannot_be_written(
    weights: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("MONOLANE_CACHE", str(file))
    with pytest.raises(
        BackendError, match="expert_memory: expected to make a file in .*have MONOLANE_CACHE na"
    ):
        load(weights, "int8", 0)


@pytest.fixture
def _small_files() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("_small_files")
def test_no_room_on_disk_is_said_before_it_is_needed(weights: Weights) -> None:
    with pytest.raises(BackendError, match="expert_memory: expected 1 MB of disk for the experts"):
        load(weights, "int8", 0)


# Runs a test where the kernel refuses io_setup(2), as containers may have it.
WITHOUT_ASYNCHRONOUS_READS = """
import ctypes, os, struct, sys

import pytest

number = {"x86_64": 206, "aarch64": 0}[os.uname().machine]
steps = [  # of BPF: op, jumps if true and if false, operand
    (0x20, 0, 0, 0),  # the number of the call
    (0x15, 0, 1, number),
    (0x06, 0, 0, 0x00050000 | 1),  # refuse it: EPERM
    (0x06, 0, 0, 0x7FFF0000),  # allow all others
]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, program, 0, 0) == 0  # PR_SET_SECCOMP, a filter
assert libc.syscall(number, 1, ctypes.byref(ctypes.c_ulong())) == -1
assert ctypes.get_errno() == 1
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", sys.argv[1]]))
"""


def test_where_the_kernel_reads_nothing_ahead() -> None:
    test = f"{__file__}::test_bits_do_not_depend_on_what_is_in_memory[1-int8]"
    command = [sys.executable, "-c", WITHOUT_ASYNCHRONOUS_READS, test]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_a_disk_that_fails_ends_the_request_and_not_the_process(
    weights: Weights, tmp_path: Path
) -> None:
    executor = load(weights, "bfloat16", 0)
    executor.logits(0, [1, 2])
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the folder's own was closed
            if str(link.readlink()).startswith(str(tmp_path)):
                os.truncate(link, 0)
    with pytest.raises(BackendError, match="experts: expected to read their file: Input/output"):
        executor.logits(0, [3])
    with pytest.raises(BackendError, match="experts: expected to read their file: Input/output"):
        executor.start([Advance(slot=0, token_ids=(1,), budget=2)])
    executor.close()
