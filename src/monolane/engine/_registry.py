"""Which backends there are, imported only when one is asked for."""

import ctypes
import logging
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

from monolane import _env
from monolane._loading import OPTIONS, Loading
from monolane.errors import BackendError, MissingExtraError, RequestError
from monolane.executor_api import Executor, MakeExecutor, RankAddresses
from monolane.model import Weights

log = logging.getLogger("monolane.engine")

# Name -> "module:class".
_BACKENDS = {
    "cuda": "monolane.cuda:CudaExecutor",
    "cpu": "monolane.cpu:CpuExecutor",
    "reference": "monolane.reference:ReferenceExecutor",
}
_DRIVER = "libcuda.so.1"

BACKEND_NAMES = ("auto", *_BACKENDS)


def find_backend(name: str = "auto", asked: Loading | None = None) -> MakeExecutor:
    """Return what makes an executor of loaded weights, of the backend that honours what is asked.

    "auto" is the GPU where one can run the model, else the processor. RequestError if there is no
    backend of that name; RequestError or BackendError if it does not honour an option, as the
    option says. Asked before a model is read, so that a wrong name costs no wait.
    """
    asked = asked or Loading()
    _check_together(asked)
    if asked.heads is not None:  # a draft as well, and refused as one
        asked = replace(asked, draft=asked.heads, heads=None)
    if name == "auto":
        name = _env.BACKEND.get()
    for option in asked.given():
        said = OPTIONS[option]
        if name != "auto" or {"cuda", "cpu"} <= set(said.honoured_by):
            continue
        if said.auto == "chooses" or (said.auto == "refuses" and not _gpu()):
            name = said.honoured_by[0]
        elif said.auto == "refuses":
            raise said.refusal(option, name, asked)
    if name == "auto":
        if _gpu():
            return _open_best
        name = "cpu"
    if name not in _BACKENDS:
        raise RequestError(f"backend: expected one of {', '.join(BACKEND_NAMES)}, got {name!r}")
    if (name, asked.workers) == ("reference", 1):  # which it has
        asked = replace(asked, workers=None)
    asked.check_backend(name)
    module, _, attribute = _BACKENDS[name].partition(":")
    make: MakeExecutor = getattr(import_module(module), attribute)
    return make


def _check_together(asked: Loading) -> None:
    """RequestError for options that no backend honours together."""
    ranks, devices = asked.ranks, asked.devices
    if not isinstance(ranks, RankAddresses) and (type(ranks) is not int or ranks < 1):
        raise RequestError(
            f"ranks: expected a number of processes from 1 on, or RankAddresses, got {ranks!r}"
        )
    if devices > 1 and ranks != 1:
        raise OPTIONS["devices"].refusal("devices", asked.backend, asked)
    if (asked.draft is not None or asked.heads is not None) and (ranks != 1 or devices != 1):
        raise RequestError(
            f"draft: expected one rank and one device, got ranks {ranks!r} and devices "
            f"{devices!r}; leave draft and heads out"
        )
    if asked.draft is not None and asked.heads is not None:
        raise RequestError("heads: expected no draft beside them, which they are instead of")


def _open_best(weights: Weights, dtype: str, *, context: int, slots: int, **more: Any) -> Executor:
    """Return an executor on the GPU if it can run this model, else on the processor.

    What goes wrong on a GPU that could is raised: only what is known beforehand falls back.
    """
    from monolane.cpu import CpuExecutor
    from monolane.cuda import CudaDevice, CudaExecutor, check_fit, compiler_version

    falls = {name: value for name, value in more.items() if OPTIONS[name].auto == "falls"}
    try:
        Loading(**falls).check_backend("cuda")
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
        return CudaExecutor(weights, dtype, device, context=context, slots=slots, **more)
    log.warning("auto: the cpu backend, for there is a GPU but: %s", reason)
    try:
        return CpuExecutor(weights, dtype, context=context, slots=slots, **more)
    except BackendError as error:
        raise BackendError(f"{error}. And of the GPU: {reason}") from error


def _gpu() -> bool:
    return _has_gpu(_DRIVER)


@cache
def _has_gpu(library: str) -> bool:
    """Return whether this machine has all that the CUDA backend needs; tell of a GPU that lacks it.

    Most have no driver: they are told apart by one failed look for its library, which imports
    nothing.
    """
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    from monolane.cuda import examine

    machine = examine(library)
    if machine.gpu is not None and machine.lacks:
        lacks = "; ".join(f"{lack.what}: {lack.mend}" for lack in machine.lacks)
        log.warning(
            "auto: the cpu backend, for there is a GPU, %s, but: %s", machine.gpu.name, lacks
        )
    return not machine.lacks
