"""The tree of kept sequences: what it finds, what it forgets, and that namespaces share nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolane.engine._prefix_tree import PrefixTree
from monolane.executor_api import KeptBytes

ROW = 8  # bytes; two lists of them, and 4 of the token itself
TOKEN = 2 * ROW + 4


def rows_of(tokens: list[int], begin: int = 0) -> np.ndarray:
    """Rows that say which token they are of, and at which place."""
    found = np.zeros((2, len(tokens) - begin, ROW), np.uint8)
    found[:, :, 0] = tokens[begin:]
    found[:, :, 1] = np.arange(begin, len(tokens)) % 256
    return found


def put(tree: PrefixTree, tokens: list[int], namespace: str = "", tail: bool = False) -> None:
    begin = tree.find(namespace, tokens).common
    tail_bytes = np.array([sum(tokens) % 256, len(tokens)], np.uint8) if tail else None
    tree.put(namespace, tokens, begin, KeptBytes(rows_of(tokens, begin), tail_bytes))


def check(tree: PrefixTree, tokens: list[int], resumed: int, namespace: str = "") -> None:
    found = tree.find(namespace, tokens)
    assert found.resumed == resumed
    parts = [kept.rows[:, :count] for kept, count in found.parts]
    joined = np.concatenate(parts, axis=1) if parts else np.zeros((2, 0, ROW), np.uint8)
    np.testing.assert_array_equal(joined, rows_of(tokens[:resumed]))
    if tree.distance and resumed:
        tail = found.parts[-1][0].tail
        assert tail is not None
        assert tail.tolist() == [sum(tokens[:resumed]) % 256, resumed]


def test_the_longest_beginning_is_found() -> None:
    tree = PrefixTree(1 << 20, distance=0)
    put(tree, [1, 2, 3, 4, 5])
    put(tree, [1, 2, 3, 9])
    put(tree, [7])
    check(tree, [1, 2, 3, 4, 5, 6], 5)
    check(tree, [1, 2, 3, 4, 8], 4)
    check(tree, [1, 2, 3, 9, 9], 4)
    check(tree, [1, 2], 2)
    check(tree, [7, 1], 1)
    check(tree, [2], 0)
    assert tree.nbytes == (5 + 1 + 1) * TOKEN  # what two begin with is there once


def test_with_tails_it_goes_on_from_a_tail_only() -> None:
    tree = PrefixTree(1 << 20, distance=1)
    put(tree, [1, 2, 3, 4, 5], tail=True)
    check(tree, [1, 2, 3, 4, 5, 6], 5)
    check(tree, [1, 2, 3, 4, 8], 0)
    assert tree.find("", [1, 2, 3, 4, 8]).common == 4
    put(tree, [1, 2, 3], tail=True)  # rows that are there get a tail
    check(tree, [1, 2, 3, 4, 8], 3)
    check(tree, [1, 2, 3, 4, 5], 5)
    put(tree, [1, 2, 3, 4, 8])  # whose tail was dropped
    check(tree, [1, 2, 3, 4, 8, 9], 3)
    assert tree.nbytes == 6 * TOKEN + 2 * 2


STAYS = {12, 15, 24, 36, 39, 42}  # one for each distance, where two part, and the last two


@pytest.mark.parametrize(
    ("room", "more"),
    [
        (100, {3, 6, 9, 18, 21, 27, 30, 33}),
        (len(STAYS) + 4, {21, 30, 33}),  # the nearer to the end, the closer
        (len(STAYS) + 1, set()),
    ],
)
def test_tails_stay_while_there_is_room(room: int, more: set[int]) -> None:
    """Of those that others are close to, the ones go first whose loss costs least."""
    text = [*range(100)]
    tree = PrefixTree(43 * TOKEN + 2 * room, distance=10)
    for end in range(3, 40, 3):
        put(tree, text[:end], tail=True)
    put(tree, [*text[:15], 99], tail=True)
    put(tree, text[:15], tail=True)  # where these two part
    put(tree, text[:42], tail=True)
    for end in range(1, 43):
        resumed = max([stop for stop in STAYS | more if stop <= end], default=0)
        check(tree, text[:end], resumed)
    assert tree.nbytes == 43 * TOKEN + 2 * (len(STAYS | more) + 1)


@pytest.mark.parametrize("lookups", [0, 300])
def test_close_tails_give_way_to_what_is_in_use_and_not_to_old_talks(lookups: int) -> None:
    tree = PrefixTree(42 * TOKEN + 2 * 3, distance=100)
    other = [*range(50, 90)]
    put(tree, other[:20], tail=True)
    text = [*range(20)]
    for end in range(2, 20, 2):
        put(tree, text[:end], tail=True)
    for _ in range(lookups):
        tree.find("", text[:18])
    put(tree, text, tail=True)
    put(tree, [*text, 98, 99], tail=True)
    check(tree, other[:20], 0 if lookups else 20)
    check(tree, [*text[:8], 97], 8 if lookups else 0)
    check(tree, [*text, 98, 99], 22)


def test_namespaces_share_nothing() -> None:
    tree = PrefixTree(1 << 20, distance=0)
    put(tree, [1, 2, 3], "alice")
    check(tree, [1, 2, 3], 0, "bob")
    put(tree, [1, 2], "bob")
    check(tree, [1, 2, 3], 2, "bob")
    check(tree, [1, 2, 3], 3, "alice")


def test_the_least_recently_used_goes_first_and_parents_after_their_children() -> None:
    tree = PrefixTree(7 * TOKEN, distance=0)
    put(tree, [1, 2, 3, 4])
    put(tree, [1, 2, 5])
    put(tree, [8, 9])
    check(tree, [1, 2, 3, 4], 4)  # a use
    put(tree, [6])  # over the budget by one token
    check(tree, [1, 2, 5], 2)
    check(tree, [1, 2, 3, 4], 4)
    check(tree, [8, 9], 2)
    put(tree, [6, 6, 6])
    check(tree, [1, 2, 3, 4], 2)
    check(tree, [6, 6, 6], 3)
    put(tree, [*range(20, 40)])  # more than there is room for: nothing of it is left
    check(tree, [*range(20, 40)], 0)
    assert tree.nbytes <= 7 * TOKEN


def test_nothing_is_put_behind_what_was_forgotten() -> None:
    tree = PrefixTree(1 << 20, distance=0)
    tree.put("", [1, 2, 3], 2, KeptBytes(rows_of([1, 2, 3], 2)))
    check(tree, [1, 2, 3], 0)
    assert tree.nbytes == 0


def test_its_nodes_make_it_again() -> None:
    tree = PrefixTree(1 << 20, distance=1)
    for tokens in ([1, 2, 3, 4], [1, 2, 5], [1, 2], [7]):
        put(tree, tokens, "a", tail=True)
    again = PrefixTree(1 << 20, distance=1)
    for namespace, ids, kept in tree.nodes():
        again.put(namespace, ids.tolist(), len(ids) - kept.positions, kept)
    assert again.nbytes == tree.nbytes
    for tokens in ([1, 2, 3, 4], [1, 2, 5], [1, 2], [7]):
        check(again, tokens, len(tokens), "a")


SEQUENCES = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), SEQUENCES, st.booleans()), max_size=30),
    st.booleans(),
    st.sampled_from([5 * TOKEN, 20 * TOKEN, 1 << 20]),
)
def test_whatever_is_put_is_found_as_it_was(
    puts: list[tuple[str, list[int], bool]], has_tails: bool, budget: int
) -> None:
    """Rows and tails are those of the tokens; the bytes counted are those held."""
    tree = PrefixTree(budget, int(has_tails))
    for namespace, tokens, tail in puts:
        put(tree, tokens, namespace, tail and has_tails)
        for name in "ab":
            found = tree.find(name, tokens)
            check(tree, tokens, found.resumed, name)
            assert found.resumed <= found.common
            assert has_tails or found.resumed == found.common
        held = [kept.nbytes + 4 * kept.positions for _, _, kept in tree.nodes()]
        assert sum(held) == tree.nbytes <= budget


@pytest.mark.parametrize("has_tails", [False, True])
def test_without_a_limit_nothing_is_forgotten(has_tails: bool) -> None:
    rng = np.random.default_rng(0)
    sequences = [rng.integers(3, size=rng.integers(1, 15)).tolist() for _ in range(100)]
    tree = PrefixTree(1 << 30, int(has_tails))
    for tokens in sequences:
        put(tree, tokens, tail=has_tails)
    for tokens in sequences:
        check(tree, tokens, len(tokens))
