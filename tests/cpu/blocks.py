"""Random matrices in GGUF's blocks."""

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from monolane.model import FORMATS, Blocks

BLOCKS = [name for name, row in FORMATS.items() if row.in_blocks]
HALVES = {"q6_k": (208,), "q8_0": (0,), "q4_0": (0,), "q5_0": (0,)}  # where; else 0 and 2


def random_blocks(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Blocks:
    """Random codes, with float16 scales such that the numbers' RMS is 0.08; or powers of two."""
    *outer, columns = shape
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[name.upper()]]
    data = rng.integers(0, 256, (*outer, columns // block, size), dtype=np.uint8)
    if name == "mxfp4":
        # Two powers, in such shares that the RMS is that: the codes' own is 2.93.
        data[..., 0] = 121 + (rng.random(data.shape[:-1]) < 0.685)
        return Blocks(name, data.reshape(*outer, -1), columns)
    halves = rng.uniform(-0.01, 0.01, (*outer, columns // block)).astype(np.float16)
    places = HALVES.get(name, (0, 2))
    for at in places:
        data[..., at : at + 2] = halves[..., None].view(np.uint8)
    found = Blocks(name, data.reshape(*outer, -1), columns)
    halves = (halves * (0.08 / found.widened().std())).astype(np.float16)
    for at in places:
        data[..., at : at + 2] = halves[..., None].view(np.uint8)
    return Blocks(name, data.reshape(*outer, -1), columns)
