"""What is kept of a sequence outside its slot: the same bits go on from it, also behind windows."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane.cpu import CpuExecutor
from monolane.errors import BackendError, RequestError
from monolane.executor_api import Advance, Kept, KeptBytes
from monolane.model import (
    NEVER,
    NOW,
    Head,
    LayerConfig,
    ModelConfig,
    Reduce,
    Role,
    Weights,
    lane_shape,
    layer_roles,
)

IDS = np.random.default_rng(1).integers(71, size=600)
# Rings hold 256 positions: a window of 150 and a pass of 64, in chunks of 256. The second layer
# drops nothing, the third drops at another place than the first.
LAYERS = (LayerConfig(NEVER, NEVER, 150), LayerConfig(NOW, NOW), LayerConfig(NOW, NOW, 24))


def small_weights(layers: tuple[LayerConfig, ...] = LAYERS, head_dim: int = 8) -> Weights:
    config = ModelConfig(
        family="laneformer",
        hidden_size=32,
        intermediate_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=head_dim,
        vocab_size=72,
        max_positions=600,
        num_lanes=2,
        layers=layers,
        head=Head.VOCAB_PARALLEL,
    )
    rng = np.random.default_rng(0)

    def make(role: Role) -> np.ndarray[Any, Any]:
        return rng.normal(scale=0.15, size=lane_shape(config, role)).astype(np.float32)

    outer = {role: make(role) for role in (Role.EMBEDDING, Role.FINAL_NORM, Role.HEAD)}
    return Weights(config, outer, tuple({r: make(r) for r in layer_roles(config)} for _ in layers))


# Of weights, and of keys and values: in codes too, whose groups take heads of 32.
DTYPES = [("float32", "auto"), ("bfloat16", "auto"), ("float32", "int8"), ("float32", "int4")]


def make(dtype: str, cache_dtype: str, slots: int) -> CpuExecutor:
    weights = small_weights(head_dim=8 if cache_dtype == "auto" else 32)
    return CpuExecutor(weights, dtype, context=600, slots=slots, workers=2, cache_dtype=cache_dtype)


@pytest.fixture(scope="module", params=DTYPES, ids="-".join)
def run(request: pytest.FixtureRequest) -> tuple[CpuExecutor, np.ndarray[Any, Any]]:
    """An executor, and the logits of IDS read at once."""
    executor = make(*request.param, slots=2)
    return executor, executor.logits(0, IDS)


def test_bits_behind_what_was_restored(run: tuple[CpuExecutor, np.ndarray[Any, Any]]) -> None:
    """At places before and behind the rings' wraps, in one piece and in several."""
    executor, logits = run
    assert executor.tail_positions == 150
    for cuts in ([100], [150, 151], [256], [64, 300, 511], [130, 590]):
        executor.truncate(0, 0)
        executor.truncate(1, 0)
        pieces: list[Kept] = []
        for begin, end in zip([0, *cuts], cuts, strict=False):
            executor.logits(0, IDS[begin:end])
            pieces.append(executor.save(0, begin, end))
        executor.logits(0, IDS[::-1][:10])  # what was saved is a copy
        for piece in pieces:
            executor.restore(1, piece, piece.positions)
        assert executor.length(1) == cuts[-1]
        rest = executor.logits(1, IDS[cuts[-1] :])
        np.testing.assert_array_equal(rest, logits[cuts[-1] :])


def test_a_tail_is_there_as_long_as_the_rings_hold_it(
    run: tuple[CpuExecutor, np.ndarray[Any, Any]],
) -> None:
    executor, logits = run
    executor.truncate(0, 0)
    executor.logits(0, IDS[:400])  # the rings hold 144 to 399, and the token at 293 sees 144
    assert executor.save(0, 0, 292).tail is None
    kept = executor.save(0, 0, 293)
    executor.truncate(1, 0)
    executor.restore(1, kept, 293)
    np.testing.assert_array_equal(executor.logits(1, IDS[293:]), logits[293:])


def test_a_restored_slot_is_not_taken_back_behind_what_was_restored(
    run: tuple[CpuExecutor, np.ndarray[Any, Any]],
) -> None:
    """Its rings hold no more than the tail."""
    executor, logits = run
    executor.truncate(0, 0)
    executor.logits(0, IDS[:300])
    kept = executor.save(0, 0, 300)
    executor.truncate(1, 0)
    executor.restore(1, kept, 300)
    executor.logits(1, IDS[300:320])
    executor.copy(1, 0)
    for slot in (0, 1):
        executor.truncate(slot, 300)
        np.testing.assert_array_equal(executor.logits(slot, IDS[300:310]), logits[300:310])
        with pytest.raises(RequestError, match="expected 0 or at least 300, got 299"):
            executor.truncate(slot, 299)
        assert executor.save(slot, 0, 299).tail is None


def test_without_windows_any_part_can_be_restored() -> None:
    weights = small_weights((LayerConfig(NOW, NOW), LayerConfig(Reduce(1), NOW)))
    executor = CpuExecutor(weights, "float32", context=600, slots=2, workers=1)
    assert executor.tail_positions == 0
    logits = executor.logits(0, IDS)
    kept = executor.save(0, 0, 500)
    assert kept.tail is None
    for count in (1, 499):
        executor.truncate(1, 0)
        executor.restore(1, kept, count)
        rest = executor.logits(1, IDS[count : count + 40])
        np.testing.assert_array_equal(rest, logits[count : count + 40])


def test_wrong_calls(run: tuple[CpuExecutor, np.ndarray[Any, Any]]) -> None:
    executor, _ = run
    executor.truncate(0, 0)
    executor.truncate(1, 0)
    executor.logits(0, IDS[:20])
    kept = executor.save(0, 0, 20)
    for begin, end in ((0, 21), (-1, 4), (5, 4)):
        with pytest.raises(RequestError, match="positions: expected some of the 20 in this slot"):
            executor.save(0, begin, end)
    wrong = (
        (kept, 21),
        (kept, -1),
        (KeptBytes(kept.rows[1:].copy(), kept.tail), 20),
        (KeptBytes(kept.rows[:, :, 1:].copy(), kept.tail), 20),
        (KeptBytes(kept.rows, kept.tail[1:] if kept.tail is not None else None), 20),
    )
    for found, count in wrong:
        with pytest.raises(RequestError, match="restore: expected what save returned"):
            executor.restore(1, found, count)
    executor.start([Advance(slot=0, token_ids=(1,), budget=500)])
    for call in (lambda: executor.save(0, 0, 1), lambda: executor.restore(0, kept, 20)):
        with pytest.raises(BackendError, match="an epoch uses this slot; stop it first"):
            call()
    executor.restore(1, kept, 20)  # which no epoch uses
    executor.interrupt()
    while not executor.read(0.1):
        pass
    executor.take()


def test_an_identity_names_what_bits_depend_on() -> None:
    def identity(dtype: str, workers: int, cache_dtype: str = "auto") -> str:
        weights = small_weights(head_dim=32)
        executor = CpuExecutor(
            weights, dtype, context=600, slots=1, workers=workers, cache_dtype=cache_dtype
        )
        return executor.identity()

    assert identity("float32", 1) == identity("float32", 1, "float32")
    others = [("bfloat16", 1), ("float32", 2), ("float32", 1, "int8"), ("float32", 1, "int4")]
    assert len({identity("float32", 1), *(identity(*other) for other in others)}) == 5


def test_an_identity_is_the_same_in_every_process(tiny_model: Path) -> None:
    """Whatever the order of a set may be there, which the seed of Python's hashes decides."""
    program = (
        "import sys; from monolane import Engine; "
        "print(Engine.load(sys.argv[1], 'cpu', 'bfloat16').backend.executor.identity())"
    )
    command = [sys.executable, "-c", program, str(tiny_model)]
    found = {
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in "12"  # which order it in two ways
    }
    assert len(found) == 1


def test_memory_that_is_refused_is_an_error() -> None:
    """On the workers' threads, where what nobody catches ends the process."""
    folder = Path(__file__).parent
    program = f"""
import itertools, resource, sys
sys.path.insert(0, {str(folder)!r})
from test_ranked_kv import IDS, make
from monolane.cpu._errors import our_errors
from monolane.errors import BackendError

executor = make("float32", "auto", 1)
executor.logits(0, IDS)
core = executor._core
core.keep(0, 0, 0, 1)  # a thread that could not allocate anything could not even throw
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))
for name in itertools.count(1):
    try:
        with our_errors():
            core.keep(name, 0, 0, IDS.size)
    except BackendError as error:
        first = str(error)
        break
try:
    with our_errors():
        core.keep(name + 1, 0, 0, 1)
except BackendError as again:
    print(name > 1, first, again, sep="\\n")
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    message = "memory: expected more for what is kept, got none"
    assert (run.returncode, run.stdout) == (0, f"True\n{message}\n{message}\n"), run.stderr
