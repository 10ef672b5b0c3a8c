"""The CUDA driver API through ctypes: the device behind the probes.

ctypes instead of cuda.core or cuda.bindings: the driver library is the only thing that a machine
with a GPU certainly has, its entry points are stable, and some thirty checked calls are all we
need.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.gpu.probes._device import (
    Buffer,
    Device,
    DeviceInfo,
    Event,
    Graph,
    Kernel,
    Launch,
    Pinned,
    Stream,
)
from bench.gpu.probes._errors import DeviceError, DeviceHangError

_NOT_READY = 600
_ATTRIBUTES = {  # CUdevice_attribute
    "sm_count": 16,
    "l2_bytes": 38,
    "major": 75,
    "minor": 76,
    "shared_per_block": 97,
}
_FUNC_MAX_DYNAMIC_SHARED = 8
_FUNC_NON_PORTABLE_CLUSTER = 14
_LAUNCH_COOPERATIVE = 2
_LAUNCH_CLUSTER = 4
_LAUNCH_OVERLAP = 6
_HOST_PORTABLE_MAPPED = 0x1 | 0x2
_STREAM_NON_BLOCKING = 1


class _Attribute(ctypes.Structure):
    # CUlaunchAttribute: an id, padding to 8 bytes, a 64-byte union whose first words we set.
    _fields_ = (("id", c_int), ("pad", c_int), ("value", c_uint * 16))


class _Config(ctypes.Structure):
    # CUlaunchConfig
    _fields_ = (
        *((f"grid_{axis}", c_uint) for axis in "xyz"),
        *((f"block_{axis}", c_uint) for axis in "xyz"),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", c_uint),
    )


def launch_attributes(shape: Launch) -> list[tuple[int, tuple[int, ...]]]:
    """The CUlaunchAttribute ids and first value words of a launch."""
    out: list[tuple[int, tuple[int, ...]]] = []
    if shape.cooperative:
        out.append((_LAUNCH_COOPERATIVE, (1,)))
    if shape.cluster > 1:
        out.append((_LAUNCH_CLUSTER, (shape.cluster, 1, 1)))
    if shape.overlap:
        out.append((_LAUNCH_OVERLAP, (1,)))
    return out


class CudaDevice(Device):
    """Device 0 (as CUDA_VISIBLE_DEVICES orders them), through its primary context."""

    def __init__(self, cubins: Path, arch: str, library: str = "libcuda.so.1") -> None:
        try:
            self._lib = ctypes.CDLL(library)
        except OSError as error:
            raise DeviceError(
                f"expected the CUDA driver library {library}, got {error}: run this on a machine "
                "with an NVIDIA GPU, or use --compile-only"
            ) from error
        self._cubins, self._arch = cubins, arch
        self._modules: dict[str, c_void_p] = {}
        self._allowed: set[tuple[int | None, int, bool]] = set()
        self._call("cuInit", 0)
        device = c_int()
        self._call("cuDeviceGet", byref(device), 0)
        context = c_void_p()
        self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self.info = self._describe(device)

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._lib, name)(*args)
        if status != 0:
            text = c_char_p()
            self._lib.cuGetErrorString(status, byref(text))
            reason = text.value.decode() if text.value else "unknown error"
            raise DeviceError(f"{name}: expected success, got error {status} ({reason})")

    def _describe(self, device: c_int) -> DeviceInfo:
        values = {}
        for name, attribute in _ATTRIBUTES.items():
            value = c_int()
            self._call("cuDeviceGetAttribute", byref(value), attribute, device)
            values[name] = value.value
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, 256, device)
        version = c_int()
        self._call("cuDriverGetVersion", byref(version))
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", byref(free), byref(total))
        return DeviceInfo(
            name=text.value.decode(),
            driver=f"CUDA {version.value // 1000}.{version.value % 1000 // 10}",
            sm_count=values["sm_count"],
            compute=(values["major"], values["minor"]),
            l2_bytes=values["l2_bytes"],
            shared_per_block=values["shared_per_block"],
            memory_bytes=total.value,
            free_bytes=free.value,
        )

    # ---- code ------------------------------------------------------------------------------------
    def kernel(self, source: str, name: str) -> Kernel:
        if source not in self._modules:
            path = self._cubins / f"{source}.{self._arch}.cubin"
            if not path.exists():
                raise DeviceError(f"expected the compiled kernel {path}; it did not compile")
            module = c_void_p()
            self._call("cuModuleLoadData", byref(module), path.read_bytes())
            self._modules[source] = module
        function = c_void_p()
        self._call("cuModuleGetFunction", byref(function), self._modules[source], name.encode())
        return function

    def _allow(self, kernel: Kernel, shape: Launch) -> None:
        key = (kernel.value, shape.shared, shape.cluster > 8)
        if key in self._allowed:
            return  # keeps the calls out of the launch path of a later launch
        # An attribute is the function's, so another size must be set again.
        self._allowed = {k for k in self._allowed if k[0] != kernel.value} | {key}
        if shape.shared > 48 * 1024:
            self._call("cuFuncSetAttribute", kernel, _FUNC_MAX_DYNAMIC_SHARED, shape.shared)
        if shape.cluster > 8:
            self._call("cuFuncSetAttribute", kernel, _FUNC_NON_PORTABLE_CLUSTER, 1)

    def _config(self, shape: Launch, stream: Stream) -> tuple[_Config, Any]:
        wanted = launch_attributes(shape)
        attributes = (_Attribute * max(len(wanted), 1))()
        for slot, (number, words) in zip(attributes, wanted, strict=False):
            slot.id = number
            for i, word in enumerate(words):
                slot.value[i] = word
        config = _Config(
            shape.grid, 1, 1, shape.block, 1, 1, shape.shared, stream, attributes, len(wanted)
        )
        return config, attributes

    def launch(self, kernel: Kernel, shape: Launch, params: bytes, stream: Stream = None) -> None:
        self._allow(kernel, shape)
        config, keep = self._config(shape, stream)
        block = ctypes.create_string_buffer(params, len(params))
        pointers = (c_void_p * 1)(ctypes.addressof(block))
        self._call("cuLaunchKernelEx", byref(config), kernel, pointers, None)
        del keep

    def max_active_clusters(self, kernel: Kernel, shape: Launch) -> int:
        self._allow(kernel, shape)
        config, keep = self._config(shape, None)
        count = c_int()
        self._call("cuOccupancyMaxActiveClusters", byref(count), kernel, byref(config))
        del keep
        return count.value

    def blocks_per_sm(self, kernel: Kernel, threads: int, shared: int) -> int:
        self._allow(kernel, Launch(1, threads, shared))
        count = c_int()
        self._call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            byref(count), kernel, c_int(threads), c_size_t(shared),
        )  # fmt: skip
        return count.value

    # ---- memory ----------------------------------------------------------------------------------
    def allocate(self, nbytes: int) -> Buffer:
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), c_size_t(nbytes))
        return Buffer(address.value, nbytes)

    def free(self, buffer: Buffer) -> None:
        self._call("cuMemFree_v2", c_uint64(buffer.address))

    def pinned(self, words: int) -> Pinned:
        host, address = c_void_p(), c_uint64()
        self._call(
            "cuMemHostAlloc", byref(host), c_size_t(words * 4), c_uint(_HOST_PORTABLE_MAPPED)
        )
        self._call("cuMemHostGetDevicePointer_v2", byref(address), host, c_uint(0))
        view = (ctypes.c_uint32 * words).from_address(host.value or 0)
        ctypes.memset(view, 0, words * 4)
        return Pinned(address.value, view)

    def upload(self, buffer: Buffer, array: npt.NDArray[Any]) -> None:
        if array.nbytes > buffer.nbytes:
            raise DeviceError(f"upload: expected at most {buffer.nbytes} bytes, got {array.nbytes}")
        array = np.ascontiguousarray(array)
        self._call(
            "cuMemcpyHtoD_v2",
            c_uint64(buffer.address), c_void_p(array.ctypes.data), c_size_t(array.nbytes),
        )  # fmt: skip

    def download(
        self, buffer: Buffer, dtype: npt.DTypeLike, count: int, offset: int = 0
    ) -> npt.NDArray[Any]:
        out = np.empty(count, dtype)
        if offset + out.nbytes > buffer.nbytes:
            raise DeviceError(f"download: bytes {offset} + {out.nbytes} of {buffer.nbytes}")
        self._call(
            "cuMemcpyDtoH_v2",
            c_void_p(out.ctypes.data), c_uint64(buffer.address + offset), c_size_t(out.nbytes),
        )  # fmt: skip
        return out

    def fill(self, buffer: Buffer, word: int, nbytes: int | None = None) -> None:
        count = (buffer.nbytes if nbytes is None else nbytes) // 4
        self._call("cuMemsetD32_v2", c_uint64(buffer.address), c_uint(word), c_size_t(count))

    def copy(self, to: Buffer, source: Buffer, nbytes: int) -> None:
        self._call(
            "cuMemcpyDtoDAsync_v2",
            c_uint64(to.address), c_uint64(source.address), c_size_t(nbytes), None,
        )  # fmt: skip

    # ---- order and time --------------------------------------------------------------------------
    def synchronize(self, seconds: float = 20.0) -> None:
        # A query loop instead of cuCtxSynchronize: a hung kernel must not hang the host as well.
        marker = self.event()
        try:
            self.record(marker, None)
            deadline = time.monotonic() + seconds
            while True:
                status = self._lib.cuEventQuery(marker)
                if status == 0:
                    return
                if status != _NOT_READY:
                    self._call("cuEventQuery", marker)
                if time.monotonic() > deadline:
                    raise DeviceHangError(
                        f"expected the device to finish within {seconds:.0f} s, it did not: a spin "
                        "without progress that its watchdog did not end"
                    )
        finally:
            self._lib.cuEventDestroy_v2(marker)

    def stream(self) -> Stream:
        # Blocking with regard to the default stream, so that `synchronize` covers it.
        stream = c_void_p()
        self._call("cuStreamCreate", byref(stream), c_uint(0))
        return stream

    def event(self) -> Event:
        event = c_void_p()
        self._call("cuEventCreate", byref(event), c_uint(0))
        return event

    def record(self, event: Event, stream: Stream = None) -> None:
        self._call("cuEventRecord", event, stream)

    def elapsed_ms(self, start: Event, end: Event) -> float:
        ms = c_float()
        # The second version came with driver 570; both are the same call.
        name = "cuEventElapsedTime"
        name += "_v2" if hasattr(self._lib, name + "_v2") else ""
        self._call(name, byref(ms), start, end)
        return float(ms.value)

    def capture(self, stream: Stream, work: Callable[[], None]) -> Graph:
        self._call("cuStreamBeginCapture_v2", stream, c_int(2))  # relaxed: nothing else runs
        graph, executable = c_void_p(), c_void_p()
        work()
        self._call("cuStreamEndCapture", stream, byref(graph))
        self._call("cuGraphInstantiateWithFlags", byref(executable), graph, ctypes.c_ulonglong(0))
        return executable

    def replay(self, graph: Graph, stream: Stream) -> None:
        self._call("cuGraphLaunch", graph, stream)
