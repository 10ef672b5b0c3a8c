"""The kernel's time between products, from its machine code: control codes, ways, and the file."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench.gpu.monokernel._chains import Code, Mark, Segment, segments
from bench.gpu.monokernel._machine_code import (
    NO_DISASSEMBLER,
    NONE,
    Control,
    Instruction,
    Place,
    find_disassembler,
    function_at,
    line_of,
    read_listing,
)
from bench.gpu.monokernel.chains import CONTEXT, FILE, GPUS, extract, layout_of
from monolane.cuda import compiler_version
from monolane.errors import MissingExtraError
from monolane.sim import LEVELS, Constant, find_machine, latencies, timings


def test_control_codes() -> None:
    """Of upper halves as nvdisasm prints them beside what they belong to."""
    assert Control.of(0x000FE40000000F00) == Control(2, NONE, NONE, ())  # a move
    assert Control.of(0x000EA2000C1E1900) == Control(1, 2, NONE, ())  # a load: it frees barrier 2
    assert Control.of(0x004FC80000000000) == Control(4, NONE, NONE, (2,))  # and who waits for it


LISTING = """\
\t.section\t.text.other,"ax",@progbits
        /*0000*/                   EXIT ;                           /* 0x000000000000794d */
                                                                    /* 0x000fea0003800000 */
\t.section\t.text.kernel,"ax",@progbits
kernel:
.text.kernel:
\t//## File "/x/stream.cuh", line {inner} inlined at "/x/stream.cuh", line {outer}
\t//## File "/x/stream.cuh", line {outer}
        /*0000*/                   LDG.E R2, desc[UR10][R4.64] ;    /* 0x0000000a04027981 */
                                                                    /* 0x000ea2000c1e1900 */
.L_x_1:
        /*0010*/                   FADD R3, R2, R3 ;                /* 0x0000000302037221 */
                                                                    /* 0x004fc80000000000 */
\t//## File "/x/stream.cuh", line {outer}
        /*0020*/              @!P0 BRA `(.L_x_1) ;                  /* 0xfffffffc00f88947 */
                                                                    /* 0x000fea000383ffff */
"""


def test_a_listing() -> None:
    inner = line_of("stream.cuh", "value += shuffle_xor(value, mask);")
    outer = line_of("stream.cuh", "sum += b.stream(t)[r] * b.stream(t)[r];")
    text = LISTING.format(inner=inner.line, outer=outer.line)
    load, add, jump = read_listing(text, "kernel")
    assert (load.opcode, load.places) == ("LDG.E", (inner, outer))
    assert [function_at(place) for place in load.places] == ["warp_total", "publish_squares"]
    assert (add.address, add.predicate, add.control.awaited) == (16, "", (2,))
    assert add.places == load.places, "until the next line is named"
    assert (jump.predicate, jump.target, jump.places) == ("@!P0", 16, (outer,))
    assert function_at(Place("elsewhere.h", 3)) == ""


# ---- ways and their time ----------------------------------------------------------------------
def made(opcode: str, control: Control, function: Place, target: int | None = None) -> Instruction:
    text = f"`(.L_{target})" if target is not None else ""
    return Instruction(0, "", opcode, text, target, control, (function, NORM_STEP))


NORM = line_of("stream.cuh", "b.state->inverse_norm[t] = divide(")  # in await_norm
NORM_STEP = line_of("monokernel.cu", "run_steps<FIRST_STEP, FIRST_STEP + LAYER_STEPS>(b, layer);")
LATENCIES = {
    name: Constant(value=v, low=v / 2, high=2 * v, basis="estimated", source="a test's")
    for name, v in (("l2", 100), ("barrier", 10), ("operands", 1), ("other", 1))
}


def code_of(*instructions: Instruction) -> Code:
    placed = [replace(x, address=16 * i) for i, x in enumerate(instructions)]
    return Code(placed, layout_of(GPUS[0]))


def test_a_wait_takes_what_is_left_of_the_latency() -> None:
    """A load, 20 cycles of other work, then whoever needs it; and a barrier of the block."""
    code = code_of(
        made("LDG.E", Control(5, 2, NONE, ()), NORM),
        made("FADD", Control(15, NONE, NONE, ()), NORM),
        made("FADD", Control(4, NONE, NONE, (2,)), NORM),
        made("BAR.SYNC", Control(1, NONE, NONE, ()), NORM),
    )
    segment = Segment("QKV", Mark("await_norm", "LDG"), (Mark("await_norm", "BAR.SYNC"),))
    way = code.way(segment)
    assert way == [0, 1, 2, 3]
    chain = code.time(way, LATENCIES, segment)
    assert (chain.instructions, chain.stalls) == (4, 25)
    assert chain.waits == {"l2": 80, "barrier": 10}
    assert chain.cycles == {"low": 25 + 30 + 5, "value": 25 + 80 + 10, "high": 25 + 180 + 20 + 4}
    awaited = replace(segment, at_once=True)
    assert code.time(way, LATENCIES, awaited).cycles["value"] == 25 + 10


def test_a_way_takes_the_fewest_cycles_past_its_marks() -> None:
    """A loop whose body must be passed three times, and a slow path that nobody needs."""
    short, long = Control(2, NONE, NONE, ()), Control(15, NONE, NONE, ())
    loop = replace(made("BRA", short, NORM, target=16), predicate="@P0")
    skip = replace(made("BRA", short, NORM, target=16 * 6), predicate="@P1")
    code = code_of(
        made("LDG.E", short, NORM),
        made("FMUL", short, NORM),
        loop,
        skip,
        made("CALL.REL", long, NORM),
        made("FMUL", long, NORM),
        made("STS", short, NORM),
    )
    marks = (*[Mark("await_norm", "FMUL")] * 3, Mark("await_norm", "STS"))
    assert code.way(Segment("QKV", Mark("await_norm", "LDG"), marks)) == [
        0, 1, 2, 1, 2, 1, 2, 3, 6,
    ]  # fmt: skip
    with pytest.raises(LookupError, match="expected Mark.*HMMA.*has the kernel changed"):
        code.way(Segment("QKV", Mark("await_norm", "LDG"), (Mark("await_norm", "HMMA"),)))


# ---- the file ------------------------------------------------------------------------------------
def test_the_simulator_counts_with_the_file() -> None:
    kernel = json.loads(FILE.read_text())["sm_90a"]
    for device in ("h100", "h200", "8xh200", "b200"):
        chains = find_machine(device).timing.chain_us
        assert set(chains) == {*kernel["chains"], "CHOOSE"}
        for kind, chain in kernel["chains"].items():
            assert chains[kind].basis == "machine code"
            for level in LEVELS:
                assert chains[kind].at(level) == pytest.approx(chain["cycles"][level] / 1980)
    assert set(timings()["h200-kog"].chain_us) == {"other"}, "another engine's kernel"


def test_what_codes_alone_say_is_less_than_the_least_time() -> None:
    for kernel in json.loads(FILE.read_text()).values():
        assert set(kernel["chains"]) == set(segments(layout_of(GPUS[0]), CONTEXT))
        for chain in kernel["chains"].values():
            low, value, high = (chain["cycles"][level] for level in LEVELS)
            assert chain["instructions"] <= chain["stalls"] <= low <= value <= high
            assert chain["stalls"] + sum(chain["waits"].values()) == value
            assert set(chain["waits"]) <= set(latencies())


def test_the_page_has_the_figures_of_the_file() -> None:
    page = (FILE.parents[4] / "docs" / "simulator.md").read_text()
    for kind, chain in json.loads(FILE.read_text())["sm_90a"]["chains"].items():
        low, value, high = (chain["cycles"][level] for level in LEVELS)
        row = (
            f"| {kind} | {chain['instructions']:,} | {chain['stalls']:,} "
            f"| {value:,} ({low:,} to {high:,}) | {value / 1980:.2f} |"
        )
        assert row in page


@pytest.mark.slow
def test_the_file_is_what_the_kernel_says() -> None:
    """If it is not: python bench/gpu/monokernel/chains.py, then docs/simulator.md."""
    if find_disassembler() is None:
        pytest.skip(NO_DISASSEMBLER)
    try:
        version = "NVRTC {}.{}".format(*compiler_version())
    except MissingExtraError as error:
        pytest.skip(str(error))
    held, found = json.loads(FILE.read_text()), extract()
    for arch, kernel in held.items():
        assert set(found[arch]["chains"]) == set(kernel["chains"])
        if kernel["compiler"] != version:
            pytest.skip(f"made with {kernel['compiler']}, here is {version}: other code")
    assert found == held
