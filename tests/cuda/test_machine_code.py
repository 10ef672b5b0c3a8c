"""The shipped kernels' machine code: nothing spills, and what speed rests on is there.

NVRTC compiles without a GPU; disassembly needs cuobjdump and nvdisasm, from wheels or a toolkit.
"""

import os
import re
import shutil
import struct
import subprocess
import sysconfig
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from monolane.cuda import _compile
from monolane.cuda._compile import Compiled, architecture, compile_kernel, compiler_version
from monolane.cuda._device import GpuInfo
from monolane.cuda._executor import CudaExecutor
from monolane.cuda._kernel_header import specialisation
from monolane.cuda._layout import Layout
from monolane.cuda._plan_device import lay_out_widths
from monolane.errors import MissingExtraError
from monolane.measure import synthetic_config
from monolane.model import ModelConfig, parse_config, read_config
from monolane.plan import named_config

ROOT = Path(__file__).parents[2]
NO_CUOBJDUMP = "no cuobjdump: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
GPUS = {
    "sm_80": GpuInfo("A100", (8, 0), 108, 163 << 10, 80 << 30, 80 << 30),
    "sm_90a": GpuInfo("H200", (9, 0), 132, 227 << 10, 141 << 30, 141 << 30),
    "sm_100a": GpuInfo("B200", (10, 0), 148, 227 << 10, 180 << 30, 180 << 30),
}
CONTEXT = 4096
WIDTHS = CudaExecutor.WIDTHS  # as shipped: a fixture here takes the widest away from tests
# Three words that are read some times a pass, in a small model's widest kernel.
SPILLS = {("sm_80", "demo", "bfloat16", 64): 12}
# With several devices a few values more, none in a loop of products either. With four, the widest
# With several devices a value more, or a few, none in a loop of products either. By devices, width.
APART_SPILLS = {
    (2, 1): 8, (2, 8): 8, (2, 64): 24,
    (4, 1): 0, (4, 8): 0, (4, 64): 0,
    (8, 1): 0, (8, 8): 0, (8, 64): 12,
}  # fmt: skip
# https://huggingface.co/Qwen/Qwen3-1.7B/blob/main/config.json
QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
}
PRODUCTS = 5  # QKV, OUT, GATE_UP, DOWN, HEAD


@dataclass(frozen=True)
class Kernel:
    """A specialisation that some user runs."""

    arch: str
    model: str
    dtype: str
    width: int
    devices: int = 1

    def __str__(self) -> str:
        several = f"-{self.devices}x" if self.devices > 1 else ""
        return f"{self.arch}-{self.model}-{self.dtype}-{self.width}{several}"

    @property
    def spills(self) -> int:
        """Bytes of a thread that may be spilled."""
        if self.devices > 1:
            return APART_SPILLS[self.devices, self.width]
        return SPILLS.get((self.arch, self.model, self.dtype, self.width), 0)


def config_of(model: str) -> ModelConfig:
    if model == "qwen3-1.7b":
        return parse_config(QWEN3)
    if model == "demo":
        return read_config(ROOT / "src" / "monolane" / "demo")
    return synthetic_config(model) if model.startswith("dense") else named_config(model)


def layout_of(kernel: Kernel) -> Layout:
    """Skips where the GPU has no room for that width."""
    config = config_of(kernel.model)
    context = min(CONTEXT, config.max_positions)
    gpu = GPUS[kernel.arch]
    layouts = lay_out_widths(config, gpu, kernel.dtype, context, WIDTHS, kernel.devices)
    for layout in layouts:
        if layout.width == kernel.width:
            return layout
    pytest.skip(f"{gpu.name} runs {kernel.model} at widths {[x.width for x in layouts]}")


@cache
def compiled(kernel: Kernel) -> tuple[Compiled, Layout]:
    layout = layout_of(kernel)
    try:
        compiler_version()
    except MissingExtraError as error:
        pytest.skip(str(error))
    assert architecture(*GPUS[kernel.arch].compute) == kernel.arch
    headers = {"specialisation.h": specialisation(layout)}
    return compile_kernel("monokernel.cu", headers, kernel.arch, use_cache=False), layout


# ---- disassembly -------------------------------------------------------------------------------
@dataclass(frozen=True)
class Instruction:
    address: int
    predicate: str  # "" where it always runs
    opcode: str
    operands: str


def find_cuobjdump() -> str | None:
    wheels = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    found = sorted(wheels.glob("*/bin/cuobjdump"))
    return str(found[-1]) if found else shutil.which("cuobjdump")


@cache
def listing(kernel: Kernel) -> tuple[Instruction, ...]:
    tool = find_cuobjdump()
    if tool is None:
        pytest.skip(NO_CUOBJDUMP)
    cubin, _ = compiled(kernel)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin.cubin)
        file.flush()
        environment = os.environ | {"PATH": f"{Path(tool).parent}:{os.environ['PATH']}"}
        done = subprocess.run(
            [tool, "-sass", file.name], capture_output=True, text=True, check=True, env=environment
        )
    line = r"/\*([0-9a-f]{4,})\*/\s+(?:@(!?\w+)\s+)?([A-Z][A-Z0-9_.]+)([^;]*);"
    return tuple(Instruction(int(a, 16), *rest) for a, *rest in re.findall(line, done.stdout))


def count(instructions: tuple[Instruction, ...], *prefixes: str) -> int:
    return sum(i.opcode.startswith(prefixes) for i in instructions)


def branch_target(i: Instruction) -> int | None:
    target = re.search(r"0x([0-9a-f]+)", i.operands) if i.opcode.startswith("BRA") else None
    return int(target[1], 16) if target else None


def shortest_trip(body: tuple[Instruction, ...]) -> int:
    """The instructions of a trip that skips what it can skip, but no product."""
    products = [i.address for i in body if i.opcode.startswith("HMMA")]
    passed: dict[int, int] = {body[0].address: 0}  # address: instructions before it
    for i, following in zip(body, (*body[1:], None), strict=True):
        if i.address not in passed:
            continue  # only a way that skips a product leads here
        count = passed[i.address] + 1
        target = branch_target(i)
        if following is None:
            return count
        if target is not None and target > i.address:
            if not any(i.address < product < target for product in products):
                passed[target] = min(count, passed.get(target, count))
            if not i.predicate and i.operands.count(",") == 0:
                continue
        passed[following.address] = min(count, passed.get(following.address, count))
    raise AssertionError("no way leads to the loop's end")


def innermost_loops(code: tuple[Instruction, ...]) -> list[tuple[Instruction, ...]]:
    """The bodies between a backward branch and its target that hold no smaller such loop."""
    spans = set()
    for i in code:
        target = branch_target(i)
        if target is not None and target < i.address:
            spans.add((target, i.address))
    bodies = {
        (low, high): tuple(i for i in code if low <= i.address <= high) for low, high in spans
    }
    loops = [s for s, body in bodies.items() if count(body, "HMMA")]
    inner = [s for s in loops if not any(s[0] <= t[0] and t[1] <= s[1] and t != s for t in loops)]
    return [bodies[s] for s in sorted(inner)]


WIDENING = "F2FP.F16.E4M3.UNPACK_B"  # two codes of e4m3 to float16


def weight_load(kernel: Kernel) -> str:
    return "LDS.64" if kernel.dtype == "float8" else "LDS.128"


# ---- what must hold ----------------------------------------------------------------------------
FIRST = [Kernel("sm_90a", "laneformer-2b", "bfloat16", width) for width in (1, 8)]
FIRST.append(Kernel("sm_90a", "laneformer-2b", "float8", 1))
OTHERS = [
    Kernel(arch, model, dtype, width)
    for arch in GPUS
    for model, dtype in (
        ("laneformer-2b", "bfloat16"),
        ("laneformer-2b", "float16"),
        ("laneformer-2b", "float8"),
        ("dense-2b", "bfloat16"),
        ("demo", "bfloat16"),
    )
    for width in WIDTHS
]
OTHERS = [kernel for kernel in OTHERS if kernel not in FIRST]
DENSE = pytest.param(Kernel("sm_90a", "qwen3-1.7b", "bfloat16", 1), marks=pytest.mark.slow)
KERNELS = [
    *FIRST,
    DENSE,
    *(pytest.param(kernel, marks=pytest.mark.exhaustive) for kernel in OTHERS),
]
APART = [  # the proof alone takes four seconds for eight
    pytest.param(
        Kernel("sm_90a", "laneformer-2b", "bfloat16", width, devices),
        marks=[] if (devices, width) == (2, 1) else pytest.mark.exhaustive,
    )
    for devices, width in APART_SPILLS
]
HOPPER = [k for k in KERNELS if (k if isinstance(k, Kernel) else k.values[0]).arch == "sm_90a"]


@pytest.mark.parametrize("kernel", [*KERNELS, *APART], ids=str)
def test_registers_suffice(kernel: Kernel) -> None:
    """A block of nine warps has 168 registers a thread: an SM's quarter holds three warps of it."""
    code, layout = compiled(kernel)
    (usage,) = code.usages
    assert usage.kernel == "monokernel"
    assert usage.spill_bytes <= kernel.spills
    assert usage.stack_bytes <= kernel.spills
    per_quarter = -(-(layout.warps + 1) // 4)
    assert usage.registers * 32 * per_quarter * 4 <= 65536


def test_what_a_diagnosis_keeps_costs_the_product_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same machine code as of kernels that know of no other copies than the usual ones."""
    found, layout = compiled(FIRST[0])
    assert layout.kept_passes == 0
    folder = tmp_path / "kernels"
    folder.mkdir()
    for path in _compile.KERNELS.iterdir():
        (folder / path.name).write_text(_without_copies(path.read_text()))
    monkeypatch.setattr(_compile, "KERNELS", folder)
    headers = {"specialisation.h": re.sub(".*KEPT_PASSES.*", "", specialisation(layout))}
    plain = compile_kernel("monokernel.cu", headers, FIRST[0].arch, use_cache=False)
    assert machine_code(plain.cubin) == machine_code(found.cubin)


def _without_copies(text: str) -> str:
    """A kernel file in which each Block::copy is its first argument, and has no declaration."""
    text = re.sub(r"constexpr u32 KEPT = .*\n", "", text)
    text = re.sub(r"  DEVICE_MEMBER u32 copy\(.*?\n  }\n", "", text, flags=re.DOTALL)
    while (begin := text.find("b.copy(")) >= 0:
        at, depth, comma = begin + len("b.copy("), 1, 0
        while depth:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            comma = comma or (at if depth == 1 and text[at] == "," else 0)
            at += 1
        text = text[:begin] + f"({text[begin + 7 : comma or at - 1]})" + text[at:]
    assert "KEPT" not in text
    return text


def machine_code(cubin: bytes) -> bytes:
    """The kernel's section of an ELF file; names elsewhere have a digest of the source in them."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<II4Q", cubin, table + size * i) for i in range(count)]
    strings = sections[names][4]
    for name, _, _, _, begin, nbytes in sections:
        if cubin[strings + name :].startswith(b".text.monokernel\0"):
            return cubin[begin : begin + nbytes]
    raise AssertionError("no machine code")


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_instructions_are_there(kernel: Kernel) -> None:
    code = listing(kernel)
    kind = "HMMA.16816.F32.BF16" if kernel.dtype == "bfloat16" else "HMMA.16816.F32"
    weights = weight_load(kernel)
    assert count(code, kind) >= PRODUCTS
    assert {i.opcode for i in code if i.opcode.startswith("HMMA")} == {kind}
    assert count(code, weights) >= PRODUCTS, "weights: a tile's share of a lane in one load"
    assert count(code, "LDG.E.64.STRONG.SYS") >= 2, "a guide's verdict and its mask"
    # A pair of words is one load; a word is stored at once.
    assert count(code, "LDG.E.128.STRONG.GPU") >= 4, "load_pair"
    assert count(code, "STG.E.64.STRONG.GPU") >= 5, "publish"
    assert count(code, "STG.E.64.STRONG.SYS") == 2, "a token for the host: its number and whose"
    if not kernel.spills:
        assert count(code, "LDL", "STL") == 0, "local memory"


@pytest.mark.parametrize("kernel", HOPPER, ids=str)
def test_weights_come_by_the_copy_engine(kernel: Kernel) -> None:
    assert count(listing(kernel), "UBLKCP") >= PRODUCTS


# A small model's phases are unrolled whole, and so are the dense one's where slots are small.
LOOPED = [
    kernel
    for kernel in HOPPER
    if not re.search("demo|dense-2b-bfloat16-64", str(getattr(kernel, "values", [kernel])[0]))
]


@pytest.mark.parametrize("kernel", APART, ids=str)
def test_what_several_devices_spill_is_in_no_loop_of_products(kernel: Kernel) -> None:
    loops = innermost_loops(listing(kernel))
    assert loops
    assert all(count(body, "LDL", "STL", "CALL") == 0 for body in loops)


@pytest.mark.parametrize("kernel", LOOPED, ids=str)
def test_loops_of_products_do_nothing_else(kernel: Kernel) -> None:
    """No division, call, conversion or memory but shared: loads, products, the slot given back."""
    _, layout = compiled(kernel)
    tiles = -(-layout.width // 8)
    wide = layout.wide  # staging columns lies around its loops
    products = [
        body
        for body in innermost_loops(listing(kernel))
        if count(body, WIDENING if kernel.dtype == "float8" else "LDS.128")
        and count(body, "SYNCS.ARRIVE.TRANS64.A1T0") == (0 if wide else 1)
    ]
    # NVRTC unrolls four steps whole: of a dense model's 2048 columns.
    looped = sum(tiling.steps > 4 for tiling in layout.tilings.values())
    assert len(products) >= looped >= PRODUCTS - 2 * (kernel.model == "qwen3-1.7b")
    for body in products:
        seen = Counter(i.opcode for i in body)
        assert count(body, "CALL", "MUFU", "I2F", "F2I", "LDL", "STL", "DADD", "DFMA") == 0, seen
        # Of global memory only the look at the fault, in a wait that takes long, and its record.
        assert count(body, "LDG") == count(body, "LDG.E.STRONG.GPU") <= 1, seen
        assert count(body, "STG") == count(body, "STG.E.STRONG.GPU") <= 5, seen
        if kernel.dtype == "float8":  # activations come by loads of the same kind
            assert 4 * count(body, "HMMA") == tiles * count(body, WIDENING), seen
        else:
            assert count(body, "HMMA") == tiles * count(body, "LDS.128"), seen
        # Some fifty more are a wait that takes long, and what its watchdog does at the end.
        assert shortest_trip(body) <= (90 if kernel.dtype == "float8" else 60), seen
