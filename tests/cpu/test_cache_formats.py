"""Keys and values in codes: what is stored, what attention makes of it, and the oracle beside it.

That no bit depends on how tokens are fed, kept, drafted or shared out is tested where that is
tested for other caches: test_executor.py, test_ranked_kv.py, test_speculation.py, test_ranks.py.
"""

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from monolane._core import kernels
from monolane.cpu import CpuExecutor
from monolane.errors import BackendError, ConfigError, RequestError
from monolane.executor_api import Loading
from monolane.model import find_cache_format
from monolane.reference import ReferenceExecutor, find_rounding

from .test_executor import random_weights

CODES = ("int8", "int4")
# Sets that multiply codes as integers; the others widen them.
IN_WORDS = [x for x in kernels.supported() if x.startswith(("avx512", "amx"))]
Rows = np.ndarray


def stored(isa: str, x: Rows, cache_dtype: str) -> tuple[Rows, Rows]:
    """Return rows [R, h] as a cache holds them, and what they mean, as gguf reads them."""
    name = find_cache_format(cache_dtype).short
    rows = kernels.store_kv(isa, x.reshape(-1), name).reshape(len(x), -1)
    return rows, dequantize(rows, GGMLQuantizationType[name.upper()])


@pytest.mark.parametrize("isa", kernels.supported())
@pytest.mark.parametrize("cache_dtype", CODES)
def test_codes_are_the_oracles(isa: str, cache_dtype: str) -> None:
    """Of groups of any size, with zeros, ties and the largest number of either sign."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 64)) * np.exp(3 * rng.normal(size=(300, 1)))
    x[0], x[1], x[2] = 0, np.arange(64) - 20.5, np.linspace(-7, 7, 64)
    x = x.astype(np.float32)
    rows, meant = stored(isa, x, cache_dtype)
    assert rows.shape[1] == find_cache_format(cache_dtype).row_bytes(64)
    np.testing.assert_array_equal(meant, find_rounding(cache_dtype, 64)(x))
    step = np.abs(x.reshape(-1, 32)).max(axis=1) / (127 if cache_dtype == "int8" else 7)
    # Half a step, and what the scale's own rounding (2^-11, of at most so many steps) adds; of 4
    # bits the better of two scales in the mean, one of which keeps that.
    miss = np.sqrt(np.square((meant - x).reshape(-1, 32).astype(np.float64)).mean(axis=1))
    assert (miss <= step * (0.5 + 128 * 2.0**-11) + 2.0**-25 * 127).all()


def random_cache(
    isa: str, cache_dtype: str, count: int, head_dim: int
) -> tuple[tuple[Rows, Rows], tuple[Rows, Rows]]:
    """Return keys and values as `stored` does."""
    rng = np.random.default_rng(head_dim)
    keys, values = rng.standard_normal((2, count, head_dim)).astype(np.float32)
    return stored(isa, keys, cache_dtype), stored(isa, values, cache_dtype)


@pytest.mark.parametrize("isa", [x for x in kernels.supported() if x not in IN_WORDS])
@pytest.mark.parametrize("cache_dtype", CODES)
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
def test_attention_over_codes_has_the_bits_of_their_numbers(
    isa: str, cache_dtype: str, head_dim: int
) -> None:
    """A code is widened exactly, and sums have the order of float32 rows, whatever the heads."""
    (keys, k), (values, v) = random_cache(isa, cache_dtype, 37, head_dim)
    q = np.random.default_rng(1).standard_normal((7, head_dim)).astype(np.float32)
    name = find_cache_format(cache_dtype).short
    for heads in range(1, 8):
        found = kernels.attend(isa, q[:heads], name, keys, values, 0.125)
        wanted = kernels.attend(isa, q[:heads], "f32", k.view(np.uint8), v.view(np.uint8), 0.125)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("isa", IN_WORDS)
@pytest.mark.parametrize("cache_dtype", CODES)
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 160, 192, 256, 576])
@pytest.mark.parametrize("count", [1, 6, 37, 256, 600])
def test_attention_over_codes_errs_by_words(
    isa: str, cache_dtype: str, head_dim: int, count: int
) -> None:
    """A query's numbers err by up to half a unit, 2^-16 of the largest, and so do weights.

    Such errors are uniform and independent: unit / sqrt(12) each, so sums of them sqrt(n) times
    that, and none of these tests' numbers is beyond 6 deviations. A score errs so by its key, twice
    with the peak's, which is e's relative error; a sum of values moreover by its codes. Floats add
    some 2^-24 of the sizes for each number summed, and a hundredth is for e's own error in a unit.
    """
    (keys, k), (values, v) = (
        (rows, meant.astype(np.float64))
        for rows, meant in random_cache(isa, cache_dtype, count, head_dim)
    )
    q = np.random.default_rng(2).standard_normal((3, head_dim)).astype(np.float32)
    block = find_cache_format(cache_dtype).row_bytes(32)
    scales = np.ascontiguousarray(values.reshape(count, -1, block)[:, :, :2]).view(np.float16)
    scales = np.repeat(np.abs(scales[:, :, 0].astype(np.float64)), 32, axis=1)  # of each column
    codes = np.abs(v) / scales
    found = kernels.attend(isa, q, find_cache_format(cache_dtype).short, keys, values, 0.125)
    for (*out, peak, total), head in zip(found, q.astype(np.float64), strict=True):
        scores = 0.125 * (k @ head)
        unit = np.abs(head).max() / 32767
        miss = 0.125 * 6 / 12**0.5 * unit * np.sqrt(np.square(k).sum(axis=1).max())
        miss += 2.0**-24 * 8 * 0.125 * (np.abs(k) @ np.abs(head)).max()
        assert abs(peak - scores.max()) <= miss
        e = np.exp(scores - peak)
        relative = 2 * miss + 2.0**-24 * (count + 12)
        assert abs(total - e.sum()) <= relative * e.sum()
        step = 1.01 * 6 / 12**0.5 * (e[:, None] * scales).max(axis=0) / 32767
        bound = relative * (e @ np.abs(v)) + step * np.sqrt(np.square(codes).sum(axis=0))
        assert (np.abs(out - e @ v) <= bound).all()


@pytest.mark.parametrize("isa", kernels.supported())
@pytest.mark.parametrize("cache_dtype", CODES)
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
def test_a_head_over_codes_does_not_see_its_neighbours(
    isa: str, cache_dtype: str, head_dim: int
) -> None:
    """How many heads go through their keys together never decides a bit; nor a score other keys."""
    (keys, _), (values, _) = random_cache(isa, cache_dtype, 37, head_dim)
    q = np.random.default_rng(3).standard_normal((7, head_dim)).astype(np.float32)
    name = find_cache_format(cache_dtype).short
    alone = [kernels.attend(isa, head[None], name, keys, values, 0.125)[0] for head in q]
    for heads in range(2, 8):
        together = kernels.attend(isa, q[:heads], name, keys, values, 0.125)
        np.testing.assert_array_equal(together, alone[:heads])
    peaks = [
        kernels.attend(isa, q[:1], name, keys[j : j + 1], values[j : j + 1], 0.125)[0, -2]
        for j in range(37)
    ]
    for count in range(1, 38):
        some = kernels.attend(isa, q[:1], name, keys[:count], values[:count], 0.125)[0]
        assert some[-2] == max(peaks[:count])


@pytest.mark.parametrize("isa", kernels.supported())
@pytest.mark.parametrize("cache_dtype", CODES)
def test_attention_does_not_hide_a_nan(isa: str, cache_dtype: str) -> None:
    """Of a query, a key or a value, nor infinity; zeros are no division by zero."""
    name = find_cache_format(cache_dtype).short
    rows, _ = stored(isa, np.ones((9, 64), np.float32), cache_dtype)
    bad = np.ones((9, 64), np.float32)
    bad[4, 40] = np.nan
    broken, _ = stored(isa, bad, cache_dtype)
    q = np.ones((2, 64), np.float32)
    assert np.isnan(kernels.attend(isa, bad[4:5], name, rows, rows, 1.0)[0, :64]).all()
    assert np.isnan(kernels.attend(isa, q, name, broken, rows, 1.0)[:, :64]).all()
    out = kernels.attend(isa, q, name, rows, broken, 1.0)
    assert np.isnan(out[:, 32:64]).all()
    assert not np.isnan(out[:, :32]).any()
    for infinite in (np.inf, -np.inf, 1e30):  # no code: not a key that is passed over
        bad[4, 40] = infinite
        with np.errstate(invalid="ignore"):
            broken, _ = stored(isa, bad, cache_dtype)
        for sign in (1, -1):
            found = kernels.attend(isa, sign * q, name, broken, rows, 1.0)
            assert np.isnan(found[:, :64]).all()
    nothing, _ = stored(isa, np.zeros((9, 64), np.float32), cache_dtype)
    found = kernels.attend(isa, 0 * q, name, nothing, nothing, 1.0)
    np.testing.assert_array_equal(found, [[0.0] * 65 + [9.0]] * 2)


@pytest.mark.parametrize("cache_dtype", ["bfloat16", *CODES])
def test_logits_are_the_oracles_with_the_same_cache(cache_dtype: str) -> None:
    """Of 300 tokens, windows among them.

    Both round numbers that differ by some 2^-22 of their size, sums of 64 products, so one between
    two steps of 2^-9 may go the other way: about one in 4,000, each by as much as rounding moves
    all. So the difference is sqrt(1 / 4,000), 2 %, of what the rounding itself does to the logits.
    """
    weights = random_weights(head_dim=32)
    ids = np.random.default_rng(2).integers(72, size=300).tolist()
    asked = {"context": 300, "slots": 1, "cache_dtype": cache_dtype}
    ours = CpuExecutor(weights, "float32", workers=2, **asked)  # type: ignore[arg-type]
    oracle = ReferenceExecutor(weights, **asked)  # type: ignore[arg-type]
    plain = ReferenceExecutor(weights, context=300, slots=1).logits(0, ids)
    found, wanted = ours.logits(0, ids), oracle.logits(0, ids)
    moved = np.abs(wanted - plain).mean()
    assert moved > 1e-6
    assert np.abs(found - wanted).mean() < moved / 20


def test_a_cache_takes_what_its_rows_take() -> None:
    """Of 2 windowed layers of 256 positions and 2 whole ones of 512, 4 heads of 32."""
    positions = 2 * 256 + 2 * 512
    for cache_dtype, row in (("float32", 128), ("bfloat16", 64), ("int8", 34), ("int4", 18)):
        executor = CpuExecutor(
            random_weights(head_dim=32), context=512, slots=3, workers=1, cache_dtype=cache_dtype
        )
        assert executor.cache_bytes == 3 * positions * 2 * 4 * row
        assert executor.plan.key_bytes(0) == row


def test_numbers_that_are_none_stay_so() -> None:
    """A worker must not end the process: infinite keys are an infinite scale, and then NaN."""
    for cache_dtype in CODES:
        x = np.zeros((3, 32), np.float32)
        x[0, 3], x[1, 4], x[2, 5] = np.inf, np.nan, 1e30
        with np.errstate(invalid="ignore"):
            _, meant = stored(kernels.best(), x, cache_dtype)
        assert np.isnan(meant[:2]).any(axis=1).all()
        assert not np.isfinite(meant[2]).all()


def test_what_codes_cannot_hold_is_refused() -> None:
    message = "cache: expected heads whose width is a multiple of 32, .* got 8; use bfloat16"
    for make in (CpuExecutor, ReferenceExecutor):
        with pytest.raises(ConfigError, match=message):
            make(random_weights(), context=9, slots=1, cache_dtype="int8")  # type: ignore[operator]
        with pytest.raises(RequestError, match="cache_dtype: expected one of auto, float32"):
            make(random_weights(), context=9, slots=1, cache_dtype="int3")  # type: ignore[operator]
    Loading().check_backend("cuda")
    with pytest.raises(BackendError, match="cache_dtype: the cuda backend keeps .* got 'int8'"):
        Loading(cache_dtype="int8").check_backend("cuda")
