"""A float model folder to a quantised one: tensor by tensor, from mapped file to new file.

A matrix is quantised when its turn to be written comes, so the peak is a few tensors whatever the
model's size. The folder appears complete or not at all.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from monolane._naming import naming
from monolane._regular_files import is_own_file, read_regular
from monolane.errors import CheckpointError, ConfigError
from monolane.model._atomic_folder import check_replaceable, folder_aside
from monolane.model._checkpoint import Checkpoint, write_checkpoint
from monolane.model._config import ModelConfig
from monolane.model._merged_experts import separate_experts
from monolane.model._quant_config import Quantization
from monolane.model._quant_foreign_unpack import PackedMatrix
from monolane.model._quant_matrix import Quantized, quantize_matrix
from monolane.model._safetensors import DTYPES, Array, PendingTensor
from monolane.model._sidecar_files import copy_beside
from monolane.model._tensors import Part, TensorSpec
from monolane.model._weights import (
    CODE_DTYPES,
    SCALE_DTYPES,
    Packed,
    check_arrays,
    find_packed,
    view_arrays,
)
from monolane.model.families import find_family, read_config, render_config, tensor_specs
from monolane.ops import Kind, Role

CARD = "README.md"
MAX_CARD_BYTES = 1 << 24
_NOTE = """
## Quantised weights

The matrices of attention, MLP and head are {dtype}: symmetric codes in groups of {group} columns
with one float16 scale each (`NAME.weight` holds the codes, `NAME.scales` the scales). Embedding
and norms{rest} are as in the original.{repacked}
Written by `monolane quantize`; monolane reads it, Transformers does not.
"""

_REPACKED = """
These are the numbers of the quantised folder that this one was made from, in another order."""


@dataclass(frozen=True, slots=True)
class MatrixError:
    """How far a quantised matrix lies from the original: |W' - W| / |W|, Frobenius norms."""

    name: str
    role: Role
    relative_error: float


@dataclass(slots=True)
class QuantizeReport:
    """What was written: weight bytes before and after, and the error of each matrix."""

    destination: Path
    dtype: str
    bytes_before: int = 0
    bytes_after: int = 0
    matrices: list[MatrixError] = field(default_factory=list)

    def worst(self) -> dict[Role, MatrixError]:
        """Return the worst matrix of each role, in the order in which a pass meets them."""
        found: dict[Role, MatrixError] = {}
        for matrix in self.matrices:
            if (
                matrix.role not in found
                or matrix.relative_error > found[matrix.role].relative_error
            ):
                found[matrix.role] = matrix
        return found


def quantize_folder(
    source: Path,
    destination: Path,
    quantization: Quantization,
    *,
    overwrite: bool = False,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> QuantizeReport:
    """Write the model in ``source``, its matrices quantised, as ``destination``.

    ``progress`` hears of each tensor: its name, and bytes of the source done and in all.
    ConfigError or CheckpointError, with nothing written, if the model cannot be quantised; an
    existing folder is refused, with ``overwrite`` replaced if it is a model folder.
    """
    source, destination = Path(source), Path(destination)
    with naming(source):
        return _quantize(source, destination, quantization, overwrite, progress)


def _quantize(
    source: Path,
    destination: Path,
    quantization: Quantization,
    overwrite: bool,
    progress: Callable[[str, int, int], None],
) -> QuantizeReport:
    before = read_config(source)
    if before.quantization is not None:
        raise ConfigError(
            f"{source}: expected float weights, got {before.stored_dtype}; quantise the original, "
            "so that errors do not add up"
            + ("" if before.quantization.packing is None else ", or pass dtype auto (--dtype auto)")
        )
    try:
        config = replace(before, quantization=quantization)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    checkpoint = separate_experts(before, Checkpoint.open(source))
    check_arrays(before, checkpoint)
    check_replaceable(source, destination, overwrite)
    report = QuantizeReport(destination, quantization.dtype)
    return _write(source, _Writer(config, checkpoint, {}, report, progress))


def repack_folder(
    source: Path,
    destination: Path,
    *,
    overwrite: bool = False,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> QuantizeReport:
    """Write the model in ``source``, which another tool quantised, in monolane's own order.

    The numbers stay the same; the new folder loads from the mapped file, with nothing to repack.
    ``progress`` and errors as in ``quantize_folder``.
    """
    source, destination = Path(source), Path(destination)
    with naming(source):
        return _repack(source, destination, overwrite, progress)


def _repack(
    source: Path,
    destination: Path,
    overwrite: bool,
    progress: Callable[[str, int, int], None],
) -> QuantizeReport:
    before = read_config(source)
    if before.quantization is None or before.quantization.packing is None:
        raise ConfigError(
            f"{source}: dtype auto: expected a model that another tool quantised, got one in "
            f"{before.stored_dtype}, as monolane reads it; name a dtype, int8 or int4"
        )
    if before.quantization.packing.block_format:
        raise ConfigError(
            f"{source}: dtype auto: expected integer codes, which monolane's own folders can hold, "
            f"got {before.stored_dtype.upper()}; run this folder as it is, or a .gguf file of it"
        )
    checkpoint = separate_experts(before, Checkpoint.open(source))
    packed = find_packed(before, checkpoint)
    view_arrays(before, packed, checkpoint)
    matrices = [x.name for x in tensor_specs(before) if x.role.kind is Kind.MATRIX]
    floats = [name for name in matrices if name not in packed]
    if before.tie_embeddings:  # the embedding, which stays a matrix of floats as a head too
        floats.append(find_family(before).names(before)[Role.HEAD])
    ignore = tuple(name.removesuffix(".weight") for name in floats)
    config = replace(before, quantization=Quantization(before.quantization.bits, ignore=ignore))
    check_replaceable(source, destination, overwrite)
    report = QuantizeReport(destination, config.stored_dtype)
    return _write(source, _Writer(config, checkpoint, packed, report, progress))


def _write(source: Path, writer: "_Writer") -> QuantizeReport:
    destination = writer.report.destination
    with folder_aside(destination) as folder:
        text = json.dumps(render_config(writer.config), indent=2, sort_keys=True)
        (folder / "config.json").write_text(text + "\n", encoding="utf-8")
        write_checkpoint(folder, writer.tensors())
        copy_beside(source, folder)
        _write_card(source, folder, writer, destination.name)
    return writer.report


class _Writer:
    """Makes each tensor of the new folder; a matrix's codes and scales come from one quantising."""

    def __init__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        packed: Packed,
        report: QuantizeReport,
        progress: Callable[[str, int, int], None],
    ) -> None:
        self.config, self.checkpoint, self.packed = config, checkpoint, packed
        self.report, self._progress = report, progress
        whole = tensor_specs(replace(config, quantization=None))
        self._total = sum(self._bytes(spec.name) for spec in whole)  # a file may hold more
        self._last: tuple[str, Quantized] | None = None

    def tensors(self) -> Iterator[PendingTensor]:
        """Every tensor of the new folder, codes directly before their scales."""
        matrix = ""
        for spec in tensor_specs(self.config):
            matrix = spec.name if spec.part is Part.CODES else matrix
            yield self._pending(spec, spec.name if spec.part is Part.WHOLE else matrix)

    def _pending(self, spec: TensorSpec, original: str) -> PendingTensor:
        assert self.config.quantization is not None
        bits = self.config.quantization.bits
        if spec.part is Part.WHOLE:
            dtype = self.checkpoint.dtype_of(original)
        else:
            dtype = DTYPES[(CODE_DTYPES[bits] if spec.part is Part.CODES else SCALE_DTYPES)[0]]
        return PendingTensor(spec.name, dtype, spec.shape, lambda: self._make(spec, original))

    def _make(self, spec: TensorSpec, original: str) -> Array:
        found = self._part(spec, original)
        self.report.bytes_after += found.nbytes
        if spec.part is not Part.SCALES:  # whose source has been counted with the codes
            self.report.bytes_before += self._bytes(original)
            self._progress(spec.name, self.report.bytes_before, self._total)
        return found

    def _bytes(self, original: str) -> int:
        packed = self.packed.get(original)
        if isinstance(packed, PackedMatrix):
            return packed.nbytes
        return self.checkpoint.bytes_of(original)

    def _part(self, spec: TensorSpec, original: str) -> Array:
        if spec.part is Part.WHOLE:
            return self.checkpoint[original]
        if self._last is None or self._last[0] != original:
            self._last = None  # before the next is made: one quantised matrix at a time
            self._last = original, self._quantized(spec, original)
        quantized = self._last[1]
        return quantized.codes if spec.part is Part.CODES else quantized.scales

    def _quantized(self, spec: TensorSpec, original: str) -> Quantized:
        assert self.config.quantization is not None
        packed = self.packed.get(original)
        if isinstance(packed, PackedMatrix):
            return packed.read()
        matrix = self.checkpoint[original]
        try:
            quantized = quantize_matrix(matrix, self.config.quantization)
        except CheckpointError as error:
            at = f"{self.checkpoint.file_of(original)}: tensor {original!r}"
            raise CheckpointError(f"{at}: {error}") from None
        missed = _relative_error(matrix, quantized)
        self.report.matrices.append(MatrixError(original, spec.role, missed))
        return quantized


def _relative_error(matrix: Array, quantized: Quantized) -> float:
    plain = matrix.astype(np.float32)
    size = float(np.linalg.norm(plain))
    missed = float(np.linalg.norm(quantized.widened() - plain))
    return missed / size if size else 0.0


def _write_card(source: Path, folder: Path, writer: _Writer, name: str) -> None:
    config = writer.config
    assert config.quantization is not None
    card = f"# {name}\n"
    if is_own_file(source, source / CARD):
        card = read_regular(source / CARD, MAX_CARD_BYTES).decode(errors="replace").rstrip() + "\n"
    rest = ""
    if config.tie_embeddings:
        rest = " (and so the head, which is the embedding)"
    elif config.quantization.ignore:
        rest = f", and {', '.join(config.quantization.ignore)},"
    note = _NOTE.format(
        dtype=config.quantization.dtype,
        group=config.quantization.group_size,
        rest=rest,
        repacked=_REPACKED if writer.packed else "",
    )
    (folder / CARD).write_text(card + note, encoding="utf-8")
