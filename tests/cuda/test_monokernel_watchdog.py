"""A block that falls silent ends the launch with a fault that says who waited in vain for what, and
the next launch finds nothing of it.

One copy of the kernel has a switch that mutes one kind of word of one block, so that the very
kernel that gave up can be seen to work again.
"""

import shutil
from dataclasses import dataclass
from dataclasses import replace as replace_field
from pathlib import Path

import numpy as np
import pytest
from emulation import KERNELS
from rig import Ask, MakeRig, Rig, random_weights, tiny_config

from monolane.cuda import _layout
from monolane.cuda._faults import WAITS, describe_fault
from monolane.cuda._program import Exchange
from monolane.model import NOW, Head, LayerConfig, QkNorm

LAYERS = (LayerConfig(NOW, NOW),) * 2
# Blocks of one lane starve together, in the wait that is not served; other lanes in their wait for
# that lane, and who looks at the clock first is the one who tells.
ONE_LANE = tiny_config(num_lanes=1, num_kv_heads=1, layers=LAYERS)
TWO_LANES = tiny_config(head=Head.MEAN, layers=LAYERS)
ASKS = (
    Ask(tokens=(1, 2, 3), budget=3),
    Ask(tokens=(4,), slot=1, budget=3, temperature=1.0, top_k=5, seed=3),
)
GUIDED = (
    ASKS[0],
    Ask(tokens=(4,), slot=1, guided=True, mask=np.array([0x30], np.uint32)),
)
PATIENCE = 100_000  # ticks; a healthy launch takes some ten thousand
SEEDS = 24
DEAF, GOOD = 1, 2  # block 0 never stops waiting; who does goes on with good stamps
HEARD = "const bool heard = is_alarmed(b.p);"
PLANTED = {
    HEARD: f"{HEARD} if ((b.p.control[3] & {DEAF}) && b.worker == 0) return false;",
    "| BAD_STAMPS);": f"| (b.p.control[3] & {GOOD} ? 0u : BAD_STAMPS));",
}
SWITCH = """#include "specialisation.h"
#define MUTED(what) (b.p.control[1] == (what) && b.p.control[2] == b.worker)
"""


@dataclass(frozen=True)
class Word:
    """Where a kind of word is published, and what is put before it."""

    file: str
    text: str
    muted: str
    # Waits of blocks that go on for a while and starve in the next thing that they need.
    later: tuple[str, ...] = ()


def silent(text: str, name: str) -> str:
    return f"if (!MUTED(AWAIT_{name})) {text}"


def word(file: str, text: str, name: str, *later: str) -> Word:
    return Word(file, text, silent(text, name), later)


WORDS = {
    "STREAM": word("stream.cuh", "publish(out + e.at(i), bits_of_float(*x)", "STREAM"),
    "SQUARES": Word(
        "stream.cuh",
        "if (b.index == 0) {\n      publish(square_words",
        "if (b.index == 0 && !MUTED(AWAIT_SQUARES)) {\n      publish(square_words",
    ),
    "QKV": word("qkv.cuh", "publish(words + row, row < VALUES_BEGIN", "QKV", "PARTIAL"),
    "PARTIAL": word("attend.cuh", "publish(out + d, bits_of_float(sum)", "PARTIAL"),
    "HIDDEN": word(
        "monokernel.cu", "publish(out + t * even(INNER) + own.begin + r", "HIDDEN", "LANES"
    ),
    "LANES": Word(
        "stream.cuh",
        "if (e.has(i)) post<AWAIT_LANES>(b, raw + e.at(i)",
        "if (e.has(i) && !MUTED(AWAIT_LANES)) post<AWAIT_LANES>(b, raw + e.at(i)",
        ("SQUARES", "STREAM"),
    ),
    "JOINED": word("joined.cuh", "post<AWAIT_JOINED>(b, out + own.begin + r", "JOINED"),
    "CANDIDATES": Word(
        "choose.cuh",
        "if (b.thread < offers) {",
        "if (b.thread < offers && !MUTED(AWAIT_CANDIDATES)) {",
    ),
    "CONTROL": Word(
        "choose.cuh",
        "if (b.worker == 0 && b.thread == 0) {\n    post<AWAIT_CONTROL>",
        "if (b.worker == 0 && b.thread == 0 && !MUTED(AWAIT_CONTROL)) {\n    post<AWAIT_CONTROL>",
        ("DECISION",),
    ),
    "LOGITS": word("choose.cuh", "post_to<AWAIT_LOGITS>(b, decider(w)", "LOGITS", "DECISION"),
    "DECISION": Word(
        "choose.cuh",
        "if (b.thread == 0) post<AWAIT_DECISION>(b, decision",
        "if (b.thread == 0 && !MUTED(AWAIT_DECISION)) post<AWAIT_DECISION>(b, decision",
    ),
    "GUIDE": word("choose.cuh", "post<AWAIT_GUIDE>(b, words, verdict", "GUIDE", "CANDIDATES"),
    # A copy that was begun lands always; the producer may fall behind.
    "WEIGHTS": Word(
        "weights.cuh",
        "while (!warp_all(barrier_passed(b.empty(to.slot), to.parity ^ 1))) {",
        "while (MUTED(AWAIT_WEIGHTS) ||\n"
        "           !warp_all(barrier_passed(b.empty(to.slot), to.parity ^ 1))) {",
        ("QKV", "PARTIAL"),
    ),
}
DEVICE_WORDS = {
    "BEST": Word(
        "choose.cuh",
        "if (b.leads() && b.thread < offers) {",
        "if (b.leads() && b.thread < offers && !MUTED(AWAIT_BEST)) {",
    ),
}
LANES_WORDS = {name: WORDS.pop(name) for name in ("LANES", "JOINED")}
WIDE_WORDS = {
    "LANE": Word(
        "block.cuh",
        "if (!b.state->failed) add_release(counter, 1);",
        "if (!b.state->failed && !MUTED(AWAIT_LANE)) add_release(counter, 1);",
    ),
}
MERGED_WORDS = {"MERGED": word("merge.cuh", "publish(merged_words(b, layer, t)", "MERGED")}
AFTER_WORDS = {
    "GAINED": word("stream.cuh", "publish(squares + t * even(BLOCKS) + b.member", "GAINED"),
}
HEAD_WORDS = {
    "HEAD_SQUARES": word(
        "qkv.cuh", "publish(head_square_words(b, layer, t, kind) + b.member", "HEAD_SQUARES"
    ),
}
ALL_WORDS = (
    WORDS | LANES_WORDS | WIDE_WORDS | DEVICE_WORDS | MERGED_WORDS | AFTER_WORDS | HEAD_WORDS
)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels with a switch for every kind of word."""
    folder = tmp_path_factory.mktemp("muted") / "kernels"
    shutil.copytree(KERNELS, folder)
    replace(folder / "block.cuh", '#include "specialisation.h"\n', SWITCH)
    for before, after in PLANTED.items():
        replace(folder / "block.cuh", before, after)
    for each in ALL_WORDS.values():
        replace(folder / each.file, each.text, each.muted)
    return folder


def replace(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1, f"{path.name} has changed: {before!r}"
    path.write_text(text.replace(before, after))


@pytest.fixture(scope="module")
def rigs(make_rig: MakeRig, kernels: Path) -> dict[str, Rig]:
    wish = {"widths": (4,), "kernels": kernels}
    one = random_weights(ONE_LANE)
    found = dict.fromkeys(WORDS, make_rig(one, workers=3, **wish))
    found |= dict.fromkeys(LANES_WORDS, make_rig(random_weights(TWO_LANES), workers=4, **wish))
    two = make_rig(random_weights(TWO_LANES), workers=4, devices=2, **wish)
    found |= dict.fromkeys(DEVICE_WORDS, two)
    heads = random_weights(replace_field(ONE_LANE, qk_norm=QkNorm.ALL))
    found |= dict.fromkeys(HEAD_WORDS, make_rig(heads, workers=3, **wish))
    after = random_weights(replace_field(ONE_LANE, norm_after=True))
    found |= dict.fromkeys(AFTER_WORDS, make_rig(after, workers=3, **wish))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_layout, "_MERGED_APART", 0)
        found |= dict.fromkeys(MERGED_WORDS, make_rig(one, workers=3, **wish))
    return found | dict.fromkeys(WIDE_WORDS, make_rig(one, workers=3, wide=True, **wish))


@pytest.mark.parametrize("name", ALL_WORDS)
def test_the_wait_is_named(rigs: dict[str, Rig], name: str) -> None:
    rig, asks = rigs[name], GUIDED if name == "GUIDE" else ASKS
    rig.forget()
    good = rig.launch(*asks)
    assert good.healthy, (good.error, good.fault)
    # Block 1 decides for the second row of a pass, block 2 is the first of the second device.
    speaker = {"CONTROL": 0, "GUIDE": 0, "BEST": 2}.get(name, 1)
    told = set()
    for seed in range(SEEDS):
        rig.forget()
        rig.memory["control"][1:3] = Exchange[name], speaker
        bad = rig.launch(*asks, seed=seed, watchdog=PATIENCE)
        assert bad.error is None, bad.error
        faults = bad.fault.reshape(-1, 8)  # of each device
        fault = next(x for x in faults if x.any())
        wait, block, _, phase, _, number = (int(x) for x in fault[:6])
        told.add(Exchange(wait).name)
        assert block < rig.layout.plan.groups.workers
        assert phase < 5 * len(LAYERS) + 2
        assert number < int(good.epoch["pass_number"])
        sentence = describe_fault(fault, rig.layout.plan)
        assert WAITS[Exchange(wait)] in sentence
        assert f"block {block} " in sentence
        # The host was told nothing that is not so.
        assert bad.events == good.events[: len(bad.events)]
        # Bounded: the wait, then a pass in which nobody waits any more.
        assert bad.effort.turns < 20 * good.effort.turns
    later = ALL_WORDS[name].later
    assert told <= {name, *later}
    assert name in told or later, "nobody else starves"
    rig.forget()  # as the executor does: words cleared, slots empty
    assert rig.launch(*asks, seed=1).same(good)


def test_nobody_takes_what_came_of_garbage(rigs: dict[str, Rig]) -> None:
    """Block 1's logits do not come. What is chosen without them does not reach block 0, which waits
    for the choice, and would wait for ever."""
    rig, asks = rigs["LOGITS"], tuple(replace_field(ask, budget=1) for ask in ASKS)
    rig.forget()
    good = rig.launch(*asks)

    def told(seed: int, planted: int) -> tuple[bool, str]:
        rig.forget()
        rig.memory["logit_words"][...] = 0x49742400  # 1e6 in float32: chosen where it is believed
        rig.memory["control"][1:4] = Exchange.LOGITS, 1, planted
        bad = rig.launch(*asks, seed=seed, watchdog=PATIENCE)
        rig.memory["control"][1:4] = 0
        return bad.events != good.events[: len(bad.events)], bad.error or ""

    for seed in range(SEEDS):
        lied, error = told(seed, DEAF)
        assert not lied
        assert "livelock: " in error, "it did not wait"
    assert any(told(seed, DEAF | GOOD)[0] for seed in range(SEEDS))


def test_every_wait_is_tried() -> None:
    assert set(ALL_WORDS) == {x.name for x in WAITS}
