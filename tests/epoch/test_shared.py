"""Requests that share an executor: what is left of one goes into the next epoch."""

from collections.abc import Sequence

import numpy as np

from monolane.epoch import Advance, Executor, Guide, SharedExecutor, TokenEvent


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
