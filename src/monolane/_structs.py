"""Structs, enums and constants that Python shares with C++ and CUDA: described once, emitted twice.

A description is a plain value. ``Struct.dtype`` is what NumPy packs; ``declare`` prints the same
layout for a language, with its size and offsets checked by that language's compiler. Nobody writes
a field, a code or an offset by hand on the other side of a border.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

_NUMPY = {
    "i32": "<i4", "u32": "<u4", "i64": "<i8", "u64": "<u8", "f32": "<f4", "f64": "<f8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Language:
    """How a language spells number types and the members of enums."""

    types: Mapping[str, str]
    camel_case: bool  # kTopK for a member TOP_K, else TOP_K

    def member(self, name: str) -> str:
        """Return a member or constant as this language spells it."""
        if not self.camel_case:
            return name.upper()
        return "k" + "".join(part.capitalize() for part in name.lower().split("_"))


CPP = Language(
    {
        "i32": "int32_t", "u32": "uint32_t", "i64": "int64_t", "u64": "uint64_t",
        "f32": "float", "f64": "double",
    },
    camel_case=True,
)  # fmt: skip
CUDA = Language({kind: kind for kind in _NUMPY}, camel_case=False)


class Field(NamedTuple):
    """One field: ``kind`` is a number type, a struct's name, an enum's name, or ends with ``*``."""

    name: str
    kind: str
    meaning: str = ""
    length: int = 0  # of an array; 0: a single value


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct; ``parts`` are the structs that occur in it."""

    name: str
    fields: tuple[Field, ...]
    parts: tuple["Struct", ...] = ()
    # As NumPy sees it; a pointer is an address, an enum its code. Made once: each reading of tokens
    # asks for one, and making it takes 10 us.
    dtype: "np.dtype[np.void]" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = {part.name: part.dtype for part in self.parts}

        def form(x: Field) -> tuple[Any, ...]:
            kind = "<u8" if x.kind.endswith("*") else parts.get(x.kind, _NUMPY.get(x.kind, "<i4"))
            return (x.name, kind, (x.length,)) if x.length else (x.name, kind)

        object.__setattr__(self, "dtype", np.dtype([form(x) for x in self.fields], align=True))

    def declare(self, language: Language) -> str:
        """Return the declaration, whose compiler checks size and offsets."""
        declared = []
        for x in self.fields:
            array = f"[{x.length}]" if x.length else ""
            kind = language.types.get(x.kind, x.kind)
            declared.append((f"{kind} {x.name}{array};", x.meaning))
        width = max((len(text) for text, meaning in declared if meaning), default=0)
        lines = [f"struct {self.name} {{"]
        lines += [
            f"  {text:{width}}  // {meaning}" if meaning else f"  {text}"
            for text, meaning in declared
        ]
        lines += ["};", f"static_assert(sizeof({self.name}) == {self.dtype.itemsize});"]
        if language is CPP:  # CUDA has no <cstddef> at run-time compilation: there the size must do
            assert self.dtype.fields is not None
            lines += [
                f"static_assert(offsetof({self.name}, {name}) == {where[1]});"
                for name, where in self.dtype.fields.items()
            ]
        return "\n".join(lines) + "\n"


def declare_enum(name: str, members: Iterable[tuple[str, int]], language: Language) -> str:
    """Return an enum: scoped in C++, plain in CUDA, where members carry their own prefix."""
    spelled = [f"{language.member(member)} = {value}" for member, value in members]
    if language is CPP:
        lines = [f"enum class {name} : int32_t {{", *(f"  {text}," for text in spelled), "};\n"]
        return "\n".join(lines)
    return f"enum {name} : u32 {{ {', '.join(spelled)} }};\n"


def members_of(kind: type[IntEnum]) -> list[tuple[str, int]]:
    """Return the members of an enum as ``declare_enum`` takes them."""
    return [(member.name, int(member)) for member in kind]
