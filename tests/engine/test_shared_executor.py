"""Requests that share an executor: what is left of one goes into the next epoch."""

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from monolane.engine._shared_executor import Request, SharedExecutor
from monolane.executor_api import GONE, Advance, Executor, Guide, TokenEvent

PATIENCE = 60.0  # seconds that a step may take


class ScriptedExecutor(Executor):
    """Its epochs follow a script: (tokens drawn, tokens in the slot when it ends)."""

    name, dtype, slots, context = "scripted", "none", 1, 100

    def __init__(self, *epochs: tuple[list[int], int]) -> None:
        self.epochs = list(epochs)
        self.size = 0
        self.began: list[tuple[tuple[int, ...], int]] = []  # (tokens to feed, budget)
        self.before: list[tuple[list[int], int]] = []  # (history, tokens of it that were given)
        self.guided: list[tuple[tuple[int, ...], bool]] = []  # (forced, whether there is a mask)
        self.kept: list[TokenEvent] = []

    def start(self, advances: Sequence[Advance]) -> None:
        (advance,) = advances
        self.began.append((advance.token_ids, advance.budget))
        self.before.append((np.asarray(advance.history).tolist(), advance.prompt))

    def read(self, seconds: float) -> bool:
        tokens, self.size = self.epochs.pop(0)
        self.kept = [TokenEvent(0, token, 1) for token in tokens]
        return True

    def take(self) -> list[TokenEvent]:
        kept, self.kept = self.kept, []
        return kept

    def guide(self, slot: int, guide: Guide) -> None:
        self.guided.append((guide.forced, guide.mask is not None))

    def interrupt(self) -> None:
        pass

    def length(self, slot: int) -> int:
        return self.size

    def truncate(self, slot: int, length: int) -> None:
        self.size = length

    def logits(self, slot: int, token_ids: Sequence[int]) -> np.ndarray:
        raise AssertionError


def test_what_is_left_of_a_guide_goes_into_the_next_epoch() -> None:
    """An epoch may end amid the prompt, amid forced tokens, and before the draw behind them."""
    executor = ScriptedExecutor(([], 2), ([], 3), ([20, 21], 5), ([22], 6), ([], 6), ([23, 24], 8))
    request = SharedExecutor(executor).start(
        Advance(slot=0, token_ids=(5, 6, 7, 8), budget=9, guided=True)
    )
    request.guide(Guide(np.array([1 << 9], np.uint32), (20, 21, 22)))
    tokens: list[int] = []
    while len(tokens) < 5:
        tokens += [event.token_id for event in request.read()]
    assert tokens == [20, 21, 22, 23, 24]
    assert executor.began == [
        ((5, 6, 7, 8), 9),
        ((7, 8), 9),
        ((8,), 9),  # a parked slot gave its last token back
        ((21,), 7),
        ((22,), 6),
        ((22,), 6),
    ]
    whole, rest = (20, 21, 22), ((22,), True)
    assert executor.guided == [(whole, True)] * 3 + [rest] + [((), True)] * 2


def test_each_epoch_has_the_tokens_before_it() -> None:
    """Those of the prompt that were fed, and those drawn, behind what the request came with."""
    executor = ScriptedExecutor(([], 5), ([20, 21], 8), ([], 8), ([22], 9))
    executor.size = 3
    advance = Advance(slot=0, token_ids=(5, 6, 7, 8), budget=3, history=(1, 2, 3), prompt=7)
    request = SharedExecutor(executor).start(advance)
    while request.read():
        pass
    assert executor.began == [((5, 6, 7, 8), 3), ((7, 8), 3), ((21,), 1), ((21,), 1)]
    behind = [1, 2, 3, 5, 6, 7, 8, 20]
    assert executor.before == [(x, 7) for x in ([1, 2, 3], behind[:5], behind, behind)]


def test_what_comes_with_its_history_is_fed_anew_where_the_slot_was_emptied() -> None:
    """A rank may be lost by another's epoch between a request's look at its slot and its start."""
    executor = ScriptedExecutor(([20], 8))
    advance = Advance(slot=0, token_ids=(5, 6, 7, 8), budget=1, history=(1, 2, 3), prompt=7)
    request = SharedExecutor(executor).start(advance)
    assert [event.token_id for event in request.read()] == [20]
    assert executor.began == [((1, 2, 3, 5, 6, 7, 8), 1)]
    assert executor.before == [([], 7)]


class StruckExecutor(ScriptedExecutor):
    """Ctrl-C comes while its first epoch begins: before it has, or just behind."""

    def __init__(self, behind: bool, *epochs: tuple[list[int], int]) -> None:
        super().__init__(*epochs)
        self.behind, self.struck, self.running, self.stopped = behind, False, False, False

    def start(self, advances: Sequence[Advance]) -> None:
        assert not self.running, "an epoch is running; read it to its end or stop it first"
        strikes, self.struck = not self.struck, True
        if not strikes or self.behind:
            super().start(advances)
            self.running, self.stopped = True, False
        if strikes:
            raise KeyboardInterrupt

    def read(self, seconds: float) -> bool:
        if self.running:
            super().read(seconds)
            self.running = False
        return True

    def interrupt(self) -> None:
        self.stopped = True


@pytest.mark.parametrize("behind", [False, True])
def test_ctrl_c_while_an_epoch_begins_leaves_none_that_nobody_knows(behind: bool) -> None:
    epochs = [([20], 4), ([21], 5)] if behind else [([20, 21], 5)]
    executor = StruckExecutor(behind, *epochs)
    request = SharedExecutor(executor).start(Advance(slot=0, token_ids=(5, 6, 7, 8), budget=2))
    with pytest.raises(KeyboardInterrupt):
        request.read()
    assert executor.stopped or not behind
    tokens: list[int] = []
    while events := request.read():
        tokens += [event.token_id for event in events]
    assert tokens == [20, 21]
    first = ((5, 6, 7, 8), 2)
    assert executor.began == ([first, ((20,), 1)] if behind else [first])


class HeldExecutor(ScriptedExecutor):
    """Its epochs draw nothing and run until they are interrupted; some begin only once they may."""

    slots = 2

    def __init__(self) -> None:
        super().__init__()
        self.serves: list[list[int]] = []  # the slots of each epoch
        self.begun, self.may_begin = threading.Semaphore(0), threading.Event()
        self.may_begin.set()
        self.interrupted = threading.Event()

    def start(self, advances: Sequence[Advance]) -> None:
        self.serves.append([advance.slot for advance in advances])
        self.begun.release()
        assert self.may_begin.wait(PATIENCE)
        self.interrupted.clear()  # as the native executor does, when an epoch begins

    def read(self, seconds: float) -> bool:
        return self.interrupted.wait(seconds)

    def interrupt(self) -> None:
        self.interrupted.set()


def test_a_request_that_is_stopped_does_not_wait_for_others() -> None:
    """The thread that reads for the others begins their next epoch before it can look."""
    executor = HeldExecutor()
    shared = SharedExecutor(executor)
    first, second = (shared.start(Advance(slot=i, token_ids=(5,), budget=9)) for i in (0, 1))
    reader = thread(second.read)
    assert executor.begun.acquire(timeout=PATIENCE)
    stopper = thread(first.stop)
    stopper.join(PATIENCE)
    stopped = not stopper.is_alive()
    second.cancel()
    reader.join(PATIENCE)
    assert stopped
    assert executor.serves[:2] == [[0, 1], [1]]


def test_who_comes_or_goes_while_an_epoch_begins_waits_for_nothing() -> None:
    """Beginning may start ranks anew; the epoch that then runs is over within a pass."""
    executor = HeldExecutor()
    shared = SharedExecutor(executor)
    executor.may_begin.clear()
    first = shared.start(Advance(slot=0, token_ids=(5,), budget=9))
    reader = thread(first.read)
    assert executor.begun.acquire(timeout=PATIENCE)
    second: list[Request] = []

    def change() -> None:
        second.append(shared.start(Advance(slot=1, token_ids=(6,), budget=9)))
        first.cancel()

    changer = thread(change)
    changer.join(PATIENCE)
    free = not changer.is_alive()
    executor.may_begin.set()
    reader.join(PATIENCE)
    reader = thread(second[0].read)
    assert executor.begun.acquire(timeout=PATIENCE)
    second[0].cancel()
    reader.join(PATIENCE)
    assert free
    assert executor.serves == [[0], [1]]


class OpenExecutor(HeldExecutor):
    """Others may join an epoch, and leave it; it may close, which nobody knows yet."""

    def __init__(self) -> None:
        super().__init__()
        self.open = True
        self.joined: list[int] = []
        self.left: queue.Queue[int] = queue.Queue()

    def join(self, advances: Sequence[Advance]) -> bool:
        self.joined += [advance.slot for advance in advances] if self.open else []
        return self.open

    def leave(self, slot: int) -> bool:
        self.left.put(slot)
        return True

    def read(self, seconds: float) -> bool:
        with contextlib.suppress(queue.Empty):
            self.kept = [TokenEvent(self.left.get(timeout=0.01), GONE, 1)]
        return self.interrupted.is_set()


def test_who_comes_joins_the_epoch_and_who_goes_leaves_it() -> None:
    """While it runs, and while it begins: nobody ends it for another."""
    executor = OpenExecutor()
    shared = SharedExecutor(executor)
    executor.may_begin.clear()
    first = shared.start(Advance(slot=0, token_ids=(5,), budget=9))
    reader = thread(first.read)
    assert executor.begun.acquire(timeout=PATIENCE)
    second = shared.start(Advance(slot=1, token_ids=(6,), budget=9))
    executor.may_begin.set()
    other = thread(second.read)
    first.stop()
    reader.join(PATIENCE)
    third = shared.start(Advance(slot=0, token_ids=(5,), budget=9))
    third.cancel()
    assert third.read() == []
    third.stop()
    assert other.is_alive()
    assert executor.serves == [[0]]
    assert executor.joined == [1, 0]
    assert not executor.interrupted.is_set()
    second.cancel()
    other.join(PATIENCE)
    assert not other.is_alive()


def test_nothing_is_kept_of_who_has_gone_while_the_epoch_goes_on() -> None:
    executor = OpenExecutor()
    shared = SharedExecutor(executor)
    first = shared.start(Advance(slot=0, token_ids=(5,), budget=9))
    reader = thread(first.read)
    assert executor.begun.acquire(timeout=PATIENCE)
    for _ in range(9):
        shared.start(Advance(slot=1, token_ids=(6,), budget=9)).stop()
    assert [request.advance.slot for request in shared._inside] == [0]
    assert executor.serves == [[0]]
    first.cancel()
    reader.join(PATIENCE)


def test_who_comes_as_an_epoch_closes_is_served_by_the_next() -> None:
    executor = OpenExecutor()
    shared = SharedExecutor(executor)
    first = shared.start(Advance(slot=0, token_ids=(5,), budget=9))
    readers = [thread(first.read)]
    assert executor.begun.acquire(timeout=PATIENCE)
    while not shared._running:
        pass
    executor.open = False
    second = shared.start(Advance(slot=1, token_ids=(6,), budget=9))
    readers.append(thread(second.read))
    assert executor.begun.acquire(timeout=PATIENCE)
    for request in (first, second):
        request.cancel()
    for reader in readers:
        reader.join(PATIENCE)
    assert executor.serves == [[0], [0, 1]]


def test_who_awaits_the_end_is_woken_by_the_last_token_alone() -> None:
    executor = Passes()
    shared = SharedExecutor(executor)
    first, second = (shared.start(Advance(slot=i, token_ids=(1,), budget=3)) for i in (0, 1))
    reader = thread(lambda: [second.read() for _ in range(3)])
    rests = thread(lambda: first.await_end(lambda: False))
    for _ in range(2):
        executor.passes.put(0)
        executor.passes.put(1)
    rests.join(0.1)
    assert rests.is_alive()
    executor.passes.put(0)
    rests.join(PATIENCE / 2)
    assert not rests.is_alive()
    assert len(first.read()) == 3
    executor.passes.put(1)
    reader.join(PATIENCE)


def thread(target: Callable[[], object]) -> threading.Thread:
    started = threading.Thread(target=target, daemon=True)
    started.start()
    return started


class Passes(ScriptedExecutor):
    """Each pass gives one of eight sequences a token, once the test lets it."""

    slots = 8

    def __init__(self) -> None:
        super().__init__()
        self.passes: queue.Queue[int] = queue.Queue()

    def start(self, advances: Sequence[Advance]) -> None:
        pass

    def read(self, seconds: float) -> bool:
        with contextlib.suppress(queue.Empty):
            self.kept = [TokenEvent(self.passes.get(timeout=seconds), 7, 1)]
        return False


class CountingExecutor(SharedExecutor):
    """Counts the readers that woke."""

    woken = 0

    def _sleep(self, reader: Any) -> None:
        super()._sleep(reader)
        self.woken += 1


def test_a_pass_wakes_who_has_a_token_and_one_to_read_on() -> None:
    """Not all that wait, which are up to 63."""
    executor = Passes()
    shared = CountingExecutor(executor)
    got: queue.Queue[int] = queue.Queue()

    def follow(slot: int, request: Request) -> None:
        while request.read():
            got.put(slot)

    threads = []
    for slot in range(8):
        request = shared.start(Advance(slot=slot, token_ids=(1,), budget=20))
        threads.append(threading.Thread(target=follow, args=(slot, request), daemon=True))
        threads[-1].start()
    given = [slot for turn in range(20) for slot in range(turn, turn + 8)]
    for slot in given:
        executor.passes.put(slot % 8)
        assert got.get(timeout=PATIENCE) == slot % 8
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    # A reader that leaves wakes another, which may be late, and one that had a token comes back.
    assert shared.woken <= 2 * len(given) + 8, shared.woken
