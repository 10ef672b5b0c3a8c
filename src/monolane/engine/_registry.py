"""Which backends there are, imported only when one is asked for."""

import ctypes
import logging
from collections.abc import Callable
from functools import cache
from importlib import import_module

from monolane import _env
from monolane.engine._backend import Backend
from monolane.errors import BackendError, MissingExtraError
from monolane.model import Weights

log = logging.getLogger("monolane.engine")

# Name -> "module:class".
_BACKENDS = {
    "cuda": "monolane.engine._cuda_backend:CudaBackend",
    "cpu": "monolane.engine._cpu_backend:CpuBackend",
    "reference": "monolane.engine._reference_backend:ReferenceBackend",
}
_DRIVER = "libcuda.so.1"

BACKEND_NAMES = ("auto", *_BACKENDS)


def find_backend(name: str) -> Callable[[Weights, str, int, int], Backend]:
    """Return what makes a backend from (weights, dtype, context, slots).

    "auto" is the GPU where one can run the model, else the processor. BackendError if there is no
    backend of that name. Asked before a model is read, so that a wrong name costs no wait.
    """
    if name == "auto":
        name = _env.BACKEND.get()
    if name == "auto":
        if _has_gpu(_DRIVER):
            return _open_best
        name = "cpu"
    if name not in _BACKENDS:
        raise BackendError(f"backend: expected one of {', '.join(BACKEND_NAMES)}, got {name!r}")
    module, _, attribute = _BACKENDS[name].partition(":")
    make: Callable[[Weights, str, int, int], Backend] = getattr(import_module(module), attribute)
    return make


def _open_best(weights: Weights, dtype: str, context: int, slots: int) -> Backend:
    """Return a backend on the GPU if it can run this model, else on the processor.

    What goes wrong on a GPU that could is raised: only what is known beforehand falls back.
    """
    from monolane.cuda import CudaDevice, check_fit, compiler_version
    from monolane.engine._cpu_backend import CpuBackend
    from monolane.engine._cuda_backend import CudaBackend

    try:
        compiler_version()
        device = CudaDevice()
        try:
            check_fit(weights.config, dtype, device.info, context=context, slots=slots)
        except BaseException:
            device.close()
            raise
    except (BackendError, MissingExtraError) as error:
        reason = str(error)
    else:
        return CudaBackend(weights, dtype, context, slots, device)
    log.warning("auto: the cpu backend, for there is a GPU but: %s", reason)
    try:
        return CpuBackend(weights, dtype, context, slots)
    except BackendError as error:
        raise BackendError(f"{error}. And of the GPU: {reason}") from error


@cache
def _has_gpu(library: str) -> bool:
    """Return whether this machine has all that the CUDA backend needs.

    Most have no driver: they are told apart by one failed look for its library, which imports
    nothing.
    """
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    from monolane.cuda import examine

    return not examine(library).lacks
