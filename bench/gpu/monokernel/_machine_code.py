"""A compiled kernel as its instructions: where in the source each is from, and what it waits for.

The compiler, not the machine, says how long a warp stands still between two instructions: each one
carries a *control code*. It says how many cycles pass before the next one may be issued, which of
six barriers to wait for first (results of loads and other instructions whose time varies), and
which barrier is set when its own result, or the reading of its operands, is there.

Why not what cuobjdump shows: it prints control codes as numbers at best. Where the bits lie is
public: Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking",
arXiv:1804.06826, section 2.1; and Mesa's compiler NAK, src/nouveau/compiler/nak/sm70_encode.rs,
`set_instr_deps`, which writes them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from monolane.cuda._compile import KERNELS
from monolane.errors import BackendError

NO_DISASSEMBLER = "no nvdisasm: pip install nvidia-cuda-nvdisasm"
NONE = 7  # a control code's barrier that is none
_CONTROL = 105 - 64  # the control code's first bit, in the upper half of an instruction's 128


@dataclass(frozen=True, slots=True)
class Control:
    """What the compiler says of an instruction's time."""

    stall: int  # cycles from its issue to that of the next
    written: int  # the barrier that its result frees, or NONE
    read: int  # the barrier that its operands' having been read frees, or NONE
    awaited: tuple[int, ...]  # barriers that must be free before it is issued

    @classmethod
    def of(cls, upper: int) -> Control:
        """Return the code of an instruction whose upper 64 bits are these."""
        bits = upper >> _CONTROL  # stall 4, yield 1, written 3, read 3, awaited 6, reuse 4
        mask = bits >> 11 & 0x3F
        return cls(
            bits & 0xF, bits >> 5 & 7, bits >> 8 & 7, tuple(i for i in range(6) if mask >> i & 1)
        )


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the source."""

    file: str  # its name, without folder
    line: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; ``places``: where it comes from, and by which calls, the innermost first."""

    address: int
    predicate: str  # "" where it is always executed
    opcode: str
    operands: str
    target: int | None  # address of the label among the operands
    control: Control
    places: tuple[Place, ...]


def find_disassembler() -> str | None:
    """Return where nvdisasm is: of a wheel, or of a toolkit."""
    wheels = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    found = sorted(wheels.glob("*/bin/nvdisasm"))
    return str(found[-1]) if found else shutil.which("nvdisasm")


def disassemble(cubin: bytes, kernel: str) -> tuple[Instruction, ...]:
    """Return the instructions of a kernel; BackendError without nvdisasm."""
    tool = find_disassembler()
    if tool is None:
        raise BackendError(NO_DISASSEMBLER)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [tool, "-c", "-gi", "-hex", "-ndf", file.name],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    return tuple(read_listing(done.stdout, kernel))


_SECTION = re.compile(r"\s*\.section\s+\.text\.([\w$]+)")
_LABEL = re.compile(r"(\.L_\w+|\$?[\w$]+):\s*$")
_PLACE = re.compile(r'"([^"]+)", line (\d+)')
_INSTRUCTION = re.compile(
    r"\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z]\w*(?:\.\w+)*)\s*([^;]*);"
)
_TARGET = re.compile(r"`\(([^)]+)\)")
_HEX = re.compile(r"/\*\s*0x([0-9a-f]{16})\s*\*/\s*$")


def read_listing(listing: str, kernel: str) -> Iterator[Instruction]:
    """Yield the instructions of a kernel in what ``nvdisasm -c -gi -hex`` printed."""
    lines = list(_of_kernel(listing, kernel))
    labels: dict[str, int] = {}
    waiting: list[str] = []
    for line in lines:
        if label := _LABEL.match(line.strip()):
            waiting.append(label[1])
        elif found := _INSTRUCTION.match(line):
            labels.update(dict.fromkeys(waiting, int(found[1], 16)))
            waiting = []
    places: tuple[Place, ...] = ()
    fresh = True  # whether the next place begins another list
    for number, line in enumerate(lines):
        if "//##" in line:
            found_places = [Place(Path(f).name, int(n)) for f, n in _PLACE.findall(line)]
            places = (() if fresh else places) + tuple(found_places[:1])
            fresh = False
        elif found := _INSTRUCTION.match(line):
            fresh = True
            upper = _HEX.search(lines[number + 1])
            assert upper is not None, f"no second half behind: {line}"
            target = _TARGET.search(found[4])
            yield Instruction(
                int(found[1], 16),
                found[2] or "",
                found[3],
                found[4].strip(),
                labels.get(target[1]) if target else None,
                Control.of(int(upper[1], 16)),
                places,
            )


def _of_kernel(listing: str, kernel: str) -> Iterator[str]:
    inside = False
    for line in listing.splitlines():
        if section := _SECTION.match(line):
            inside = section[1] == kernel
        if inside:
            yield line


# ---- the kernel's own source ------------------------------------------------------------------
@cache
def _functions(file: str) -> tuple[tuple[int, str], ...]:
    """Return the lines on which a kernel file's functions begin."""
    path = KERNELS / file
    if not path.is_file():
        return ()
    begin = re.compile(r"\s*(?:DEVICE(?:_MEMBER)?\b[^(=;]*?\b(\w+)\(|KERNEL\((\w+))")
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := begin.match(line):
            found.append((number, match[1] or match[2]))
    return tuple(found)


@cache
def function_at(place: Place) -> str:
    """Return the name of the function that a line is in; "" outside the kernel's own files."""
    name = ""
    for line, function in _functions(place.file):
        if line > place.line:
            break
        name = function
    return name


@cache
def line_of(file: str, text: str) -> Place:
    """Return the one line of a kernel file that has a text."""
    lines = (KERNELS / file).read_text().splitlines()
    (found,) = (i for i, line in enumerate(lines, 1) if text in line)
    return Place(file, found)
