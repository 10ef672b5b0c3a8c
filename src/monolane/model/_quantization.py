"""How a checkpoint's matrices are quantised: what config.json says of it, and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monolane.errors import ConfigError
from monolane.model._fields import Fields
from monolane.model._formats import FORMATS, find_format

METHOD = "monolane"
GROUP = find_format("int8").group  # columns of a row that share one float16 scale
BITS = tuple(sorted(row.bits for row in FORMATS.values() if row.coded and row.named))


@dataclass(frozen=True, slots=True)
class Quantization:
    """Symmetric integer codes in groups of columns; ConfigError for what the kernels lack."""

    bits: int
    group_size: int = GROUP
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ConfigError(f"bits: expected 4 or 8, got {self.bits!r}")
        if self.group_size != GROUP:
            raise ConfigError(
                f"group_size: expected {GROUP}, the one that the kernels read, "
                f"got {self.group_size!r}"
            )
        if not self.symmetric:
            raise ConfigError(
                "symmetric: expected true, since groups have no zero point, got false"
            )

    @property
    def dtype(self) -> str:
        """The name that ``Engine.load`` and the command line have for it."""
        return f"int{self.bits}"

    def code_bytes(self, columns: int) -> int:
        """Bytes of the codes of one row; two int4 codes share a byte."""
        return columns * self.bits // 8


def parse_quantization(fields: Fields) -> Quantization | None:
    """Read ``quantization_config``; None where there is none."""
    nested = fields.nested("quantization_config")
    if nested is None:
        return None
    if nested.raw.get("quant_method") != METHOD:
        advice = (
            "; other schemes are not read: take the model's unquantised weights and run "
            "'monolane quantize' on them"
        )
        raise nested.fault("quant_method", repr(METHOD), advice)
    bits = nested.size("bits")
    group_size = nested.size("group_size", default=GROUP)
    symmetric = nested.flag("symmetric", True)
    try:
        return Quantization(bits, group_size, symmetric)
    except ConfigError as error:
        raise ConfigError(f"{nested.source}: {error}") from None


def render_quantization(quantization: Quantization) -> Mapping[str, Any]:
    """Write the object of ``quantization_config``."""
    return {
        "quant_method": METHOD,
        "bits": quantization.bits,
        "group_size": quantization.group_size,
        "symmetric": quantization.symmetric,
    }
