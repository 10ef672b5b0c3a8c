"""The monokernel on several devices: the bits of one, under links that are late and disordered.

Each emulated device has memory of its own, in which nobody else reads; what others store there
comes over links, late, in any order but for the same word; devices start at different times, and
one may stop for ever. Bugs that are put in on purpose are found.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulation import KERNELS, MOODS
from rig import GOLDEN, MakeRig, Outcome, Rig, golden_weights, tiny_config
from schedules import CASES, LATE, Case, one
from test_monokernel import WORKERS, golden_ids, run_pieces, run_whole

from monolane.cuda._faults import describe_faults
from monolane.cuda._lay_out import lay_out
from monolane.cuda._program import POSTED, Exchange, Program
from monolane.cuda._race_check import faults
from monolane.model import NOW, LayerConfig, ModelConfig, QkNorm, in_lanes, read_config
from monolane.plan import Choice, DeviceDescription, build

SKEW = 3000  # ticks: some tenths of a pass
PATIENCE = 100_000  # ticks; a healthy launch takes some ten thousand

# Outputs summed at once and a layer later; greedy draws, draws, and a limited choice.
TWO = Case(
    config=tiny_config(layers=(LayerConfig(NOW, NOW), *[LayerConfig(LATE, LATE)] * 4)),
    workers=4,
    asks=(one(1, budget=2), one(2, slot=1, budget=2)),
    before=(3, 5),
    wish={"widths": (2,)},
)
FOUR = replace(
    TWO,
    config=tiny_config(
        num_lanes=4,
        num_heads=4,
        num_kv_heads=4,
        layers=(LayerConfig(NOW, NOW), LayerConfig(LATE, LATE)),
    ),
)
# A dense model cut into four lanes: biases, norms of heads, one KV head that each lane has, and one
# head for all lanes on their mean.
DENSE = Case(
    config=in_lanes(
        tiny_config(
            family="llama", num_lanes=1, num_heads=4, num_kv_heads=1, vocab_size=25,
            qkv_bias=True, qk_norm=QkNorm.HEAD,
        ),
        4,
    ),
    workers=4,
    asks=(one(1, budget=2), one(2, slot=1, budget=2)),
    before=(3, 5),
    wish={"widths": (2,)},
)  # fmt: skip
# Devices that hear of each other in the choice alone, one of which may be a pass ahead.
APART = CASES["lanes apart"]
# More blocks on a device than a warp has threads.
MANY = Case(
    config=tiny_config(hidden_size=34, vocab_size=70, layers=(LayerConfig(NOW, NOW),)),
    workers=68,
    asks=(one(1, budget=2),),
)


def check(make_rig: MakeRig, case: Case, devices: int, seeds: range) -> None:
    """The bits of one device."""
    alone = case.make(make_rig)
    expected = case.expected(alone, case.fill(alone))
    rig = case.make(make_rig, devices=devices)
    state = case.fill(rig)
    for seed in seeds:
        outcome = case.launch(rig, state, seed, skew=SKEW)
        assert outcome.same(expected[seed % 3]), (seed, outcome.error, outcome.fault)


def test_two_devices(make_rig: MakeRig) -> None:
    check(make_rig, TWO, 2, range(24))


# Two lanes on each of two devices, or one on each of four.
@pytest.mark.parametrize(
    "devices",
    [pytest.param(2, marks=pytest.mark.exhaustive), pytest.param(4, marks=pytest.mark.slow)],
)
def test_a_dense_model_in_lanes(make_rig: MakeRig, devices: int) -> None:
    check(make_rig, DENSE, devices, range(24))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "devices"),
    [(x, n) for x, case in CASES.items() for n in (2, 4, 8) if case.config.num_lanes % n == 0],
)
def test_schedules(make_rig: MakeRig, name: str, devices: int) -> None:
    check(make_rig, CASES[name], devices, range(150))


# ---- golden files --------------------------------------------------------------------------------
def check_golden(make_rig: MakeRig, name: str, devices: int, widths: tuple[int, ...]) -> None:
    """The bits of one device, which test_monokernel.py holds against the oracle, in every mood."""
    weights, ids = golden_weights(name), golden_ids(name, 12)
    workers = WORKERS[name][0]
    expected = run_whole(make_rig(weights, workers=workers, widths=(8,)), ids, 8).tobytes()
    rig = make_rig(weights, workers=workers, widths=widths, devices=devices)
    for width in widths:
        for seed, mood in enumerate(MOODS):
            logits = run_whole(rig, ids, width, seed, mood=mood, skew=SKEW)
            assert logits.tobytes() == expected, (width, mood)
        pieces = run_pieces(rig, ids, (1, 5, 2), width, skew=SKEW)
        assert pieces.tobytes() == expected, width


# Every way to deal a golden file's lanes out to 2, 4 and 8 devices.
DEALT = [(x, n) for x in WORKERS for n in (2, 4, 8) if read_config(GOLDEN / x).num_lanes % n == 0]


# One of each number of devices in every run, by the kernel of many rows.
@pytest.mark.parametrize(
    ("name", "devices"), [("no_comm", 2), ("released_shape", 4), ("delay1_8lanes", 8)]
)
def test_golden_files_by_one_kernel(make_rig: MakeRig, name: str, devices: int) -> None:
    check_golden(make_rig, name, devices, (8,))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "devices"), DEALT)
def test_golden_files(make_rig: MakeRig, name: str, devices: int) -> None:
    check_golden(make_rig, name, devices, (8, 1))


# ---- a device that dies --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("case", "dead"),
    [(FOUR, 0), (FOUR, 2), pytest.param(DENSE, 1, marks=pytest.mark.slow)],
    ids=["0", "2", "dense, 1"],
)
def test_a_device_that_dies_is_named(make_rig: MakeRig, case: Case, dead: int) -> None:
    rig = case.make(make_rig, devices=4)
    state = case.fill(rig)
    good = case.launch(rig, state, 0, mood="brisk")
    assert good.healthy
    for seed in range(0, 24, 3):  # seeds that choose as the good one
        tick = 1 + seed * good.effort.ticks // 24
        bad = case.launch(rig, state, seed, skew=SKEW, dies=(dead, tick), watchdog=PATIENCE)
        assert bad.error is None, bad.error
        if bad.same(good):
            continue  # a slow schedule's twenty-fourths are not the good one's; it had ended
        sentence = describe_faults(bad.fault, rig.layout.plan)
        assert sentence.startswith(f"device {dead} of 4"), sentence
        assert not bad.fault[dead].any()
        assert bad.events == good.events[: len(bad.events)], "the host was told what is not so"
        for home in rig.homes:
            home["fault"][...] = 0
    # Words cleared and slots as before, as the executor does: nothing of it is left.
    assert case.launch(rig, state, 0, skew=SKEW).same(good)


# ---- bugs on purpose -----------------------------------------------------------------------------
@dataclass(frozen=True)
class Bug:
    """``before`` becomes ``after``, which asks BUG(number) whether it is to be."""

    file: str
    before: str
    after: str


BUGS = {
    "outputs not posted": Bug(
        "block.cuh",
        "if constexpr (is_posted(WHAT)) store_at_peers(b, word, value, stamp);",
        "if (is_posted(WHAT) && !(BUG && WHAT == AWAIT_LANES && b.p.device == 0)) {\n"
        "    store_at_peers(b, word, value, stamp);\n  }",
    ),
    "a stamp missing": Bug(
        "block.cuh",
        "publish_system(reinterpret_cast<Word*>(there), value, stamp);",
        "publish_system(reinterpret_cast<Word*>(there), value,\n"
        "                 stamp - (BUG && b.thread == 5 && stamp % 7 == 3));",
    ),
    "a slot too few": Bug(
        "stream.cuh",
        "layer % ATTENTION_SLOTS :",
        "layer % (BUG ? ATTENTION_SLOTS - 2 : ATTENTION_SLOTS) :",
    ),
    "an offer not awaited": Bug(
        "choose.cuh",
        "gather(b, w, words, DEVICE_WORKERS, AWAIT",
        "gather(b, w, words, DEVICE_WORKERS - BUG, AWAIT",
    ),
    "best of the device read too soon": Bug(
        "choose.cuh",
        "    compute_barrier();  // publishes the warps' best of the device\n",
        "    if (!BUG) compute_barrier();\n",
    ),
    "a word of a link read with device scope": Bug(
        "stream.cuh",
        "look(AWAIT_LANES, raw_words(",
        "look(BUG ? AWAIT_STREAM : AWAIT_LANES, raw_words(",
    ),
    "a store to a peer with device scope": Bug(
        "block.cuh",
        "  u8* there = reinterpret_cast<u8*>(word) + b.p.peers[device];\n",
        "  u8* there = reinterpret_cast<u8*>(word) + b.p.peers[device];\n"
        "  if (BUG) publish(reinterpret_cast<Word*>(there), value, stamp);\n",
    ),
    "logits sent to another device": Bug(
        "block.cuh", "= reader / DEVICE_WORKERS;", "= (reader / DEVICE_WORKERS + BUG) % DEVICES;"
    ),
    "another device's cache": Bug(
        "attend.cuh", "u64 head = b.lane_here() *", "u64 head = (BUG ? b.lane : b.lane_here()) *"
    ),
    "another device's weights": Bug(
        "weights.cuh", "b.p.weights + b.here() *", "b.p.weights + (BUG ? b.worker : b.here()) *"
    ),
    "one buffer of the devices' best": Bug(
        "choose.cuh",
        "(choice_copy(b) * WIDTH + row) * DEVICES",
        "((BUG ? 0 : choice_copy(b)) * WIDTH + row) * DEVICES",
    ),
}
# The watchdog's: they show where a device is late, and nowhere else.
ALARM_BUGS = {
    "a watchdog that never fires": Bug(
        "block.cuh",
        "if (now - patience.since < b.p.watchdog_ns &&",
        "if ((BUG || now - patience.since < b.p.watchdog_ns) &&",
    ),
    "an alarm that names another device": Bug(
        "block.cuh", "source / DEVICE_WORKERS);\n", "(source / DEVICE_WORKERS ^ BUG));\n"
    ),
    "an alarm that nobody hears": Bug(
        "block.cuh",
        "    store_at_peers(b, b.p.alarm_word,",
        "    if (!BUG) store_at_peers(b, b.p.alarm_word,",
    ),
}
HUGE = 0x49742400  # 1e6 in float32
DEAF = 1 << 60, PATIENCE  # device 0 does not give up but by device 1's alarm
# Bugs that need more than a schedule of TWO: a device ahead, or candidates for two warps.
IN_APART = ("one buffer of the devices' best",)
IN_MANY = ("best of the device read too soon",)
LONELY = (*IN_APART, *IN_MANY)
PLANTED = BUGS | ALARM_BUGS
NUMBERS = {name: i for i, name in enumerate(PLANTED)}


@pytest.fixture(scope="module")
def buggy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels with all bugs in them, each with a switch."""
    folder = tmp_path_factory.mktemp("buggy") / "kernels"
    shutil.copytree(KERNELS, folder)
    for name, bug in PLANTED.items():
        path = folder / bug.file
        text = path.read_text()
        assert text.count(bug.before) == 1, f"{bug.file} has changed: plant {name!r} anew"
        after = bug.after.replace("BUG", f"(b.p.control[1] >> {NUMBERS[name]} & 1)")
        path.write_text(text.replace(bug.before, after))
    return folder


@pytest.fixture(scope="module")
def switched(make_rig: MakeRig, buggy: Path) -> Rig:
    return TWO.make(make_rig, devices=2, kernels=buggy)


def signs(
    case: Case, rig: Rig, names: tuple[str, ...], seeds: range, watchdog: Any = PATIENCE
) -> Iterator[Outcome]:
    """What shows of bugs: outcomes that are not as they should be, with the events that lie."""
    rig.memory["control"][1] = 0
    rig.forget()
    state = case.fill(rig)
    for kept in state.memory:  # stale outputs, of which nobody must make anything: all of them huge
        words = kept["raw_words"]
        words[...] = words >> np.uint64(32) << np.uint64(32) | np.uint64(HUGE)
    expected = case.expected(rig, state)
    rig.memory["control"][1] = sum(1 << NUMBERS[name] for name in names)
    for seed in seeds:
        outcome = case.launch(rig, state, seed, skew=SKEW, watchdog=watchdog)
        wanted = expected[seed % 3]
        if not outcome.same(wanted):
            pairs = zip(outcome.events, wanted.events, strict=False)
            yield replace(outcome, events=tuple(told for told, true in pairs if told != true))


@pytest.mark.parametrize("name", [name for name in BUGS if name not in LONELY])
def test_a_bug_shows(switched: Rig, name: str) -> None:
    assert any(signs(TWO, switched, (name,), range(60)))


def test_no_bug_shows_nothing(switched: Rig) -> None:
    assert not any(signs(TWO, switched, (), range(12)))


def test_nothing_is_told_that_came_of_garbage(switched: Rig) -> None:
    """Device 1 gets no outputs of device 0, and goes on with garbage, which device 0 awaits."""
    told = list(signs(TWO, switched, ("outputs not posted",), range(24), DEAF))
    assert len(told) == 24
    assert not any(outcome.events for outcome in told)


def test_an_alarm_that_nobody_hears_shows(switched: Rig) -> None:
    """Device 0 waits for ever for device 1, which has gone."""
    told = signs(
        TWO, switched, ("outputs not posted", "an alarm that nobody hears"), range(6), DEAF
    )
    assert any("livelock: " in (outcome.error or "") for outcome in told)


def alarms(rig: Rig, *names: str) -> Iterator[str]:
    """What is said of a device that dies, or, of an emulator that ends for ever, what it says."""
    for seed, dead in product(range(0, 12, 3), range(2)):
        rig.memory["control"][1] = 0
        rig.forget()
        state = TWO.fill(rig)
        rig.memory["control"][1] = sum(1 << NUMBERS[name] for name in names)
        outcome = TWO.launch(rig, state, seed, dies=(dead, 1000), watchdog=PATIENCE)
        rig.memory["control"][1] = 0
        if outcome.error:
            yield outcome.error
        elif not describe_faults(outcome.fault, rig.layout.plan).startswith(f"device {dead} of 2"):
            yield "another device is named"


def test_the_alarm_without_a_bug(switched: Rig) -> None:
    assert not list(alarms(switched))


def test_a_watchdog_that_never_fires_shows(switched: Rig) -> None:
    said = list(alarms(switched, "a watchdog that never fires"))
    assert len(said) == 8
    assert all(text.startswith("livelock: ") for text in said)


def test_an_alarm_that_names_another_device_shows(switched: Rig) -> None:
    assert "another device is named" in alarms(switched, "an alarm that names another device")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [*IN_APART, *IN_MANY])
def test_another_bug_shows(make_rig: MakeRig, buggy: Path, name: str) -> None:
    case = APART if name in IN_APART else MANY
    rig = case.make(make_rig, devices=2, kernels=buggy)
    assert any(signs(case, rig, (name,), range(60)))


# ---- the proof -----------------------------------------------------------------------------------
@pytest.mark.parametrize("what", POSTED, ids=lambda what: what.name)
def test_the_proof_wants_what_others_await_to_be_posted(what: Exchange) -> None:
    program = program_of(CASES["uneven rows"].config)  # whose head reads all lanes
    assert not list(faults(program))
    broken = replace(program, posted=program.posted - {what})
    assert any(what.name in fault for fault in faults(broken))


def test_the_proof_wants_two_copies_of_the_devices_best() -> None:
    program = program_of(APART.config)
    assert not list(faults(program))
    broken = replace(program, slots=replace(program.slots, choice=1))
    assert any("BEST" in fault for fault in faults(broken))


def program_of(config: ModelConfig) -> Program:
    """On two devices, two blocks a lane."""
    device = DeviceDescription(
        name="emulated", workers=2 * config.num_lanes, bandwidth=1e9, compute=1e9, source="a test",
        chunk=16, choice=Choice.EVERYONE, tile_rows=16,
    )  # fmt: skip
    plan = build(config, device, "bfloat16", max_width=1, context=None)
    return lay_out(plan, warps=2, slot_bytes=4096, devices=2).program
