"""The weight files of a model folder as one mapping: model.safetensors, or shards and an index."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from monolane.errors import CheckpointError
from monolane.model._fields import read_json_object
from monolane.model._float8 import CODES, PAIRS, find_float8
from monolane.model._mapped_file import MappedFile
from monolane.model._safetensors import (
    MAX_HEADER_BYTES,
    Array,
    PendingTensor,
    SafetensorsFile,
    as_pending,
    write_safetensors,
)

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# AutoGPTQ names bits and group: gptq_model-4bit-128g.safetensors, or shards with such an index.
_GPTQ = re.compile(r"gptq_model-\d+bit-(-?\d+)g\.safetensors(\.index\.json)?")


@dataclass(frozen=True, slots=True)
class Cut:
    """A tensor that is some rows of one of the matrices [E, R, K] that a file has in one tensor."""

    stored: str  # the name of that
    expert: int
    rows: slice


class Checkpoint(Mapping[str, Array]):
    """Every tensor of a folder by name, as read-only views of the mapped files.

    Matrices of 8-bit floats with scales beside them (``_float8.py``) are widened anew whenever they
    are asked for, in memory of their own: so ask for ``shape_of`` and its like where these will do.
    """

    def __init__(self, folder: Path, files: Mapping[str, SafetensorsFile]) -> None:
        self.folder = folder
        self._files = dict(files)  # tensor name -> the file that holds it
        self._cuts: Mapping[str, Cut] = {}
        self._scales: dict[str, Array] = {}  # of the matrices that are widened
        dtypes = {file.entries[name].dtype for name, file in files.items()}
        self._float8 = find_float8(folder, dtypes)
        if self._float8 is None:
            return
        for name, file in files.items():
            scales = next((x for x in self._float8.scales_of(name) if x in files), None)
            if file.entries[name].dtype in (CODES, PAIRS) and scales is not None:
                self._scales[name] = self._files.pop(scales)[scales]
                self._files.pop(self._float8.activations_of(name), None)

    @classmethod
    def open(cls, folder: Path) -> "Checkpoint":
        """Map the weights of a folder in Hub layout; CheckpointError names file and tensor."""
        if folder.is_file():
            raise CheckpointError(
                f"{folder}: expected a folder in Hub layout here, got a file; 'monolane export' "
                "makes a folder of a .gguf file"
            )
        found = find_weights(folder)
        if found is not None and found.suffix == ".json":
            return cls(folder, _open_shards(found))
        if found is not None:
            file = SafetensorsFile(found)
            return cls(folder, dict.fromkeys(file, file))
        pickled = sorted(p.name for p in folder.glob("*.bin")) + sorted(
            p.name for p in folder.glob("*.pt*")
        )
        advice = (
            f"; {pickled[0]} is a pickle, which can run code when it is read: convert it first, "
            "with safetensors.torch.save_file"
            if pickled
            else ""
        )
        raise CheckpointError(f"{folder}: expected {SINGLE}, or shards with {INDEX}{advice}")

    def with_cuts(self, cuts: Mapping[str, Cut]) -> "Checkpoint":
        """Return the same tensors, but for some, in whose place are others that are in them."""
        found = Checkpoint(self.folder, self._files)
        found._scales, found._cuts = self._scales, cuts
        return found

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """The files that the tensors lie in."""
        return tuple({file.path: file.file for file in self._files.values()}.values())

    def __getitem__(self, name: str) -> Array:
        if (cut := self._cuts.get(name)) is not None:
            each = self._files[cut.stored][cut.stored][cut.expert]
            scales = self._scales.get(cut.stored)  # those of an expert by themselves, or one of all
            if scales is not None and scales.ndim == 3 and cut.expert < len(scales):
                scales = scales[cut.expert]
            return self._widened(cut.stored, each, scales)[cut.rows]
        return self._widened(name, self._files[name][name], self._scales.get(name))

    def _widened(self, name: str, stored: Array, scales: Array | None) -> Array:
        if self._float8 is None or scales is None:
            return stored
        return self._float8.widen(f"{self.file_of(name)}: tensor {name!r}", stored, scales)

    def __iter__(self) -> Iterator[str]:
        whole = {cut.stored for cut in self._cuts.values()}
        return chain((name for name in self._files if name not in whole), self._cuts)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, without a look at its numbers."""
        if (cut := self._cuts.get(name)) is not None:
            _, rows, columns = self.shape_of(cut.stored)
            return len(range(*cut.rows.indices(rows))), columns
        entry = self._files[name].entries[name]
        if self._float8 is None or name not in self._scales:
            return entry.shape
        return self._float8.shape_of(entry.shape, entry.dtype)

    def dtype_of(self, name: str) -> np.dtype[Any]:
        """Return the dtype in which a tensor is read."""
        if (cut := self._cuts.get(name)) is not None:
            return self.dtype_of(cut.stored)
        if self._float8 is not None and name in self._scales:
            return np.dtype(self._float8.dtype)
        return self._files[name].entries[name].dtype

    def bytes_of(self, name: str) -> int:
        """Return the bytes of a tensor in the files."""
        if name in self._cuts:
            return prod(self.shape_of(name)) * self.dtype_of(name).itemsize
        scales, entry = self._scales.get(name), self._files[name].entries[name]
        return entry.end - entry.begin + (0 if scales is None else scales.nbytes)

    def file_of(self, name: str) -> Path:
        """Return the path of the file that holds a tensor."""
        if (cut := self._cuts.get(name)) is not None:
            return self.file_of(cut.stored)
        return self._files[name].path


def find_weights(folder: Path) -> Path | None:
    """Return the file of a folder's weights, or the index of several; None if there is none.

    Of several files as AutoGPTQ names them, none is it.
    """
    for name in (SINGLE, INDEX):
        if (folder / name).is_file():
            return folder / name
    named = sorted(path for path in folder.glob("gptq_model-*") if _GPTQ.fullmatch(path.name))
    return named[0] if len(named) == 1 else None


def find_shards(index: Path) -> frozenset[str]:
    """Return the names of the files that an index names; CheckpointError."""
    return frozenset(_read_weight_map(index).values())


def _open_shards(path: Path) -> dict[str, SafetensorsFile]:
    folder = path.parent
    weight_map = _read_weight_map(path)
    shards = {name: _open_shard(path, name) for name in sorted(set(weight_map.values()))}
    for tensor, name in weight_map.items():
        if tensor not in shards[name]:
            raise CheckpointError(
                f"{path}: tensor {tensor!r}: expected in {name}, but it is not there; "
                "the index and the shards are not of one checkpoint: fetch both again"
            )
    for name, shard in shards.items():
        for tensor in shard:
            if weight_map.get(tensor) != name:
                said = weight_map.get(tensor, "nowhere")
                raise CheckpointError(
                    f"{folder / name}: tensor {tensor!r} is here, but {path.name} says {said}; "
                    "the index and the shards are not of one checkpoint: fetch both again"
                )
    return {tensor: shards[name] for tensor, name in weight_map.items()}


def _read_weight_map(path: Path) -> dict[str, str]:
    try:
        # An index names each tensor, as headers do: with 128 experts a layer that is 1.7 MB.
        raw: Any = read_json_object(path, most=MAX_HEADER_BYTES).get("weight_map")
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    if not isinstance(raw, dict) or not raw:
        raise CheckpointError(f"{path}: weight_map: expected an object of tensor name to file name")
    for tensor, name in raw.items():
        # A plain name: an index must not be able to point outside its folder.
        plain = isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name
        if not plain or "\0" in name:
            raise CheckpointError(
                f"{path}: tensor {tensor!r}: expected the name of a .safetensors file in this "
                f"folder, got {name!r}"
            )
    return raw


def _open_shard(index: Path, name: str) -> SafetensorsFile:
    path = index.with_name(name)
    if not path.is_file():
        raise CheckpointError(
            f"{path}: {index.name} names this file, but it is not there; fetch it"
        )
    return SafetensorsFile(path)


def write_checkpoint(
    folder: Path,
    tensors: Iterable[tuple[str, Array] | PendingTensor],
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """Write the weight files of a folder in Hub layout: one file, or shards and their index.

    Writes into ``folder`` as it is; callers that must not leave half a model behind write into a
    folder aside and rename it.
    """
    shards: list[list[PendingTensor]] = [[]]
    filled = 0
    for tensor in map(as_pending, tensors):
        if shards[-1] and filled + tensor.nbytes > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.nbytes
    if len(shards) == 1:
        write_safetensors(folder / SINGLE, shards[0])
        return
    weight_map: dict[str, str] = {}
    for i, shard in enumerate(shards, 1):
        file_name = f"model-{i:05}-of-{len(shards):05}.safetensors"
        write_safetensors(folder / file_name, shard)
        weight_map |= {tensor.name: file_name for tensor in shard}
    total = sum(tensor.nbytes for shard in shards for tensor in shard)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(
        json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )
