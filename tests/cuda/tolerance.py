"""How far 16-bit activations may take logits from the oracle's, measured on the oracle itself.

The kernel rounds at nine places: the inputs of the five products of weights, queries, keys, values
and attention weights. To p significant bits a rounding errs by at most 2^-p of the value, and the
errors are independent. So the oracle runs `RUNS` times with independent errors, uniform within 2^-p
of each value, at the same places; the root mean square of what that does to a position's logits is
their standard deviation s. (Uniform within the largest error is an upper estimate: the mean over
mantissas is 0.74 of it.)

A logit's own error is a sum over all roundings before it, hence close to normal, and less than six
standard deviations of any of the some ten thousand logits of a test. No formula of depth and width
gives s: it depends on the position, for where the parts of a small stream cancel, the norm that
follows makes their errors large.

Sums in float32, whose order differs, err by 2^-24 a term: nothing beside it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from monolane.model import Weights
from monolane.ops import modules
from monolane.reference import ReferenceModel, _layer_pass, _model, _operations

Floats = npt.NDArray[np.float32]

PRECISION = {"bfloat16": 8, "float16": 11}  # significant bits
RUNS = 12
DEVIATIONS = 6


def oracle(weights: Weights, ids: Sequence[int]) -> Floats:
    """Logits [T, V] without any rounding to 16 bits."""
    model = ReferenceModel(weights)
    return model.forward(ids, model.new_cache())


def limits(weights: Weights, ids: Sequence[int], dtype: str) -> Floats:
    """The most that the logits of each position may differ from the oracle's: [T]."""
    exact = oracle(weights, ids)
    squares = np.zeros(len(ids))
    for seed in range(RUNS):
        with _errors(2.0 ** -PRECISION[dtype], seed):
            squares += ((oracle(weights, ids) - exact) ** 2).mean(axis=1)
    found: Floats = (DEVIATIONS * np.sqrt(squares / RUNS)).astype(np.float32)
    return found


@contextmanager
def _errors(size: float, seed: int) -> Iterator[None]:
    """The oracle with relative errors of up to `size` where the kernel rounds."""
    rng = np.random.default_rng(seed)

    def err(x: Floats) -> Floats:
        return x * (1 + rng.uniform(-size, size, x.shape)).astype(np.float32)

    linear, attend, softmax = _operations.linear, _operations.attend, _operations.softmax

    def attend_with_errors(q: Floats, k: Floats, v: Floats, *rest: Any, **named: Any) -> Floats:
        return attend(err(q), err(k), err(v), *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        for module in (_model, _layer_pass, *modules("reference")):
            if hasattr(module, "linear"):
                patch.setattr(module, "linear", lambda x, w: linear(err(x), w))
            if hasattr(module, "attend"):
                patch.setattr(module, "attend", attend_with_errors)
        patch.setattr(_operations, "softmax", lambda x: err(softmax(x)))
        yield
