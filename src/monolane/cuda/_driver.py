"""A GPU through NVIDIA's driver, by way of cuda.bindings: what _device.py asks for, call by call.

cuda.bindings rather than the objects of cuda.core, because we need few calls, and exactly those:
pinned memory that both sides poll, cooperative launches of one structure, events asked without
waiting. Compiling is cuda.core's (_compile.py).
"""

import ctypes
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from monolane.cuda._compile import architecture, check_packages, compile_kernel
from monolane.cuda._device import GpuInfo, Kernel, Launch, Mark, Pinned
from monolane.cuda._probe import NEWER_DRIVER, OLDEST_DRIVER, version_of
from monolane.errors import BackendError

# What an error of the driver means for a user, where its own text does not say it.
_ADVICE = {
    "CUDA_ERROR_OUT_OF_MEMORY": "use a smaller context or fewer sequences, or end other programs "
    "that use this GPU (nvidia-smi shows them)",
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": "another program holds some of this GPU's SMs, or "
    "it is a slice of one: the monokernel needs one whole SM for each of its blocks",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "this GPU has a display, for whose sake the driver ended a kernel "
    "that ran for too long: use a GPU without one",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the kernel was compiled for another architecture: empty the "
    "cache folder that 'monolane doctor' names",
    "CUDA_ERROR_NO_DEVICE": "no GPU is visible: look at CUDA_VISIBLE_DEVICES and nvidia-smi",
    "CUDA_ERROR_SYSTEM_NOT_READY": "the driver's services are not running: look at nvidia-smi",
}
# Errors of a kernel, which any call may tell of, and from then on all do.
_STICKY = {
    f"CUDA_ERROR_{name}"
    for name in (
        "ASSERT", "ECC_UNCORRECTABLE", "HARDWARE_STACK_ERROR", "ILLEGAL_ADDRESS",
        "ILLEGAL_INSTRUCTION", "INVALID_ADDRESS_SPACE", "INVALID_PC", "LAUNCH_FAILED",
        "LAUNCH_TIMEOUT", "MISALIGNED_ADDRESS",
    )
}  # fmt: skip
_POLL_SECONDS = 50e-6  # between two looks at a mark

Stream = Any


class CudaDevice:
    """A GPU, by its number among those that CUDA_VISIBLE_DEVICES shows, in its primary context."""

    def __init__(self, number: int = 0) -> None:
        check_packages()
        from cuda.bindings import driver

        self._driver = driver
        self._modules: dict[bytes, Any] = {}
        self._shared: dict[int, int] = {}  # function -> shared bytes that it may use
        self._memory: set[int] = set()
        self._pinned: dict[int, int] = {}  # device address -> host address
        self._closed = False
        self._lost = False  # a kernel failed, or does not end
        try:
            self._call("cuInit", 0, current=False)
        except BackendError:
            raise
        except Exception as error:  # cuda.bindings: the driver's library is not there
            raise BackendError(
                "cuda: expected the NVIDIA driver's library libcuda.so.1, got "
                f"{error}; install the driver, or use backend='cpu'"
            ) from error
        self._check_version()
        if (visible := int(self._call("cuDeviceGetCount", current=False))) <= number:
            raise BackendError(
                f"cuda: expected at least {number + 1} visible GPUs, got {visible}; use fewer "
                "devices, or look at CUDA_VISIBLE_DEVICES and nvidia-smi"
            )
        self._device = self._call("cuDeviceGet", number, current=False)
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device, current=False)
        self.info = self._describe()
        self._stream = self._call(
            "cuStreamCreate", int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        )

    # ---- code ------------------------------------------------------------------------------------

    def kernel(self, source: str, entry: str, headers: Mapping[str, str]) -> Kernel:
        """Compile a file of the kernels folder with generated headers; return an entry point."""
        return self.load(
            compile_kernel(source, headers, architecture(*self.info.compute)).cubin, entry
        )

    def load(self, cubin: bytes, entry: str) -> Kernel:
        """Return an entry point of compiled code."""
        if cubin not in self._modules:
            self._modules[cubin] = self._call("cuModuleLoadData", cubin)
        return self._call("cuModuleGetFunction", self._modules[cubin], entry.encode())

    def launch(
        self, kernel: Kernel, shape: Launch, params: bytes, stream: Stream | None = None
    ) -> None:
        """Launch with one structure as its parameter, in the stream's order or another one's."""
        config = self.configure(kernel, shape, stream)
        # The driver copies the structure before it returns.
        structure = ctypes.create_string_buffer(params, len(params))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(structure))
        self._call("cuLaunchKernelEx", config, kernel, ctypes.addressof(pointers), 0)

    def configure(self, kernel: Kernel, shape: Launch, stream: Stream | None = None) -> Any:
        """Return the driver's description of a launch, with all that the kernel needs allowed."""
        self._allow_shared(kernel, shape.shared_bytes)
        if shape.cluster > 8:  # more than every GPU with clusters has
            kinds = self._driver.CUfunction_attribute
            attribute = kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            self._call("cuFuncSetAttribute", kernel, attribute, 1)
        config = self._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = shape.blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = shape.threads, 1, 1
        config.sharedMemBytes = shape.shared_bytes
        config.hStream = self._stream if stream is None else stream
        attributes = self._attributes(shape)
        config.attrs, config.numAttrs = attributes, len(attributes)
        return config

    def _attributes(self, shape: Launch) -> list[Any]:
        made = []

        def add(name: str) -> Any:
            attribute = self._driver.CUlaunchAttribute()
            kinds = self._driver.CUlaunchAttributeID
            attribute.id = getattr(kinds, f"CU_LAUNCH_ATTRIBUTE_{name}")
            made.append(attribute)
            return attribute.value

        if shape.cooperative:
            add("COOPERATIVE").cooperative = 1
        if shape.cluster > 1:
            size = add("CLUSTER_DIMENSION").clusterDim
            size.x, size.y, size.z = shape.cluster, 1, 1
        if shape.overlap:
            add("PROGRAMMATIC_STREAM_SERIALIZATION").programmaticStreamSerializationAllowed = 1
        return made

    def _allow_shared(self, kernel: Kernel, nbytes: int) -> None:
        if self._shared.get(int(kernel), 48 << 10) < nbytes:
            name = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
            attribute = getattr(self._driver.CUfunction_attribute, name)
            self._call("cuFuncSetAttribute", kernel, attribute, nbytes)
            self._shared[int(kernel)] = nbytes

    # ---- memory ----------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory, aligned to 256 bytes, its content undefined."""
        address = int(self._call("cuMemAlloc", nbytes))
        self._memory.add(address)
        return address

    def free(self, address: int) -> None:
        """Give memory back."""
        self._memory.remove(address)
        self._give_back("cuMemFree", address)

    def pin(self, nbytes: int) -> Pinned:
        """Return new pinned memory, zeroed."""
        flags = 0x1 | 0x2  # portable, mapped
        host = int(self._call("cuMemHostAlloc", nbytes, flags))
        address = int(self._call("cuMemHostGetDevicePointer", host, 0))
        self._pinned[address] = host
        array = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(host))
        array[:] = 0
        return Pinned(address, array)

    def unpin(self, pinned: Pinned) -> None:
        """Give pinned memory back; its array must not be used any more."""
        self._give_back("cuMemFreeHost", self._pinned.pop(pinned.address))

    def copy_in(self, to: int, source: Pinned, nbytes: int, offset: int = 0) -> None:
        """Copy from pinned memory, from byte ``offset`` on, in the stream's order."""
        assert offset + nbytes <= source.array.nbytes
        host = source.array.ctypes.data + offset
        self._call("cuMemcpyHtoDAsync", to, host, nbytes, self._stream)

    def copy_out(self, to: Pinned, source: int, nbytes: int) -> None:
        """Copy to pinned memory, in the stream's order."""
        assert nbytes <= to.array.nbytes
        self._call("cuMemcpyDtoHAsync", to.array.ctypes.data, source, nbytes, self._stream)

    def clear(self, address: int, nbytes: int) -> None:
        """Fill with zeros, in the stream's order."""
        self._call("cuMemsetD8Async", address, 0, nbytes, self._stream)

    # ---- order -----------------------------------------------------------------------------------

    def mark(self, stream: Stream | None = None) -> Mark:
        """Return a mark at the present end of the stream, or of another one."""
        flags = self._driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        event = self._call("cuEventCreate", int(flags))
        self._call("cuEventRecord", event, self._stream if stream is None else stream)
        return _Event(self, event)

    def passed(self, mark: Mark) -> bool:
        """Return whether everything before a mark is over."""
        self._enter()
        (status,) = self._driver.cuEventQuery(mark.event)
        if status == self._driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        self._check("cuEventQuery", status)
        return True

    def wait(self, mark: Mark, seconds: float) -> None:
        """Wait until a mark is passed; BackendError if it takes longer than ``seconds``."""
        # Asked again and again: the driver's own wait knows no limit, and a kernel may hang.
        deadline = time.monotonic() + seconds
        while not self.passed(mark):
            if time.monotonic() > deadline:
                self._lost = True
                raise BackendError(
                    f"cuda: expected {self.info.name} to finish within {seconds:.0f} s, it did "
                    "not; end this process, and look at nvidia-smi if the GPU stays busy"
                )
            time.sleep(_POLL_SECONDS)

    def reach(self, peer: "CudaDevice") -> bool:
        """Let kernels store in another GPU's memory; False: the machine has no way for them."""
        can = self._call("cuDeviceCanAccessPeer", self._device, peer._device, current=False)
        if not int(can):
            return False
        self._enter()
        (status,) = self._driver.cuCtxEnablePeerAccess(peer._context, 0)
        # Contexts are the process's: another engine may have asked before.
        if status != self._driver.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:
            self._check("cuCtxEnablePeerAccess", status)
        return True

    def follow(self, mark: Mark) -> None:
        """Let the stream go on only once a mark of another GPU is passed."""
        self._call("cuStreamWaitEvent", self._stream, mark.event, 0)

    def close(self) -> None:
        """Give back everything that was allocated. Harmless when called twice, or on a lost GPU."""
        if self._closed or self._lost:
            return
        self._closed = True
        for address in self._memory:
            self._call("cuMemFree", address)
        for host in self._pinned.values():
            self._call("cuMemFreeHost", host)
        for module in self._modules.values():
            self._call("cuModuleUnload", module)
        self._call("cuStreamDestroy", self._stream)
        self._call("cuDevicePrimaryCtxRelease", self._device, current=False)

    # ---- calls -----------------------------------------------------------------------------------

    def _check_version(self) -> None:
        """BackendError where the driver is older than what the packages compile for.

        It would open the GPU all the same, and refuse the first kernel as no valid image.
        """
        number = int(self._call("cuDriverGetVersion", current=False))
        found, wanted = version_of(number), OLDEST_DRIVER
        if found < wanted:
            raise BackendError(
                f"cuda: expected a driver for CUDA {wanted[0]}.{wanted[1]} or later, got one for "
                f"CUDA {found[0]}.{found[1]}; {NEWER_DRIVER}, or use backend='cpu'"
            )

    def _describe(self) -> GpuInfo:
        names = {
            "sms": "MULTIPROCESSOR_COUNT",
            "major": "COMPUTE_CAPABILITY_MAJOR",
            "minor": "COMPUTE_CAPABILITY_MINOR",
            "shared": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
            "l2": "L2_CACHE_SIZE",
            "limited": "KERNEL_EXEC_TIMEOUT",
        }
        kinds = self._driver.CUdevice_attribute
        values = {}
        for name, full in names.items():
            attribute = getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{full}")
            values[name] = int(self._call("cuDeviceGetAttribute", attribute, self._device))
        free, total = self._call("cuMemGetInfo")
        return GpuInfo(
            name=self._call("cuDeviceGetName", 128, self._device).split(b"\0")[0].decode(),
            compute=(values["major"], values["minor"]),
            sms=values["sms"],
            shared_bytes=values["shared"],
            free_bytes=int(free),
            total_bytes=int(total),
            l2_bytes=values["l2"],
            run_limited=bool(values["limited"]),
        )

    def _give_back(self, name: str, what: int) -> None:
        """Free something, but not on a lost GPU: with the process's end all is given back.

        One that failed refuses with the failure's own error, which would hide where it came from,
        and one that hangs would never answer.
        """
        if not self._lost:
            self._call(name, what)

    def _enter(self) -> None:
        """Make the context this thread's: requests come from any thread, for any GPU.

        At each call: another library, torch for one, may have made another GPU's current since.
        """
        (status,) = self._driver.cuCtxSetCurrent(self._context)
        self._check("cuCtxSetCurrent", status)

    def _call(self, name: str, *arguments: Any, current: bool = True) -> Any:
        """Call the driver; return what it returns besides the status."""
        if current:
            self._enter()
        status, *results = getattr(self._driver, name)(*arguments)
        self._check(name, status)
        return results[0] if len(results) == 1 else tuple(results)

    def _check(self, name: str, status: Any) -> None:
        if status == self._driver.CUresult.CUDA_SUCCESS:
            return
        _, text = self._driver.cuGetErrorString(status)
        reason = text.decode() if text else "unknown error"
        self._lost |= getattr(status, "name", "") in _STICKY
        advice = _ADVICE.get(getattr(status, "name", ""), "see 'monolane doctor'")
        raise BackendError(
            f"cuda: {name}: expected success, got {getattr(status, 'name', status)} ({reason}); "
            f"{advice}"
        )


class _Event:
    """An event that is given back with its last reference."""

    def __init__(self, device: CudaDevice, event: Any) -> None:
        self._device, self.event = device, event

    def __del__(self) -> None:
        if not self._device._closed:
            self._device._driver.cuEventDestroy(self.event)
