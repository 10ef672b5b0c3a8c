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
    26: GgmlType("I32", 1, 4, np.dtype("<i4")),  # of tables, and no weights
}
# Refused by name: what llama.cpp computes with but writes into no file of a model, and 1 bit.
UNREAD_TYPES = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 27: "I64", 28: "F64", 41: "Q1_0",
}  # fmt: skip
# Of ik_llama.cpp alone, whose numbers llama.cpp leaves free (its gguf-py/gguf/constants.py). Those
# with R and a number at the end have rows interleaved.
IK_TYPES = {
    36: "I2_S", 97: "Q8_0_X4", 98: "Q8_1_X4", 99: "Q8_2_X4", 133: "Q6_0", 134: "IQ1_BN",
    135: "IQ2_BN", 136: "Q8_K64", 137: "IQ2_K", 138: "IQ3_K", 139: "IQ4_K", 140: "IQ5_K",
    141: "IQ6_K", 144: "IQ4_KS", 145: "IQ2_KS", 146: "IQ4_KSS", 147: "Q8_K16", 148: "Q8_K32",
    149: "Q8_KR8", 150: "Q8_K128", 151: "Q8_KV", 152: "IQ5_KS", 153: "IQ2_KT", 154: "IQ3_KT",
    155: "IQ4_KT", 156: "IQ3_KS", 157: "IQ2_KL", 158: "IQ1_KT", 202: "Q4_0_R8", 206: "Q5_0_R4",
    208: "Q8_0_R8", 210: "Q2_K_R4", 211: "Q3_K_R4", 212: "Q4_K_R4", 213: "Q5_K_R4",
    214: "Q6_K_R4", 216: "IQ2_XXS_R4", 217: "IQ2_XS_R4", 218: "IQ3_XXS_R4", 219: "IQ1_S_R4",
    220: "IQ4_NL_R4", 221: "IQ3_S_R4", 222: "IQ2_S_R4", 223: "IQ4_XS_R8", 229: "IQ1_M_R4",
    230: "BF16_R16", 233: "Q6_0_R4", 335: "IQ2_BN_R4", 337: "IQ2_K_R4", 338: "IQ3_K_R4",
    339: "IQ4_K_R4", 340: "IQ5_K_R4", 344: "IQ4_KS_R4", 352: "IQ5_KS_R4", 398: "Q8_KV_R8",
    399: "Q8_K_R8",
}  # fmt: skip


def name_unread(number: int) -> str:
    """Return what a type that is not read is called, and whose it is if not llama.cpp's."""
    if number in IK_TYPES:
        return f"{IK_TYPES[number]}, which ik_llama.cpp alone reads"
    return UNREAD_TYPES.get(number, f"number {number}")
