"""Structs described once: the compiler of the other side sees what NumPy packs."""

import shutil
import subprocess
from pathlib import Path

import pytest

from monolane._structs import CPP, CUDA, Field, Struct, declare_enum

INNER = Struct("Inner", (Field("a", "f32"), Field("b", "u64", "wide")))
OUTER = Struct(
    "Outer",
    (
        Field("first", "i32"),
        Field("inner", "Inner"),
        Field("many", "f32", "three", length=3),
        Field("kind", "Kind", "an enum"),
        Field("address", "const f32*", "a pointer"),
    ),
    parts=(INNER,),
)


def test_numpy_lays_out_as_c_does() -> None:
    assert INNER.dtype.itemsize == 16
    assert OUTER.dtype.fields is not None
    offsets = {name: where[1] for name, where in OUTER.dtype.fields.items()}
    assert offsets == {"first": 0, "inner": 8, "many": 24, "kind": 36, "address": 40}
    assert OUTER.dtype.itemsize == 48


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
@pytest.mark.parametrize("spoilt", [False, True])
def test_a_layout_that_differs_does_not_compile(tmp_path: Path, spoilt: bool) -> None:
    outer = Struct("Outer", tuple(f for f in OUTER.fields if f.name != "address"), OUTER.parts)
    text = "#include <cstddef>\n#include <cstdint>\n"
    text += declare_enum("Kind", [("top_k", 3)], CPP) + INNER.declare(CPP) + outer.declare(CPP)
    if spoilt:
        text = text.replace("uint64_t b;", "uint32_t b;")
    source = tmp_path / "structs.cpp"
    source.write_text(text + "int main() { return static_cast<int>(Kind::kTopK) - 3; }\n")
    command = ["g++", "-std=c++20", "-fsyntax-only", str(source)]
    assert (subprocess.run(command, capture_output=True).returncode == 0) is not spoilt


def test_languages_spell_members_their_own_way() -> None:
    assert "kNoWait = -1," in declare_enum("Wait", [("no_wait", -1)], CPP)
    assert declare_enum("Verdict", [("free", 0)], CUDA) == "enum Verdict : u32 { FREE = 0 };\n"
    assert "const f32* address;" in OUTER.declare(CUDA)
    assert "offsetof" not in OUTER.declare(CUDA)
