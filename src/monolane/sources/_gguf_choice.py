"""Which GGUF files of a repository are one model, and which of its models is meant.

A repository has the same model in many types, a file for each, or several parts. Their names say
which: ``NAME-Q4_K_M.gguf``, ``Q8_0/NAME-Q8_0-00001-of-00002.gguf``. Encoders of images (mmproj) and
statistics (imatrix) lie beside them, and are no models.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from monolane._cgroup import available_bytes
from monolane.errors import ModelNotFoundError
from monolane.sources._hub_id import HubId

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d\w*|TQ\d_0|MXFP4\w*|NVFP4\w*|BF16|F16|F32))$", re.IGNORECASE
)
_FLOATS = ("F32", "F16", "BF16")
_NO_MODELS = ("mmproj", "imatrix")
_SPARE = 1.1  # keys, values and activations beside the weights: a tenth of them
_SHOWN = 12  # names in a message


@dataclass(frozen=True, slots=True)
class GgufSet:
    """The file of one model, or all of its parts, the first first."""

    files: tuple[str, ...]  # / between folders
    size: int  # bytes of all

    @property
    def first(self) -> str:
        """The file that the model goes by."""
        return self.files[0]

    @property
    def tag(self) -> str:
        """Its type, as the name has it: "Q4_K_M", "UD-Q4_K_XL"; "" where the name says none."""
        found = _TAG.search(self._stem)
        return found[1].upper() if found else ""

    def is_meant(self, wanted: HubId) -> bool:
        """Tell whether a name can mean it: its file, or its type, or how its file's name ends."""
        return wanted.file in self.files if wanted.file else self._is_called(wanted.tag)

    def _is_called(self, tag: str) -> bool:
        wanted, stem = tag.upper(), self._stem.upper()
        folders = PurePosixPath(self.first.upper()).parts[:-1]
        return (
            stem == wanted
            or stem.endswith(tuple(f"{x}{wanted}" for x in "-._"))
            or (not self.tag and wanted in folders)
        )

    @property
    def _stem(self) -> str:
        name = PurePosixPath(self.first).name
        part = _PART.fullmatch(name)
        return part[1] if part else name[: -len(".gguf")]


def gguf_sets(files: Mapping[str, int]) -> list[GgufSet]:
    """Return the models among files, given by path with their bytes; by size, the largest first.

    Models of which a part is missing are left out, as is what is no model by its name.
    """
    found = []
    for name, size in files.items():
        plain = PurePosixPath(name).name.lower()
        if not plain.endswith(".gguf") or any(word in plain for word in _NO_MODELS):
            continue
        part = _PART.fullmatch(name)
        if part is None:
            found.append(GgufSet((name,), size))
        elif int(part[2]) == 1:
            count = int(part[3])
            names = tuple(f"{part[1]}-{i + 1:05}-of-{count:05}.gguf" for i in range(count))
            if all(x in files for x in names):
                found.append(GgufSet(names, sum(files[x] for x in names)))
    return sorted(found, key=lambda x: (-x.size, x.first))


def choose_gguf(sets: Sequence[GgufSet], wanted: HubId) -> GgufSet:
    """Return the model that is meant, or the best that fits the free memory where none is named.

    The best is the largest in blocks; one of floats only where there is no other, since it is read
    at half the speed of Q8_0 for hardly a difference. ModelNotFoundError lists what there is.
    """
    if not wanted.names_gguf:
        return _best(sets, wanted)
    found = [x for x in sets if x.is_meant(wanted)]
    # Q4_K_M is UD-Q4_K_M only where it is nothing else.
    found = [x for x in found if x.tag == wanted.tag.upper()] or found
    if len(found) == 1:
        return found[0]
    if found:
        raise ModelNotFoundError(
            f"{wanted}: expected a tag of one file, got {len(found)}: "
            f"{', '.join(x.first for x in found[:_SHOWN])}; name the file: "
            f"{wanted.repo}/{found[0].first}"
        )
    raise ModelNotFoundError(
        f"{wanted}: expected one of {told_sets(sets)}, got {wanted.tag or wanted.file}; name one, "
        f"such as {name_of(sets[0], sets, wanted.repo)}"
    )


def _best(sets: Sequence[GgufSet], wanted: HubId) -> GgufSet:
    free = available_bytes()
    blocks = [x for x in sets if x.tag not in _FLOATS] or list(sets)
    fitting = [x for x in blocks if x.size * _SPARE <= free]
    if not fitting:
        raise ModelNotFoundError(
            f"{wanted}: expected a GGUF file that fits the memory that is free, "
            f"{free / 1e9:,.1f} GB, with a tenth to spare, got {told_sets(sets)}; to take one all "
            f"the same, name it: {name_of(blocks[-1], sets, wanted.repo)}"
        )
    return fitting[0]


def told_sets(sets: Sequence[GgufSet]) -> str:
    """Return what there is, for a message: types or names, and sizes."""
    told = [f"{x.tag or x.first} ({x.size / 1e9:,.1f} GB)" for x in sets[:_SHOWN]]
    return ", ".join(told) + (f" and {len(sets) - _SHOWN} more" if len(sets) > _SHOWN else "")


def name_of(one: GgufSet, sets: Sequence[GgufSet], repo: str) -> str:
    """Return how to name one model of a repository: by its type, or by its file."""
    alone = one.tag and sum(x.tag == one.tag for x in sets) == 1
    return f"{repo}:{one.tag}" if alone else f"{repo}/{one.first}"
