"""The engine's interleavings (tests/engine/test_interleavings.py), on an emulated GPU."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from emulated_gpu import EmulatedGpu

from monolane.cuda import CudaExecutor
from monolane.engine import _engine
from monolane.model import Weights

_PATH = Path(__file__).parents[1] / "engine" / "test_interleavings.py"
_SPEC = importlib.util.spec_from_file_location("interleavings_of_the_engine", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
_ENGINE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_ENGINE)
folder, texts, alone, engines = _ENGINE.folder, _ENGINE.texts, _ENGINE.alone, _ENGINE.engines


@pytest.fixture(scope="module")
def backend(kernel_folder: Path) -> Iterator[str]:
    """Whoever asks for a backend gets the CUDA one, on an emulated GPU."""

    def make(weights: Weights, dtype: str, **more: Any) -> CudaExecutor:
        return CudaExecutor(weights, dtype, EmulatedGpu(kernel_folder), **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_engine, "find_backend", lambda *_: make)
        yield "cuda"


# The module's fixtures and its backend, not those of its cases.
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(i, marks=pytest.mark.exhaustive) for i in range(1, 500))]
)
def test_each_request_gets_what_it_gets_alone(
    seed: int, backend: str, engines: Any, texts: Any, alone: Any
) -> None:
    _ENGINE.check(seed, backend, engines, texts, alone)
