"""How far a word of a GPU may lie from the emulator's: derived, and measured where no formula is.

Both compute the same formulas in the same order, with the same roundings, and the emulator adds as
the matrix unit is published to. If that is true the words are equal. The bound is for a unit that
does otherwise:

1. It may add 16 products and the addend in an order of its own, and cut bits off elsewhere. A sum
   of n products errs by at most n additions of 2^-23 of sum |w x| each.
2. What follows from that: a number that is rounded to p significant bits may fall on the other
   side.

The second is the larger by far. Two numbers that differ by d, rounded to steps of u, differ by u
with a probability of d / u (d < u): mean square u d <= d^2 + (u / 2)^2, and for larger d it is
nearer to d^2 still. Half a step is at most 2^-p of the number. So a rounding adds at most what an
independent error of standard deviation 2^-p of the number would add, however small the difference
was before it. The kernel rounds at every input of a product, at queries, keys, values and weights
of attention.

What those errors become, layer after layer, depends on weights and positions, and no formula of
depth and width gives it: where parts of a stream cancel, the norm that follows makes their errors
large. So the emulator runs RUNS times with an error of exactly +-2^-p of each number that it
rounds, its sign drawn from number and seed. The root mean square of what becomes of a word is its
standard deviation s. Depth and the number of summands are in it: a product of n summands gets 2^-p
sqrt(sum (w x)^2), at least 2^-p sum |w x| / sqrt(n). The first difference is n 2^-23 sum |w x| at
most, which is less than that for n sqrt(n) < 2^(23 - p): n < 256 with p = 11, n < 1024 with p = 8;
`check_summands` holds it.

A dozen runs say little of one word, so words of one kind in a row of a pass share what they have:
the deviation is taken as sqrt(s^2 + mean s^2). Six of them are allowed. Where nothing was rounded
before, s is 0, and the word must be equal: embedding, squares, control and decision.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from bench.gpu.monokernel._events import WHOLE, Floats, Words, kinds_of
from monolane.cuda._layout import Layout
from monolane.cuda._program import Exchange

PRECISION = {"bfloat16": 8, "float16": 11, "float8": 11}  # significant bits of what is rounded
RUNS = 12
DEVIATIONS = 6
# A bound as a byte, rounded up: 0 is 0, else 2^((code - _ZERO) / _STEPS).
_STEPS, _ZERO = 4, 160

Codes = npt.NDArray[np.uint8]


def check_summands(layout: Layout) -> None:
    """Hold what the derivation takes for granted of the sums' lengths."""
    longest = max(tiling.padded_columns for tiling in layout.tilings.values())
    precision = PRECISION[layout.plan.dtype]
    assert longest**1.5 < 2.0 ** (23 - precision), "sums so long that their own error counts"


def bounds(layout: Layout, words: Words, disturbed: Iterable[Words]) -> dict[Exchange, Codes]:
    """Return the bounds of all words, as codes [P, E, L, T, C]."""
    check_summands(layout)
    kinds = kinds_of(layout)
    squares = {what: np.zeros(values.shape) for what, values in words.values.items()}
    count = 0
    for other in disturbed:
        count += 1
        for what, kind in kinds.items():
            one, two = (kind.numbers(x.values[what], layout) for x in (words, other))
            with np.errstate(invalid="ignore"):
                difference = np.where(one == two, 0.0, one - two)
            squares[what] += difference**2
    return {what: _encode(what, total / count, layout) for what, total in squares.items()}


def _encode(what: Exchange, own: Floats, layout: Layout) -> Codes:
    if what in WHOLE:
        return np.zeros(own.shape, np.uint8)
    if what is Exchange.CANDIDATES:
        own[..., 1::2] = 0  # tokens
    deviation = np.sqrt(own + _shared(what, own, layout))
    with np.errstate(divide="ignore"):
        codes = np.ceil(_STEPS * np.log2(DEVIATIONS * deviation)) + _ZERO
    codes = np.where(deviation > 0, np.maximum(codes, 1), 0)
    assert codes.max(initial=0) <= 255, "a bound beyond its byte"
    return codes.astype(np.uint8)


def _shared(what: Exchange, own: Floats, layout: Layout) -> Floats:
    """Return the mean over the words of a row that are alike: [.., C]."""
    found = np.zeros_like(own)
    if what is Exchange.PARTIAL:  # [S, H, h + 2]: sums, maxima and totals by themselves
        c = layout.plan.config
        h, heads = c.head_dim, c.num_heads // c.num_lanes
        parts = own.reshape(*own.shape[:-1], -1, heads, h + 2 + h % 2)
        mean = np.zeros_like(parts)
        mean[..., :h] = parts[..., :h].mean(axis=(-2, -1), keepdims=True)
        mean[..., h] = parts[..., h].mean(axis=-1, keepdims=True)
        mean[..., h + 1] = parts[..., h + 1].mean(axis=-1, keepdims=True)
        return mean.reshape(own.shape)
    if what is Exchange.QKV:
        c = layout.plan.config
        h, heads, kv_heads = c.head_dim, c.num_heads // c.num_lanes, c.num_kv_heads // c.num_lanes
        at = 0
        for count in (heads * h, kv_heads * h, kv_heads * h):
            part = own[..., at : at + count]
            found[..., at : at + count] = part.mean(axis=-1, keepdims=True)
            at += count
        return found
    if what is Exchange.CANDIDATES:
        found[..., ::2] = own[..., ::2].mean(axis=-1, keepdims=True)
        return found
    found[...] = own.mean(axis=-1, keepdims=True)
    return found


def decode(codes: Codes) -> Floats:
    """Return the bounds that codes stand for."""
    found: Floats = np.where(codes > 0, 2.0 ** ((codes.astype(np.float64) - _ZERO) / _STEPS), 0.0)
    return found
