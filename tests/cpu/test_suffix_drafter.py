"""The suffix drafter against a search by hand, and what it may cost in steps and bytes."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolane._core import SuffixDrafter

DEEPEST = 64  # matches are not counted beyond: SuffixIndex::kDeepest
ORDERS = (1, 3, 7, 16)  # as many last tokens enter a chain: SuffixIndex::kOrders
WALK = 8  # places looked at in the chain of each order


def ids(tokens):
    return np.array(tokens, np.int32)


def drafter_of(text, size=1 << 14):
    drafter = SuffixDrafter(size)
    drafter.append(ids(text))
    return drafter


def matches(text):
    """Of each earlier place, how many tokens before it equal the last ones of the text."""
    found = {}
    for at in range(1, len(text)):
        count = 0
        while count < min(at, DEEPEST) and text[at - 1 - count] == text[-1 - count]:
            count += 1
        if count:
            found[at] = count
    return found


def newest_longest(found):
    """The place to draft from; None where the chain that it is in is longer than is looked at."""
    best = max(found.values())
    order = max(k for k in ORDERS if k <= best)
    if sum(count >= order for count in found.values()) > WALK:
        return None
    return max(at for at, count in found.items() if count == best)


def following(text, at, most):
    """The tokens from a place on; behind the end a text that repeats goes on repeating."""
    found = []
    for i in range(at, at + most):
        found.append(text[i] if i < len(text) else found[i - len(text)])
    return found


def repetitive(rng, length, tokens, chance):
    """Random tokens, and copies of what came before."""
    text = [rng.randrange(tokens)]
    while len(text) < length:
        if rng.random() < chance:
            at = rng.randrange(len(text))
            text += text[at : at + rng.randrange(1, 30)]
        else:
            text.append(rng.randrange(tokens))
    return text[:length]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 40))
def test_draft_follows_the_longest_match(text, most):
    found = matches(text)
    tokens, chances = drafter_of(text).draft(most)
    if not found:
        assert tokens.size == 0
        return
    assert tokens.size == chances.size == most
    at = newest_longest(found)
    if at is not None:
        assert tokens.tolist() == following(text, at, most)
    assert any(tokens.tolist() == following(text, at, most) for at in found)


@pytest.mark.parametrize("seed", range(4))
def test_long_repetitive_texts(seed):
    rng = random.Random(seed)
    text = repetitive(rng, 1200, 300, 0.2)
    drafter, checked = SuffixDrafter(1 << 16), 0
    for end in range(1, len(text)):
        drafter.append(ids(text[end - 1 : end]))
        if end % 7:
            continue
        found = matches(text[:end])
        tokens, _ = drafter.draft(20)
        if not found:
            assert tokens.size == 0
            continue
        at = newest_longest(found)
        if at is not None:
            assert tokens.tolist() == following(text[:end], at, 20)
            checked += 1
    assert checked > 100


def test_text_that_repeats_goes_on_repeating():
    tokens, _ = drafter_of([1, 2, 3, 1, 2, 3, 1, 2, 3]).draft(7)
    assert tokens.tolist() == [1, 2, 3, 1, 2, 3, 1]


def test_one_text_by_any_pieces():
    text = repetitive(random.Random(5), 400, 20, 0.3)
    pieces = SuffixDrafter(1 << 10)
    for begin in range(0, 400, 13):
        pieces.append(ids(text[begin : begin + 13]))
    whole = drafter_of(text, 1 << 10)
    for one, other in zip(whole.draft(30), pieces.draft(30), strict=True):
        np.testing.assert_array_equal(one, other)
    assert pieces.length == 400


def test_other_texts_are_copied_from_and_never_across_their_end():
    drafter = SuffixDrafter(1 << 10)
    drafter.add_text(ids([7, 8, 9, 10, 11]))
    drafter.add_text(ids([20, 21]))
    assert drafter.draft(9)[0].size == 0  # the end of a text equals no other end
    drafter.append(ids([8, 9]))
    assert drafter.draft(9)[0].tolist() == [10, 11]
    drafter.append(ids([5, 20]))
    assert drafter.draft(9)[0].tolist() == [21]


def test_clear_forgets_the_texts():
    drafter = drafter_of([1, 2, 3, 1, 2])
    drafter.clear()
    assert drafter.length == 0
    assert drafter.draft(4)[0].size == 0
    drafter.append(ids([1, 2]))
    assert drafter.draft(4)[0].size == 0
    drafter.append(ids([1]))
    assert drafter.draft(2)[0].tolist() == [2, 1]


def test_ring_forgets_the_oldest_and_takes_no_more_memory():
    drafter = drafter_of([9001, 9002, 9003], 256)
    before = drafter.bytes
    assert before == 256 * (4 + 8 * len(ORDERS))
    assert SuffixDrafter(129).bytes == before  # rounded up to a power of two
    text = random.Random(3).sample(range(5000), 255 - 3)
    drafter.append(ids(text))
    drafter.append(ids([9001]))
    assert drafter.draft(1)[0].tolist() == [9002]  # 256 tokens: the oldest is still there
    drafter.append(ids([9003]))
    assert drafter.draft(1)[0].tolist() == text[:1]
    drafter.append(ids([9002]))
    assert drafter.draft(1)[0].size == 0  # forgotten
    drafter.append(ids(repetitive(random.Random(6), 5000, 50, 0.2)))
    assert drafter.bytes == before
    assert drafter.length == 3 + 252 + 3 + 5000


@pytest.mark.parametrize("tokens", [1, 3, 40000], ids=["one token", "three tokens", "many tokens"])
def test_steps_are_linear_in_the_tokens(tokens):
    # One draft or one observed token: the chains' entries, each with a match of at most 64 tokens
    # and the one that ends it, and for each drafted token the places that still agree.
    places = len(ORDERS) * WALK
    rng = random.Random(1)
    text = ids([rng.randrange(tokens) for _ in range(20000)])
    drafter = SuffixDrafter(1 << 15)
    drafter.append(text)
    assert drafter.steps == 0
    drafter.draft(64)
    assert drafter.steps <= places * (1 + DEEPEST + 1 + 64)
    before = drafter.steps
    drafter.observe(text[:2000])
    assert drafter.steps - before <= 2000 * places * (1 + DEEPEST + 1 + 1)


def test_chances_are_those_of_what_the_model_drew():
    # The text before has runs of a pattern; the model breaks each copy off after three tokens.
    rng = random.Random(2)
    drafter = SuffixDrafter(1 << 12)
    drafter.append(ids(list(range(100, 200)) * 2))
    trusting = drafter.draft(1)[1][0]
    assert trusting > 0.9  # a copy of 64 tokens and more
    begins = [begin for begin in range(100, 197, 3) if begin != 151]
    rng.shuffle(begins)
    for begin in begins:
        drafter.observe(ids([rng.randrange(1000, 30000), begin, begin + 1, begin + 2]))
    assert drafter_chances(drafter, 151, 1) > 0.8  # after one token the copy went on
    assert drafter_chances(drafter, 151, 3) < 0.3  # after three it never did


def drafter_chances(drafter, begin, count):
    drafter.append(ids([31000 + drafter.length, *range(begin, begin + count)]))
    return drafter.draft(1)[1][0]


def test_what_it_refuses():
    with pytest.raises(ValueError, match="max_tokens: expected 128"):
        SuffixDrafter(5)
    with pytest.raises(ValueError, match="expected ids of 0 or more, got -1"):
        SuffixDrafter(128).append(ids([3, -1]))
    with pytest.raises(ValueError, match="most"):
        SuffixDrafter(128).draft(1 << 40)


def test_the_copy_goes_on_behind_an_edit_where_it_broke_off():
    # Every line of the file has the same two tokens in front; the answer changes the third of one.
    file = [token for line in range(40) for token in (1, 2, 100 + line, 200 + line)]
    drafter = SuffixDrafter(1 << 12)
    drafter.append(ids(file))
    drafter.observe(ids(file[:80]))
    drafter.observe(ids([1, 2, 999]))  # in place of 1 2 120
    assert drafter.draft(5)[0].tolist() == [220, 1, 2, 121, 221]  # no match tells it
    drafter.observe(ids([220, 1]))
    assert drafter.draft(3)[0].tolist() == [2, 121, 221]


def renamed(file, old, new):
    return [token for one in file for token in (new if one == old else [one])]


def test_what_was_replaced_once_is_replaced_again():
    rng = random.Random(8)
    file = [rng.randrange(50, 5000) for _ in range(400)]
    for at in range(30, 400, 40):
        file[at] = 7
    answer = renamed(file, 7, [9, 8, 9])
    drafter = SuffixDrafter(1 << 12)
    drafter.append(ids(file))
    drafter.observe(ids(answer[:60]))
    tokens, chances = drafter.draft(120)
    assert tokens.tolist() == answer[60:180]
    assert (chances > 0.5).all()
    # Where a name that was not changed comes up again and again, the old one comes back.
    drafter.observe(ids(file[58:]))
    drafter.observe(ids(file[:60]))
    assert drafter.draft(20)[0].tolist() == file[60:80]
