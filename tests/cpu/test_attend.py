"""Attention on every instruction set of this machine, each forced in turn, and keys as stored.

Bounds are derived next to each test, as in test_kernels.py.
"""

import math

import numpy as np
import pytest

from monolane._core import kernels

from .test_kernels import DTYPES, LANES, U, as_bytes, every_isa, gamma

# Those whose tiles are emulated, too: they have attention of their own over bfloat16.
TILED = {"amx", *kernels.emulated()}
every_set = pytest.mark.parametrize("isa", [*kernels.supported(), *kernels.emulated()])


def attend(isa, q, kv, keys, values, scale):
    """One head's sum, peak and total, as one array."""
    return kernels.attend(isa, q[None], kv, keys, values, scale)[0]


def exponentials(isa, x):
    """e^x for x <= 0, read off an attention whose values are the identity."""
    keys = np.zeros((1024, 1024), np.float32)
    keys[1:, 0] = x
    q = np.zeros(1024, np.float32)
    q[0] = 1.0
    out = attend(isa, q, "f32", as_bytes(keys), as_bytes(np.eye(1024, dtype="f4")), 1.0)
    assert out[1024] == 0.0  # the peak
    return out[1:1024]


@every_isa
def test_exp_is_within_two_ulp(isa):
    rng = np.random.default_rng(1)
    worst = 0.0
    for low in (-1e-3, -1.0, -10.0, -87.0, -104.5):
        x = rng.uniform(low, 0.0, 1023).astype(np.float32)
        exact = np.exp(x.astype(np.float64))
        ulp = np.spacing(exact.astype(np.float32)).astype(np.float64)
        worst = max(worst, float((np.abs(exponentials(isa, x) - exact) / ulp).max()))
    assert worst <= 2.0


@every_set
@pytest.mark.parametrize("kv", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(
    ("count", "head_dim"),
    [(1, 64), (7, 96), (33, 128), (500, 20), (9, 200), (16, 32), (256, 1024), (31, 8), (64, 576)],
)
def test_attend(isa, kv, count, head_dim):
    # A score errs by gamma(h / lanes + 7) scale sum |q k|, twice with the peak's, which is the
    # relative error of e beside its own 4 u; the weighted sum adds gamma(count + 1). By tiles a
    # chain has 16 steps and 3 sums for each 32 numbers, twice; and queries and weights err by
    # 2^-16 of themselves.
    rng = np.random.default_rng(count)
    q = rng.standard_normal(head_dim).astype(np.float32)
    keys = rng.standard_normal((count, head_dim)).astype(DTYPES[kv])
    values = rng.standard_normal((count, head_dim)).astype(DTYPES[kv])
    scale = head_dim**-0.5
    *out, peak, total = attend(isa, q, kv, as_bytes(keys), as_bytes(values), scale)
    k, v = keys.astype(np.float64), values.astype(np.float64)
    scores = scale * (k @ q)
    tiled = isa in TILED and kv == "bf16"
    steps = head_dim / 16 + 24 if tiled else head_dim / LANES[isa] + 8
    rounded = 2.0**-16 if tiled else 0.0
    miss = (gamma(steps) + rounded) * scale * (np.abs(k) @ np.abs(q)).max()
    assert abs(peak - scores.max()) <= miss
    e = np.exp(scores - peak)
    relative = 2 * miss + 6 * U + gamma(count + 24 if tiled else count + 5)
    assert abs(total - e.sum()) <= relative * e.sum()
    relative += rounded
    assert np.all(np.abs(out - e @ v) <= relative * (e @ np.abs(v)))


@every_isa
def test_a_score_depends_on_its_key_alone(isa):
    rng = np.random.default_rng(2)
    q = rng.standard_normal(72).astype(np.float32)
    keys = rng.standard_normal((21, 72)).astype(np.float32)
    alone = [attend(isa, q, "f32", as_bytes(k[None]), as_bytes(k[None]), 0.1)[-2] for k in keys]
    for count in range(1, 22):
        part = as_bytes(keys[:count])
        assert attend(isa, q, "f32", part, part, 0.1)[-2] == max(alone[:count])


@every_set
@pytest.mark.parametrize("kv", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("head_dim", [20, 64, 96, 200])
def test_a_head_does_not_see_its_neighbours(isa, kv, head_dim):
    # How many heads go through the keys together decides tiles and accumulators, never a bit.
    rng = np.random.default_rng(head_dim)
    q = rng.standard_normal((19, head_dim)).astype(np.float32)
    keys, values = (as_bytes(rng.standard_normal((37, head_dim)).astype(DTYPES[kv])) for _ in "kv")
    together = kernels.attend(isa, q, kv, keys, values, 0.125)
    alone = [attend(isa, head, kv, keys, values, 0.125) for head in q]
    assert np.array_equal(together, alone)
    for heads in range(2, 19):
        assert np.array_equal(
            kernels.attend(isa, q[:heads], kv, keys, values, 0.125), alone[:heads]
        )


@every_set
@pytest.mark.parametrize("kv", ["f32", "bf16", "f16", "q8_0", "q4_0"])
@pytest.mark.parametrize(("tokens", "heads"), [(2, 3), (5, 1), (3, 4), (4, 2), (2, 7), (40, 1)])
def test_a_token_does_not_see_its_neighbours(isa, kv, tokens, heads):
    # Tokens share what they read of a key, and each sees its own keys alone: those behind the last
    # of them are NaN, which would spoil whatever they came into.
    rng = np.random.default_rng(tokens)
    for head_dim, first in (64, 30), (96, 1), (192 if "_" in kv else 200, 250):
        q = rng.standard_normal((tokens * heads, head_dim)).astype(np.float32)
        rows = rng.standard_normal((2, first + tokens, head_dim)).astype(np.float32)
        keys, values = (np.stack([kernels.store_kv(isa, x, kv) for x in part]) for part in rows)
        counts = [first + t for t in range(tokens)]
        if tokens == 4:
            counts[2:] = counts[1], counts[0]  # they need not grow
        broken = kernels.store_kv(isa, np.full(head_dim, np.nan, np.float32), kv)
        keys[max(counts) :] = values[max(counts) :] = broken
        found = kernels.attend(isa, q, kv, keys, values, 0.125, counts)
        assert np.isfinite(found).all()
        for t, count in enumerate(counts):
            own = slice(t * heads, (t + 1) * heads)
            alone = kernels.attend(isa, q[own], kv, keys[:count], values[:count], 0.125)
            assert np.array_equal(found[own], alone)
        # What the last token alone sees spoils no other.
        if tokens != 4:
            keys[counts[-1] - 1] = values[counts[-1] - 1] = broken
            spoilt = kernels.attend(isa, q, kv, keys, values, 0.125, counts)
            assert np.array_equal(spoilt[:-heads], found[:-heads])
            assert np.isnan(spoilt[-heads:, :head_dim]).all()


@every_isa
def test_attend_reads_heads_out_of_wider_rows(isa):
    rng = np.random.default_rng(3)
    q = rng.standard_normal(64).astype(np.float32)
    wide = rng.standard_normal((10, 128)).astype(np.float32)
    narrow = as_bytes(wide[:, :64])
    found = attend(isa, q, "f32", as_bytes(wide), as_bytes(wide), 0.125)
    assert np.array_equal(found, attend(isa, q, "f32", narrow, narrow, 0.125))


@every_isa
def test_attend_survives_minus_infinity(isa):
    q = np.ones(1, np.float32)
    values = as_bytes(np.array([[3.0], [5.0]], np.float32))
    keys = np.array([[-np.inf], [-np.inf]], np.float32)
    assert attend(isa, q, "f32", as_bytes(keys), values, 1.0).tolist() == [0.0, -math.inf, 0.0]
    keys[1] = 2.0
    assert attend(isa, q, "f32", as_bytes(keys), values, 1.0).tolist() == [5.0, 2.0, 1.0]


@every_isa
@pytest.mark.parametrize("kv", ["f32", "bf16", "f16"])
def test_store_kv_rounds_like_numpy(isa, kv):
    bits = np.random.default_rng(4).integers(0, 2**32, 100_000, dtype=np.uint32)
    ties = (np.arange(65536, dtype=np.uint32) << 16) | 0x8000
    halves = np.arange(31744, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[1:] + halves[:-1]) / 2  # exact: float16 has 13 bits fewer
    x = np.concatenate([bits.view(np.float32), ties.view(np.float32), middles, -middles])
    x = x[~np.isnan(x)]
    with np.errstate(over="ignore"):
        expected = x.astype(DTYPES[kv])
    stored = kernels.store_kv(isa, x, kv)
    assert np.array_equal(stored, expected.view(np.uint8))
    nan = kernels.store_kv(isa, np.full(1, np.nan, np.float32), kv).view(DTYPES[kv])
    assert np.isnan(nan.astype(np.float32)).all()


def test_what_is_no_attention_is_refused():
    two, kv = np.zeros(2, np.float32), np.zeros((2, 8), np.uint8)
    with pytest.raises(ValueError, match="expected at least one key, got 0"):
        attend("portable", two, "f32", kv[:0], kv[:0], 1.0)
    with pytest.raises(ValueError, match="expected as many values as keys, got 1"):
        attend("portable", two, "f32", kv, kv[:1], 1.0)
    with pytest.raises(ValueError, match="expected key rows of whole heads, in bytes, got 8"):
        attend("portable", np.zeros(3, np.float32), "f32", kv, kv, 1.0)
    with pytest.raises(ValueError, match="expected queries of as many tokens as there are counts"):
        kernels.attend("portable", np.zeros((3, 2), "f4"), "f32", kv, kv, 1.0, [1, 2])
    with pytest.raises(ValueError, match="expected counts of 1 to all keys, got 3"):
        kernels.attend("portable", np.zeros((2, 2), "f4"), "f32", kv, kv, 1.0, [2, 3])
    with pytest.raises(ValueError, match="expected f32, bf16, f16, q8_0 or q4_0, got i8"):
        kernels.store_kv("portable", two, "i8")


@every_set
@pytest.mark.parametrize("kv", ["f32", "bf16", "q8_0"])
def test_scores_are_capped(isa, kv):
    # As test_attend, and of codes 2^-11 more: a weight, at least e^-3 of the largest, is rounded
    # to 16 bits, and a query too. The slope of a cap is at most 1, so no error grows by it.
    rng, cap = np.random.default_rng(9), 1.5
    q = rng.standard_normal((3, 64)).astype(np.float32)
    keys, eye = (
        np.stack([kernels.store_kv(isa, row, kv) for row in rows])
        for rows in (rng.standard_normal((40, 64)).astype(np.float32), np.eye(40, 64, dtype="f4"))
    )
    if kv == "q8_0":  # blocks of a float16 scale and 32 codes
        blocks = keys.reshape(40, 2, 34)
        wide = blocks[..., 2:].view(np.int8) * blocks[..., :2].copy().view(np.float16).astype(float)
    else:
        wide = keys.view(DTYPES[kv]).astype(float)
    scores = 0.5 * q.astype(float) @ wide.reshape(40, 64).T
    found = kernels.attend(isa, q, kv, keys, eye, 0.5, [], cap).astype(float)
    wanted = cap * np.tanh(scores / cap)
    assert np.abs(wanted - scores).max() > 1  # it shows
    assert np.abs(found[:, 64] - wanted.max(axis=1)).max() < 2e-3
    assert np.abs(np.log(found[:, :40]) + found[:, 64:65] - wanted).max() < 2e-3


@pytest.mark.parametrize("isa", kernels.emulated())
def test_tiles_attend_over_bfloat16(isa):
    # Up to 8 queries go together. Of 40 keys of 96 numbers: 3 strips by 3 steps of columns, and 2
    # steps of keys by 6 of columns, each with both halves of a weight.
    keys = as_bytes(np.ones((40, 96), DTYPES["bf16"]))
    for heads, tiles in (1, 1), (8, 1), (9, 2), (24, 3):
        before = kernels.emulated_dots(isa)
        kernels.attend(isa, np.ones((heads, 96), np.float32), "bf16", keys, keys, 0.1)
        assert kernels.emulated_dots(isa) - before == tiles * (3 * 3 + 2 * 6 * 2)


@pytest.mark.skipif(
    not {"amx", "tiles_avx512"} <= {*kernels.supported(), *kernels.emulated()}, reason="no AMX"
)
def test_the_tiles_of_the_processor_attend_like_emulated_ones():
    rng = np.random.default_rng(6)
    for count, head_dim in (1, 64), (40, 96), (256, 128), (300, 80), (77, 20):
        q = rng.standard_normal((9, head_dim)).astype(np.float32)
        keys, values = (
            as_bytes(rng.standard_normal((count, head_dim)).astype(DTYPES["bf16"])) for _ in "kv"
        )
        found = [
            kernels.attend(isa, q, "bf16", keys, values, 0.125, [count] * 3)
            for isa in ("amx", "tiles_avx512")
        ]
        np.testing.assert_array_equal(*found)
