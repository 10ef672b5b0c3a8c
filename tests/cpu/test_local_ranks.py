"""Several processes that decode one request: the bits of one process, and what a lost one does."""

import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from far_ranks import listening

from monolane._core import kernels
from monolane.cpu import CpuExecutor, _native, _rank_main
from monolane.cpu._native import Setting
from monolane.cpu._rank_messages import say
from monolane.cpu._ranked_kv import RankKept
from monolane.errors import BackendError, RankError, RequestError
from monolane.executor_api import SETUP, Advance, Draw, Guide, Loading, RankAddresses, TokenEvent
from monolane.model import Weights, parse_config, tensor_specs, write_checkpoint

GOLDEN = Path(__file__).parents[1] / "golden"
DEMO = Path(__file__).parents[2] / "src" / "monolane" / "demo"
IDS = np.random.default_rng(0).integers(512, size=150).tolist()


def make(
    folder: Path, ranks: int | RankAddresses, workers: int = 4, **options: object
) -> CpuExecutor:
    wanted = {"context": 1024 if folder == DEMO else 128, "slots": 3} | options
    return CpuExecutor(Weights.open(folder), workers=workers, ranks=ranks, **wanted)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def alone() -> CpuExecutor:
    return make(DEMO, 1)


@pytest.fixture(
    scope="module",
    params=[
        ("memory", 2),
        ("tcp", 2),
        pytest.param(("memory", 4), marks=pytest.mark.slow),
        pytest.param(("tcp", 4), marks=pytest.mark.slow),
    ],
    ids=str,
)
def together(request: pytest.FixtureRequest) -> Iterator[CpuExecutor]:
    transport, ranks = request.param
    if transport == "memory":
        executor = make(DEMO, ranks, patience=60.0)
        yield executor
        executor.close()
        return
    with listening(DEMO, ranks - 1) as addresses:
        executor = make(DEMO, addresses, patience=60.0)
        yield executor
        executor.close()


def test_what_ranks_share_has_its_memory_from_the_start() -> None:
    """A page that is taken when it is first touched is a signal where no memory is left."""
    executor = make(DEMO, 2)
    segment = os.fstat(executor._core.segment)
    assert segment.st_blocks * 512 >= segment.st_size > 0
    executor.close()


def test_no_memory_to_share_is_an_error_before_any_rank_starts() -> None:
    """A limit on files' sizes stands for a host without memory: both end the same call."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(
            BackendError, match=r"ranks: expected \d+ MB of memory to share, got: .*; free memory"
        ):
            make(DEMO, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    executor = make(DEMO, 2)
    assert len(epoch(executor, Advance(slot=0, token_ids=tuple(IDS[:9]), budget=3))) == 3
    executor.close()


def epoch(executor: CpuExecutor, *advances: Advance) -> list[TokenEvent]:
    executor.start(advances)
    while not executor.read(0.1):
        pass
    return executor.take()


def test_logits_have_the_bits_of_one_process(alone: CpuExecutor, together: CpuExecutor) -> None:
    """A prompt of several passes, a part of it taken back, and what another slot went on from."""
    wanted: list[np.ndarray] = []
    found: list[np.ndarray] = []
    for executor, logits in ((alone, wanted), (together, found)):
        executor.truncate(0, 0)
        logits.append(executor.logits(0, IDS))
        executor.copy(0, 1)
        executor.truncate(1, 90)
        executor.truncate(0, 100)
        logits += [executor.logits(1, IDS[90:]), executor.logits(0, IDS[3:40])]
        logits.append(executor.hidden(0, IDS[:70]))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_ranks_keep_has_the_bits_of_one_read_anew(
    alone: CpuExecutor, together: CpuExecutor
) -> None:
    """Behind the wrap of the windowed layers' rings, in pieces that were cut, and what is dropped.

    Each rank keeps the rows and tails of its own lanes.
    """
    ids = np.random.default_rng(3).integers(512, size=720).tolist()
    alone.truncate(0, 0)
    wanted = alone.logits(0, ids)
    ours = together
    for slot in range(2):
        ours.truncate(slot, 0)
    ours.logits(0, ids[:300])
    first = ours.save(0, 0, 300)
    ours.logits(0, ids[300:600])
    second = ours.save(0, 300, 600)
    alone.truncate(0, 600)
    assert second.nbytes == alone.save(0, 300, 600).nbytes  # of all ranks
    assert (second.tail_nbytes or 0) > 0
    ours.logits(0, ids[:9])  # what was saved is a copy
    upper, lower = second.part(0, 150), second.part(150, 300, second)
    assert (upper.positions, upper.tail_nbytes) == (150, None)
    assert upper.nbytes + lower.nbytes == second.nbytes
    assert isinstance(second, RankKept)
    name = second.name
    del second
    for end, parts in ((300, [first]), (600, [first, upper, lower])):
        ours.truncate(1, 0)
        for part in parts:
            ours.restore(1, part, part.positions)
        assert ours.length(1) == end
        np.testing.assert_array_equal(ours.logits(1, ids[end:]), wanted[end:])
    with pytest.raises(RequestError, match="expected some of the 720 in this slot, got 0 to 721"):
        ours.save(1, 0, 721)
    with pytest.raises(ValueError, match=f"expected a name that is kept, got {name}"):
        ours._core.resume(name, 0, 1, False)
    ours.truncate(1, 0)


@pytest.mark.parametrize("cache_dtype", ["int8", "int4"])
def test_codes_of_keys_and_values_have_the_bits_of_one_process(
    tmp_path: Path, cache_dtype: str
) -> None:
    """Each rank rounds those of its own lanes, and keeps them as they are."""
    config = {
        "model_type": "laneformer",
        "hidden_size": 128,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
        "max_position_embeddings": 400,
        "num_lanes": 2,
        "broadcast_delay": 1,
        "sliding_window": 16,
        "swa_layers": [0],
        "torch_dtype": "float32",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(4)
    specs = tensor_specs(parse_config(config))
    write_checkpoint(
        tmp_path, [(x.name, rng.normal(scale=0.1, size=x.shape).astype(np.float32)) for x in specs]
    )
    ids = rng.integers(64, size=330).tolist()
    wanted = make(tmp_path, 1, context=400, cache_dtype=cache_dtype).logits(0, ids)
    ours = make(tmp_path, 2, context=400, patience=60.0, cache_dtype=cache_dtype)
    np.testing.assert_array_equal(ours.logits(0, ids[:300]), wanted[:300])
    kept = ours.save(0, 0, 300)
    ours.restore(1, kept, 300)
    np.testing.assert_array_equal(ours.logits(1, ids[300:]), wanted[300:])
    ours.close()


def draw_all(executor: CpuExecutor) -> list[list[tuple[object, ...]]]:
    """Return what a batch draws: sampled, greedy with a bias and a stop, and guided."""
    for slot in range(3):
        executor.truncate(slot, 0)
    draw = Draw(temperature=1.2, top_k=40, top_p=0.95, min_p=0.01, seed=7)
    biased = Draw(temperature=0.0, logit_bias=((5, 3.0), (9, -np.inf)))
    advances = [
        Advance(slot=0, token_ids=tuple(IDS[:80]), budget=40, draw=draw, logprobs=3),
        Advance(slot=1, token_ids=tuple(IDS[:5]), budget=40, draw=biased, stop_ids=frozenset({13})),
        Advance(slot=2, token_ids=(1, 2), budget=6, draw=draw, guided=True),
    ]
    mask = np.zeros(-(-executor.plan.config.vocab_size // 32), np.uint32)
    mask[2] = 0xFFFF
    executor.start(advances)
    executor.guide(2, Guide(mask, forced=(7, 8)))
    events: list[TokenEvent] = []
    posted, over = 3, False
    while not over:
        over = executor.read(0.05)
        events += executor.take()
        if len([e for e in events if e.slot == 2]) == posted and posted < 6:
            executor.guide(2, Guide(mask))
            posted += 1
    drawn: list[list[tuple[object, ...]]] = [[], [], []]
    for event in events:
        drawn[event.slot].append((event.token_id, repr(event.logprob)))
    return drawn


def test_draws_are_those_of_one_process(alone: CpuExecutor, together: CpuExecutor) -> None:
    wanted = draw_all(alone)
    assert [len(drawn) for drawn in wanted][::2] == [40, 6]
    assert draw_all(together) == wanted


def test_an_interrupted_epoch_goes_on_with_the_same_tokens(
    alone: CpuExecutor, together: CpuExecutor
) -> None:
    drawn = []
    for executor in (alone, together):
        executor.truncate(0, 0)
        whole = Advance(slot=0, token_ids=tuple(IDS[:9]), budget=60)
        if executor is alone:
            drawn.append([event.token_id for event in epoch(executor, whole)])
            continue
        ids, got = list(IDS[:9]), []
        while len(got) < 60:
            fed = executor.length(0)
            rest = tuple((ids + got)[fed:])
            executor.start([Advance(slot=0, token_ids=rest, budget=60 - len(got))])
            while not (over := executor.read(0.1)):
                executor.interrupt()
            assert over
            got += [event.token_id for event in executor.take()]
        drawn.append(got)
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("transport", ["memory", "tcp"])
@pytest.mark.parametrize(
    ("name", "ranks", "dtype"),
    [
        ("delay1_8lanes", 2, "float32"),
        pytest.param("early_comm", 4, "auto", marks=pytest.mark.slow),
        ("head_dim_96", 2, "float32"),
        ("replicate_head", 2, "float32"),
        ("no_comm", 2, "float16"),
    ],
)
def test_goldens_have_the_bits_of_one_process(
    name: str, ranks: int, dtype: str, transport: str
) -> None:
    ids = IDS[:100]
    with ExitStack() as stack:
        over = ranks
        if transport == "tcp":
            over = stack.enter_context(listening(GOLDEN / name, ranks - 1))
        executor = make(GOLDEN / name, over, workers=ranks, dtype=dtype, patience=60.0)
        stack.callback(executor.close)
        vocab = executor.plan.config.vocab_size
        ids = [i % vocab for i in ids]
        found = executor.logits(0, ids)
    wanted = make(GOLDEN / name, 1, workers=ranks, dtype=dtype).logits(0, ids)
    np.testing.assert_array_equal(found, wanted)


def test_a_rank_converts_only_its_own_weights() -> None:
    whole = make(DEMO, 1, dtype="int8")
    executor = make(DEMO, 2, dtype="int8", patience=60.0)
    try:
        assert executor.converted_bytes == whole.converted_bytes // 2
        np.testing.assert_array_equal(executor.logits(0, IDS), whole.logits(0, IDS))
    finally:
        executor.close()


def is_alive(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def read_to_the_end(executor: CpuExecutor) -> None:
    while not executor.read(0.1):
        executor.take()


def lose(executor: CpuExecutor, rank: int, kind: signal.Signals, tokens: int) -> RankError:
    """Have a rank killed or stopped when so many tokens have been drawn."""
    executor.truncate(0, 0)
    executor.start([Advance(slot=0, token_ids=(1, 2, 3), budget=1000)])
    over, drawn = False, 0
    while drawn < tokens:
        over = executor.read(0.1)
        drawn += len(executor.take())
        assert not over
    os.kill(executor.processes[rank], kind)
    with pytest.raises(RankError) as caught:
        read_to_the_end(executor)
    return caught.value


@pytest.mark.parametrize(
    ("kind", "ranks", "lost", "told"),
    [
        (signal.SIGKILL, 2, 1, "rank 1 was killed by signal 9"),
        pytest.param(
            signal.SIGSTOP, 4, 2, "rank 2 made no progress for 3 s", marks=pytest.mark.slow
        ),
    ],
)
def test_a_lost_rank_ends_the_epoch_and_the_next_one_is_served(
    alone: CpuExecutor, kind: signal.Signals, ranks: int, lost: int, told: str
) -> None:
    executor = make(DEMO, ranks, patience=3.0)
    try:
        before = executor.processes
        error = lose(executor, lost, kind, tokens=5)
        assert error.rank == lost
        assert told in str(error)
        assert not any(is_alive(process) for process in before[1:])
        assert executor.length(0) == 0
        alone.truncate(0, 0)
        np.testing.assert_array_equal(executor.logits(0, IDS), alone.logits(0, IDS))
        assert set(executor.processes[1:]).isdisjoint(before[1:])
    finally:
        executor.close()
    assert not any(is_alive(process) for process in executor.processes[1:])


_PARENT = """
import sys, time
from pathlib import Path
from monolane.cpu import CpuExecutor
from monolane.executor_api import Advance
from monolane.model import Weights
executor = CpuExecutor(Weights.open(Path(sys.argv[1])), context=1024, slots=1, workers=2, ranks=2)
executor.start([Advance(slot=0, token_ids=(1,), budget=1000)])
print(executor.processes[1], flush=True)
time.sleep(600)
"""


def test_ranks_end_with_the_process_that_started_them() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(DEMO)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        rank = int(parent.stdout.readline())
        assert is_alive(rank)
        watch = os.pidfd_open(rank)
        parent.kill()
    try:
        assert select.select([watch], [], [], 120)[0]
    finally:
        os.close(watch)


def test_a_link_delay_costs_time_and_no_bits(alone: CpuExecutor) -> None:
    """From the leader's pass to the others and their logits back: at least two delays a token."""
    executor = make(DEMO, 2, workers=2, link_delay=20e-3, patience=60.0)
    try:
        advance = Advance(slot=0, token_ids=tuple(IDS[:4]), budget=8)
        events = epoch(executor, advance)
    finally:
        executor.close()
    alone.truncate(0, 0)
    assert [e.token_id for e in events] == [e.token_id for e in epoch(alone, advance)]
    assert all(b.time_ns - a.time_ns >= 40_000_000 for a, b in pairwise(events))


def test_what_cannot_be_shared_out_is_refused() -> None:
    with pytest.raises(BackendError, match="ranks: expected one of 1, 2, 4, 8, which divide"):
        make(DEMO, 3)
    with pytest.raises(BackendError, match="workers: expected a multiple of the 2 ranks"):
        make(DEMO, 2, workers=3)
    weights = Weights.open(DEMO)
    inner = Weights(weights.config, weights.outer, weights.layers)
    with pytest.raises(BackendError, match="ranks: expected weights that lie in files"):
        CpuExecutor(inner, context=8, slots=1, ranks=2)


def test_a_rank_that_cannot_load_says_why(tmp_path: Path) -> None:
    """The folder is gone by the time that rank 1 opens it."""
    folder = tmp_path / "model"
    shutil.copytree(GOLDEN / "head_dim_96", folder)
    weights = Weights.open(folder)
    shutil.rmtree(folder)
    with pytest.raises(BackendError, match="rank 1: "):
        CpuExecutor(weights, context=8, slots=1, ranks=2)


def test_what_the_core_of_a_rank_refuses_is_told_to_rank_0() -> None:
    """Here what is shared is not as large as it must be; a host without memory is the like."""
    weights = Weights.open(DEMO)
    setting = Setting(Loading(context=8, workers=2, ranks=2), isa=kernels.best())
    wish = {"source": str(weights.source), "config": repr(weights.config), "rank": 1}
    rank_0, rank_1 = socket.socketpair()
    segment = os.memfd_create("empty")
    with rank_0, rank_1:
        say(rank_0, wish | {"setting": setting.wish()})
        answer, native = _rank_main._try(rank_1, segment)
    os.close(segment)
    assert native is None
    assert re.fullmatch(r"segment: expected \d+ bytes, got 0", answer["error"])


def test_a_joined_rank_whose_core_refuses_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _native.NativeExecutor

    def refuse(*, setup: bytes, **options: Any) -> Any:
        if np.frombuffer(setup, SETUP.dtype)["rank"] == 1:
            raise RuntimeError("expected room for keys and values")
        return made(setup=setup, **options)

    monkeypatch.setattr(_native, "NativeExecutor", refuse)
    refused = pytest.raises(BackendError, match=r"^rank 1 at .*: expected room for keys and values")
    with listening(DEMO, 1) as addresses, refused:
        make(DEMO, addresses)


def test_the_next_pass_waits_until_all_have_read_the_last(alone: CpuExecutor) -> None:
    """Rank 1 learns of a slot's copy 60 ms late, long after rank 0 has begun what comes next.

    Only rank 0's wait for what the others acknowledge keeps it from writing over that pass.
    """
    executor = make(DEMO, 2, link_delay=60e-3, patience=10.0)
    found: list[np.ndarray] = []
    try:
        for one in (executor, alone):
            one.truncate(0, 0)
            one.logits(0, IDS[:9])
            for target in (1, 2):
                one.copy(0, target)
            found.append(one.logits(2, IDS[9:12]))
    finally:
        executor.close()
    np.testing.assert_array_equal(*found)
