"""How a weight is stored while a pass streams it: the one table of bytes, codes and key formats."""

from dataclasses import dataclass

from monolane.errors import ConfigError

GROUP = 32  # columns of a row that share one 2-byte scale in the integer formats


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Storage of one weight; scales are counted where they are read."""

    name: str
    code: int  # in csrc/plan_abi.h
    bits: int
    scaled: bool  # one float16 scale per GROUP columns
    kv_bytes: int  # of one cached key or value element that goes with it
    row_scale_bytes: int = 0  # of one scale for a whole row

    def row_bytes(self, columns: int) -> int:
        """Bytes of one row of a matrix with its scales; ConfigError if it cannot be stored."""
        if self.scaled and columns % GROUP:
            raise ConfigError(
                f"dtype {self.name}: expected matrices whose columns are a multiple of {GROUP}, "
                f"which share a scale, got {columns}; use bfloat16"
            )
        scales = 2 * columns // GROUP if self.scaled else self.row_scale_bytes
        return columns * self.bits // 8 + scales


_FORMATS = (
    WeightFormat("float32", 0, 32, scaled=False, kv_bytes=4),
    WeightFormat("bfloat16", 1, 16, scaled=False, kv_bytes=2),
    WeightFormat("float16", 2, 16, scaled=False, kv_bytes=2),
    WeightFormat("int8", 3, 8, scaled=True, kv_bytes=2),
    WeightFormat("int4", 4, 4, scaled=True, kv_bytes=2),
    # e4m3. Its exponent does what groups do for integers: a float32 scale for a row is enough.
    WeightFormat("float8", 5, 8, scaled=False, kv_bytes=2, row_scale_bytes=4),
)
FORMATS = {weight_format.name: weight_format for weight_format in _FORMATS}


def find_format(dtype: str) -> WeightFormat:
    """Return the format of that name; ConfigError lists the known ones."""
    if dtype not in FORMATS:
        raise ConfigError(f"dtype: expected one of {', '.join(FORMATS)}, got {dtype!r}")
    return FORMATS[dtype]
