"""Penalties in the kernel: counts kept on the device, across launches, widths and guides."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu
from models import random_weights

from monolane.cuda._executor import CudaExecutor
from monolane.errors import RequestError
from monolane.executor_api import Advance, Draw, Guide
from monolane.reference import choose, count_seen

PROMPT = (1, 17, 33, 5, 60, 2, 91, 17, 8, 71, 5)
VOCAB = 96
DRAWS = (
    Draw(frequency_penalty=0.8, presence_penalty=0.3, repetition_penalty=1.4),
    Draw(temperature=0.8, seed=4, frequency_penalty=-0.5, repetition_penalty=0.8),
    Draw(temperature=1.1, seed=7, top_k=20, min_p=0.02, presence_penalty=1.5),
)


@pytest.fixture
def executor(make_gpu: Callable[..., EmulatedGpu]) -> Iterator[CudaExecutor]:
    made = CudaExecutor(random_weights(), "auto", make_gpu(sms=4), context=100, slots=4)
    yield made
    made.close()


def run(executor: CudaExecutor, *advances: Advance) -> dict[int, list[int]]:
    executor.start(advances)
    while not executor.read(1.0):
        pass
    drawn: dict[int, list[int]] = {advance.slot: [] for advance in advances}
    for event in executor.take():
        drawn[event.slot].append(event.token_id)
    return drawn


def asks(budget: int) -> list[Advance]:
    return [
        Advance(slot=i, token_ids=PROMPT, budget=budget, draw=draw, prompt=len(PROMPT))
        for i, draw in enumerate(DRAWS)
    ]


def check(executor: CudaExecutor, draw: Draw, drawn: list[int]) -> None:
    """That each token is the one that the definition draws from the kernel's own logits."""
    ids = [*PROMPT, *drawn]
    executor.truncate(3, 0)
    logits = executor.logits(3, ids)
    for i in range(len(PROMPT), len(ids)):
        assert ids[i] == choose(logits[i - 1], draw, i, seen=count_seen(ids[:i], len(PROMPT))), i


def test_draws_are_the_oracles_alone_and_together(executor: CudaExecutor) -> None:
    """A prompt runs in a wide kernel and its answer in a narrow one, which goes on counting."""
    advances = [*asks(14)[:2], replace(asks(5)[2], budget=5)]
    together = run(executor, *advances)
    for advance in advances:
        check(executor, advance.draw, together[advance.slot])
    executor.truncate(0, 0)
    assert run(executor, advances[0])[0] == together[0]


def test_epochs_and_launches_go_on_counting(executor: CudaExecutor) -> None:
    whole = run(executor, asks(12)[0])[0]
    executor.truncate(0, 0)
    parts: list[int] = []
    for budget in (3, 1, 8):
        known, held = (*PROMPT, *parts), executor.length(0)
        rest = replace(asks(budget)[0], token_ids=known[held:], history=known[:held])
        # Log-probabilities end a launch after some tokens; the next one begins with its counts.
        parts += run(executor, replace(rest, logprobs=0 if budget == 8 else None))[0]
    assert parts == whole
    with pytest.raises(RequestError, match="history: expected the 22 tokens"):
        executor.start([replace(asks(1)[0], token_ids=(5,))])


def test_forced_tokens_count(executor: CudaExecutor) -> None:
    forced = (5, 44, 44, 5)
    mask = np.full(3, 0xFFFFFFFF, np.uint32)
    executor.start([replace(asks(6)[0], guided=True)])
    for guide in (Guide(mask, forced), Guide(mask)):
        executor.guide(0, guide)
    while not executor.read(1.0):
        pass
    drawn = [event.token_id for event in executor.take()]
    assert drawn[:4] == list(forced)
    ids = [*PROMPT, *drawn]
    executor.truncate(3, 0)
    logits = executor.logits(3, ids)
    for i in (len(ids) - 2, len(ids) - 1):
        assert ids[i] == choose(logits[i - 1], DRAWS[0], i, mask, count_seen(ids[:i], len(PROMPT)))
