import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from monolane.tune._chat_tokens import EncodedChat
from monolane.tune._material import make_rows, row_arrays


def chat(length: int, first: int = 10) -> EncodedChat:
    ids_T = np.arange(first, first + length, dtype=np.int32)
    return EncodedChat(ids_T, np.arange(length) >= length // 2)


@given(st.lists(st.integers(2, 20), min_size=1, max_size=40))
def test_every_chat_is_in_one_row_and_rows_are_full(lengths: list[int]) -> None:
    chats = [chat(length, 100 * i) for i, length in enumerate(lengths)]
    rows = make_rows(chats, 20, packing=True)
    packed = [int(c.ids[0]) // 100 for row in rows for c in row.chats]
    assert sorted(packed) == list(range(len(chats)))
    assert all(len(row) <= 20 for row in rows)
    # No two rows could be one: best fit would have put them together.
    sizes = sorted(map(len, rows))
    assert len(sizes) < 2 or sizes[0] + sizes[1] > 20
    again = make_rows(chats, 20, packing=True)
    assert [[c.ids[0] for c in row.chats] for row in rows] == [
        [c.ids[0] for c in row.chats] for row in again
    ]


def test_the_arrays_of_a_packed_row() -> None:
    [row] = make_rows([chat(3, 10), chat(4, 20)], 8, packing=True)
    [short] = make_rows([chat(2, 30)], 8, packing=True)
    arrays = row_arrays([row, short], pad_id=5)
    assert arrays["input_ids"].tolist() == [
        [20, 21, 22, 23, 10, 11, 12],
        [30, 31, 5, 5, 5, 5, 5],
    ]
    assert arrays["labels"].tolist() == [
        [-100, -100, 22, 23, -100, 11, 12],
        [-100, 31, -100, -100, -100, -100, -100],
    ]
    assert arrays["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2], [0, 1, 0, 1, 2, 3, 4]]


def test_without_packing_each_chat_has_a_row() -> None:
    rows = make_rows([chat(3), chat(4)], 8, packing=False)
    assert [len(row.chats) for row in rows] == [1, 1]
