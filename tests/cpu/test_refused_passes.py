"""What a rank refuses of a rank 0 that has the key: every field that is used as an index, a size or
a count. Each is told by its name, and the rank goes on listening.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from far_ranks import KEY, listening
from rank_lead import (
    COPY,
    CUT,
    DROP,
    FIRST_OUTPUT,
    HEAD_PART,
    LOGITS,
    LOST,
    MAGIC,
    PASS,
    RESTORE,
    SAVE,
    WRITTEN,
    RankLead,
    chore,
    ending,
    one_row,
    wish_of,
)

from monolane.cpu import CpuExecutor
from monolane.executor_api import RankAddresses
from monolane.model import Weights
from tests.random_models import write_random_model

WIDE, VOCAB, CONTEXT, SLOTS = 64, 64, 64, 2  # of passes in this arithmetic, and of `wish_of`
HIDDEN, LANES = 32, 2
RAW: dict[str, Any] = {
    "model_type": "laneformer",
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 96,
    "num_lanes": LANES,
    "broadcast_delay": 1,
    "torch_dtype": "float32",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("model"), RAW)


@pytest.fixture(scope="module")
def addresses(folder: Path) -> Iterator[RankAddresses]:
    with listening(folder, 1) as found:
        yield found
        # After all that was refused: an honest rank 0 is served, with the bits of one process.
        options: dict[str, Any] = {"context": 64, "slots": 1, "workers": 2}
        alone = CpuExecutor(Weights.open(folder), **options)
        executor = CpuExecutor(Weights.open(folder), ranks=found, patience=60.0, **options)
        ids = list(range(40))
        np.testing.assert_array_equal(executor.logits(0, ids), alone.logits(0, ids))
        executor.close()


@pytest.fixture
def lead(folder: Path, addresses: RankAddresses) -> Iterator[RankLead]:
    with RankLead(addresses.addresses[0], KEY) as found:
        wish = wish_of(Weights.open(folder), addresses.addresses)
        assert found.ask(wish) == {"ready": True}
        yield found


Change = Callable[[Any], None]


def put(name: str, value: int, index: int | None = None, field: str | None = None) -> Change:
    def change(made: Any) -> None:
        if field is not None:
            made[name][field][index] = value
        elif index is not None:
            made[name][index] = value
        else:
            made[name] = value

    return change


def rows(*found: tuple[int, int, int]) -> Change:
    def change(made: Any) -> None:
        made["width"] = len(found)
        made["rows"][: len(found)] = list(found)

    return change


def wanting(*found: int) -> Change:
    def change(made: Any) -> None:
        rows((0, 0, 1), (0, 1, 1))(made)
        made["wanted"] = len(found)
        made["wanted_row"][: len(found)] = found

    return change


def hidden(made: Any) -> None:
    made["hidden"] = 1


def with_chore(made: Any) -> None:
    made["chore"] = chore(DROP)


PASSES: dict[str, tuple[Change, str]] = {
    "width -1": (put("width", -1), "width: expected 0 to 64, got -1"),
    "width": (put("width", WIDE + 1), "width: expected 0 to 64, got 65"),
    "width far beyond": (put("width", 100_000), "width: expected 0 to 64, got 100000"),
    "lent": (put("lent", 1), "lent: expected 0, got 1"),
    "help": (put("help", 2), "help: expected 0, got 2"),
    "offered": (put("offered", 1), "offered: expected 0, got 1"),
    "hidden": (put("hidden", 2), "hidden: expected 0 to 1, got 2"),
    "hidden and logits": (hidden, "wanted: expected 0, got 1"),
    "slot": (rows((SLOTS, 0, 1)), "rows.slot 0: expected 0 to 1, got 2"),
    "slot -1": (rows((-1, 0, 1)), "rows.slot 0: expected 0 to 1, got -1"),
    "slot of a later row": (
        rows((0, 0, 1), (1 << 20, 0, 1)),
        "rows.slot 1: expected 0 to 1, got 1048576",
    ),
    "slot in two places": (
        rows((0, 0, 1), (1, 0, 1), (0, 1, 1)),
        "rows.slot 2: expected all rows of a slot together, got slot 0 a second time",
    ),
    "token": (rows((0, 0, VOCAB)), "rows.token 0: expected 0 to 63, got 64"),
    "token far beyond": (
        rows((0, 0, 0x7FFFFFF0)),
        "rows.token 0: expected 0 to 63, got 2147483632",
    ),
    "token -1": (rows((0, 0, -1)), "rows.token 0: expected 0 to 63, got -1"),
    "position": (rows((0, CONTEXT, 1)), "rows.position 0: expected 0 to 63, got 64"),
    "position -1": (rows((0, -1, 1)), "rows.position 0: expected 0 to 63, got -1"),
    "position left out": (rows((0, 0, 1), (0, 2, 1)), "rows.position 1: expected 1, got 2"),
    "runs": (put("runs", 1), "runs: expected 0, got 1"),
    "runs -1": (put("runs", -1), "runs: expected 0, got -1"),
    "wanted -1": (put("wanted", -1), "wanted: expected 0 to 1, got -1"),
    "wanted": (put("wanted", 5000), "wanted: expected 0 to 1, got 5000"),
    "wanted_row": (wanting(0, 2), "wanted_row 1: expected 1, got 2"),
    "wanted_row twice": (wanting(1, 1), "wanted_row 1: expected none, got 1"),
    "wanted_row -1": (wanting(-1), "wanted_row 0: expected 0 to 1, got -1"),
    "chore in a pass of rows": (with_chore, "chore.kind: expected 0, got 5"),
}


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_with_a_wrong_field_is_refused_by_its_name(lead: RankLead, name: str) -> None:
    change, told = PASSES[name]
    made = one_row()
    change(made)
    lead.send_pass(made)
    assert lead.refusal() == f"refused what rank 0 sent: pass.{told}"


KEPT = 7  # the name under which four positions are kept in these
CHORES: dict[str, tuple[np.ndarray, str]] = {
    "kind": (chore(DROP + 1), "kind: expected 0 to 5, got 6"),
    "kind -1": (chore(-1), "kind: expected 0 to 5, got -1"),
    "copy from": (chore(COPY, slot=SLOTS, target=0), "slot: expected 0 to 1, got 2"),
    "copy to": (chore(COPY, slot=0, target=1 << 24, end=64), "target: expected 0 to 1, got 16777"),
    "copy to itself": (chore(COPY, slot=0, target=0), "target: expected another slot than 0"),
    "copy beyond": (
        chore(COPY, slot=0, target=1, end=CONTEXT + 1),
        "end: expected 0 to 64, got 65",
    ),
    "save slot": (chore(SAVE, slot=1 << 20, end=64), "slot: expected 0 to 1, got 1048576"),
    "save backwards": (chore(SAVE, slot=0, begin=50, end=10), "begin: expected 0 to 10, got 50"),
    "save beyond": (chore(SAVE, slot=0, end=1 << 40), "end: expected 0 to 64, got 1099511627776"),
    "save before": (chore(SAVE, slot=0, begin=-1, end=4), "begin: expected 0 to 4, got -1"),
    "save a tail": (chore(SAVE, slot=0, end=4, has_tail=1), "has_tail: expected 0, got 1"),
    "save twice": (
        chore(SAVE, slot=0, end=4, name=KEPT),
        "name: expected a name from 0 on that is",
    ),
    "save without a name": (chore(SAVE, slot=0, end=4, name=-1), "name: expected a name from 0 on"),
    "restore nothing": (
        chore(RESTORE, slot=0, end=4, name=8),
        "name: expected a name that is kept",
    ),
    "restore slot": (chore(RESTORE, slot=-1, end=4, name=KEPT), "slot: expected 0 to 1, got -1"),
    "restore more": (chore(RESTORE, slot=0, end=5, name=KEPT), "begin: expected 1 to 5, got 0"),
    "restore beyond": (
        chore(RESTORE, slot=0, begin=61, end=65, name=KEPT),
        "end: expected 0 to 64, got 65",
    ),
    "restore a tail": (
        chore(RESTORE, slot=0, end=4, name=KEPT, has_tail=2),
        "has_tail: expected 0 to 1, got 2",
    ),
    "cut nothing": (chore(CUT, **{"from": 8}, name=9), "from: expected a name that is kept, got 8"),
    "cut more": (chore(CUT, **{"from": KEPT}, end=5, name=9), "end: expected 0 to 4, got 5"),
    "cut before": (
        chore(CUT, **{"from": KEPT}, begin=-1, end=4, name=9),
        "begin: expected 0 to 4, got -1",
    ),
    "cut to a name that is there": (
        chore(CUT, **{"from": KEPT}, end=2, name=KEPT),
        "name: expected a name from 0 on that is not kept, got 7",
    ),
    "cut without its tail": (
        chore(CUT, **{"from": KEPT}, end=2, name=9, tail_from=8),
        "tail_from: expected a name that is kept, got 8",
    ),
    "drop nothing": (chore(DROP, name=8), "name: expected a name that is kept, got 8"),
}


@pytest.mark.parametrize("name", CHORES)
def test_a_chore_with_a_wrong_field_is_refused_by_its_name(lead: RankLead, name: str) -> None:
    made, told = CHORES[name]
    lead.send_pass(ending(chore(SAVE, slot=0, end=4, name=KEPT)))
    lead.await_count(1)
    lead.send_pass(ending(made))
    assert f"refused what rank 0 sent: pass.chore.{told}" in lead.refusal()


def test_what_is_right_is_done(lead: RankLead) -> None:
    """Each kind of chore; and then a pass of rows, which waits for rank 0's part of it."""
    kept = {"from": KEPT}
    for count, made in enumerate(
        (
            chore(SAVE, slot=0, end=4, name=KEPT),
            chore(CUT, **kept, begin=1, end=3, name=8),
            chore(RESTORE, slot=1, end=4, name=KEPT),
            chore(RESTORE, slot=1, begin=4, end=6, name=8),
            chore(COPY, slot=1, target=0, end=6),
            chore(DROP, name=KEPT),
        ),
        1,
    ):
        lead.send_pass(ending(made))
        lead.send(0, count, 0, b"")  # rank 0's own worker has done it, too
        lead.await_count(count)
    lead.send_pass(one_row())
    lead.await_count(7)


def test_a_pass_waits_until_nobody_reads_the_last_one(lead: RankLead) -> None:
    """Rank 1 is in the midst of the first pass, and waits for rank 0's outputs."""
    lead.send_pass(one_row())
    lead.send_pass(one_row())
    assert lead.refusal() == (
        "refused what rank 0 sent: pass: expected none before worker 1 is through with the last "
        "one, got one"
    )


def output(part: int, rows: int, each: int, stride: int, offset: int) -> bytes:
    return WRITTEN.pack(part, rows, each, stride, offset, 0, 0)


LANE = 4 * WIDE * HIDDEN  # bytes of a lane's rows
TOLD = "frame.part: of worker 0, expected "
FRAMES: dict[str, tuple[tuple[int, int, int, bytes], str]] = {
    "no frame": ((0, 1, 1 << 20, b""), "frame: expected one of this version with at most 65536"),
    "worker of this rank": ((1, 1, 0, b""), "frame.worker: expected one of rank 0, got 1"),
    "worker beyond": ((3, 1, 0, b""), "frame.worker: expected one of rank 0, got 3"),
    "worker -2": ((-2, 1, 0, b""), "frame.worker: expected one of rank 0, got -2"),
    "count beyond": ((0, 1000, 0, b""), "frame.count: of worker 0, expected 1 to"),
    "count back": ((0, 0, 0, b""), "frame.count: of worker 0, expected 1 to"),
    "a pass that did not come": ((2, 1, 0, b""), "frame.count: of worker 2, expected 1 to 1 more"),
    "a lost rank": ((LOST, 1, 0, b""), "lost rank: expected 1 to 1 and at most 400 bytes, told to"),
    "the pass of a worker": ((0, 1, 1, output(HEAD_PART, 1, 8, 8, 0)), TOLD + "outputs"),
    "a part that is none": ((0, 1, 1, output(99, 1, 8, 8, 0)), TOLD + "outputs"),
    "half a pass": (
        (2, 1, 1, output(HEAD_PART, 1, 8, 8, 0)),
        "frame.part: of worker 2, expected one pass",
    ),
    "behind the pass": (
        (2, 1, 1, output(HEAD_PART, 1, PASS.itemsize, PASS.itemsize, 8)),
        "frame.part: of worker 2, expected one pass",
    ),
    "no rows": ((0, 1, 1, output(FIRST_OUTPUT, 0, 8, 8, 0)), TOLD + "as many rows as a pass"),
    "many rows": ((0, 1, 1, output(FIRST_OUTPUT, 257, 4, 4, 0)), TOLD + "as many rows as a pass"),
    "rows on rows": ((0, 1, 1, output(FIRST_OUTPUT, 64, 128, 0, 0)), TOLD + "rows that do not ove"),
    "half floats": ((0, 1, 1, output(FIRST_OUTPUT, 1, 6, 8, 0)), TOLD + "floats"),
    "between floats": ((0, 1, 1, output(FIRST_OUTPUT, 1, 8, 8, 2)), TOLD + "floats"),
    "beyond": (
        (0, 1, 1, output(FIRST_OUTPUT, 1, 128, 128, 1 << 40)),
        TOLD + "rows within the part",
    ),
    "over the end": (
        (0, 1, 1, output(LOGITS, 64, 4 * 65, 4 * 65, 0)),
        TOLD + "rows within the part",
    ),
    "another's lane": ((0, 1, 1, output(FIRST_OUTPUT, 1, 128, 128, LANE)), TOLD + "rows of one of"),
    "into another's lane": (
        (0, 1, 1, output(FIRST_OUTPUT, 1, 256, 256, LANE - 128)),
        TOLD + "rows of one of",
    ),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_with_a_wrong_field_is_refused_by_its_name(lead: RankLead, name: str) -> None:
    frame, told = FRAMES[name]
    lead.send(*frame)
    assert f"refused what rank 0 sent: {told}" in lead.refusal()


def test_other_frames_and_passes_out_of_turn_are_refused(
    lead: RankLead, folder: Path, addresses: RankAddresses
) -> None:
    lead.send(0, 1, 0, b"", magic=MAGIC - 1)
    assert "frame: expected one of this version" in lead.refusal()
    lead.channel.close()
    for count, parts in ((2, 1), (0, 1), (1, 2)):
        with RankLead(addresses.addresses[0], KEY) as other:
            assert "ready" in other.ask(wish_of(Weights.open(folder), addresses.addresses))
            other.send_pass(ending(chore(0)), count, parts)
            assert (
                "frame.count: of worker 2, expected 1 to 1 more than 0, with one" in other.refusal()
            )


SETTINGS: dict[str, tuple[tuple[str, ...], Any, str]] = {
    "rank 0": (("rank",), 0, "rank: expected 1 to 1, got 0"),
    "rank beyond": (("rank",), 2, "rank: expected 1 to 1, got 2"),
    "rank as a text": (("rank",), "1", "rank: expected 1 to 1, got '1'"),
    "addresses": (("addresses",), [], "addresses: expected 1 of host:port, got []"),
    "an address": (("addresses",), [7], "addresses: expected 1 of host:port, got [7]"),
    "patience 0": (("patience",), 0, "patience: expected seconds up to 86400, got 0"),
    "patience NaN": (
        ("patience",),
        float("nan"),
        "patience: expected seconds up to 86400, got nan",
    ),
    "patience": (("patience",), 1e300, "patience: expected seconds up to 86400, got 1e+300"),
    "digest": (("digest",), "x", "its model is another: expected SHA-256 'x'"),
    "setting": (("setting",), 5, "setting: expected the fields loading, isa"),
    "isa": (("setting", "isa"), "x", "isa: expected an instruction set that runs here"),
    "isa None": (("setting", "isa"), None, "setting.isa: expected a name, got None"),
    "lanes": (("setting", "lanes"), 7, "lanes: expected None or the 2 that this model has, got 7"),
    "lanes 0": (("setting", "lanes"), 0, "setting.lanes: expected 1 to 1024, got 0"),
    "link_delay": (("setting", "link_delay"), 1.0, "setting.link_delay: expected 0.0, got 1.0"),
    "timed": (("setting", "timed"), True, "setting.timed: expected False, got True"),
    "apart": (("setting", "apart"), False, "setting.apart: expected True, got False"),
    "loading": (("setting", "loading"), [], "setting.loading: expected the fields dtype, context"),
    "slots 0": (
        ("setting", "loading", "max_sequences"),
        0,
        "max_sequences: expected 1 to 64, got 0",
    ),
    "slots -1": (("setting", "loading", "max_sequences"), -1, "max_sequences: expected 1 to 64"),
    "slots": (("setting", "loading", "max_sequences"), 10**9, "max_sequences: expected 1 to 64"),
    "context 0": (("setting", "loading", "context"), 0, "setting.context: expected 1 to 96, got 0"),
    "context -5": (("setting", "loading", "context"), -5, "setting.context: expected 1 to 96"),
    "context": (("setting", "loading", "context"), 2**31, "setting.context: expected 1 to 96"),
    "context True": (("setting", "loading", "context"), True, "setting.context: expected 1 to 96"),
    "workers 0": (("setting", "loading", "workers"), 0, "workers: expected 1 to 1024, got 0"),
    "workers": (
        ("setting", "loading", "workers"),
        2**20,
        "workers: expected 1 to 1024, got 1048576",
    ),
    "workers 3": (
        ("setting", "loading", "workers"),
        3,
        "workers: expected a multiple of the 2 ranks",
    ),
    "ranks 1": (("setting", "loading", "ranks"), 1, "setting.ranks: expected 2 to 1024, got 1"),
    "ranks 3": (("setting", "loading", "ranks"), 3, "workers: expected a multiple of the 3 ranks"),
    "dtype": (("setting", "loading", "dtype"), "x", "dtype: expected one of auto, float32"),
    "dtype None": (
        ("setting", "loading", "dtype"),
        None,
        "setting.dtype: expected a name, got None",
    ),
    "cache_dtype": (("setting", "loading", "cache_dtype"), "x", "cache"),
    "cache_dtype []": (
        ("setting", "loading", "cache_dtype"),
        [],
        "setting.cache_dtype: expected a",
    ),
    "expert_memory": (
        ("setting", "loading", "expert_memory"),
        1,
        "setting.expert_memory: expected none of a model without experts",
    ),
    "expert_memory -1": (
        ("setting", "loading", "expert_memory"),
        -1,
        "setting.expert_memory: expected 1 to",
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_wish_with_a_wrong_field_is_refused_by_its_name(
    folder: Path, addresses: RankAddresses, name: str
) -> None:
    path, value, told = SETTINGS[name]
    wish = wish_of(Weights.open(folder), addresses.addresses)
    place: dict[str, Any] = wish
    for word in path[:-1]:
        place = place[word]
    place[path[-1]] = value
    with RankLead(addresses.addresses[0], KEY) as lead:
        assert told in lead.ask(wish)["error"]


@pytest.mark.parametrize("path", [(), ("setting",), ("setting", "loading")])
def test_a_wish_with_other_fields_is_refused(
    folder: Path, addresses: RankAddresses, path: tuple[str, ...]
) -> None:
    wish = wish_of(Weights.open(folder), addresses.addresses)
    place: dict[str, Any] = wish
    for word in path:
        place = place[word]
    place["other"] = 1
    with RankLead(addresses.addresses[0], KEY) as lead:
        told = lead.ask(wish)["error"]
        assert told.startswith(f"{'.'.join(path) or 'wish'}: expected the fields ")
