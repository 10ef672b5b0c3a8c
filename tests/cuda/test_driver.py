"""The driver's face through the real bindings, in processes whose driver is a stub in C."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import emulation
import numpy as np
import pytest
from emulated_gpu import EmulatedGpu
from models import TINY, random_weights

from bench.gpu._stage import Budget, Stage
from bench.gpu.monokernel import words
from bench.gpu.monokernel._scale import REHEARSAL
from monolane.cuda._executor import CudaExecutor
from monolane.executor_api import Advance
from monolane.model import (
    Quantization,
    parse_config,
    quantize_folder,
    tensor_specs,
    write_checkpoint,
)

HERE = Path(__file__).resolve().parent
PROMPT = (1, 17, 33, 5, 60, 2, 91, 44, 8, 71, 30)


@pytest.fixture(scope="module")
def stub(kernel_folder: Path) -> Path:
    """The folder of a libcuda.so.1 that is ours."""
    pytest.importorskip("cuda.bindings.driver", reason="no packages of monolane[cuda]")
    compiler = emulation.find_compiler()
    assert compiler is not None
    folder = kernel_folder / "stub"
    folder.mkdir(exist_ok=True)
    command = [compiler, "-std=c++17", "-shared", "-fPIC", *emulation.WARNINGS]
    part = folder / f"libcuda.{os.getpid()}"  # another process may be using it
    subprocess.run([*command, "-o", str(part), str(HERE / "stub_driver.cpp"), "-ldl"], check=True)
    part.rename(folder / "libcuda.so.1")
    return folder


def drive(
    stub: Path, scenario: str, *arguments: str | Path, **settings: object
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, HERE / "driven.py", stub.parent, scenario, *arguments]
    environment = {**os.environ, **{name: str(value) for name, value in settings.items()}}
    environment["LD_LIBRARY_PATH"] = str(stub)
    return subprocess.run(
        [str(x) for x in command], env=environment, capture_output=True, text=True, check=False
    )


def test_the_executor_runs_through_the_bindings(stub: Path, kernel_folder: Path) -> None:
    done = drive(stub, "decode")
    assert done.returncode == 0, done.stderr
    gpu = EmulatedGpu(kernel_folder)
    executor = CudaExecutor(random_weights(), "auto", gpu, context=200, slots=1)
    executor.start([Advance(slot=0, token_ids=PROMPT, budget=6)])
    while not executor.read(1.0):
        pass
    expected = [x.token_id for x in executor.take()]
    executor.truncate(0, 0)
    total = float(np.abs(executor.logits(0, PROMPT)).sum())
    executor.close()
    lines = done.stdout.splitlines()
    assert [int(x) for x in lines[0].split()] == expected
    assert int(lines[1]) == 6 + 10
    assert float(lines[2]) == total > 0
    assert "released with 0 allocations, 0 pinned" in done.stderr


def test_the_engine_prefers_a_gpu_that_is_there(stub: Path, tiny_model: Path) -> None:
    done = drive(stub, "engine", tiny_model)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["cuda", "bfloat16", "5"]
    assert "released with 0 allocations, 0 pinned" in done.stderr


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in int8, beside one of plain numbers."""
    folder = tmp_path_factory.mktemp("quantised")
    config = {**TINY, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4}
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    write_checkpoint(
        folder,
        [
            (spec.name, rng.normal(scale=0.3, size=spec.shape).astype(np.float32))
            for spec in tensor_specs(parse_config(config))
        ],
    )
    quantize_folder(folder, folder / "int8", Quantization(8))
    return folder


@pytest.mark.parametrize(
    ("model", "dtype", "settings", "backend", "reason"),
    [
        ("", "auto", {}, "cuda bfloat16 5", ""),
        ("", "float8", {}, "cuda float8 5", ""),
        ("int8", "auto", {}, "cuda bfloat16 5", ""),
        ("", "int8", {}, "cpu int8 5", "cuda: dtype: expected one of auto, bfloat16, float16, "),
        ("", "auto", {"STUB_FREE_MB": 90}, "cpu float32 5", "GiB free on Stub H200 .* got 0.1 of"),
        ("", "auto", {"STUB_SMS": 1}, "cpu float32 5", "expected at least 2 SMs, one for each"),
    ],
)
def test_auto_takes_the_gpu_only_for_what_it_can_run(
    stub: Path,
    quantised: Path,
    model: str,
    dtype: str,
    settings: dict[str, object],
    backend: str,
    reason: str,
) -> None:
    done = drive(stub, "fall_back", quantised / model, dtype, **settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == backend
    assert ("auto: the cpu backend" in done.stderr) == bool(reason)
    assert re.search(reason, done.stderr)
    if "STUB_FREE_MB" not in settings:  # the doctor asks for no free memory
        told = drive(stub, "doctor", quantised / model, dtype, **settings).stdout
        assert told.startswith(f"ok {backend.split()[0]} for {quantised / model}")
        assert re.search(reason, told)


def test_auto_tells_why_it_leaves_a_gpu_alone(stub: Path, quantised: Path) -> None:
    done = drive(stub, "fall_back", quantised, "auto", STUB_DRIVER=12080)
    assert done.stdout.strip() == "cpu float32 5", done.stderr
    told = "auto: the cpu backend, for there is a GPU, Stub H200, but: a driver for CUDA 12.8"
    assert told in done.stderr


def test_what_neither_can_run_names_both_reasons(stub: Path, quantised: Path) -> None:
    done = drive(stub, "fall_back", quantised, "float8", STUB_SMS=1)
    assert "dtype: float8 is for GPUs" in done.stderr
    assert "And of the GPU: cuda: expected at least 2 SMs" in done.stderr


@pytest.mark.parametrize(
    ("scenario", "settings", "messages"),
    [
        (
            "broken_kernel",
            {"STUB_FAULT_AT": 2},
            (
                "got CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure)",
                "this GPU can no longer be used from this process",
            ),
        ),
        ("refused_launch", {"STUB_PLACES": 3}, ("another program holds some of this GPU's SMs",)),
        (
            "too_much_memory",
            {},
            ("got CUDA_ERROR_OUT_OF_MEMORY", "use a smaller context or fewer sequences"),
        ),
        (
            "hang",
            {"STUB_LATE": 1 << 30},
            ("expected Stub H200 to finish within 0 s, it did not",),
        ),
        (
            "open_gpu",
            {"STUB_DRIVER": 12080},
            (
                "expected a driver for CUDA 13.0 or later, got one for CUDA 12.8",
                "update the driver to 580 or later, or use backend='cpu'",
            ),
        ),
        (
            "open_gpu",
            {"STUB_INIT": 100},
            (
                "cuInit: expected success, got CUDA_ERROR_NO_DEVICE",
                "look at CUDA_VISIBLE_DEVICES",
            ),
        ),
    ],
)
def test_what_the_driver_refuses_is_explained(
    stub: Path, scenario: str, settings: dict[str, object], messages: tuple[str, ...]
) -> None:
    done = drive(stub, scenario, **settings)
    assert done.returncode != 0
    assert "monolane.errors.BackendError: cuda: " in done.stderr
    for message in messages:
        assert message in done.stderr


def test_without_a_driver_there_is_a_way_out(kernel_folder: Path) -> None:
    pytest.importorskip("cuda.bindings.driver", reason="no packages of monolane[cuda]")
    empty = kernel_folder / "no-driver"
    empty.mkdir(exist_ok=True)
    done = drive(empty, "open_gpu")
    if done.returncode == 0:
        pytest.skip("this machine has a driver")
    assert "libcuda.so.1" in done.stderr
    assert "use backend='cpu'" in done.stderr


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"STUB_FAULT_IN": "pack"},
            "cuEventCreate: expected success, got CUDA_ERROR_LAUNCH_FAILED",
        ),
        ({"STUB_LATE": 1 << 30}, "expected Stub H200 to finish within 0 s, it did not"),
    ],
)
def test_a_lost_gpu_is_left_as_it_is(stub: Path, settings: dict[str, object], told: str) -> None:
    """What was allocated there cannot be freed: to try would hide the failure, or take for ever."""
    done = drive(stub, "load", **settings)
    assert done.returncode == 1
    assert told in done.stderr.splitlines()[-1]
    assert "waits for ever" not in done.stderr


def test_another_library_changes_the_threads_gpu(stub: Path) -> None:
    done = drive(stub, "beside_another_library")
    assert done.returncode == 0, done.stderr
    assert "released with 0 allocations, 0 pinned" in done.stderr


@pytest.mark.parametrize("limit", [0, 1])
def test_a_gpu_with_a_display_is_known(stub: Path, limit: int) -> None:
    assert drive(stub, "open_gpu", STUB_RUN_LIMIT=limit).stdout.strip() == str(bool(limit))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, ""),
        ({"STUB_PEER_ACCESS": 704}, ""),  # an engine before it has asked for the same
        ({"STUB_PEER_ACCESS": 217}, "cuCtxEnablePeerAccess: expected success"),
        ({"STUB_PEERS": 0}, "GPU 0 (Stub H200) cannot reach GPU 1 (Stub H200)"),
        ({"STUB_GPUS": 1}, "expected at least 2 visible GPUs, got 1"),
        ({"CUDA_LAUNCH_BLOCKING": 0}, ""),
        (
            {"CUDA_LAUNCH_BLOCKING": 1},
            "expected launches that return at once, got CUDA_LAUNCH_BLOCKING set",
        ),
    ],
)
def test_gpus_that_share_a_model(stub: Path, settings: dict[str, int], told: str) -> None:
    done = drive(stub, "peers", **({"STUB_GPUS": 2} | settings))
    assert (done.returncode == 0) == (told == ""), done.stderr
    assert told in done.stderr
    if not told:
        assert done.stderr.count("released with 0 allocations") == 2, "both are given back"


# ---- diagnosis by words --------------------------------------------------------------------------
@pytest.fixture(scope="module")
def carried(kernel_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the predicted words of one case, from few runs."""
    folder = tmp_path_factory.mktemp("carried")
    stage = Stage(REHEARSAL, kernel_folder.parent, Budget(1000.0), lambda record: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "RUNS", 1)
        patch.setattr(words, "_CHECKS", 0)
        found = words.predict_case(stage, words.CASES[0])
    np.savez_compressed(folder / words.FILE, **found.pack(words.CASES[0].prefix))
    return folder


def drive_words(stub: Path, carried: Path, job: str, **settings: object) -> list[dict[str, Any]]:
    done = drive(stub, "words", carried, job, **{"STUB_SMS": 8, "STUB_PLACES": 8} | settings)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("job", ["words", "words-pinned"])
def test_words_are_read_through_the_bindings(stub: Path, carried: Path, job: str) -> None:
    records = drive_words(stub, carried, job)
    assert len(records) == 2, "each has a device of its own"
    for record in records:
        assert "error" not in record, record
        assert record["words_compared"] > 10_000
        assert record["words_unequal"] == 0


def test_words_of_a_faulting_kernel_are_lost(stub: Path, carried: Path) -> None:
    first, second = drive_words(stub, carried, "words", STUB_FAULT_AT=1)
    assert first["ended"] == "lost"
    assert first["error"].endswith("its words are lost: run words-pinned")
    assert "the device is lost" in second["not_measured"]


def test_pinned_words_outlast_a_fault(stub: Path, carried: Path) -> None:
    """Here nothing had been published: the first event is the one that is missing."""
    first, _ = drive_words(stub, carried, "words-pinned", STUB_FAULT_AT=1)
    assert first["ended"] == "lost"
    assert (first["first"]["kind"], first["first"]["why"]) == ("STREAM", "missing")
    assert "LAUNCH_FAILED" in first["trouble"] or "launch failure" in first["trouble"]


def test_a_launch_that_is_refused(stub: Path, carried: Path) -> None:
    """No word was published, and the sentence says why."""
    for record in drive_words(stub, carried, "words", STUB_PLACES=4):
        assert record["ended"] == "failed"
        assert record["first"]["why"] == "missing"
        assert "COOPERATIVE_LAUNCH_TOO_LARGE" in record["error"]
