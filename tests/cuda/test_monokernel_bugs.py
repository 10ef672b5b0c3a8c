"""Bugs on purpose: each is found, by a wrong result, a fault or the emulator, within few schedules.

They are put into a copy of the kernels' folder, so that the shipped source has no hooks for tests.
Found here are errors of the protocol: who publishes, stamps, awaits, reuses and hands back what,
and when. Only a real GPU can show the others: a missing release or acquire around the plain stores
of wide passes (the emulator's are seen at once), words stored in halves, loads that a stale L1
serves, a missing proxy fence between mbarriers or shared memory and the copy engine, a warp's
threads handing a slot back before their own loads, grids that are not resident at once, and what
matrix units and exponentials round.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from emulation import KERNELS
from rig import MakeRig
from schedules import CASES, Case

SCHEDULES = 60  # by which a bug must have shown


@dataclass(frozen=True)
class Bug:
    """``before`` becomes ``after``, the one time that it occurs."""

    file: str
    before: str
    after: str
    case: str


TWO_BLOCKS, BEHIND = "batch of two", "norms behind modules"
BUGS = {
    # ---- words -----------------------------------------------------------------------------------
    "squares not published": Bug(
        "stream.cuh",
        "if (b.index == 0) {\n      publish(square_words",
        "if (b.index == 0 && b.member == 0) {\n      publish(square_words",
        TWO_BLOCKS,
    ),
    "a stamp for the whole pass": Bug(
        "block.cuh",
        "return state->first_stamp + event;",
        "return state->first_stamp + 0 * event;",
        TWO_BLOCKS,
    ),
    "queries stamped one event too early": Bug(
        "qkv.cuh",
        "stamp = b.stamp(event_after(layer, ATTENTION));",
        "stamp = b.stamp(event_after(layer, MLP) - 2);",
        TWO_BLOCKS,
    ),
    "one stamp of a pair checked": Bug(
        "block.cuh",
        "if (got[k].a.stamp == stamp && got[k].b.stamp == stamp) pending",
        "if (got[k].a.stamp == stamp) pending",
        TWO_BLOCKS,
    ),
    "sums of a partial checked, maximum not": Bug(
        "merge.cuh",
        "sums[k].b.stamp == stamp && tail[k].a.stamp == stamp &&\n"
        "              tail[k].b.stamp == stamp) {",
        "sums[k].b.stamp == stamp) {",
        "long context",
    ),
    # ---- buffers that are used again -------------------------------------------------------------
    "one buffer of the stream": Bug(
        "stream.cuh",
        "b.p.stream_words + static_cast<u64>(copy * LANES + lane)",
        "b.p.stream_words + static_cast<u64>(0 * copy + lane)",
        "idle blocks",
    ),
    "too few slots of raw outputs": Bug(
        "stream.cuh", "layer % ATTENTION_SLOTS", "layer % (ATTENTION_SLOTS - 2)", "late outputs"
    ),
    "one buffer of candidates": Bug(
        "choose.cuh",
        "(choice_copy(b) * WIDTH + row) * WORKERS",
        "(row) * WORKERS",
        "lanes apart",
    ),
    "one word of control": Bug(
        "choose.cuh",
        "u32 buffer = choice_copy(b),",
        "u32 buffer = 0,",
        "lanes apart",
    ),
    "one buffer of a wide pass's activations": Bug(
        "block.cuh",
        "static_cast<u64>(sync % ACTIVATION_SLOTS)",
        "static_cast<u64>(0 * sync)",
        "wide pass",
    ),
    # ---- barriers of a block ---------------------------------------------------------------------
    "sums read before all warps have them": Bug(
        "weights.cuh",
        "  compute_barrier();  // publishes the sums and the scales\n",
        "",
        TWO_BLOCKS,
    ),
    "scales read before they are there": Bug(
        "weights.cuh", "  if constexpr (WEIGHTS == F8) copy_async_wait<0>();\n", "", "float8"
    ),
    "scales of the last product not guarded": Bug(
        "weights.cuh",
        "    compute_barrier();  // publishes the activations to all warps\n    note(b, BEGUN);\n"
        "    if constexpr (WEIGHTS == F8) fetch_scales<ROWS, FIRST_ROW>(b);\n",
        "    fetch_scales<ROWS, FIRST_ROW>(b);\n    compute_barrier();\n",
        "float8",
    ),
    "products begun before the activations are there": Bug(
        "weights.cuh",
        "    compute_barrier();  // publishes the activations to all warps\n",
        "",
        TWO_BLOCKS,
    ),
    "attention begun before the queries are there": Bug(
        "attend.cuh",
        "    compute_barrier();  // publishes queries, and the pass's keys and values in the "
        "cache\n",
        "",
        "verify four",
    ),
    "warps' attention merged too soon": Bug(
        "attend.cuh",
        "    compute_barrier();  // publishes the warps' results\n",
        "",
        "long context",
    ),
    "scratch of attention not guarded": Bug(
        "attend.cuh",
        "    compute_barrier();  // guards the scratch against the next rows\n",
        "",
        "verify four",
    ),
    "squares of rows that others still write": Bug(
        "stream.cuh", "u32 rows) {\n  compute_barrier();\n", "u32 rows) {\n", TWO_BLOCKS
    ),
    "squares of what others still add": Bug(
        "stream.cuh",
        "  compute_barrier();  // publishes what is gained to the warps that add its squares\n",
        "",
        BEHIND,
    ),
    "norms of what is gained read too soon": Bug(
        "stream.cuh",
        "  compute_barrier();  // publishes the norms of what is gained to all threads\n",
        "",
        BEHIND,
    ),
    "norms of all heads read too soon": Bug(
        "qkv.cuh",
        "  compute_barrier();  // publishes the norms of all heads to all threads\n",
        "",
        "a norm of all heads",
    ),
    "norms read too soon": Bug(
        "stream.cuh",
        "await_norm(b, event, b.prepared_token(i));\n  compute_barrier();\n",
        "await_norm(b, event, b.prepared_token(i));\n",
        TWO_BLOCKS,
    ),
    "best not guarded": Bug(
        "choose.cuh",
        "  compute_barrier();  // guards `best` against the readers in offer_candidates\n",
        "",
        TWO_BLOCKS,
    ),
    "largest logit read too soon": Bug(
        "choose.cuh", "  compute_barrier();  // publishes the warps' largest\n", "", TWO_BLOCKS
    ),
    "a histogram read while it is counted": Bug(
        "choose.cuh", "    compute_barrier();  // publishes the counts\n", "", TWO_BLOCKS
    ),
    "the next pass begun before it is laid out": Bug(
        "monokernel.cu",
        "  compute_barrier();  // publishes the next pass; guards the state of this one\n",
        "",
        TWO_BLOCKS,
    ),
    "the next pass laid out before the tokens are there": Bug(
        "choose.cuh",
        "  compute_barrier();  // publishes `chosen` and `stop` to the thread that lays out the "
        "next pass\n",
        "",
        TWO_BLOCKS,
    ),
    "a lane's blocks do not await each other": Bug(
        "block.cuh",
        "while (static_cast<i32>(load_acquire(counter) - b.syncs * BLOCKS) < 0) {",
        "while (static_cast<i32>(load_acquire(counter) - b.syncs * BLOCKS) < -1) {",
        "wide pass",
    ),
    "staged columns read too soon": Bug(
        "weights.cuh", "      copy_async_wait<0>();\n", "", "wide pass"
    ),
    # ---- the ring --------------------------------------------------------------------------------
    "a slot handed back before it is read": Bug(
        "weights.cuh",
        "      const u8* tiles = slot_tiles<GROUP, STEP>(b);\n#pragma unroll\n"
        "      for (u32 j = 0; j < STEP; ++j) {\n        u32 fragment[TOKEN_TILES][2];\n"
        "#pragma unroll\n        for (u32 i = 0; i < TOKEN_TILES; ++i) {\n"
        "          const u32* pair = reinterpret_cast<const u32*>(x[i] + j * 32);",
        "      const u8* tiles = slot_tiles<GROUP, STEP>(b);\n"
        "      if (b.index == 0) barrier_arrive(b.empty(b.slot));\n#pragma unroll\n"
        "      for (u32 j = 0; j < STEP; ++j) {\n        u32 fragment[TOKEN_TILES][2];\n"
        "#pragma unroll\n        for (u32 i = 0; i < TOKEN_TILES; ++i) {\n"
        "          const u32* pair = reinterpret_cast<const u32*>(x[i] + j * 32);",
        TWO_BLOCKS,
    ),
    "a slot filled before it is free": Bug(
        "weights.cuh",
        "while (!warp_all(barrier_passed(b.empty(to.slot), to.parity ^ 1))) {",
        "while (to.slot != 0 && !warp_all(barrier_passed(b.empty(to.slot), to.parity ^ 1))) {",
        TWO_BLOCKS,
    ),
    "a lap of the ring not counted": Bug(
        "weights.cuh",
        "if (++b.slot == RING_SLOTS) b.slot = 0, b.parity ^= 1;",
        "if (++b.slot == RING_SLOTS) b.slot = 0;",
        TWO_BLOCKS,
    ),
    "copies not awaited at the end": Bug(
        "weights.cuh", "i != to.issued; ++i) {", "false && i != to.issued; ++i) {", TWO_BLOCKS
    ),
    # ---- what is looked at -----------------------------------------------------------------------
    "keys written by another split": Bug(
        "attend.cuh",
        "kept = position / CHUNK % SPLITS == split;",
        "kept = (position / CHUNK + 1) % SPLITS == split;",
        "long context",
    ),
    "values beyond the sequence not masked": Bug(
        "attend.cuh",
        "pair[0] & keep[0], pair[1] & keep[1]",
        "pair[0] + 0 * keep[0], pair[1] + 0 * keep[1]",
        TWO_BLOCKS,
    ),
    "scores beyond the sequence not masked": Bug(
        "attend.cuh",
        "seen[half][k] = position >= oldest[r] && position <= last[r];",
        "seen[half][k] = position >= oldest[r] || position <= last[r];",
        "verify four",
    ),
    "a window one key too long": Bug(
        "attend.cuh", "position - window + 1 : 0", "position - window : 0", "window wraps"
    ),
    "padding not cleared": Bug(
        "weights.cuh",
        "  (clear_padding<T.columns, T.padded_columns>(b), \\\n   multiply<",
        "  (multiply<",
        "uneven rows",
    ),
}
ALWAYS = (
    "squares not published",
    "one stamp of a pair checked",
    "one buffer of candidates",
    "best not guarded",
    "a slot filled before it is free",
)


def plant(bug: Bug, folder: Path) -> Path:
    """A copy of the kernels with the bug in it."""
    shutil.copytree(KERNELS, folder, dirs_exist_ok=True)
    path = folder / bug.file
    text = path.read_text()
    assert text.count(bug.before) == 1, f"{bug.file} has changed: plant this bug anew"
    path.write_text(text.replace(bug.before, bug.after))
    return folder


def first_sign(case: Case, make_rig: MakeRig, folder: Path, schedules: int) -> int | None:
    """The first schedule in which something is wrong."""
    good = case.make(make_rig)
    state = case.fill(good)
    expected = case.expected(good, state)
    rig = case.make(make_rig, kernels=folder)
    for seed in range(schedules):
        outcome = case.launch(rig, state, seed)
        if not outcome.same(expected[seed % len(expected)]):
            return seed
    return None


def check(make_rig: MakeRig, folder: Path, name: str) -> None:
    bug = BUGS[name]
    planted = plant(bug, folder / "kernels")
    assert first_sign(CASES[bug.case], make_rig, planted, SCHEDULES) is not None


@pytest.mark.parametrize("name", ALWAYS)
def test_a_bug_shows(make_rig: MakeRig, tmp_path: Path, name: str) -> None:
    check(make_rig, tmp_path, name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in BUGS if name not in ALWAYS])
def test_another_bug_shows(make_rig: MakeRig, tmp_path: Path, name: str) -> None:
    check(make_rig, tmp_path, name)


def test_a_copy_without_a_bug_shows_nothing(make_rig: MakeRig, tmp_path: Path) -> None:
    folder = shutil.copytree(KERNELS, tmp_path / "kernels")
    assert first_sign(CASES[TWO_BLOCKS], make_rig, folder, 20) is None


def test_all_bugs_can_be_planted(tmp_path: Path) -> None:
    """That the source still has the places, without the time that running them takes."""
    for i, bug in enumerate(BUGS.values()):
        plant(bug, tmp_path / str(i))
        assert bug.case in CASES
