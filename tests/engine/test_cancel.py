"""A stream that another thread cancels: soon, amid the prompt too, and without harm to others.

The demo model is through with prompt and context in a tenth of a second each. A thread that is not
let run for so long misses what it wants to see or do amid them, so each may take three attempts.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from monolane import Engine, SamplingParams
from monolane.engine import Piece, Stream

LONG = SamplingParams(max_tokens=None, ignore_eos=True)


@pytest.fixture(params=["cpu", "reference"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine.load("demo", request.param, max_sequences=2) as engine:
        yield engine


def test_a_cancelled_stream_ends_within_a_token(engine: Engine) -> None:
    counts = []
    for _ in range(3):
        stream = engine.stream([5, 6, 7], LONG)
        first = next(stream)
        cancelled = threading.Timer(0.05, stream.cancel)
        cancelled.start()
        pieces = [first, *stream]
        cancelled.join()
        counts.append(sum(len(piece.token_ids) for piece in pieces))
        if counts[-1] < 1000:
            break
    assert 0 < counts[-1] < 1000, counts
    assert stream.finish_reason == "cancelled"
    assert pieces[-1].finish_reason is None
    assert len(engine.generate([5], SamplingParams(max_tokens=3, ignore_eos=True)).token_ids) == 3


def test_a_stream_that_was_cancelled_before_gives_nothing(engine: Engine) -> None:
    stream = engine.stream([5, 6, 7], LONG)
    stream.cancel()
    assert list(stream) == []
    assert stream.finish_reason == "cancelled"
    stream.cancel()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_stream_that_waits_for_a_sequence_is_cancelled(backend: str) -> None:
    with Engine.load("demo", backend) as engine:
        first, second = engine.stream([5, 6, 7], LONG), engine.stream([5], LONG)
        next(first)
        with reader_of(second) as (reader, pieces):
            time.sleep(0.05)
            assert reader.is_alive()
            second.cancel()
            reader.join(timeout=30)
            ended = not reader.is_alive()
            first.close()
        assert ended
        assert pieces == []
        assert second.finish_reason == "cancelled"
        third = engine.stream([5], SamplingParams(max_tokens=3, ignore_eos=True))
        assert len(third.result().token_ids) == 3


def test_hidden_states_that_wait_for_a_sequence_are_cancelled() -> None:
    """The one who cancels need not know that they wait."""
    with Engine.load("demo") as engine:
        first = engine.stream([5, 6, 7], LONG)
        next(first)
        over, found = threading.Event(), []
        reader = threading.Thread(
            target=lambda: found.append(engine.hidden([5, 6], over.is_set)), daemon=True
        )
        reader.start()
        time.sleep(0.05)
        waits = reader.is_alive()
        over.set()
        reader.join(timeout=30)
        ended = not reader.is_alive()
        first.close()
        assert waits
        assert ended
        assert found[0].shape == (0, engine.config.hidden_size)


def test_a_thread_of_a_pool_waits_for_a_stream_that_it_began() -> None:
    with Engine.load("demo") as engine, ThreadPoolExecutor(1) as pool:
        first, second = engine.stream([5, 6, 7], LONG), engine.stream([5], LONG)
        pool.submit(next, first).result()
        waiting = pool.submit(next, second)
        time.sleep(0.05)
        assert not waiting.done()
        assert sum(len(piece.token_ids) for piece in first)  # read to its end by this thread
        assert waiting.result(timeout=30).token_ids
        second.close()


def test_a_prompt_is_left_midway(engine: Engine) -> None:
    """Else its token would be drawn, and given."""
    for _ in range(3):
        stream = engine.stream([5] * 1000, SamplingParams(max_tokens=1))
        with reader_of(stream) as (reader, pieces):
            while not stream.position and reader.is_alive():
                time.sleep(0.0005)
            stream.cancel()
        if not pieces:
            break
    assert pieces == []
    assert stream.finish_reason == "cancelled"


def test_a_prompt_shows_how_far_it_is(engine: Engine) -> None:
    for _ in range(3):
        stream = engine.stream([5] * 1000, SamplingParams(max_tokens=1))
        assert stream.position == 0
        seen = []
        with reader_of(stream) as (reader, _):
            while reader.is_alive():
                seen.append(stream.position)
                time.sleep(0.0005)
        assert stream.position == 0  # without a slot there is no place
        moving = [place for place in seen if place > 0]
        assert moving == sorted(moving)
        if any(place < 1000 for place in moving):
            break
    assert any(place < 1000 for place in moving), seen


@contextlib.contextmanager
def reader_of(stream: Stream) -> Iterator[tuple[threading.Thread, list[Piece]]]:
    """Read a stream on another thread to its end, into a list."""
    pieces: list[Piece] = []
    reader = threading.Thread(target=lambda: pieces.extend(stream))
    reader.start()
    try:
        yield reader, pieces
    finally:
        reader.join()


def test_the_others_go_on_bit_by_bit(engine: Engine) -> None:
    params = SamplingParams(max_tokens=150, ignore_eos=True, temperature=0.9, seed=4)
    alone = engine.generate([5, 6], params).token_ids
    found = []
    thread = threading.Thread(target=lambda: found.append(engine.generate([5, 6], params)))
    thread.start()
    for _ in range(5):
        stream = engine.stream([9, 8], LONG)
        next(stream)
        stream.cancel()
        list(stream)
    thread.join()
    assert found[0].token_ids == alone


def test_piece_times_are_those_of_the_tokens(tiny_model: Path) -> None:
    with Engine.load(tiny_model) as engine:
        stream = engine.stream([5], SamplingParams(max_tokens=20, ignore_eos=True))
        pieces = list(stream)
    times = [time_ns for piece in pieces for time_ns in piece.times_ns]
    assert len(times) == 20
    assert times == sorted(times)
    assert (times[-1] - times[0]) / 1e9 == stream.timings.decode_seconds


def test_a_newcomer_is_let_in_while_others_decode() -> None:
    """Making room in a slot needs a pause between epochs, which two readers must not deny it."""
    let_in = []
    with Engine.load("demo", "cpu", max_sequences=3) as engine:
        for _ in range(3):
            let_in.append(drawn_before_a_third(engine))
            if max(let_in[-1]) < 900:
                return
    raise AssertionError(f"tokens of the others, of 1024: {let_in}")


def drawn_before_a_third(engine: Engine) -> tuple[int, int]:
    """Return what two streams had drawn when a third, begun amid them, got its first token."""
    drawn = [0, 0]

    def decode(i: int) -> None:
        for piece in engine.stream([5 + i], LONG):
            drawn[i] += len(piece.token_ids)

    threads = [threading.Thread(target=decode, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    while min(drawn) < 20:
        time.sleep(0.001)
    stream = engine.stream([9, 9], LONG)
    assert next(stream).token_ids
    first, second = drawn
    stream.close()
    for thread in threads:
        thread.join()
    assert drawn == [1024, 1024]
    return first, second
