"""Each switch of the kernel alone, and all together: the bits of the kernel without any."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from emulation import KERNELS
from rig import MakeRig, random_weights, tiny_config
from schedules import CASES, LATE, Case, one

from monolane.cuda._kernel_header import specialisation
from monolane.cuda._lay_out import lay_out
from monolane.cuda._layout import Layout
from monolane.cuda._program import Exchange
from monolane.cuda._shared_memory import HELD_STOPS
from monolane.cuda._switches import ALL, NONE, PREDICTIONS, Switch
from monolane.cuda._tables import make_tables
from monolane.errors import ConfigError
from monolane.model import NOW, LayerConfig, ModelConfig, Role
from monolane.plan import Choice, DeviceDescription, build

SCHEDULES = 12  # of each kernel; they take turns with the ways to choose
# Ticks of the emulator, the same on every machine and under every load: a seed replays. A right
# kernel's waits are within them, as the tests without a bug show. A bug that makes a wait endless
# spins until then, and with the rig's patience far longer.
PATIENCE = 100_000
# Two stop tokens that a block keeps, and two behind as many as it keeps.
STOPS = (3, 4, *range(100, 100 + HELD_STOPS), 5, 6)

SHAPES = {
    # Blocks of 14 rows, a window, outputs of other lanes that come a layer later, stop tokens.
    "one row": Case(
        config=tiny_config(
            hidden_size=56, num_heads=4, max_positions=128,
            layers=(LayerConfig(NOW, NOW, 40), LayerConfig(LATE, LATE), LayerConfig(LATE, NOW)),
        ),
        workers=8,
        asks=(replace(one(1, budget=4), stops=STOPS),),
        before=(70,),
    ),
    # Blocks of 33 rows, of which a thread has two; norms stored in float16.
    "one lane": Case(
        config=tiny_config(
            num_lanes=1, num_kv_heads=1, hidden_size=66, dtype="float16",
            layers=(LayerConfig(NOW, NOW),) * 2,
        ),
        workers=2,
        asks=(one(1),),
        wish={"dtype": "float16"},
    ),
    # Products over more columns than a slot of 12 KB holds.
    "long rows": Case(
        config=tiny_config(hidden_size=416, intermediate_size=32),
        workers=4,
        asks=(one(1, budget=2),),
        wish={"slot_bytes": 24 << 10},
    ),
    "eight rows": replace(CASES["verify four"], wish={"widths": (8,)}, before=(40, 3)),
    "64 rows": replace(CASES["wide pass"], wish={"widths": (64,)}),
    "float8": CASES["float8"],
    "late outputs": CASES["late outputs"],
    "joined lanes": CASES["uneven rows"],
    "guides": CASES["guides"],
    "sm_80": CASES["no copy engine"],
}  # fmt: skip


def check(make_rig: MakeRig, case: Case, switches: Switch, **wish: Any) -> None:
    usual = case.make(make_rig)
    state = case.fill(usual)
    expected = case.expected(usual, state)
    rig = case.make(make_rig, switches=switches, **wish)
    assert rig.layout.switches == switches
    state = case.fill(rig)
    for seed in range(SCHEDULES):
        outcome = case.launch(rig, state, seed, watchdog=PATIENCE)
        wanted = expected[seed % len(expected)]
        assert outcome.same(wanted), (seed, outcome.error, outcome.fault)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_together(make_rig: MakeRig, shape: str) -> None:
    check(make_rig, SHAPES[shape], ALL)


@pytest.mark.parametrize(
    "shape",
    ["one row", *(pytest.param(x, marks=pytest.mark.exhaustive) for x in SHAPES if x != "one row")],
)
@pytest.mark.parametrize("switch", Switch, ids=lambda x: x.name)
def test_each_alone(make_rig: MakeRig, switch: Switch, shape: str) -> None:
    check(make_rig, SHAPES[shape], switch)


def test_on_two_devices(make_rig: MakeRig) -> None:
    check(make_rig, SHAPES["one row"], ALL, devices=2)


def test_stop_tokens_end_a_row(make_rig: MakeRig) -> None:
    """Else nobody would see whether they are looked for."""
    case = SHAPES["one row"]
    rig = case.make(make_rig)
    state = case.fill(rig)
    drawn = [x.tokens() for x in case.expected(rig, state)]
    budget = case.asks[0].budget
    for tokens in drawn:
        assert not set(tokens[:-1]) & set(STOPS)
        assert len(tokens) == budget or tokens[-1] in STOPS
    assert any(len(tokens) < budget for tokens in drawn)
    assert any(len(tokens) == budget for tokens in drawn)


# ---- bugs that the comparison finds --------------------------------------------------------------
BUGS = {
    "gains read before they are there": (
        Switch.TABLES, "one row", "stream.cuh",
        "  if constexpr (SWITCH_TABLES) copy_async_wait<0>();\n  for (u32 i = b.warp",
        "  for (u32 i = b.warp",
    ),
    "gains of the same norm again": (
        Switch.TABLES, "one row", "monokernel.cu", "fetch_gains(b, event + 1)",
        "fetch_gains(b, event)",
    ),
    "rotary of the next position": (
        Switch.TABLES, "one row", "stream.cuh", "b.state->position[t]) * HEAD_DIM;\n    fetch",
        "b.state->position[t] + 1) * HEAD_DIM;\n    fetch",
    ),
    "rows of the norm not awaited": (
        Switch.NORM, "one row", "stream.cuh", "if (got[i].stamp == stamp) pending", "pending",
    ),
    "sums read before all warps have them": (
        Switch.NORM, "one row", "stream.cuh",
        "compute_barrier();  // publishes the sums, and the scales that were on their way\n", "",
    ),
    "early outputs not awaited": (
        Switch.LANES, "late outputs", "stream.cuh",
        "      if (got[0][lane].stamp == stamp) pending &= ~(1u << lane);",
        "      pending &= ~(1u << lane);",
    ),
    "who asks for one word never asks for the others": (
        Switch.GATE, "one row", "block.cuh", "return pending == before ? pending & (0u - pending)",
        "return true ? 0 * before",
    ),
    "half of the stop tokens": (
        Switch.TOKEN_END, "one row", "passes.cuh",
        "for (u32 i = b.thread; i < stops; i += STEP)", "for (u32 i = b.thread; i < 1; i += STEP)",
    ),
    "a key's second number is the first again": (
        Switch.PAIRS, "one row", "qkv.cuh", "pack16(value, next)", "pack16(value, value)",
    ),
    "hidden units of neighbours swapped": (
        Switch.PAIRS, "one row", "monokernel.cu", "pack16(hidden, next)", "pack16(next, hidden)",
    ),
    "a capped ring that never counts what has landed": (
        Switch.IN_FLIGHT, "one row", "weights.cuh", "        to.landed += 1;\n", "",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_found(make_rig: MakeRig, tmp_path: Path, name: str) -> None:
    switch, shape, file, before, after = BUGS[name]
    folder = tmp_path / "kernels"
    shutil.copytree(KERNELS, folder)
    text = (folder / file).read_text()
    assert text.count(before) == 1, "the bug's place has changed"
    (folder / file).write_text(text.replace(before, after))
    with pytest.raises(AssertionError):
        check(make_rig, SHAPES[shape], switch, kernels=folder)


# ---- what a switch changes, and what it does not -------------------------------------------------
def layout_of(config: ModelConfig, switches: Switch, **wish: Any) -> Layout:
    device = DeviceDescription(
        name="emulated", workers=4, bandwidth=1e9, compute=1e9, source="a test", chunk=16,
        choice=Choice.EVERYONE, tile_rows=16,
    )  # fmt: skip
    return lay_out(
        build(config, device, "bfloat16", max_width=1), warps=2, switches=switches, **wish
    )


def test_small_slots_cut_the_same_sums() -> None:
    config = SHAPES["long rows"].config
    usual, small = (layout_of(config, x, slot_bytes=24 << 10) for x in (NONE, Switch.SLOTS))
    assert small.slot_bytes == 12 << 10
    assert small.ring_slots > usual.ring_slots
    assert small.tilings != usual.tilings
    for kind, tiling in usual.tilings.items():
        found = small.tilings[kind]
        assert replace(found, step=tiling.step, steps=tiling.steps) == tiling
        assert found.depth == tiling.depth
        assert found.slot_bytes(small.tile_bytes) <= small.slot_bytes


def test_a_capped_ring_has_fewer_bytes_on_their_way() -> None:
    config = SHAPES["one row"].config
    for slot_bytes in (24 << 10, 12 << 10):
        made = layout_of(config, Switch.IN_FLIGHT, slot_bytes=slot_bytes)
        assert made.slots_in_flight * slot_bytes == 72 << 10
        assert layout_of(config, NONE, slot_bytes=slot_bytes).slots_in_flight > 4


def test_words_of_two_numbers_need_pairs_of_one_block() -> None:
    usual = layout_of(SHAPES["one row"].config, Switch.PAIRS)
    assert usual.paired_hidden
    assert usual.paired_values
    assert not layout_of(SHAPES["joined lanes"].config, Switch.PAIRS).paired_hidden
    assert not layout_of(SHAPES["one row"].config, Switch.PAIRS, wide=True).paired_hidden
    assert not layout_of(SHAPES["one row"].config, NONE).paired_values
    with pytest.raises(ConfigError, match=r"words for diagnosis hold one number; leave it off"):
        layout_of(SHAPES["one row"].config, Switch.PAIRS, kept_passes=2)


def test_squares_are_exchanged_where_a_head_still_reads_them() -> None:
    for shape, told in (("one row", False), ("joined lanes", True)):
        program = layout_of(SHAPES[shape].config, Switch.NORM).program
        exchanged = {x.what for step in program.steps for op in step.ops
                     for x in program.touches(op)}  # fmt: skip
        assert (Exchange.SQUARES in exchanged) == told


def test_what_is_off_is_not_there() -> None:
    config = SHAPES["one row"].config
    usual, full = (layout_of(config, x) for x in (NONE, ALL))
    for layout, value in ((usual, "false"), (full, "true")):
        found = re.findall(r"constexpr bool SWITCH_(\w+) = (\w+);", specialisation(layout))
        assert found == [(x.name, value) for x in Switch]
    assert usual.shared.gains == usual.shared.state
    wide = specialisation(layout_of(config, ALL, wide=True))
    assert "SWITCH_TABLES = false" in wide
    assert "SWITCH_LANES = false" in wide


def test_norms_that_16_bits_do_not_hold() -> None:
    config = SHAPES["one row"].config
    weights = random_weights(config)
    weights.outer[Role.FINAL_NORM][..., 0] += 2.0**-12  # type: ignore[index]
    assert make_tables(layout_of(config, NONE), weights).gains is None
    with pytest.raises(ConfigError, match=r"norms that bfloat16 holds exactly; leave it off"):
        make_tables(layout_of(config, Switch.TABLES), weights)
    with pytest.raises(ConfigError, match=r"norms stored in bfloat16 or float16, got float32"):
        layout_of(replace(config, dtype="float32"), Switch.TABLES)


def test_every_switch_has_a_prediction() -> None:
    assert list(PREDICTIONS) == list(Switch)
    for prediction in PREDICTIONS.values():
        for dtype in ("bfloat16", "float8"):
            least, most = prediction.of(dtype)
            assert least < most


def test_the_page_has_every_prediction() -> None:
    page = (Path(__file__).parents[2] / "docs" / "monokernel.md").read_text()
    for switch, prediction in PREDICTIONS.items():
        ranges = [f"{least} to {most}" for least, most in (prediction.bfloat16, prediction.float8)]
        row = f"| `{switch.name}` | {prediction.what} | {' | '.join(ranges)} |"
        assert row in page, row
