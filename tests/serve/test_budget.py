"""What one request may take: memory of its body, work of its grammar, time."""

import asyncio
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.requests import Request

from monolane import Engine, SamplingParams
from monolane.engine import Guide
from monolane.errors import RequestError
from monolane.measure import paced_engine
from monolane.serve import ServerOptions
from monolane.serve._errors import ApiError
from monolane.serve._grammar.compiler import compiler_of, grammar_of
from monolane.serve._grammar.constraint import BURST_SECONDS, TOKEN_SECONDS, GrammarWalk
from monolane.serve._grammar.released import NO_TOKEN, Released, released
from monolane.serve._grammar.structured import Structured
from monolane.serve._http.limits import read_body
from monolane.serve._http.prepare import prepare
from monolane.serve._openai.body import CompletionRequest
from monolane.serve._run.bodies import Bodies, Body
from monolane.serve._run.deadline import Deadline
from monolane.serve._run.fair_queue import Sender
from monolane.serve._run.request import ServedRequest
from monolane.serve._run.service import Service

from .conftest import PATIENCE

# Of a text of n letters it has as many readings as there are trees with n leaves.
AMBIGUOUS = "root ::= s\ns ::= s s | s s s | s s s s | [a-z]"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("demo") as engine:
        yield engine


# Grammars.


def walk_of(engine: Engine, source: str, seconds: Iterator[float]) -> GrammarWalk:
    """Return a walk whose clock, read before and behind each step, says that it took so long."""
    compiled = compiler_of(engine).walk(grammar_of(Structured("grammar", source, "grammar")))
    ticks = itertools.chain.from_iterable((0.0, taken) for taken in seconds)
    vocab = engine.config.vocab_size
    return GrammarWalk(compiled._matcher, "grammar", vocab, False, clock=lambda: next(ticks))


def steps(walk: GrammarWalk, letter: int, most: int) -> int:
    """Take steps, all of one letter, until the walk is refused; return how many were taken."""
    token = None
    for count in range(most):
        try:
            walk.step(token)
        except RequestError as error:
            assert str(error).startswith(
                "grammar: cannot be followed: it takes more than 20 ms of processor time a token; "
                "write it so that a text can be read in one way only"
            )
            return count
        token = letter
    return most


def test_a_grammar_may_take_so_long_for_each_token(engine: Engine) -> None:
    (letter,) = engine.tokenizer.encode("a", add_special_tokens=False)

    def taken(seconds: Iterator[float]) -> int:
        return steps(walk_of(engine, "root ::= [a-z]+", seconds), letter, 200)

    assert taken(itertools.repeat(0.99 * TOKEN_SECONDS)) == 200
    assert taken(itertools.repeat(BURST_SECONDS + 1)) == 0
    # Step n, with n - 1 tokens behind it, is beyond: 2 n t > burst + (n - 1) t.
    assert taken(itertools.repeat(2.001 * TOKEN_SECONDS)) == BURST_SECONDS / TOKEN_SECONDS - 2
    assert taken(itertools.chain([BURST_SECONDS], itertools.repeat(0.0))) == 200


def test_costly_steps_are_done_elsewhere(engine: Engine) -> None:
    (letter,) = engine.tokenizer.encode("a", add_special_tokens=False)
    for taken, elsewhere in ((0.0001, 0), (TOKEN_SECONDS, 47)):
        walk = walk_of(engine, "root ::= [a-z]+", itertools.repeat(taken))
        lent: list[int] = []

        def aside(step: Any, lent: list[int] = lent) -> Guide:
            lent.append(1)
            return step()

        walk.aside = aside
        steps(walk, letter, 50)
        assert len(lent) == elsewhere


def test_what_takes_long_lets_other_threads_run(engine: Engine) -> None:
    """The library keeps the GIL for one matcher alone, for milliseconds with such a grammar."""
    (letter,) = engine.tokenizer.encode("a", add_special_tokens=False)
    walk = compiler_of(engine).walk(grammar_of(Structured("grammar", AMBIGUOUS, "grammar")))
    matcher, words = walk._matcher, -(-engine.config.vocab_size // 32)
    idle = matcher.deep_copy()
    idle.consume_token(NO_TOKEN)
    turns, over = 0, False

    def count() -> None:
        nonlocal turns
        while not over:
            turns += 1
            time.sleep(0.0001)  # gives the GIL back

    def meanwhile(work: Callable[[], Any]) -> int:
        before = turns
        work()
        return turns - before

    before = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)  # so others run only where the GIL is released
    other = threading.Thread(target=count)
    try:
        for _ in range(20):
            assert released().consume(matcher, idle, letter) > 0
        whole = np.frombuffer(matcher.compute_bitmask(), np.uint32)[:words]
        other.start()
        # A thread that has waited since before, with the interval of then, may still get a turn.
        assert min(meanwhile(matcher.compute_bitmask) for _ in range(9)) == 0
        found, seconds = released().mask(matcher, idle, words)
        np.testing.assert_array_equal(found, whole)
        assert seconds > 0
        deadline = time.monotonic() + PATIENCE  # the machine may have no room for the other one
        while not meanwhile(lambda: released().mask(matcher, idle, words)):
            assert time.monotonic() < deadline
    finally:
        over = True
        sys.setswitchinterval(before)
        other.join()


def test_costly_steps_of_several_answers_leave_half_of_the_time_to_others() -> None:
    rests: list[str] = []
    made = Released(rest=lambda seconds: rests.append(threading.current_thread().name))
    if not made.is_timed:
        pytest.skip("needs /proc")
    made._timed(lambda: None)
    assert not rests, "one alone need not"
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        over.wait(PATIENCE)

    first = threading.Thread(target=made._timed, args=(hold,), name="first")
    second = threading.Thread(target=made._timed, args=(lambda: None,), name="second")
    first.start()
    assert begun.wait(PATIENCE)
    second.start()
    while not made._waiting:
        time.sleep(0.001)
    over.set()
    first.join()
    second.join()
    assert rests == ["first"]


def test_what_the_other_thread_takes_counts(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (letter,) = engine.tokenizer.encode("a", add_special_tokens=False)
    used: list[str] = []

    class Dear(Released):
        def mask(self, *given: Any) -> Any:
            used.append("mask")
            return super().mask(*given)[0], 2 * TOKEN_SECONDS

        def consume(self, *given: Any) -> float:
            used.append("token")
            return super().consume(*given)

    dear = Dear()
    monkeypatch.setattr("monolane.serve._grammar.constraint.released", lambda: dear)
    quick = itertools.repeat(0.0001)
    assert steps(walk_of(engine, "root ::= [a-z]+", quick), letter, 50) == 50
    assert used == []
    slow = itertools.chain([0.001], quick)  # the first step; all others are done by the thread
    assert 0 < steps(walk_of(engine, "root ::= [a-z]+", slow), letter, 50) < 50
    assert used[:4] == ["token", "mask"] * 2


def test_the_thread_is_told_from_one_that_began_with_it_and_has_ended(engine: Engine) -> None:
    walk = compiler_of(engine).walk(grammar_of(Structured("grammar", AMBIGUOUS, "grammar")))
    idle = walk._matcher.deep_copy()
    idle.consume_token(NO_TOKEN)
    ended = threading.Thread(target=int)
    ended.start()
    ended.join()
    assert ended.native_id
    thread = Released()
    (mine,) = thread._candidates
    thread._candidates.insert(0, ended.native_id)
    assert thread.mask(walk._matcher, idle, walk._words)[1] > 0
    assert thread._candidates == [mine]


def test_where_no_thread_can_be_timed_none_is_used(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("monolane.serve._grammar.released._TASKS", tmp_path / "none")
    blind = Released()
    assert not blind.is_timed
    monkeypatch.setattr("monolane.serve._grammar.constraint.released", lambda: blind)
    (letter,) = engine.tokenizer.encode("a", add_special_tokens=False)
    walk = walk_of(engine, "root ::= [a-z]+", itertools.repeat(0.001))
    assert steps(walk, letter, 20) == 20
    assert walk._idle is None


def test_an_ambiguous_grammar_ends_its_own_request(demo_server: Any) -> None:
    body = {"prompt": "x", "max_tokens": 900, "temperature": 0, "seed": 1, "grammar": AMBIGUOUS}
    bias = {"logit_bias": {"2": -100.0}, "ignore_eos": True}
    reply = httpx.post(f"{demo_server.url}/v1/completions", json=body | bias, timeout=PATIENCE)
    assert reply.status_code == 400, reply.text[:300]
    error = reply.json()["error"]
    assert error["message"].startswith("grammar: cannot be followed: ")
    assert error["param"] == "grammar"


def test_what_a_grammar_costs_is_lent_by_the_server(engine: Engine) -> None:
    """A request of the server has its costly steps done as units of the preparers."""
    lent: list[int] = []

    def aside(step: Any) -> Guide:
        lent.append(1)
        return step()

    asked = CompletionRequest(prompt="x", max_tokens=3, grammar="root ::= [a-z]+").asked()
    (choice,) = prepare(replace(asked, aside=aside), engine)
    constraint: Any = choice.stream._job.constraint
    constraint._spent = 0.3
    choice.stream.result()
    assert lent


# Bodies.


def held(bodies: Bodies, group: str, connection: int, size: int, refused: list[str]) -> Body:
    body = Body(bodies, Sender(group, connection))

    def give_up() -> bool:
        refused.append(f"{group}{connection}")
        return True

    body.give_up = give_up
    body.add(bytes(size))
    return body


def test_where_there_is_no_room_who_holds_most_is_refused() -> None:
    bodies, refused = Bodies(100), []
    held(bodies, "a", 1, 40, refused)
    held(bodies, "a", 2, 20, refused)
    held(bodies, "b", 1, 40, refused)
    assert not refused
    assert bodies.total == 100
    small = held(bodies, "b", 2, 5, refused)
    assert refused == ["a1"]  # of those who hold 60, the largest
    assert bodies.total == 65
    small.free()
    small.free()
    assert bodies.total == 60


def test_what_is_being_prepared_is_not_given_up() -> None:
    bodies, refused = Bodies(100), []
    busy = held(bodies, "a", 1, 90, refused)
    busy.give_up = lambda: False
    held(bodies, "b", 1, 20, refused)
    assert refused == ["b1"]
    assert bodies.total == 90


def test_a_body_that_is_one_too_many_gets_a_429() -> None:
    async def run() -> tuple[ApiError, bytes]:
        bodies = Bodies(1000)
        more = asyncio.Event()

        async def receive_large() -> Any:
            if not sent:
                sent.append(1)
                return {"type": "http.request", "body": bytes(900), "more_body": True}
            await more.wait()
            raise AssertionError("it is not read on")

        async def receive_small() -> Any:
            return {"type": "http.request", "body": b"x" * 200, "more_body": False}

        sent: list[int] = []
        scope = {"type": "http", "headers": [], "client": ("1.2.3.4", 5)}
        large = asyncio.create_task(read_body(Request(scope, receive_large), bodies, 2000))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sent
        small = await read_body(Request(scope, receive_small), bodies, 2000)
        try:
            await large
        except ApiError as error:
            assert bodies.total == 200
            return error, small.take()
        raise AssertionError("it was read")

    error, small = asyncio.run(run())
    assert (error.status, error.headers["Retry-After"], error.headers["Connection"]) == (
        429,
        "1",
        "close",
    )
    assert "at most 1000 bytes in all" in str(error)
    assert small == b"x" * 200


# Deadlines.

S = 10**9


def reading(index: int, admitted: float, position: int, first: float = 0) -> Any:
    stream = SimpleNamespace(position=position)
    moments = {"admitted": int(admitted * S), "first": int(first * S)}
    return SimpleNamespace(index=index, stream=stream, **moments)


def test_reading_does_not_count() -> None:
    choice = reading(0, 0, 0)
    deadline = Deadline([choice], 1 * S, 600, 120)
    assert deadline.left(2 * S) == 599  # in the queue
    choice.admitted = 11 * S
    for now in range(100, 5000, 100):
        choice.stream.position += 1
        # 10 s in the queue are all that counts; within the seconds of a stall it is looked at.
        assert deadline.left(now * S) == 120
    choice.first = 5000 * S
    assert deadline.left(5100 * S) == 600 - 10 - 100
    assert deadline.left(5700 * S) == 0


def test_a_prompt_that_stands_still_is_given_up() -> None:
    choice = reading(0, 1, 7)
    deadline = Deadline([choice], 1 * S, 600, 120)
    assert deadline.left(1000 * S) == 120
    assert deadline.left(1100 * S) == 120
    assert deadline.left(1120 * S) == 0


def test_prompts_that_are_read_together_are_not_counted_twice() -> None:
    choices = [reading(0, 0.1, 0, 100), reading(1, 50, 0, 120), reading(2, 300, 0, 310)]
    deadline = Deadline(choices, 0, 600, 120)
    assert deadline.left(400 * S) == pytest.approx(600 - 400 + 119.9 + 10)


def test_a_request_is_looked_at_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    lefts = iter([0.001, 0.001, 0.0])
    monkeypatch.setattr(Deadline, "left", lambda self, now: next(lefts))

    async def run() -> str | None:
        service = Service(lambda: paced_engine(1), ServerOptions())
        await service.start()
        asked = CompletionRequest(prompt=[5], max_tokens=1000).asked()
        choices = prepare(asked, service.engine)
        served = ServedRequest(service, choices, time.perf_counter_ns(), streamed=False)
        served.start(None)
        await served.channel.wait_closed()
        await service.close()
        return served.reason

    assert asyncio.run(run()) == "deadline"
    assert next(lefts, None) is None


def test_what_was_read_before_an_end_is_kept(engine: Engine) -> None:
    """Whoever asks again reads on from there."""
    rng = np.random.default_rng(3)
    for _ in range(3):
        ids = rng.integers(5, 1000, 900).tolist()
        stream = engine.stream(ids, SamplingParams(max_tokens=1))
        thread = threading.Thread(target=stream.result)
        thread.start()
        while thread.is_alive() and stream.position == 0:
            pass
        seen = stream.position
        stream.cancel()
        thread.join(PATIENCE)
        again = engine.stream(ids, SamplingParams(max_tokens=1))
        again.result()
        assert again.timings.cache_n >= seen
        if seen:
            return
    pytest.fail("a prompt of 900 tokens was never seen while it was read")
