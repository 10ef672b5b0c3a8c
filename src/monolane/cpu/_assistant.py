"""Hands an assistant over to the core that runs the model which it drafts for."""

from typing import Any

import numpy as np
import numpy.typing as npt

from monolane._core import Executor
from monolane.cpu._errors import our_errors
from monolane.errors import BackendError
from monolane.model import (
    ASSISTANT_MATRICES,
    ASSISTANT_NORMS,
    STORED,
    Assistant,
    ModelConfig,
)

Array = npt.NDArray[Any]


def add_assistant(core: Executor, assistant: Assistant, config: ModelConfig, lanes: int) -> None:
    """Have an assistant draft for the model in a core; ConfigError if it is of another one.

    ``lanes``: into which the model is cut.
    """
    assistant.check(config, "draft")
    if lanes > 1:
        raise BackendError(
            "draft: expected a model in one lane, whose keys an assistant reads, got "
            f"{lanes} lanes; leave one of them out"
        )
    own, ordering = assistant.config, assistant.ordering
    outer = [assistant.before, assistant.after, assistant.head]
    outer += [] if ordering is None else [ordering.centroids]
    found = [layer[name] for layer in assistant.layers for name in ASSISTANT_MATRICES] + outer
    dtypes = {array.dtype for array in found}
    # The core multiplies all in one format: where files mix them, in one that holds all.
    dtype = dtypes.pop() if len(dtypes) == 1 else np.dtype(np.float32)

    def matrix(array: Array) -> tuple[Array, int, int]:
        plain = np.ascontiguousarray(array, dtype)
        return plain.reshape(-1).view(np.uint8), *plain.shape

    def floats(array: Array) -> npt.NDArray[np.float32]:
        return np.ascontiguousarray(array, np.float32)

    layers = []
    for i, read in enumerate(assistant.read_layers(config, "draft")):
        layer, attention = assistant.layers[i], own.attention(i)
        rotary = own.rotary if attention.window is None else own.local_rotary
        assert rotary is not None
        sizes = (attention.heads, attention.kv_heads, attention.head_dim)
        layers.append(
            (
                [matrix(layer[name]) for name in ASSISTANT_MATRICES],
                [
                    *(floats(layer[name]) for name in ASSISTANT_NORMS),
                    rotary.frequencies(attention.head_dim),
                ],
                [*sizes, read, attention.window or 0],
                [rotary.amplitude, float(layer["scale"][0])],
            )
        )
    none = np.empty(0, np.int32)
    with our_errors():
        core.set_assistant(
            STORED[dtype].code,
            layers,
            [matrix(array) for array in outer],
            ordering=none if ordering is None else ordering.tokens,
            chosen=0 if ordering is None else ordering.chosen,
            final_norm=floats(assistant.final_norm),
            norm_eps=own.norm_eps,
        )
