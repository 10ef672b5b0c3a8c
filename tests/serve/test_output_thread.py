"""One thread takes what answers have drawn, while their own threads sleep."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from monolane import Engine, SamplingParams
from monolane.engine import Piece, Stream
from monolane.serve._run.output_thread import OutputThread

from .conftest import PATIENCE

REST = 0.003  # seconds
PROMPTS = ["def f(x):", "import os\n", "class A:\n", "# a list of"]
LONG = SamplingParams(max_tokens=60, ignore_eos=True)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("demo", max_sequences=len(PROMPTS)) as engine:
        yield engine


@pytest.fixture
def output(engine: Engine) -> Iterator[OutputThread]:
    thread = OutputThread(engine.backend.gather)
    yield thread
    thread.close()


class Answer:
    """A stream that is read as the server does; which thread took each piece."""

    def __init__(self, stream: Stream, output: OutputThread, rest: float = REST) -> None:
        self.stream, self._output, self._rest = stream, output, rest
        self.pieces: list[Piece] = []
        self.takers: list[str] = []

    def run(self) -> "Answer":
        with self.stream:
            for piece in self.stream:
                rest = self.take(piece)
                if rest and piece.finish_reason is None:
                    self._output.follow(self.stream, rest, self.take)
        return self

    def take(self, piece: Piece) -> float:
        self.pieces.append(piece)
        self.takers.append(threading.current_thread().name)
        return self._rest

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


def answered(answers: list[Answer]) -> list[Answer]:
    with ThreadPoolExecutor(len(answers), thread_name_prefix="own") as threads:
        return list(threads.map(Answer.run, answers, timeout=PATIENCE))


def test_their_own_threads_take_the_first_piece_and_the_last(
    engine: Engine, output: OutputThread
) -> None:
    alone = [engine.generate(prompt, LONG) for prompt in PROMPTS]
    found = answered([Answer(engine.stream(prompt, LONG), output) for prompt in PROMPTS])
    for one, expected in zip(found, alone, strict=True):
        ids = [token for piece in one.pieces for token in piece.token_ids]
        assert (one.text, ids) == (expected.text, list(expected.token_ids))
        assert one.pieces[-1].finish_reason == "length"
        assert one.takers.count("output") == len(one.pieces) - 2


def test_a_stop_text_among_what_was_gathered_ends_the_answer(
    engine: Engine, output: OutputThread
) -> None:
    whole = engine.generate(PROMPTS[0], LONG).text
    stop = whole[len(whole) // 2 :][:5]
    params = SamplingParams(max_tokens=60, ignore_eos=True, stop=(stop,))
    (one,) = answered([Answer(engine.stream(PROMPTS[0], params), output)])
    assert one.text == whole[: whole.index(stop)]
    assert one.pieces[-1].finish_reason == "stop"
    assert one.takers[-1].startswith("own")
    assert engine.generate(PROMPTS[0], LONG).text == whole  # its slot was given back


def test_an_error_is_the_answers_own(engine: Engine, output: OutputThread) -> None:
    class Failing(Answer):
        def take(self, piece: Piece) -> float:
            if threading.current_thread().name == "output":
                raise ValueError("no room")
            return super().take(piece)

    failing = Failing(engine.stream(PROMPTS[0], LONG), output)
    other = Answer(engine.stream(PROMPTS[1], LONG), output)
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(one.run) for one in (failing, other)]
        with pytest.raises(ValueError, match="no room"):
            runs[0].result(timeout=PATIENCE)
        runs[1].result(timeout=PATIENCE)
    assert other.text == engine.generate(PROMPTS[1], LONG).text


def test_an_answer_that_is_not_to_gather_goes_back_to_its_thread(
    engine: Engine, output: OutputThread
) -> None:
    class Once(Answer):
        def take(self, piece: Piece) -> float:
            super().take(piece)
            return REST if len(self.pieces) == 1 else 0.0

    (one,) = answered([Once(engine.stream(PROMPTS[0], LONG), output)])
    assert one.text == engine.generate(PROMPTS[0], LONG).text
    assert one.takers.count("output") == 1


def test_cancelling_wakes_who_sleeps(engine: Engine, output: OutputThread) -> None:
    first = threading.Event()

    class Noted(Answer):
        def take(self, piece: Piece) -> float:
            first.set()
            super().take(piece)
            return PATIENCE  # no look before the end of patience

    one = Noted(engine.stream(PROMPTS[0], SamplingParams(max_tokens=900, ignore_eos=True)), output)
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(one.run)
        assert first.wait(PATIENCE)
        one.stream.cancel()
        run.result(timeout=PATIENCE)
    assert one.stream.finish_reason == "cancelled"


@pytest.mark.parametrize("gathered", [0, 2], ids=["at once", "after two"])
def test_where_gathering_fails_each_reads_itself(engine: Engine, gathered: int) -> None:
    """As where an epoch cannot begin: each is to find out itself what is wrong."""
    calls = 0

    def gather() -> None:
        nonlocal calls
        calls += 1
        if calls > gathered:
            raise RuntimeError("no epoch")
        engine.backend.gather()

    output = OutputThread(gather)
    (one,) = answered([Answer(engine.stream(PROMPTS[0], LONG), output)])
    output.close()
    assert one.text == engine.generate(PROMPTS[0], LONG).text
    assert one.takers.count("output") <= gathered
    assert calls > gathered


def test_it_ends_without_having_followed_any() -> None:
    def never() -> None:
        raise AssertionError

    OutputThread(never).close()
