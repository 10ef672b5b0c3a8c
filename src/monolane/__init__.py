"""monolane: a latency-first LLM engine. One number first: output tokens per second of one request.

    from monolane import Engine, SamplingParams

    with Engine.load("demo") as engine:
        print(engine.generate("def fibonacci(n):", SamplingParams(max_tokens=64)).text)

The names are fetched from the engine when first used, so that importing one package
(``monolane.model`` in a converter, ``monolane.hf`` in a training script) does not load the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from monolane._version import __version__

if TYPE_CHECKING:
    from monolane.engine import Engine, Generation, Piece, SamplingParams, Stream, Timings

__all__ = ["Engine", "Generation", "Piece", "SamplingParams", "Stream", "Timings", "__version__"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module("monolane.engine"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
