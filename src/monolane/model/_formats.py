"""How numbers of a model are stored: the one table that Python, C++ and CUDA read.

C++ gets it as csrc/abi/formats_abi.h (``formats_header``), CUDA as constants of its generated
header. Adding a format means a row here, its product in the executors that take it, and a test;
what an executor does not take it refuses by name.
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from monolane._structs import CPP, declare_enum
from monolane.errors import ConfigError, RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """Storage of the numbers of a matrix, row by row.

    Where a format has scales, a number is code * scale, or code * scale + minimum. Scales (and
    minima) belong to ``group`` columns of a row, or to the whole row; those of a super-block are
    themselves codes, which share one scale of ``super_scale`` type. What a block of a row takes is
    counted once, here: ``row_bytes``.
    """

    name: str  # as Engine.load and the command line spell it
    short: str  # as the kernels spell it
    code: int  # the same number in every native executor
    bits: int  # of one number, or of one code
    dtype: "np.dtype[Any] | None" = None  # of one number, where NumPy has it
    group: int = 0  # columns that share a scale; 0: none do; -1: all of a row
    scale_bits: int = 0  # of one scale
    minimum_bits: int = 0  # of one minimum; 0: the codes are symmetric
    super_block: int = 0  # columns whose group scales share a scale of their own; 0: none do
    super_bits: int = 0  # of what a super-block adds: its scale, and that of its minima
    block_bytes: int = 0  # of a super-block whose codes take no whole number of bits; 0: they do
    repacked: str = ""  # format that the CPU's workers make of it once, to multiply by; "": none
    named: bool = True  # whether it is a dtype; False: a model's file alone asks for it
    keys: str = ""  # format of the keys and values beside it; "": its own
    cached: str = ""  # format of a cache of this dtype; "": there is none
    activation: str = "f32"  # the type of activations beside it on a CPU; csrc/kernels/kernels.h
    executors: frozenset[str] = frozenset()  # which multiply by it, besides ``reference``

    @property
    def coded(self) -> bool:
        """Whether it holds codes, which mean something only with their scales."""
        return self.group > 0

    @property
    def in_blocks(self) -> bool:
        """Whether its scales lie among its codes, as in a GGUF file."""
        return bool(self.repacked) and not self.named

    @property
    def key_format(self) -> "WeightFormat":
        """The format of the keys and values that go with it."""
        return find_format(self.keys) if self.keys else self

    @property
    def multiplied(self) -> "WeightFormat":
        """The format in which a CPU multiplies by a matrix that is stored in this one."""
        return find_format(self.repacked) if self.repacked else self

    def row_bytes(self, columns: int) -> int:
        """Bytes of one row of a matrix with its scales; ConfigError if it cannot be stored."""
        if self.block_bytes and columns % self.super_block == 0:
            return columns // self.super_block * self.block_bytes
        bits = columns * self.bits
        if self.group < 0:
            bits += self.scale_bits
        elif self.group:
            block = self.super_block or self.group
            if columns % block:
                raise ConfigError(
                    f"dtype {self.name}: expected matrices whose columns are a multiple of "
                    f"{block}, which share a scale, got {columns}; use bfloat16"
                )
            bits += columns // self.group * (self.scale_bits + self.minimum_bits)
            if self.super_block:
                bits += columns // self.super_block * self.super_bits
        return bits // 8


# The types of activations beside weights on a CPU; the place is the code. f32 is exact: any format
# of plain numbers is widened. bf16: rounded, for bfloat16 weights, accumulated in float32. i8:
# quantised in groups of 32 with a float32 scale, for weights that are codes.
ACTIVATIONS = ("f32", "bf16", "i8")

_BOTH = frozenset(("cpu", "cuda"))
_CPU = frozenset(("cpu",))


def _blocks(
    name: str, code: int, *, bits: int, repacked: str, minimum: bool = False, scale_bits: int = 16
) -> WeightFormat:
    """Return GGUF's blocks of 32 columns, codes behind the scale that they share."""
    return WeightFormat(
        name=name, short=name, code=code, bits=bits, group=32, scale_bits=scale_bits,
        minimum_bits=16 * minimum, keys="bfloat16", activation="i8", repacked=repacked,
        named=False, executors=_CPU,
    )  # fmt: skip


def _super_blocks(
    name: str,
    code: int,
    *,
    bits: int,
    scale_bits: int,
    repacked: str = "",
    group: int = 32,
    minimum: bool = False,
    block_bytes: int = 0,
) -> WeightFormat:
    """Return GGUF's super-blocks of 256 columns, or what is made of them."""
    return WeightFormat(
        name=name, short=name.removesuffix("_panels") + "p" * (not repacked), code=code, bits=bits,
        group=group, scale_bits=scale_bits, minimum_bits=scale_bits * minimum, super_block=256,
        super_bits=16 + 16 * minimum, block_bytes=block_bytes, keys="bfloat16", activation="i8",
        repacked=repacked, named=False, executors=_CPU,
    )  # fmt: skip


def _codebook(name: str, code: int, block_bytes: int, repacked: str) -> WeightFormat:
    """Return GGUF's super-blocks of 256 columns whose codes name several numbers at once."""
    return _super_blocks(
        name, code, bits=4 if "iq3" in name else 3, scale_bits=0, repacked=repacked,
        block_bytes=block_bytes,
    )  # fmt: skip


def _nvfp4(name: str, code: int, repacked: str = "") -> WeightFormat:
    """Return GGUF's blocks of 64 columns in E2M1, of which 16 share a scale, or their panels."""
    return WeightFormat(
        name=name, short="nvfp4" + "p" * (not repacked), code=code, bits=4, group=16, scale_bits=8,
        super_block=64, keys="bfloat16", activation="i8", repacked=repacked, named=False,
        executors=_CPU,
    )  # fmt: skip


def _panels(
    name: str, code: int, *, bits: int, minimum: bool = False, scale_bits: int = 16
) -> WeightFormat:
    """Return what is made of codes in groups of 32: the same bits, in panels of 16 rows."""
    return WeightFormat(
        name=name, short=name.removesuffix("_panels") + "p", code=code, bits=bits, group=32,
        scale_bits=scale_bits, minimum_bits=16 * minimum, keys="bfloat16", activation="i8",
        named=False, executors=_CPU,
    )  # fmt: skip


_ROWS = (
    WeightFormat(
        name="float32", short="f32", code=0, bits=32, dtype=np.dtype(np.float32), cached="float32",
        executors=_CPU,
    ),
    WeightFormat(
        name="bfloat16", short="bf16", code=1, bits=16, dtype=np.dtype(ml_dtypes.bfloat16),
        cached="bfloat16", activation="bf16", executors=_BOTH,
    ),
    WeightFormat(
        name="float16", short="f16", code=2, bits=16, dtype=np.dtype(np.float16), cached="float16",
        executors=_BOTH,
    ),
    WeightFormat(
        name="int8", short="i8", code=3, bits=8, group=32, scale_bits=16, keys="bfloat16",
        cached="q8_0", activation="i8", repacked="q8_0_panels", executors=_CPU,
    ),
    WeightFormat(
        name="int4", short="i4", code=4, bits=4, group=32, scale_bits=16, keys="bfloat16",
        cached="q4_0", activation="i8", repacked="q4_0_panels", executors=_CPU,
    ),
    # e4m3. Its exponent does what groups do for integers: a float32 scale for a row is enough.
    # Keys and values are float16, which holds every e4m3 and has an instruction that widens to it.
    WeightFormat(
        name="float8", short="f8", code=5, bits=8, group=-1, scale_bits=32, keys="float16",
        executors=frozenset(("cuda",)),
    ),
    # GGUF's blocks, as files hold them. Q8_0 and Q4_0 are int8 and int4 with each scale among its
    # codes. Of all that holds codes the workers make panels of 16 rows
    # (csrc/kernels/products/panels.h), of the same size but for the scales of Q4_K and Q5_K: 8 bits
    # where the file packs 6, hence 2.8 % and 2.3 % more bytes (docs/cpu.md says why).
    _blocks("q8_0", 6, bits=8, repacked="q8_0_panels"),
    _blocks("q4_0", 7, bits=4, repacked="q4_0_panels"),
    _blocks("q4_1", 8, bits=4, minimum=True, repacked="q4_1_panels"),
    _blocks("q5_0", 9, bits=5, repacked="q5_0_panels"),
    _blocks("q5_1", 10, bits=5, minimum=True, repacked="q5_1_panels"),
    _super_blocks("q4_k", 11, bits=4, scale_bits=6, minimum=True, repacked="q4_k_panels"),
    _super_blocks("q5_k", 12, bits=5, scale_bits=6, minimum=True, repacked="q5_k_panels"),
    _super_blocks("q6_k", 13, bits=6, scale_bits=8, group=16, repacked="q6_k_panels"),
    _panels("q4_1_panels", 14, bits=4, minimum=True),
    _panels("q5_0_panels", 15, bits=5),
    _panels("q5_1_panels", 16, bits=5, minimum=True),
    _super_blocks("q4_k_panels", 17, bits=4, scale_bits=8, minimum=True),
    _super_blocks("q5_k_panels", 18, bits=5, scale_bits=8, minimum=True),
    _super_blocks("q6_k_panels", 19, bits=6, scale_bits=8, group=16),
    _panels("q8_0_panels", 20, bits=8),
    _panels("q4_0_panels", 21, bits=4),
    # Codes are numbers of 4 bits, E2M1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives); a scale is
    # a power of two, E8M0: 2^(e - 127). 255, with which the standard means no number, is 2^128 as
    # in llama.cpp and Transformers.
    _blocks("mxfp4", 22, bits=4, repacked="mxfp4_panels", scale_bits=8),
    _panels("mxfp4_panels", 23, bits=4, scale_bits=8),
    # Codes of 4 bits that name 16 numbers of 8 bits, which grow apart from the middle on.
    _blocks("iq4_nl", 24, bits=4, repacked="iq4_nl_panels"),
    _super_blocks("iq4_xs", 25, bits=4, scale_bits=6, repacked="iq4_xs_panels"),
    # Codes that name 4 or 8 numbers at once, in a grid, and signs, or three powers of 3 and more in
    # a byte. Panels have a code for each number: of 4 bits, 3 and a sign, or of 3, 2 and a sign.
    _codebook("iq3_s", 26, 110, "iq3_s_panels"),
    _codebook("iq3_xxs", 27, 98, "iq3_xxs_panels"),
    _super_blocks("q3_k", 28, bits=3, scale_bits=6, group=16, repacked="q3_k_panels"),
    _codebook("iq2_s", 29, 82, "iq2_panels"),
    _codebook("iq2_xs", 30, 74, "iq2_panels"),
    _codebook("iq2_xxs", 31, 66, "iq2_panels"),
    _codebook("iq1_m", 32, 56, "iq1_panels"),
    _codebook("iq1_s", 33, 50, "iq1_panels"),
    _codebook("tq1_0", 34, 54, "q3_k_panels"),
    _codebook("tq2_0", 35, 66, "q3_k_panels"),
    _super_blocks(
        "q2_k", 36, bits=2, scale_bits=4, group=16, minimum=True, repacked="q2_k_panels"
    ),
    # A scale is E4M3 without its sign.
    _nvfp4("nvfp4", 37, "nvfp4_panels"),
    _panels("iq4_nl_panels", 38, bits=4),
    _super_blocks("iq4_xs_panels", 39, bits=4, scale_bits=8),
    _super_blocks("iq3_s_panels", 40, bits=4, scale_bits=8),
    _super_blocks("iq3_xxs_panels", 41, bits=4, scale_bits=8),
    _super_blocks("q3_k_panels", 42, bits=3, scale_bits=8, group=16),
    _super_blocks("iq2_panels", 43, bits=3, scale_bits=8, group=16),
    _super_blocks("iq1_panels", 44, bits=3, scale_bits=8, group=16),
    _super_blocks("q2_k_panels", 45, bits=2, scale_bits=4, group=16, minimum=True),
    _nvfp4("nvfp4_panels", 46),
)  # fmt: skip
FORMATS = {row.name: row for row in _ROWS}
# Formats in which a checkpoint may store plain numbers, by their NumPy dtype.
STORED = {row.dtype: row for row in _ROWS if row.dtype is not None}

# Dtypes of a cache, by what each stores: codes lie in GGUF's blocks, each group behind its scale.
CACHE_DTYPES = {row.name: row.cached for row in _ROWS if row.cached}

_TOP = """\
// How numbers are stored. Generated: do not edit. To write it anew: scripts/headers.
// Described in src/monolane/model/_formats.py.
#pragma once

#include <cstdint>

namespace monolane {
"""


def find_format(dtype: str) -> WeightFormat:
    """Return the format of that name; RequestError lists those that are dtypes."""
    if dtype not in FORMATS:
        named = ", ".join(row.name for row in _ROWS if row.named)
        raise RequestError(f"dtype: expected one of {named}, got {dtype!r}")
    return FORMATS[dtype]


def find_cache_format(cache_dtype: str) -> WeightFormat:
    """Return how a cache of that dtype stores keys and values; RequestError lists what there is."""
    if cache_dtype not in CACHE_DTYPES:
        raise RequestError(
            f"cache_dtype: expected one of auto, {', '.join(CACHE_DTYPES)}, got {cache_dtype!r}"
        )
    return FORMATS[CACHE_DTYPES[cache_dtype]]


def formats_of(executor: str) -> tuple[str, ...]:
    """Return the names of the dtypes that an executor computes in."""
    return tuple(row.name for row in _ROWS if row.named and executor in row.executors)


def _block(row: WeightFormat) -> str:
    """Return the columns and the bytes of a block of a format whose scales lie among its codes."""
    if row.named:
        return "0, 0"
    columns = row.super_block or row.group
    return f"{columns}, {row.row_bytes(columns)}"


def _code(name: str) -> int:
    return find_format(name).code if name else -1


def formats_header() -> str:
    """Return the whole of csrc/abi/formats_abi.h."""
    rows = [
        f'{{"{row.short}", {row.bits}, {max(row.group, 0)}, {_block(row)}, '
        f"{_code(row.repacked)}, {str('cpu' in row.executors).lower()}}},"
        for row in _ROWS
    ]
    table = [
        "struct FormatRow {",
        "  const char* name;",
        "  int32_t bits;         // of one number, or of one code",
        "  int32_t group;        // columns of a row that share a scale; 0: none do",
        "  int32_t block;        // columns of a block that has its scales in it; 0: none has",
        "  int32_t block_bytes;  // scales included",
        "  int32_t repacked;     // code of the format made of it to multiply by; -1: none",
        "  bool on_cpu;          // whether this library takes it",
        "};",
        "",
        "// clang-format off",
        "constexpr FormatRow kFormats[] = {",
        *(f"    {row}" for row in rows),
        "};",
        "// clang-format on",
        "",
        "}  // namespace monolane\n",
    ]
    members = [(row.short, row.code) for row in _ROWS]
    activations = declare_enum("Activation", [(x, i) for i, x in enumerate(ACTIVATIONS)], CPP)
    return "\n".join([_TOP, declare_enum("Format", members, CPP), activations, *table])
