from collections import Counter

import numpy as np
import pytest

from monolane.errors import TextError
from monolane.train._packing import Packing
from monolane.train._vocabulary import BOS, EOS, UNK

_CONTEXT = 16


def _documents() -> list[np.ndarray]:
    """Nine documents whose inner ids occur once in all."""
    lengths = [1, 5, 0, 40, 16, 7, 3, 22, 11]
    ends = np.cumsum(lengths) + 3
    return [
        np.array([BOS, *range(end - length, end), EOS], dtype=np.uint16)
        for length, end in zip(lengths, ends, strict=True)
    ]


@pytest.mark.parametrize("number", [0, 1, 5])
def test_an_epoch_holds_every_token_once(number: int) -> None:
    documents = _documents()
    rows_RC = Packing(documents, _CONTEXT, seed=3).epoch(number)
    assert rows_RC.dtype == np.uint16
    packed = Counter(rows_RC.ravel().tolist())
    filled = packed.pop(UNK)
    assert filled < _CONTEXT
    assert packed == Counter(np.concatenate(documents).tolist())


def test_documents_stay_whole() -> None:
    documents = _documents()
    (row,) = Packing(documents, 200, seed=3).epoch(0)  # all in one row: only their order changed
    pieces = np.split(row, np.flatnonzero(row == BOS))[1:]
    found = sorted(tuple(piece[piece != UNK].tolist()) for piece in pieces)
    assert found == sorted(tuple(document.tolist()) for document in documents)


def test_epochs_and_seeds_differ_and_repeat() -> None:
    documents = _documents()
    first = Packing(documents, _CONTEXT, seed=3)
    again = Packing(documents, _CONTEXT, seed=3)
    assert not np.array_equal(first.epoch(0), first.epoch(1))
    assert not np.array_equal(first.epoch(0), Packing(documents, _CONTEXT, seed=4).epoch(0))
    assert np.array_equal(first.epoch(0), again.epoch(0))


def test_epochs_differ_in_the_order_of_documents_too() -> None:
    packing = Packing(_documents(), 200, seed=3)  # one row, so rows have no order
    assert not np.array_equal(packing.epoch(0), packing.epoch(1))


def test_batches_walk_through_the_epochs_in_order() -> None:
    packing = Packing(_documents(), _CONTEXT, seed=3)
    rows = 3
    steps = 2 * packing.rows // rows + 1
    walked = np.concatenate([packing.batch(step, rows) for step in range(steps)])
    whole = np.concatenate([packing.epoch(number) for number in range(3)])
    assert np.array_equal(walked, whole[: len(walked)])


def test_a_batch_needs_no_history() -> None:
    documents = _documents()
    straight = Packing(documents, _CONTEXT, seed=3)
    batches = [straight.batch(step, 4) for step in range(9)]
    assert np.array_equal(Packing(documents, _CONTEXT, seed=3).batch(8, 4), batches[8])


def test_nothing_to_pack_is_an_error() -> None:
    with pytest.raises(TextError, match="at least one document"):
        Packing([], _CONTEXT, seed=0)
