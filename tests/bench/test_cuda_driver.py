"""The ctypes layer, against a stub driver in C: sizes, pointers and attributes as C sees them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bench.gpu.probes import _cuda
from bench.gpu.probes._cuda import CudaDevice
from bench.gpu.probes._device import Launch
from bench.gpu.probes._errors import DeviceError, DeviceHangError

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler (g++ or clang++) on the PATH")
    out = tmp_path_factory.mktemp("stub") / "libcuda_stub.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(out), str(HERE / "stub_driver.cpp")]
    subprocess.run(command, check=True)
    return out


@pytest.fixture
def stub(library: Path) -> ctypes.CDLL:
    lib = ctypes.CDLL(str(library))
    lib.stub_log.restype = ctypes.c_char_p
    lib.stub_clear()
    lib.stub_pending(0)
    return lib


@pytest.fixture
def device(library: Path, stub: ctypes.CDLL, tmp_path: Path) -> CudaDevice:
    (tmp_path / "a.cu.sm_90a.cubin").write_bytes(b"cub\0in")
    return CudaDevice(tmp_path, "sm_90a", str(library))


def test_structs_have_the_drivers_sizes() -> None:
    assert ctypes.sizeof(_cuda._Attribute) == 72
    assert ctypes.sizeof(_cuda._Config) == 56
    assert _cuda._Config.stream.offset == 32
    assert _cuda._Config.attribute_count.offset == 48


def test_device_is_described(device: CudaDevice) -> None:
    info = device.info
    assert (info.name, info.driver, info.sm_count) == ("Stub", "CUDA 13.1", 132)
    assert (info.compute, info.shared_per_block) == ((9, 0), 232448)
    assert (info.free_bytes, info.memory_bytes) == (5, 6_000_000_000)


def test_launch_reaches_the_driver_as_meant(device: CudaDevice, stub: ctypes.CDLL) -> None:
    kernel = device.kernel("a.cu", "name")
    shape = Launch(132, 416, 200_000, cluster=16, cooperative=True, overlap=True)
    stream = device.stream()
    params = (0x1122334455667788).to_bytes(8, "little")
    device.launch(kernel, shape, params, stream)
    device.launch(kernel, shape, params, stream)
    device.launch(kernel, Launch(1, 32), params)
    log = stub.stub_log().decode().splitlines()
    call, rest = "launch 0x7f0000001004", "param 1122334455667788 extra (nil)"
    shaped = "grid 132,1,1 block 416,1,1 shared 200000 stream 0x7f00deadbeef"
    attributes = "[2: 1 0 0] [4: 16 1 1] [6: 1 0 0]"
    assert log == [
        "attribute 0x7f0000001004 8=200000",
        "attribute 0x7f0000001004 14=1",
        f"{call} {shaped} {rest} {attributes}",
        f"{call} {shaped} {rest} {attributes}",
        f"{call} grid 1,1,1 block 32,1,1 shared 0 stream (nil) {rest}",
    ]


def test_memory_round_trip(device: CudaDevice) -> None:
    array = np.arange(64, dtype=np.uint32)
    buffer = device.uploaded(array)
    assert device.download(buffer, np.uint32, 4, 8).tolist() == [2, 3, 4, 5]
    other = device.allocate(256)
    device.fill(other, 0xFFFFFFFF)
    assert device.download(other, np.uint32, 64).min() == 0xFFFFFFFF
    device.copy(other, buffer, 128)
    assert device.download(other, np.uint32, 64)[31:33].tolist() == [31, 0xFFFFFFFF]
    with pytest.raises(DeviceError, match="bytes 252 \\+ 8 of 256"):
        device.download(other, np.uint32, 2, 252)
    with pytest.raises(DeviceError, match="expected at most 256 bytes, got 512"):
        device.upload(other, np.zeros(128, np.uint32))


def test_pinned_memory_is_seen_from_both_sides(device: CudaDevice) -> None:
    box = device.pinned(4)
    assert list(box.words) == [0, 0, 0, 0]
    ctypes.c_uint32.from_address(box.address + 4).value = 7
    assert box.words[1] == 7


def test_occupancy_asks_with_the_attributes(device: CudaDevice) -> None:
    kernel = device.kernel("a.cu", "name")
    assert device.max_active_clusters(kernel, Launch(16, 32, cluster=16)) == 8
    assert device.blocks_per_sm(kernel, 512, 0) == 4


def test_graphs_and_events(device: CudaDevice, stub: ctypes.CDLL) -> None:
    stream = device.stream()
    graph = device.capture(stream, lambda: None)
    device.replay(graph, stream)
    log = stub.stub_log().decode()
    assert "capture 0x7f00deadbeef 2\n" in log
    assert "graph 0x7f00deadbeef 0x7f00deadbeef\n" in log
    assert device.elapsed_ms(device.event(), device.event()) == 2.5


def test_a_slow_device_is_waited_for_and_a_hung_one_is_not(
    device: CudaDevice, stub: ctypes.CDLL
) -> None:
    stub.stub_pending(5)
    device.synchronize()
    stub.stub_pending(1 << 30)
    with pytest.raises(DeviceHangError, match="expected the device to finish within 0 s"):
        device.synchronize(0.05)


def test_failures_name_the_call_and_the_reason(device: CudaDevice, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"cuMemAlloc_v2: .* error 2 \(out of memory\)"):
        device.allocate(1 << 31)
    with pytest.raises(DeviceError, match="missing.cu.sm_90a.cubin; it did not compile"):
        device.kernel("missing.cu", "name")


def test_a_machine_without_a_driver_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="use --compile-only"):
        CudaDevice(tmp_path, "sm_90a", "libcuda-that-is-not-there.so")
