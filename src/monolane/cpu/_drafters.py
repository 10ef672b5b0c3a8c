"""Hands a drafter that reads a model's stream over to the core that runs the model."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane._core import Executor
from monolane.cpu._errors import our_errors
from monolane.errors import BackendError
from monolane.model import (
    DFLASH_MATRICES,
    DFLASH_NORMS,
    EAGLE_MATRICES,
    EAGLE_NORMS,
    STORED,
    Dflash,
    Eagle,
    ModelConfig,
)

Array = npt.NDArray[Any]


def add_drafter(core: Executor, drafter: Eagle | Dflash, config: ModelConfig, lanes: int) -> None:
    """Have a drafter draft for the model in a core; ConfigError if it is of another one.

    ``lanes``: into which the model is cut.
    """
    drafter.check(config, "draft")
    if lanes > 1:
        raise BackendError(
            f"draft: expected a model of one lane, whose stream the drafter reads, got {lanes} "
            "lanes; leave it out"
        )
    with our_errors():
        if isinstance(drafter, Eagle):
            _add_eagle(core, drafter, config)
        else:
            _add_dflash(core, drafter)


def _add_eagle(core: Executor, eagle: Eagle, config: ModelConfig) -> None:
    heads, kv_heads, width = eagle.heads
    core.set_eagle(
        matrices=_matrices(eagle.weights[name] for name in EAGLE_MATRICES),
        vectors=[
            *_floats(eagle.weights[name] for name in EAGLE_NORMS),
            eagle.rotary.frequencies(width),
        ],
        tokens=eagle.tokens,
        sizes=[
            eagle.hidden_size,
            eagle.inner_size,
            heads,
            kv_heads,
            width,
            len(eagle.tokens),
        ],
        layers=list(eagle.layers_of(config)),
        norm_eps=eagle.norm_eps,
        amplitude=eagle.rotary.amplitude,
        norm_joins=eagle.norm_joins,
    )


def _add_dflash(core: Executor, dflash: Dflash) -> None:
    own = dflash.config
    attention, rotary = own.attention(0), own.rotary
    matrices = [layer[name] for layer in dflash.layers for name in DFLASH_MATRICES]
    vectors = [layer[name] for layer in dflash.layers for name in DFLASH_NORMS]
    rank, confident = 0, False
    if (markov := dflash.markov) is not None:
        matrices += [markov.before, markov.after]
        rank, confident = markov.rank, markov.confidence is not None
        vectors += [markov.confidence] if markov.confidence is not None else []
    core.set_dflash(
        matrices=_matrices([dflash.fc, *matrices]),
        vectors=[
            *_floats([dflash.context_norm, dflash.final_norm]),
            rotary.frequencies(attention.head_dim),
            *_floats(vectors),
        ],
        sizes=[
            own.hidden_size,
            own.intermediate_size,
            attention.heads,
            attention.kv_heads,
            attention.head_dim,
            len(dflash.read_behind),
            dflash.block,
            dflash.mask,
            own.vocab_size,
            rank,
            confident,
        ],
        windows=[layer.window or 0 for layer in own.layers],
        layers=list(dflash.read_before),
        norm_eps=own.norm_eps,
        amplitude=rotary.amplitude,
        causal=dflash.causal,
    )


def _matrices(arrays: Iterable[Array]) -> list[tuple[Array, int]]:
    """Return bytes, and the codes of their formats."""
    return [
        (x.reshape(-1).view(np.uint8), STORED[x.dtype].code)
        for x in (np.ascontiguousarray(array) for array in arrays)
    ]


def _floats(arrays: Iterable[Array]) -> list[npt.NDArray[np.float32]]:
    return [np.ascontiguousarray(array, np.float32) for array in arrays]
