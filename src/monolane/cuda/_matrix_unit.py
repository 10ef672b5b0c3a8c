"""What `mma.sync` of Hopper makes of a sum, bit for bit, as it is published (arXiv 2511.10909).

The 16 products and the addend are added at once. All are cut off, toward zero, at 25 bits below the
largest one's exponent, and the exact sum of what is left is cut off to a float. The exponent of a
product is the sum of its factors', each with one digit before the point.

Shape legend: N sums, k = 16 products of each.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

PRODUCTS = 16
_KEPT = 25  # bits below the largest exponent
_ZERO = -133  # exponent of a summand that is zero
NOT_A_NUMBER = 0x7FFFFFFF
FRACTIONS = {"bfloat16": 7, "float16": 10}  # bits behind the point

Bits = npt.NDArray[np.unsignedinteger[Any]]
Integers = npt.NDArray[np.int64]


def sums(dtype: str, a_Nk: Bits, b_Nk: Bits, c_N: Bits) -> npt.NDArray[np.uint32]:
    """Return the bits of c + sum a b, [N].

    ``dtype``: of ``a_Nk`` and ``b_Nk``, 16 bits of bfloat16 or float16 each; ``c_N``: of floats.
    """
    fraction = FRACTIONS[dtype]
    a, a_exponent = _parts(a_Nk, 16, fraction)
    b, b_exponent = _parts(b_Nk, 16, fraction)
    c, c_exponent = _parts(c_N, 32, 23)
    size = np.concatenate([a * b, c[:, None]], 1)
    exponent = np.concatenate([a_exponent + b_exponent, c_exponent[:, None]], 1)
    exponent[size == 0] = _ZERO
    largest = exponent.max(1)
    points = np.array([2 * fraction] * PRODUCTS + [23])
    total = _shifted(size, exponent - largest[:, None] + _KEPT - points).sum(1)
    found = _cut_off(total, largest - _KEPT)
    special = _is_special(a_Nk, 16, fraction).any(1) | _is_special(b_Nk, 16, fraction).any(1)
    special |= _is_special(c_N, 32, 23)
    if special.any():
        found[special] = _special(dtype, a_Nk[special], b_Nk[special], c_N[special])
    return found


def chain(
    dtype: str, a_NK: Bits, b_NK: Bits, before_N: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """Return the products of rows [N], as matrix instructions add them one behind the other.

    K is filled up with zeros to whole instructions; ``b_NK`` may be one row for all; ``before_N``:
    what is there before. ``monolane._core.kernels.add_matrix_products`` computes the same.
    """
    short = -a_NK.shape[1] % PRODUCTS
    if short:
        a_NK, b_NK = (np.pad(x, ((0, 0), (0, short))) for x in (a_NK, b_NK))
    found = np.zeros(len(a_NK), np.uint32) if before_N is None else before_N.view(np.uint32)
    for at in range(0, a_NK.shape[1], PRODUCTS):
        part = slice(at, at + PRODUCTS)
        found = sums(
            dtype, a_NK[:, part], np.broadcast_to(b_NK[:, part], a_NK[:, part].shape), found
        )
    bits: npt.NDArray[np.float32] = found.view(np.float32)
    return bits


def _parts(bits: Bits, width: int, fraction: int) -> tuple[Integers, Integers]:
    """Return mantissas, with their signs, and exponents: mantissa * 2^(exponent - fraction)."""
    exponents = width - 1 - fraction
    bits = bits.astype(np.int64)
    stored = bits >> fraction & ((1 << exponents) - 1)
    size = (bits & ((1 << fraction) - 1)) | np.where(stored > 0, 1 << fraction, 0)
    exponent = np.maximum(stored, 1) - ((1 << (exponents - 1)) - 1)
    return np.where(bits >> (width - 1) & 1, -size, size), exponent


def _is_special(bits: Bits, width: int, fraction: int) -> npt.NDArray[np.bool_]:
    all_ = (1 << (width - 1 - fraction)) - 1
    special: npt.NDArray[np.bool_] = (bits.astype(np.int64) >> fraction & all_) == all_
    return special


def _shifted(size: Integers, shift: Integers) -> Integers:
    """Return size * 2^shift, toward zero."""
    left = np.clip(shift, 0, 62)
    right = np.clip(-shift, 0, 62)
    moved: Integers = np.sign(size) * (np.abs(size) << left >> right)
    return moved


def _cut_off(total: Integers, exponent: Integers) -> npt.NDArray[np.uint32]:
    """Return total * 2^exponent as a float, toward zero."""
    size = np.abs(total)
    top = np.frexp(size.astype(np.float64))[1] - 1  # sums are shorter than a double's mantissa
    cut = np.clip(np.maximum(top - 23, -149 - exponent), 0, 62)
    kept = (size >> cut << cut).astype(np.float64)
    with np.errstate(over="ignore"):
        value = np.ldexp(np.copysign(kept, total), exponent).astype(np.float32)
    value[total == 0] = 0.0
    bits: npt.NDArray[np.uint32] = value.view(np.uint32)
    return bits


def _special(dtype: str, a_Nk: Bits, b_Nk: Bits, c_N: Bits) -> npt.NDArray[np.uint32]:
    """Return sums of infinities and of what is no number: no order changes them."""
    with np.errstate(invalid="ignore", over="ignore"):
        products = floats(dtype, a_Nk).astype(np.float64) * floats(dtype, b_Nk)
        total = products.sum(1) + c_N.astype(np.uint32).view(np.float32)
        value: npt.NDArray[np.uint32] = total.astype(np.float32).view(np.uint32)
    value[np.isnan(total)] = NOT_A_NUMBER
    return value


def floats(dtype: str, bits: Bits) -> npt.NDArray[np.float32]:
    """Return the numbers that 16 bits stand for."""
    if dtype == "float16":
        return bits.astype(np.uint16).view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)
