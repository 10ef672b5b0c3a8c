"""Who gets a turn, and when: the scheduler by itself."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from monolane.errors import RequestError
from monolane.serve._errors import ApiError
from monolane.serve._options import Policy
from monolane.serve._run.scheduler import Scheduler, Turn, WithdrawnError


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def granted(turns: list[Turn]) -> list[bool]:
    return [turn.granted.done() and not turn.granted.exception() for turn in turns]


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("latency", Policy()),
        ("latency:short-first", Policy(1, True)),
        ("share:4", Policy(4)),
        ("share:64:short-first", Policy(64, True)),
    ],
)
def test_policies_are_read_and_written(text: str, policy: Policy) -> None:
    assert Policy.parse(text) == policy
    assert str(policy) == text


@pytest.mark.parametrize(
    "text", ["", "fast", "share", "share:0", "share:65", "share:-1", "share:x"]
)
def test_other_policies_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="policy: expected 'latency' or 'share:K'"):
        Policy.parse(text)


def test_first_come_first_served() -> None:
    async def test() -> None:
        scheduler = Scheduler(Policy(2), 10)
        turns = [scheduler.enqueue(cost) for cost in (9, 1, 5, 2)]
        assert granted(turns) == [True, True, False, False]
        assert (scheduler.running, scheduler.waiting) == (2, 2)
        assert [scheduler.ahead(turn) for turn in turns[2:]] == [2, 3]
        scheduler.release()
        assert granted(turns) == [True, True, True, False]
        scheduler.release()
        scheduler.release()
        scheduler.release()
        assert (scheduler.running, scheduler.waiting) == (0, 0)

    run(test)


def test_short_ones_overtake_but_nobody_starves() -> None:
    async def test() -> None:
        now = 100.0
        scheduler = Scheduler(Policy(1, short_first=True), 10, clock=lambda: now)
        scheduler.enqueue(1)
        long, short = scheduler.enqueue(60), scheduler.enqueue(0.5)
        scheduler.release()
        assert granted([long, short]) == [False, True]
        # One that arrives when the long one would have been done does not overtake it.
        now += 60
        late = scheduler.enqueue(0.5)
        scheduler.release()
        assert granted([long, late]) == [True, False]

    run(test)


def test_withdrawn_turns_are_passed_over() -> None:
    async def test() -> None:
        scheduler = Scheduler(Policy(1), 10)
        turns = [scheduler.enqueue(1) for _ in range(3)]
        turns[1].withdraw()
        assert scheduler.waiting == 1
        with pytest.raises(WithdrawnError):
            await turns[1].granted
        scheduler.release()
        assert turns[2].granted.done()
        assert scheduler.running == 1

    run(test)


def test_a_full_queue_says_when_to_come_back() -> None:
    async def test() -> None:
        scheduler = Scheduler(Policy(1), 2)
        scheduler.check_room()
        turns = [scheduler.enqueue(7.5) for _ in range(3)]
        with pytest.raises(ApiError, match="2 sequences wait for 1"):
            scheduler.enqueue(1)
        assert scheduler.waiting == 2
        with pytest.raises(ApiError) as full:
            scheduler.check_room()
        assert full.value.status == 429
        assert full.value.headers == {"Retry-After": "8"}
        turns[2].withdraw()
        scheduler.check_room()
        with pytest.raises(WithdrawnError):
            await turns[2].granted

    run(test)
