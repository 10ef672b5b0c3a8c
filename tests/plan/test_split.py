"""Shares are contiguous, even, and cover each row exactly once."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from monolane.ops.attention.splits import choose_splits
from monolane.plan import Groups, Scope, Share, split
from monolane.plan._split import choose_align

sizes = st.integers(0, 3000)
workers = st.integers(1, 70)


@given(sizes, workers, st.sampled_from([1, 2, 8, 96]), st.integers(0, 100))
def test_every_row_once_in_whole_blocks(rows: int, count: int, align: int, first: int) -> None:
    bounds = split(rows, count, align, first)
    assert len(bounds) == count + 1
    assert (bounds[0], bounds[-1]) == (0, rows)
    assert list(bounds) == sorted(bounds)
    assert all(bound % align == 0 or bound == rows for bound in bounds)
    blocks = [-(-(end - begin) // align) for begin, end in pairwise(bounds)]
    assert max(blocks) - min(blocks) <= 1


def test_more_workers_than_rows() -> None:
    assert split(3, 5) == (0, 1, 2, 3, 3, 3)
    assert split(0, 2, 8) == (0, 0, 0)
    assert split(20, 2, 8) == (0, 16, 20)


def test_what_is_left_over_goes_to_the_workers_from_first_on() -> None:
    assert split(10, 4, 2) == (0, 4, 6, 8, 10)
    assert split(10, 4, 2, first=1) == (0, 2, 6, 8, 10)
    assert split(12, 4, 2, first=3) == (0, 4, 6, 8, 12)


@given(st.integers(1, 500), workers, st.sampled_from([1, 2, 4]))
def test_large_blocks_never_cost_evenness(multiple: int, count: int, minimum: int) -> None:
    rows = multiple * minimum

    def largest(align: int) -> int:
        bounds = split(rows, count, align)
        return max(end - begin for begin, end in pairwise(bounds))

    align = choose_align(rows, count, minimum)
    assert align % minimum == 0
    assert largest(align) <= 1.02 * largest(minimum)


def test_blocks_of_eight_where_they_divide() -> None:
    assert choose_align(3072, 16) == 8
    assert choose_align(192, 16, 2) == 4  # 12 rows each; eights would give some 16 and some 8
    assert choose_align(192, 16, 96) == 96
    assert choose_align(3072, 5) == 8  # 616 rows instead of 615: a better bargain than a tail


@given(st.integers(1, 64), workers)
def test_parts_of_heads_give_everybody_one_and_nobody_more_than_whole_heads(
    heads: int, count: int
) -> None:
    def busiest(splits: int) -> float:  # in heads
        return -(-heads * splits // count) / splits

    least = -(-count // heads)
    splits = choose_splits(heads, count)
    assert least <= splits <= max(least, 8)
    assert busiest(splits) <= busiest(least)
    fewer = range(least, splits)
    assert all(busiest(s) > 1.125 * heads / count for s in fewer)
    assert all(busiest(s) > busiest(splits) for s in fewer)


def test_heads_are_cut_where_they_do_not_go_round() -> None:
    assert choose_splits(3, 2) == 2
    assert choose_splits(8, 6) == 2  # three halves of a head instead of two heads; thirds: 4/3
    assert choose_splits(8, 12) == 3
    for heads, count in ((8, 8), (8, 4), (4, 2), (1, 1), (3, 1)):
        assert choose_splits(heads, count) == 1
    assert choose_splits(1, 24) == 24


def test_a_share_is_the_same_in_every_group() -> None:
    share = Share(Scope.GROUP, (0, 8, 12))
    assert [share.of(worker) for worker in range(4)] == [(0, 8), (8, 12)] * 2
    assert share.total == 12


@given(st.integers(1, 64), st.integers(1, 200))
def test_groups_partition_lanes_and_workers(lanes: int, count: int) -> None:
    groups = Groups(lanes, count)
    numbers = range(groups.count)
    assert [lane for g in numbers for lane in groups.lanes_of(g)] == list(range(lanes))
    assert [w for g in numbers for w in groups.workers_of(g)] == list(range(count))
    assert all(groups.of(w) == g for g in numbers for w in groups.workers_of(g))


def test_groups_of_eight_lanes() -> None:
    found = {
        w: (g := Groups(8, w)) and (g.count, g.lanes_each, g.workers_each) for w in (2, 3, 128)
    }
    assert found == {2: (2, 4, 1), 3: (1, 8, 3), 128: (8, 1, 16)}
