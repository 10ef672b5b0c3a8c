"""Which backends there are, imported only when one is asked for."""

from collections.abc import Callable
from importlib import import_module

from monolane import _env
from monolane.engine._backend import Backend
from monolane.errors import BackendError
from monolane.model import Weights

# Name -> "module:class". Order is preference: "auto" takes the first that can run.
_BACKENDS = {
    "cpu": "monolane.engine._cpu_backend:CpuBackend",
    "reference": "monolane.engine._reference_backend:ReferenceBackend",
}
# Part of the public names, not of this version.
_COMING = ("cuda",)

BACKEND_NAMES = ("auto", *_BACKENDS, *_COMING)


def find_backend(name: str) -> Callable[[Weights, str, int, int], Backend]:
    """Return what makes a backend from (weights, dtype, context, slots).

    BackendError if there is none of that name. Asked before a model is read, so that a wrong name
    costs no wait.
    """
    if name == "auto":
        name = _env.BACKEND.get()
    if name == "auto":
        name = next(iter(_BACKENDS))
    usable = ", ".join(("auto", *_BACKENDS))
    if name in _COMING:
        raise BackendError(f"backend {name!r} is not part of this version yet; use one of {usable}")
    if name not in _BACKENDS:
        raise BackendError(f"backend: expected one of {usable}, got {name!r}")
    module, _, attribute = _BACKENDS[name].partition(":")
    make: Callable[[Weights, str, int, int], Backend] = getattr(import_module(module), attribute)
    return make
