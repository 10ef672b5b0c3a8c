"""What a request does to its slot before and after its answer holds up nobody else's."""

import threading
from pathlib import Path

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.errors import MonolaneError
from monolane.executor_api import Advance, Guide, Kept

PROMPT = list(range(5, 25))
ONE = SamplingParams(max_tokens=1)


class Held:
    """A constraint that lets one token come, and says nothing of the next until it is told to."""

    def __init__(self, vocab: int) -> None:
        self._mask = np.full(-(-vocab // 32), 0xFFFFFFFF, np.uint32)
        self.reached, self.go_on = threading.Event(), threading.Event()

    def step(self, token_id: int | None) -> Guide:
        if token_id is not None:
            self.reached.set()
            self.go_on.wait()
            return Guide(None)
        return Guide(self._mask)


def test_a_short_request_ends_no_epoch_of_the_others(tiny_model: Path) -> None:
    """It joins that which runs. Its slot is emptied, restored and saved beside it."""
    with Engine.load(tiny_model, "cpu", max_sequences=2, prefix_cache="8M") as engine:
        engine.generate(PROMPT, ONE)  # kept
        held = Held(engine.config.vocab_size)
        stream = engine.stream([7], SamplingParams(max_tokens=9), held)
        reader = threading.Thread(target=list, args=(stream,))
        reader.start()
        held.reached.wait()  # an epoch runs, in which its slot waits for a guide
        executor, ended, slots = engine.backend.executor, [], set[int]()
        read, save = executor.read, executor.save

        def counted(seconds: float) -> bool:
            over = read(seconds)
            if over:
                ended.append(over)
            return over

        def saved(slot: int, begin: int, end: int) -> Kept:
            slots.add(slot)
            return save(slot, begin, end)

        executor.read, executor.save = counted, saved  # type: ignore[method-assign]
        for i in range(3):
            answer = engine.generate([*PROMPT, *range(i, i + 9)], ONE)
            assert answer.timings.cache_n >= len(PROMPT)
            assert not ended
        assert len(slots) == 1
        held.go_on.set()
        reader.join()
        assert stream.finish_reason == "stop"


def test_a_slot_is_free_before_and_behind_its_epoch(tiny_model: Path) -> None:
    with Engine.load(tiny_model, "cpu", max_sequences=2) as engine:
        executor = engine.backend.executor
        executor.start(
            [
                Advance(slot=0, token_ids=(5, 6), budget=9, guided=True),
                Advance(slot=1, token_ids=(5, 6), budget=1),
            ]
        )
        assert not executor.is_free(0)
        while not (events := executor.take()):
            executor.read(0.1)
        assert [event.slot for event in events] == [1]
        assert executor.is_free(1)
        executor.truncate(1, 0)
        with pytest.raises(MonolaneError, match="truncate: an epoch uses this slot; stop it first"):
            executor.truncate(0, 0)
        executor.interrupt()
        while not executor.read(0.1):
            pass
        assert executor.is_free(0)
        with pytest.raises(MonolaneError, match="slot: expected 0 to 1, got 2"):
            executor.is_free(2)
