"""How a checkpoint's matrices are quantised: what config.json says of it, and nothing else.

What other tools say is in ``_quant_foreign_config.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monolane.errors import ConfigError
from monolane.model._fields import Fields
from monolane.model._float8 import find_scheme, parse_float8
from monolane.model._formats import FORMATS, find_format
from monolane.model._quant_foreign_config import Packing, parse_packing

METHOD = "monolane"
GROUP = find_format("int8").group  # columns of a row that share one float16 scale
BITS = tuple(sorted(row.bits for row in FORMATS.values() if row.coded and row.named))


@dataclass(frozen=True, slots=True)
class Quantization:
    """Symmetric integer codes in groups of columns; ConfigError for what the kernels lack.

    ``ignore`` names the matrices that are floats nevertheless, without ".weight" (as "lm_head").
    With a ``packing``, the files hold what another tool wrote; codes and scales are made of it when
    they are read, and the files tell which matrices are quantised.
    """

    bits: int
    group_size: int = GROUP
    symmetric: bool = True
    ignore: tuple[str, ...] = ()
    packing: Packing | None = None

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
        if self.packing is not None and self.packing.block_format:
            return self.packing.block_format
        return f"int{self.bits}"

    @property
    def keeps_floats(self) -> bool:
        """Whether it says which matrices are floats: they stay as stored.

        Else only a tied head is: the embedding, which is quantised as all the others.
        """
        return bool(self.ignore) or self.packing is not None

    def code_bytes(self, columns: int) -> int:
        """Bytes of the codes of one row; two int4 codes share a byte."""
        return columns * self.bits // 8


def parse_quantization(fields: Fields) -> Quantization | None:
    """Read ``quantization_config``; None where there is none."""
    nested = find_scheme(fields)
    if nested is None:
        nested = fields.nested("quantization")  # as MLX's converter calls it
    if nested is None or parse_float8(fields) is not None:  # which are read as floats
        return None
    if nested.raw.get("quant_method") != METHOD:
        packing = parse_packing(nested)
        return Quantization(packing.kept_bits, packing=packing)
    bits = nested.size("bits")
    group_size = nested.size("group_size", default=GROUP)
    symmetric = nested.flag("symmetric", True)
    ignore = nested.raw.get("ignore", [])
    if not isinstance(ignore, list) or not all(isinstance(name, str) for name in ignore):
        raise nested.fault("ignore", "a list of names such as 'lm_head'")
    try:
        return Quantization(bits, group_size, symmetric, tuple(ignore))
    except ConfigError as error:
        raise ConfigError(f"{nested.source}: {error}") from None


def render_quantization(quantization: Quantization) -> Mapping[str, Any]:
    """Write the object of ``quantization_config``, in monolane's own scheme."""
    assert quantization.packing is None  # its folder's config.json says it in other words
    written = {
        "quant_method": METHOD,
        "bits": quantization.bits,
        "group_size": quantization.group_size,
        "symmetric": quantization.symmetric,
    }
    return written | ({"ignore": list(quantization.ignore)} if quantization.ignore else {})
