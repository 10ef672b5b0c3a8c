"""A stream that another thread cancels: soon, amid the prompt too, and without harm to others."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from monolane import Engine, SamplingParams

LONG = SamplingParams(max_tokens=None, ignore_eos=True)


@pytest.fixture(params=["cpu", "reference"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine.load("demo", request.param, max_sequences=2) as engine:
        yield engine


def test_a_cancelled_stream_ends_within_a_token(engine: Engine) -> None:
    stream = engine.stream([5, 6, 7], LONG)
    first = next(stream)
    cancelled = threading.Timer(0.05, stream.cancel)
    cancelled.start()
    pieces = [first, *stream]
    cancelled.join()
    count = sum(len(piece.token_ids) for piece in pieces)
    assert 0 < count < 1000
    assert stream.finish_reason == "cancelled"
    assert pieces[-1].finish_reason is None
    assert len(engine.generate([5], SamplingParams(max_tokens=3, ignore_eos=True)).token_ids) == 3


def test_a_stream_that_was_cancelled_before_gives_nothing(engine: Engine) -> None:
    stream = engine.stream([5, 6, 7], LONG)
    stream.cancel()
    assert list(stream) == []
    assert stream.finish_reason == "cancelled"
    stream.cancel()


def test_a_prompt_is_left_midway(engine: Engine) -> None:
    begin = time.perf_counter()
    assert engine.generate([5] * 1000, SamplingParams(max_tokens=1)).token_ids
    whole = time.perf_counter() - begin
    stream = engine.stream([5] * 1000, SamplingParams(max_tokens=1))
    threading.Timer(whole / 20, stream.cancel).start()
    begin = time.perf_counter()
    assert list(stream) == []
    assert time.perf_counter() - begin < whole * 0.9


def test_a_prompt_shows_how_far_it_is(engine: Engine) -> None:
    stream = engine.stream([5] * 1000, SamplingParams(max_tokens=1))
    assert stream.position == 0
    reader = threading.Thread(target=lambda: list(stream))
    reader.start()
    seen = [0]
    while reader.is_alive():
        if (now := stream.position) != seen[-1]:
            seen.append(now)
        time.sleep(0.0005)
    reader.join()
    *moving, last = seen
    assert [place for place in moving if 0 < place < 1000], seen
    assert moving == sorted(moving)
    assert last in (0, 1000)  # without a slot there is no place


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
    drawn = [0, 0]
    with Engine.load("demo", "cpu", max_sequences=3) as engine:

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
        let_in = tuple(drawn)
        stream.close()
        for thread in threads:
            thread.join()
    assert drawn == [1024, 1024]
    assert max(let_in) < 900
