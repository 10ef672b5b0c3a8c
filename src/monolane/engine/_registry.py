"""Which backends there are, imported only when one is asked for."""

import ctypes
import logging
from functools import cache, partial
from importlib import import_module

from monolane import _env
from monolane.engine._memory import expert_budget
from monolane.epoch import Executor, MakeExecutor, RankAddresses
from monolane.errors import BackendError, MissingExtraError, MonolaneError, RequestError
from monolane.model import Heads, Weights

log = logging.getLogger("monolane.engine")

# Name -> "module:class".
_BACKENDS = {
    "cuda": "monolane.cuda:CudaExecutor",
    "cpu": "monolane.cpu:CpuExecutor",
    "reference": "monolane.reference:ReferenceExecutor",
}
_DRIVER = "libcuda.so.1"

BACKEND_NAMES = ("auto", *_BACKENDS)


def find_backend(
    name: str, ranks: int | RankAddresses = 1, link_delay: float = 0.0, devices: int = 1
) -> MakeExecutor:
    """Return what makes an executor of loaded weights, in that many processes or on so many GPUs.

    "auto" is the GPU where one can run the model, else the processor. RequestError if there is no
    backend of that name, or none in so many processes. Asked before a model is read, so that a
    wrong name costs no wait. ``link_delay``: see ``CpuExecutor``.
    """
    if name == "auto":
        name = _env.BACKEND.get()
    if type(devices) is not int or devices < 1:
        raise RequestError(f"devices: expected a number of GPUs from 1 on, got {devices!r}")
    if devices > 1:
        return _on_devices(name, ranks, devices)
    if ranks != 1 or type(ranks) is not int:
        return _with_ranks(name, ranks, link_delay)
    if name == "auto":
        if _has_gpu(_DRIVER):
            return _open_best
        name = "cpu"
    if name not in _BACKENDS:
        raise RequestError(f"backend: expected one of {', '.join(BACKEND_NAMES)}, got {name!r}")
    module, _, attribute = _BACKENDS[name].partition(":")
    make: MakeExecutor = getattr(import_module(module), attribute)
    return make


def with_draft(
    name: str, ranks: int | RankAddresses, devices: int, draft: Weights | Heads, dtype: str
) -> MakeExecutor:
    """Return what makes an executor for which a model or heads draft: on CPU, in one rank."""
    check_draft(name, ranks, devices)
    from monolane.cpu import CpuExecutor

    return partial(CpuExecutor, draft=draft, draft_dtype=dtype)


def with_expert_memory(make: MakeExecutor, wanted: str | int, weights: Weights) -> MakeExecutor:
    """Have experts stay in a file but for as many bytes as ``wanted`` says.

    RequestError where it says no number, BackendError where none could stay or memory is too small.
    """
    size = expert_budget(wanted, weights)
    from monolane.cpu import CpuExecutor

    of = make.func if isinstance(make, partial) else make
    if of is not CpuExecutor:
        raise BackendError(
            "expert_memory: expected the cpu backend, which alone reads experts from a file; use "
            "backend 'cpu', or leave it out"
        )
    already = make.keywords if isinstance(make, partial) else {}
    return partial(CpuExecutor, **already, expert_memory=size)


def check_draft(name: str, ranks: int | RankAddresses, devices: int) -> None:
    """RequestError where other options leave nothing to draft, BackendError where the GPU does."""
    if ranks != 1 or devices != 1:
        raise RequestError(
            f"draft: expected one rank and one device, got ranks {ranks!r} and devices "
            f"{devices!r}; leave draft and heads out"
        )
    wrong: type[MonolaneError] = RequestError
    if name == "auto":
        name = _env.BACKEND.get()
    if name == "auto" and _has_gpu(_DRIVER):
        wrong = BackendError
    elif name == "auto":
        name = "cpu"
    if name != "cpu":
        raise wrong(
            f"draft: expected backend cpu, for which alone a model or heads draft, got {name!r}; "
            "leave them out, or name the backend"
        )


def _with_ranks(name: str, ranks: int | RankAddresses, link_delay: float) -> MakeExecutor:
    if not isinstance(ranks, RankAddresses) and (type(ranks) is not int or ranks < 1):
        raise RequestError(
            f"ranks: expected a number of processes from 1 on, or RankAddresses, got {ranks!r}"
        )
    if name not in ("auto", "cpu"):
        raise RequestError(
            f"ranks: expected backend cpu, which alone runs in several processes, got {name!r} and "
            f"{ranks if isinstance(ranks, int) else 1 + len(ranks.addresses)} ranks"
        )
    from monolane.cpu import CpuExecutor

    return partial(CpuExecutor, ranks=ranks, link_delay=link_delay)


def _on_devices(name: str, ranks: int | RankAddresses, devices: int) -> MakeExecutor:
    """Return what makes an executor on several GPUs; nothing else is tried, even for "auto"."""
    if name not in ("auto", "cuda") or ranks != 1:
        raise RequestError(
            f"devices: expected backend cuda in one process, got {name!r}, ranks of {ranks!r} and "
            f"{devices} devices"
        )
    from monolane.cuda import CudaExecutor

    return partial(CudaExecutor, devices=devices)


def _open_best(
    weights: Weights,
    dtype: str,
    *,
    context: int,
    slots: int,
    workers: int | None = None,
    cache_dtype: str = "auto",
) -> Executor:
    """Return an executor on the GPU if it can run this model, else on the processor.

    What goes wrong on a GPU that could is raised: only what is known beforehand falls back.
    """
    from monolane.cpu import CpuExecutor
    from monolane.cuda import (
        CudaDevice,
        CudaExecutor,
        check_cache_dtype,
        check_fit,
        check_weights,
        compiler_version,
    )

    try:
        check_cache_dtype(cache_dtype)
        check_weights(weights)
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
        return CudaExecutor(weights, dtype, device, context=context, slots=slots, workers=workers)
    log.warning("auto: the cpu backend, for there is a GPU but: %s", reason)
    try:
        return CpuExecutor(
            weights,
            dtype,
            context=context,
            slots=slots,
            workers=workers,
            cache_dtype=cache_dtype,
        )
    except BackendError as error:
        raise BackendError(f"{error}. And of the GPU: {reason}") from error


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
