"""The types of tensors in a GGUF file: what is read, and the names of what is not.

Numbers and block sizes are those of ggml (``GGMLQuantizationType`` and ``GGML_QUANT_SIZES`` of the
``gguf`` package, which the tests compare).
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class GgmlType:
    """One type: plain numbers of ``dtype``, or blocks in the ``format`` of that name."""

    name: str
    block: int  # columns that are stored together
    bytes: int  # of such a block
    dtype: "np.dtype[Any] | None" = None

    @property
    def format(self) -> str:
        """Name of its row in the table of weight formats."""
        return self.name.lower()


GGML_TYPES = {
    0: GgmlType("F32", 1, 4, np.dtype("<f4")),
    1: GgmlType("F16", 1, 2, np.dtype("<f2")),
    30: GgmlType("BF16", 1, 2, np.dtype(ml_dtypes.bfloat16)),
    2: GgmlType("Q4_0", 32, 18),
    3: GgmlType("Q4_1", 32, 20),
    6: GgmlType("Q5_0", 32, 22),
    7: GgmlType("Q5_1", 32, 24),
    8: GgmlType("Q8_0", 32, 34),
    12: GgmlType("Q4_K", 256, 144),
    13: GgmlType("Q5_K", 256, 176),
    14: GgmlType("Q6_K", 256, 210),
    10: GgmlType("Q2_K", 256, 84),
    11: GgmlType("Q3_K", 256, 110),
    20: GgmlType("IQ4_NL", 32, 18),
    23: GgmlType("IQ4_XS", 256, 136),
    21: GgmlType("IQ3_S", 256, 110),
    18: GgmlType("IQ3_XXS", 256, 98),
    22: GgmlType("IQ2_S", 256, 82),
    17: GgmlType("IQ2_XS", 256, 74),
    16: GgmlType("IQ2_XXS", 256, 66),
    29: GgmlType("IQ1_M", 256, 56),
    19: GgmlType("IQ1_S", 256, 50),
    34: GgmlType("TQ1_0", 256, 54),
    35: GgmlType("TQ2_0", 256, 66),
    39: GgmlType("MXFP4", 32, 17),
    40: GgmlType("NVFP4", 64, 36),
}
# Refused by name: what llama.cpp computes with but writes into no file of a model, and 1 bit.
UNREAD_TYPES = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 41: "Q1_0",
}  # fmt: skip
