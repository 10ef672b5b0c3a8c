"""Random matrices in GGUF's blocks."""

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from monolane.model import FORMATS, Blocks

NAMES = [name for name, row in FORMATS.items() if row.in_blocks]
# Formats whose panels differ in the numbers that their codes name alone have one product.
_SHARED = {"iq3_s_panels": "iq4_xs_panels", "iq3_xxs_panels": "iq4_xs_panels"}
_SHARED |= {"q3_k_panels": "iq2_panels", "iq1_panels": "iq2_panels"}
# One of each product: that with the largest numbers.
BLOCKS = list(
    {_SHARED.get(FORMATS[name].repacked, FORMATS[name].repacked): name for name in NAMES[::-1]
     if FORMATS[name].repacked not in _SHARED}.values()
)[::-1]  # fmt: skip
# Bytes of the float16 numbers of a block, and the range of what they hold.
HALVES = {
    "q8_0": {0: (-0.01, 0.01)},
    "q4_0": {0: (-0.1, 0.1)},
    "q4_1": {0: (-0.1, 0.1), 2: (-1.0, 1.0)},
    "q5_0": {0: (-0.1, 0.1)},
    "q5_1": {0: (-0.1, 0.1), 2: (-1.0, 1.0)},
    "q2_k": {80: (-0.01, 0.01), 82: (-0.02, 0.02)},
    "q3_k": {108: (-0.01, 0.01)},
    "q4_k": {0: (-0.01, 0.01), 2: (-0.1, 0.1)},
    "q5_k": {0: (-0.01, 0.01), 2: (-0.1, 0.1)},
    "q6_k": {208: (-0.001, 0.001)},
    "iq4_nl": {0: (-0.01, 0.01)},
    "tq1_0": {52: (-0.1, 0.1)},
    "tq2_0": {64: (-0.1, 0.1)},
    "iq1_m": {48: (-0.01, 0.01)},  # spread over four bytes: `put_halves`
    "mxfp4": {},
    "nvfp4": {},
}
HALVES |= {name: {0: (-0.001, 0.001)} for name in NAMES if name not in HALVES}
# Where a block has powers of two, or scales of 8 bits, and no float16.
BYTE_SCALES = {"mxfp4": slice(0, 1), "nvfp4": slice(0, 4)}


def kind(name: str) -> GGMLQuantizationType:
    """Return the type of that name."""
    return GGMLQuantizationType[name.upper()]


def block_of(name: str) -> tuple[int, int]:
    """Return the columns and the bytes of a block."""
    columns, size = GGML_QUANT_SIZES[kind(name)]
    return columns, size


def put_halves(name: str, blocks: np.ndarray, at: int, halves: np.ndarray) -> None:
    """Set the float16 numbers [..] at a byte of blocks [.., bytes]."""
    bits = np.asarray(halves, np.float16)[..., None]
    if name != "iq1_m":
        blocks[..., at : at + 2] = bits.view(np.uint8)
        return
    nibbles = bits.view(np.uint16) >> np.array([0, 4, 8, 12], np.uint16) & np.uint16(15)
    upper = blocks[..., at + 1 : at + 9 : 2]
    blocks[..., at + 1 : at + 9 : 2] = upper & 15 | nibbles.astype(np.uint8) << 4


def random_blocks(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Blocks:
    """Random codes, with scales such that the numbers' RMS is 0.08, or near that."""
    *outer, columns = shape
    block, size = block_of(name)
    data = rng.integers(0, 256, (*outer, columns // block, size), dtype=np.uint8)
    found = Blocks(name, data.reshape(*outer, -1), columns)
    if name == "mxfp4":
        # Two powers, in such shares that the RMS is that: the codes' own is 2.93.
        data[..., 0] = 121 + (rng.random(data.shape[:-1]) < 0.685)
        return found
    if name == "nvfp4":
        data[..., :4] = rng.integers(8, 16, (*data.shape[:-1], 4))  # from 2^-6 to 1.9 times that
        return found
    halves = rng.uniform(-0.01, 0.01, (*outer, columns // block)).astype(np.float16)
    for at in HALVES[name]:
        put_halves(name, data, at, halves)
    halves = (halves * (0.08 / found.widened().std())).astype(np.float16)
    for at in HALVES[name]:
        put_halves(name, data, at, halves)
    return found
