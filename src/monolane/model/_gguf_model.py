"""A model in one GGUF file, or in the parts into which llama-gguf-split cut it."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from monolane._naming import naming
from monolane.errors import CheckpointError, ModelNotFoundError
from monolane.model import families
from monolane.model._config import ModelConfig
from monolane.model._gguf import MAGIC, GgufFile
from monolane.model._quant_matrix import Blocks
from monolane.model._safetensors import Array
from monolane.model.families._gguf import GGUF_NAMES, LONG_ROPE, ROPE_DIVISORS
from monolane.ops import Role

SUFFIX = ".gguf"
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
# What a file is that holds no model, and what to do with it: general.type, or the architecture.
_NO_MODEL = {
    "adapter": "a LoRA adapter; merge it into its model with llama.cpp's llama-export-lora",
    "mmproj": "the image or sound encoder of a model; pass the file of the language model",
    "clip": "the image or sound encoder of a model; pass the file of the language model",
    "vocab": "a vocabulary; pass the file of the model",
    "imatrix": "statistics for quantising; pass the file of the model",
}
# dtype of what is not quantised, where all matrices are; also of keys and values.
_KEYS, _VALUES = (GGUF_NAMES[role].removeprefix("blk.{i}") for role in (Role.K, Role.V))
_CONV_BIAS, _MAMBA_NORM = (
    GGUF_NAMES[role].removeprefix("blk.{i}") for role in (Role.MAMBA_CONV_BIAS, Role.MAMBA_NORM)
)
_DEFAULT_DTYPE = "bfloat16"
_PAIRS = 1 << 16  # of a head's numbers that turn, at most


class GgufModel(Mapping[str, "Array | Blocks"]):
    """Every tensor of a model by its name in the file; ``metadata`` is that of the first part.

    ``config`` is read from the metadata and from which tensors there are. ConfigError or
    CheckpointError names file and field.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        first = GgufFile(path)
        self.metadata = first.metadata
        _check_kind(path, first.metadata)
        self.parts = (first, *_other_parts(first))
        self._files = {name: part for part in self.parts for name in part}
        tensors = sum(map(len, self.parts))
        if len(self._files) < tensors:
            raise CheckpointError(
                f"{path}: expected parts with tensors of their own, got {tensors} tensors with "
                f"{len(self._files)} names; the parts are not of one model: fetch them again"
            )
        said = self.metadata.get("split.tensors.count", tensors)
        if said != tensors:
            raise CheckpointError(
                f"{path}: split.tensors.count: expected {said!r:.80} tensors in all parts, got "
                f"{tensors}; the parts are not of one model: fetch them again"
            )
        self.config: ModelConfig = families.parse_gguf(
            self.metadata, self._given(), self._divisors(), str(path)
        )

    def __getitem__(self, name: str) -> "Array | Blocks":
        return self._files[name][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def file_of(self, name: str) -> Path:
        """Return the path of the part that holds a tensor."""
        return self._files[name].path

    def _given(self) -> dict[str, Any]:
        """Return the fields of a config.json that the tensors say."""
        given: dict[str, Any] = {
            "tie_word_embeddings": GGUF_NAMES[Role.HEAD] not in self,
            "attention_bias": GGUF_NAMES[Role.O_BIAS].format(i=0) in self,
            "query_norm": GGUF_NAMES[Role.Q_NORM].format(i=0) in self,
            "query_bias": GGUF_NAMES[Role.Q_BIAS].format(i=0) in self,
            "mamba_conv_bias": any(name.endswith(_CONV_BIAS) for name in self),
            "mamba_rms_norm": any(name.endswith(_MAMBA_NORM) for name in self),
            "keys_are_values": any(
                name.endswith(_KEYS) and name.removesuffix(_KEYS) + _VALUES not in self
                for name in self
            ),
            "dtype": self._dtype(),
        }
        if (rows := self._rows(Role.LAUREL_LEFT)) is not None:
            given["laurel_rank"] = rows
        if (rows := self.embedding_rows) is not None:
            given["vocab_size"] = rows
        for name, place in LONG_ROPE.items():
            if (divisors := self._divisors(name)) is not None:
                given[place] = list(divisors)
        return given

    @property
    def embedding_rows(self) -> int | None:
        """Rows of the embedding: as many tokens has the model use for, however many are listed."""
        return self._rows(Role.EMBEDDING)

    def _rows(self, role: Role) -> int | None:
        """Return the rows of a tensor outside the layers or of the first; None: it is not there."""
        name = GGUF_NAMES[role].format(i=0)
        part = self._files.get(name)
        return None if part is None else part.tensors[name].shape[0]

    def _dtype(self) -> str:
        """Return the dtype of most of the numbers in matrices that are not quantised."""
        sizes: dict[str, int] = {}
        for part in self.parts:
            for tensor in part.tensors.values():
                dtype = tensor.type.dtype
                if dtype is not None and dtype.kind != "i" and len(tensor.shape) > 1:
                    name = dtype.name
                    sizes[name] = sizes.get(name, 0) + tensor.end - tensor.begin
        return max(sizes, key=sizes.__getitem__, default=_DEFAULT_DTYPE)

    def _divisors(self, name: str = ROPE_DIVISORS) -> tuple[float, ...] | None:
        if name not in self:
            return None
        divisors = self[name]
        plain = not isinstance(divisors, Blocks) and divisors.dtype == np.float32
        if (
            isinstance(divisors, Blocks)
            or not plain
            or divisors.ndim != 1
            or divisors.size > _PAIRS
        ):
            raise CheckpointError(f"{self.file_of(name)}: tensor {name!r}: expected a list of F32")
        return tuple(divisors.tolist())


def is_gguf(path: Path) -> bool:
    """Tell whether a path is that of a GGUF file, by its name or its first bytes.

    Other programs keep such files under names of their own.
    """
    if path.suffix.lower() == SUFFIX:
        return not path.is_dir()
    if not path.is_file():
        return False
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
    return False


def read_config(path: Path) -> ModelConfig:
    """Read the config of a folder in Hub layout, or of a .gguf file.

    ModelNotFoundError, ConfigError or CheckpointError.
    """
    with naming(path):
        return _read_config(path)


def _read_config(path: Path) -> ModelConfig:
    return GgufModel(path).config if is_gguf(path) else families.read_config(path)


def _check_kind(path: Path, metadata: Mapping[str, Any]) -> None:
    for key in ("general.type", "general.architecture"):
        kind = metadata.get(key)
        if isinstance(kind, str) and kind in _NO_MODEL:
            raise CheckpointError(f"{path}: {key}: expected a model, got {_NO_MODEL[kind]}")


def _other_parts(first: GgufFile) -> list[GgufFile]:
    """Open the parts behind the first; CheckpointError if one is missing or is another's."""
    count = first.metadata.get("split.count", 0)
    if type(count) is not int or not 0 <= count <= 99999:
        raise CheckpointError(f"{first.path}: split.count: expected 0 to 99999, got {count!r:.80}")
    if count < 2:
        return []
    match = _PART.fullmatch(first.path.name)
    if match is None or int(match[3]) != count:
        raise CheckpointError(
            f"{first.path}: expected the name of a part, NAME-00001-of-{count:05}.gguf, for "
            f"split.count says {count}; give the parts their names back"
        )
    name = match[1]
    if first.metadata.get("split.no") != 0 or int(match[2]) != 1:
        raise CheckpointError(
            f"{first.path}: expected the first part of {count}, got part {match[2]}; pass "
            f"{name}-00001-of-{count:05}.gguf, and the others are found beside it"
        )
    return [
        _open_part(first.path.with_name(f"{name}-{i + 1:05}-of-{count:05}.gguf"), i, count)
        for i in range(1, count)
    ]


def _open_part(path: Path, place: int, count: int) -> GgufFile:
    if not path.is_file():
        raise ModelNotFoundError(f"{path}: expected {count} parts, this one is missing; fetch it")
    part = GgufFile(path)
    found = part.metadata.get("split.no"), part.metadata.get("split.count")
    if found != (place, count):
        raise CheckpointError(
            f"{path}: split.no, split.count: expected {place}, {count}, got {found[0]!r:.40}, "
            f"{found[1]!r:.40}; the parts are not of one model: fetch them again"
        )
    return part
