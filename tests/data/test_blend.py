"""Rows: every token once an epoch, a pure function of the row, the same for any number of ranks."""

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monolane.data import IGNORED, NO_DOCUMENT, Blend, Corpus, Rows
from monolane.errors import ConfigError, DataError

from .conftest import MakeCorpus

SETTINGS = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=12)


def same(left: Rows, right: Rows) -> bool:
    return all(
        np.array_equal(getattr(left, name), getattr(right, name))
        for name in ("ids", "targets", "documents", "sources")
    )


def training_tokens(corpus: Corpus, source: str) -> Counter[int]:
    files = corpus.train(source)
    return Counter(files.read(0, files.tokens)[0].tolist())


@SETTINGS
@given(lengths=LENGTHS, length=st.integers(2, 50), seed=st.integers(0, 5))
def test_an_epoch_holds_every_token_once(
    make_corpus: MakeCorpus, lengths: list[int], length: int, seed: int
) -> None:
    corpus = make_corpus(only=lengths)
    blend = Blend(corpus, {"only": 1}, length, seed)
    expected = training_tokens(corpus, "only")
    per_epoch = blend.epoch_rows("only")
    for epoch in range(3):
        rows = blend.rows(epoch * per_epoch, per_epoch)
        real = rows.documents != NO_DOCUMENT
        assert Counter(rows.ids[real].tolist()) == expected
        assert (~real).sum() == per_epoch * length - expected.total()
        assert ((~real).any(axis=1)).sum() <= 1  # at most one row is filled up


@SETTINGS
@given(lengths=LENGTHS, length=st.integers(2, 50), seed=st.integers(0, 5))
def test_every_token_but_a_documents_first_is_a_target_once(
    make_corpus: MakeCorpus, lengths: list[int], length: int, seed: int
) -> None:
    """And but the one at which the epoch's turn begins, which no token of the epoch precedes."""
    corpus = make_corpus(only=lengths)
    blend = Blend(corpus, {"only": 1}, length, seed)
    rows = blend.rows(0, blend.epoch_rows("only"))
    got = Counter(rows.targets[rows.targets != IGNORED].tolist())
    expected = training_tokens(corpus, "only") - Counter({1: len(lengths)})
    _, place = blend.place(0)
    ids, begins = corpus.train("only").read(place.turn, place.turn + 1)
    if not begins[0]:
        expected -= Counter(ids.tolist())
    assert got == expected


def test_targets_follow_ids_and_documents_change_where_one_begins(make_corpus: MakeCorpus) -> None:
    corpus = make_corpus(only=[7, 3, 20, 1])
    rows = Blend(corpus, {"only": 1}, 8, 0).rows(0, 40)
    for ids, targets, documents in zip(rows.ids, rows.targets, rows.documents, strict=True):
        for at in range(7):
            if documents[at + 1] == NO_DOCUMENT:
                continue
            assert documents[at + 1] - documents[at] == (ids[at + 1] == 1)  # bos opens a document
            assert targets[at] == (IGNORED if ids[at + 1] == 1 else ids[at + 1])
        assert documents[0] in (0, NO_DOCUMENT)


@SETTINGS
@given(first=st.integers(0, 10**12), count=st.integers(0, 20), world=st.sampled_from([1, 2, 3, 8]))
def test_ranks_join_to_the_whole(
    make_corpus: MakeCorpus, first: int, count: int, world: int
) -> None:
    corpus = make_corpus(a=[30, 5, 9], b=[100])
    blend = Blend(corpus, {"a": 2, "b": 1}, 16, 3)
    whole = blend.rows(first, count)
    parts = [blend.rows(first, count, rank=rank, world=world) for rank in range(world)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    joined = Rows(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("ids", "targets", "documents", "sources")
        )
    )
    assert same(joined, whole)


@SETTINGS
@given(rows=st.lists(st.integers(0, 10**9), min_size=1, max_size=6))
def test_a_row_is_the_same_however_it_is_asked_for(
    make_corpus: MakeCorpus, rows: list[int]
) -> None:
    corpus = make_corpus(a=[30, 5, 9], b=[100])
    blend = Blend(corpus, {"a": 2, "b": 1}, 16, 3)
    again = Blend(Corpus.open(corpus.folder), {"a": 2, "b": 1}, 16, 3)
    copied = pickle.loads(pickle.dumps(blend))  # as a worker of a loader gets it
    for row in rows:
        assert same(blend.rows(row, 1), again.rows(row, 1))
        assert same(blend.rows(row, 1), copied.rows(row, 1))
        run = blend.rows(max(0, row - 2), 4)
        at = min(2, row)
        one = blend.rows(row, 1)
        assert np.array_equal(run.ids[at], one.ids[0])


def test_epochs_and_seeds_differ(make_corpus: MakeCorpus) -> None:
    corpus = make_corpus(only=[50] * 20)
    blend = Blend(corpus, {"only": 1}, 16, 0)
    count = blend.epoch_rows("only")
    first, second = blend.rows(0, count), blend.rows(count, count)
    assert not np.array_equal(first.ids, second.ids)
    assert not np.array_equal(first.ids, Blend(corpus, {"only": 1}, 16, 1).rows(0, count).ids)
    # Other cuts too, not only another order of the same rows.
    assert {row.tobytes() for row in first.ids}.isdisjoint(row.tobytes() for row in second.ids)


def test_a_source_is_read_the_same_in_any_company(make_corpus: MakeCorpus) -> None:
    corpus = make_corpus(a=[50] * 9, b=[70] * 9)
    alone = Blend(corpus, {"a": 1}, 16, 0).rows(0, 30)
    both = Blend(corpus, {"b": 2, "a": 1}, 16, 0).rows(0, 90)
    assert np.array_equal(alone.ids, both.ids[both.sources == 1])


def test_a_later_stage_goes_on_where_the_earlier_ended(make_corpus: MakeCorpus) -> None:
    corpus = make_corpus(a=[50] * 20, b=[70] * 9, c=[9])
    early = Blend(corpus, {"a": 1, "b": 1}, 16, 0)
    late = Blend(corpus, {"a": 1, "c": 1}, 16, 0, after=early.before(40))
    assert early.before(40) == {"a": 20, "b": 20}
    alone = Blend(corpus, {"a": 1}, 16, 0)
    rows = late.rows(0, 10)
    assert np.array_equal(rows.ids[rows.sources == 0], alone.rows(20, 5).ids)
    assert late.before(10) == {"a": 25, "b": 20, "c": 5}


def test_the_order_stays_the_same_from_version_to_version(make_corpus: MakeCorpus) -> None:
    corpus = make_corpus(a=[50] * 20, b=[70] * 9)
    blend = Blend(corpus, {"a": 0.7, "b": 0.3}, 16, 42)
    places = [blend.place(row) for row in (0, 1, 2, 3, 1000)]
    assert [(name, place.epoch, place.start, place.turn) for name, place in places] == GOLDEN


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        ({"nothing": 1}, {}, "expected one of the sources a of .*, got 'nothing'"),
        ({"a": 1}, {"sequence_length": 1}, "sequence_length: expected 2 or more, got 1"),
        ({"a": 1}, {"after": {"b": 1}}, "got 'b'"),
        ({"a": 1}, {"after": {"a": -1}}, "after: expected rows from 0 on for 'a', got -1"),
    ],
)
def test_what_cannot_be_is_refused(
    make_corpus: MakeCorpus, weights: dict[str, float], options: dict[str, object], message: str
) -> None:
    corpus = make_corpus(a=[5])
    with pytest.raises(ConfigError, match=message):
        Blend(corpus, weights, **{"sequence_length": 8, "seed": 0, **options})


def test_ranks_and_rows_that_cannot_be_are_refused(make_corpus: MakeCorpus) -> None:
    blend = Blend(make_corpus(a=[5]), {"a": 1}, 8, 0)
    with pytest.raises(ConfigError, match="first and count from 0 on, got -1, 2"):
        blend.rows(-1, 2)
    with pytest.raises(ConfigError, match="0 <= rank < world, got rank 2 of 2"):
        blend.rows(0, 2, rank=2, world=2)


def test_a_source_without_tokens_is_refused(make_corpus: MakeCorpus) -> None:
    with pytest.raises(DataError, match="expected tokens to train on, got none"):
        Blend(make_corpus(a=[5], b=[]), {"a": 1, "b": 1}, 8, 0)


GOLDEN = [  # source, epoch, start, turn
    ("a", 0, 880, 360),
    ("a", 0, 224, 360),
    ("b", 0, 624, 600),
    ("a", 0, 112, 360),
    ("a", 10, 688, 162),
]
