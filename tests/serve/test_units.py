"""Preparation in units: what waits for what, counted without a clock."""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from typing import Any

import pytest

from monolane.errors import EngineClosedError
from monolane.serve._errors import ApiError
from monolane.serve._run.fair_queue import Entry, FairQueue, Sender
from monolane.serve._run.preparers import LONG, SHORT, Job, LeftError, Preparers, next_unit

from .conftest import PATIENCE

ME = Sender("here", "mine")


def others(i: int) -> Sender:
    return Sender("here", f"theirs {i}")


@pytest.fixture
def preparers() -> Iterator[Preparers]:
    preparers = Preparers(1000)
    yield preparers
    preparers.close()


class Gate:
    """Lets works pass one unit at a time, and knows which unit is under way."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = 0  # units that may still end
        self.begun: list[str] = []

    def unit(self, name: str) -> None:
        """Be a unit that ends when it may."""
        with self._changed:
            self.begun.append(name)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open > 0, PATIENCE)
            self._open -= 1

    def let(self, count: int) -> None:
        """Let so many more units end."""
        with self._changed:
            self._open += count
            self._changed.notify_all()

    def wait_begun(self, count: int) -> None:
        """Wait until so many units have begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, PATIENCE)


def units(gate: Gate, name: str, count: int, cost: int = LONG) -> Callable[[], None]:
    def work() -> None:
        for i in range(count):
            if i:
                next_unit(cost)
            gate.unit(name)

    return work


def all_done(jobs: list[Job]) -> None:
    assert not wait([job.done for job in jobs], PATIENCE).not_done


@pytest.mark.parametrize("size", [100, SHORT, 8 << 20])
def test_a_short_unit_waits_for_none_that_has_not_begun(preparers: Preparers, size: int) -> None:
    """Whatever 64 others send, bodies long or short, and however often: with no key at all."""
    gate = Gate()
    jobs = [
        preparers.submit(units(gate, "theirs", 3 if size > SHORT else 1), others(i % 64), size)
        for i in range(6 * 64)
    ]
    gate.wait_begun(1 if size > SHORT else 2)
    gate.let(64 * 5)  # their credit is spent
    gate.wait_begun(64 * 5)
    mine = preparers.submit(units(gate, "mine", 1), ME, 100)
    gate.let(10_000)
    all_done([mine, *jobs])
    assert mine.waited == 0


def test_whoever_opens_new_connections_waits_as_one_key(preparers: Preparers) -> None:
    gate = Gate()
    key = "the key of many connections"
    jobs = [preparers.submit(units(gate, "theirs", 1), Sender(key, i), 10) for i in range(200)]
    gate.let(100)
    gate.wait_begun(100)
    mine = preparers.submit(units(gate, "mine", 1), Sender("my key", 0), SHORT)
    gate.let(10_000)
    all_done([mine, *jobs])
    assert mine.waited == 0


def test_short_work_runs_between_the_units_of_long(preparers: Preparers) -> None:
    """One thread is its own; a second short one finds the other between two long units."""
    gate = Gate()
    long = preparers.submit(units(gate, "long", 5), others(0), 8 << 20)
    gate.wait_begun(1)
    short = [preparers.submit(units(gate, f"short {i}", 1), others(i), 10) for i in range(2)]
    gate.wait_begun(2)
    assert gate.begun == ["long", "short 0"]  # short 1 waits for that one, not for all of long
    gate.let(100)
    all_done([long, *short])


def test_long_work_goes_on_beside_any_number_of_short_ones(preparers: Preparers) -> None:
    gates = [Gate() for _ in range(50)]
    short = [preparers.submit(units(g, "short", 1), others(i), 10) for i, g in enumerate(gates)]
    gates[0].wait_begun(1)
    gates[1].wait_begun(1)
    gate = Gate()
    long = preparers.submit(units(gate, "long", 10), others(0), 8 << 20)
    gate.let(10)
    for one in gates[:2]:  # one of them has the thread that takes long units first
        one.let(1)
    all_done([long])
    for one in gates:
        one.let(1)
    all_done(short)


def test_work_that_turns_out_long_leaves_the_short_thread(preparers: Preparers) -> None:
    """A grammar of 50 bytes is a short body, and no short work."""
    reading, compiling, my_own = Gate(), Gate(), Gate()

    def work() -> None:
        reading.unit("read")
        next_unit(LONG)
        compiling.unit("compiled")

    reading.let(64)
    theirs = [preparers.submit(work, others(i), 50) for i in range(64)]
    reading.wait_begun(64)
    compiling.wait_begun(1)
    mine = preparers.submit(units(my_own, "mine", 1), ME, 100)
    my_own.wait_begun(1)
    assert compiling.begun == ["compiled"]
    my_own.let(1)
    compiling.let(64)
    all_done([mine, *theirs])


def test_a_short_body_is_one_unit_whatever_it_calls(preparers: Preparers) -> None:
    gate = Gate()
    job = preparers.submit(units(gate, "mine", 3, cost=10), ME, SHORT)
    next_job = preparers.submit(units(gate, "next", 1), others(0), 10)
    third = preparers.submit(units(gate, "third", 1), others(1), 10)
    gate.wait_begun(2)
    gate.let(100)
    all_done([job, next_job, third])
    assert not job.long


def test_few_long_bodies_are_open_at_a_time(preparers: Preparers) -> None:
    """Each takes several times its size while it is prepared."""
    gate = Gate()
    jobs = [preparers.submit(units(gate, str(i), 4), others(i), 8 << 20) for i in range(10)]
    gate.let(6)
    gate.wait_begun(6)
    assert len(set(gate.begun[:6])) == 2
    gate.let(1000)
    all_done(jobs)


def test_where_too_many_wait_the_last_in_turn_is_refused() -> None:
    preparers, gate = Preparers(4), Gate()
    theirs = [preparers.submit(units(gate, "theirs", 1), others(0), 8 << 20) for _ in range(4)]
    gate.wait_begun(1)
    mine = preparers.submit(units(gate, "mine", 1), ME, 100)
    with pytest.raises(ApiError, match="4 requests wait to be read; try again in 1 s") as refused:
        theirs[3].done.result(PATIENCE)
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "1")
    one_more = preparers.submit(units(gate, "theirs", 1), others(0), 8 << 20)
    with pytest.raises(ApiError, match="wait to be read"):
        one_more.done.result(PATIENCE)
    gate.let(100)
    all_done([mine, *theirs])
    preparers.close()


def test_who_has_left_is_dropped_before_the_next_unit(preparers: Preparers) -> None:
    gate = Gate()
    here = preparers.submit(units(gate, "here", 5), others(0), 8 << 20)
    gate.wait_begun(1)
    waits = preparers.submit(units(gate, "waits", 5), others(1), 8 << 20)
    preparers.leave(here)
    preparers.leave(waits)
    assert waits.done.cancelled()
    gate.let(1)
    with pytest.raises(LeftError):
        here.done.result(PATIENCE)
    assert gate.begun == ["here"]


def test_who_leaves_in_the_moment_of_the_begin_is_dropped_too() -> None:
    """His first unit has been given to him, and no thread has taken it up: no result, no error."""
    preparers, gate = Preparers(1), threading.Event()
    called: list[str] = []

    def hold() -> None:
        gate.wait(PATIENCE)

    for _ in range(3):  # all threads of one that lets one wait
        preparers.aside(hold)
    job = preparers.submit(lambda: called.append("work"), ME, 10)
    assert job.begun
    preparers.leave(job)
    gate.set()
    with pytest.raises(LeftError):
        job.done.result(PATIENCE)
    assert not called
    preparers.close()


def test_the_end_ends_what_waits_between_units() -> None:
    preparers, gate = Preparers(10), Gate()
    jobs = [preparers.submit(units(gate, str(i), 9), others(i), 8 << 20) for i in range(3)]
    gate.wait_begun(1)
    preparers.close()
    gate.let(100)
    for job in jobs[:2]:
        with pytest.raises(BaseException):  # noqa: B017, PT011 - left or cancelled
            job.done.result(PATIENCE)
    assert jobs[2].done.cancelled()
    with pytest.raises(ApiError, match="shutting down"):
        preparers.submit(lambda: None, ME, 0)
    with pytest.raises(EngineClosedError):
        preparers.lend(ME, lambda: None)


def test_lent_work_is_long_and_never_refused() -> None:
    preparers, gate = Preparers(1), Gate()
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(preparers.lend(ME, lambda: gate.unit("lent"))))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    gate.wait_begun(1)
    mine = preparers.submit(units(gate, "mine", 1), ME, 10)
    gate.wait_begun(2)
    assert gate.begun == ["lent", "mine"]
    gate.let(100)
    for thread in threads:
        thread.join(PATIENCE)
    all_done([mine])
    assert len(found) == 5
    preparers.close()


def test_work_fails_with_its_own_error(preparers: Preparers) -> None:
    def work() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        preparers.submit(work, ME, 1).done.result(PATIENCE)
    assert preparers.submit(lambda: 5, ME, 1).done.result(PATIENCE) == 5


def test_outside_of_preparers_a_unit_is_nothing() -> None:
    next_unit()
    next_unit(LONG)


# The queue by itself.


def queued(queue: FairQueue[Entry], *entries: tuple[Sender, int]) -> list[Entry]:
    found = [Entry(sender, cost) for sender, cost in entries]
    for entry in found:
        queue.put(entry)
    return found


def test_groups_get_the_same_whatever_they_send() -> None:
    queue: FairQueue[Entry] = FairQueue(0)
    queued(queue, *[(Sender("many", i), 10) for i in range(100)], *[(Sender("few", 0), 10)] * 10)
    first = [entry.sender.group for _ in range(20) if (entry := queue.pop())]
    assert first.count("few") == 10


def test_cost_counts_and_not_the_number() -> None:
    queue: FairQueue[Entry] = FairQueue(0)
    queued(queue, *[(Sender("a", 0), 30)] * 20, *[(Sender("b", 0), 10)] * 60)
    first = [entry for _ in range(40) if (entry := queue.pop())]
    spent = {name: sum(e.cost for e in first if e.sender.group == name) for name in "ab"}
    assert abs(spent["a"] - spent["b"]) <= 30


def test_a_credit_is_no_more_than_that() -> None:
    """A connection that is new, or was silent for long, does not keep others waiting for long."""
    queue: FairQueue[Entry] = FairQueue(40)
    queued(queue, *[(Sender("x", "old"), 10)] * 50)
    for _ in range(30):
        queue.pop()
    queued(queue, *[(Sender("x", "new"), 10)] * 50)
    first = [entry.sender.connection for _ in range(8) if (entry := queue.pop())]
    assert first[:4] == ["new"] * 4
    assert "old" in first


def test_senders_that_are_always_new_keep_nobody_waiting_for_ever() -> None:
    for names in (lambda i: Sender("x", i), lambda i: Sender(i, 0)):
        queue: FairQueue[Entry] = FairQueue(40)
        queued(queue, *[(names("old"), 10)] * 20)
        served = []
        for i in range(1000):
            queued(queue, (names(i), 10))
            entry = queue.pop()
            assert entry
            served.append("old" in (entry.sender.group, entry.sender.connection))
        assert sum(served) == 20


def test_any_order_of_puts_and_pops_loses_nothing() -> None:
    rng = random.Random(5)
    queue: FairQueue[Entry] = FairQueue(100)
    inside: set[int] = set()
    keep: list[Entry] = []
    for _ in range(5000):
        what = rng.random()
        if what < 0.5:
            entry = Entry(Sender(rng.randrange(4), rng.randrange(5)), rng.randrange(1, 50))
            queue.put(entry)
            inside.add(id(entry))
            keep.append(entry)
        elif what < 0.6 and inside:
            entry = rng.choice([e for e in keep if id(e) in inside])
            assert queue.remove(entry)
            assert not queue.remove(entry)
            inside.remove(id(entry))
        elif (found := queue.pop()) is not None:
            inside.remove(id(found))
        assert {id(entry) for entry in queue} == inside
    assert queue.last() is not None or not inside


def test_senders_of_the_past_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monolane.serve._run.fair_queue._REMEMBERED", 8)
    queue: FairQueue[Entry] = FairQueue(5)
    for i in range(1000):
        queued(queue, (Sender(i, 0), 10), (Sender("one", i), 10))
        queue.pop()
        queue.pop()
    assert len(queue._groups) < 20
    assert len(queue._groups["one"].tags) < 20
