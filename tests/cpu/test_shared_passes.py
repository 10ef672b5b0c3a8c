"""What goes into a pass where many sequences are open: prompts beside those that decode."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from random_weights import weights_of

from monolane.cpu import CpuExecutor
from monolane.executor_api import Advance, TokenEvent
from monolane.model import NOW, Head, LayerConfig, ModelConfig

CONFIG = ModelConfig(
    family="llama",
    hidden_size=32,
    intermediate_size=48,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    vocab_size=40,
    max_positions=800,
    num_lanes=1,
    layers=(LayerConfig(NOW, NOW),) * 2,
    head=Head.VOCAB_PARALLEL,
)
SLOTS = 64  # as many as a pass of those that decode has rows
IDS = tuple(np.random.default_rng(4).integers(40, size=700).tolist())


@pytest.fixture(scope="module")
def executor() -> CpuExecutor:
    return CpuExecutor(
        weights_of(CONFIG), "float32", context=CONFIG.max_positions, slots=SLOTS, workers=2
    )


def run(executor: CpuExecutor, *advances: Advance) -> list[TokenEvent]:
    for advance in advances:
        executor.truncate(advance.slot, 0)
    executor.start(advances)
    while not executor.read(0.1):
        pass
    return executor.take()


def asked(slot: int, count: int, budget: int, **more: Any) -> Advance:
    return Advance(slot=slot, token_ids=IDS[slot : slot + count], budget=budget, **more)


def drawn_before(events: list[TokenEvent], slot: int) -> Counter[int]:
    """Return how many tokens others drew before a slot's first."""
    first = next(i for i, event in enumerate(events) if event.slot == slot)
    return Counter(event.slot for event in events[:first])


def test_a_short_prompt_is_read_before_63_that_decode(executor: CpuExecutor) -> None:
    """By the one row that these leave it would take 30."""
    others = [asked(slot, 1, 60) for slot in range(SLOTS - 1)]
    events = run(executor, *others, asked(SLOTS - 1, 31, 1))
    # In the first pass all read, and a row is left for it. The second has the 30 that it wants.
    assert list(drawn_before(events, SLOTS - 1).values()) == [1] * (SLOTS - 1)


def test_who_decodes_beside_a_long_prompt_does_so_in_every_other_pass(
    executor: CpuExecutor,
) -> None:
    others = [asked(slot, 1, 60) for slot in range(SLOTS - 1)]
    counts = drawn_before(run(executor, *others, asked(SLOTS - 1, 600, 1)), SLOTS - 1)
    # A row is left for it in the first pass. Then it has 64 in one pass, and one row in the next
    # beside 63 draws: after nine such pairs 14 of its tokens are left.
    assert list(counts.values()) == [1 + 9] * (SLOTS - 1)


def test_few_that_decode_have_a_row_in_each_pass(executor: CpuExecutor) -> None:
    others = [asked(slot, 1, 60) for slot in range(20)]
    counts = drawn_before(run(executor, *others, asked(20, 441, 1)), 20)
    # 44 rows are left for 441 tokens: the first pass has some, and ten more follow.
    assert set(counts.values()) == {10} or set(counts.values()) == {11}


def test_a_short_prompt_does_not_wait_for_long_ones(executor: CpuExecutor) -> None:
    longs = [asked(slot, 600, 1) for slot in range(4)]
    events = run(executor, *longs, asked(4, 30, 20))
    # The first of the long ones has 34 rows beside it, and 63 in each of nine passes then.
    assert drawn_before(events, 0) == {4: 9}
    assert [event.slot for event in events if event.slot != 4] == [0, 1, 2, 3]


def test_of_equal_prompts_that_comes_first_which_wants_the_fewest_tokens(
    executor: CpuExecutor,
) -> None:
    """So 63 streams that begin anew at once do not keep a chat of one token from its pass."""
    streams = [asked(slot, 10, 20) for slot in range(SLOTS - 1)]
    # The first pass has 64 rows: the chat's ten, and those of the first five streams whole.
    assert not drawn_before(run(executor, asked(SLOTS - 1, 10, 1), *streams[::-1]), SLOTS - 1)
    events = run(executor, *streams, asked(SLOTS - 1, 10, 1))
    assert set(drawn_before(events, SLOTS - 1).values()) <= {1}
    assert sum(drawn_before(events, SLOTS - 1).values()) <= 5


def test_a_long_prompt_does_not_wait_for_many_short_ones(executor: CpuExecutor) -> None:
    events = run(executor, asked(0, 600, 1), *(asked(slot, 32, 1) for slot in range(1, SLOTS)))
    # It has half of each pass: so it is through with the nineteenth of 63.
    assert sum(drawn_before(events, 0).values()) == 18


def test_rows_of_others_change_no_bit(executor: CpuExecutor) -> None:
    each = [
        asked(slot, 1 + 37 * (slot % 5 == 0), 12, logprobs=1, drafts=slot % 3)
        for slot in range(SLOTS)
    ]
    together = run(executor, *each)
    for advance in each[::7]:
        alone = run(executor, advance)
        mine = [event for event in together if event.slot == advance.slot]
        assert [(e.token_id, e.logprob) for e in mine] == [(e.token_id, e.logprob) for e in alone]


def test_an_epoch_has_a_pass_however_soon_it_is_to_end(executor: CpuExecutor) -> None:
    """Else requests that come one behind the other would keep all from drawing."""
    for _ in range(30):
        executor.truncate(0, 0)
        executor.start([asked(0, 3, 9)])
        executor.interrupt()
        while not executor.read(0.1):
            pass
        assert executor.take()
