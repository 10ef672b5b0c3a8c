"""Encoded chats in rows: one chat each, or several that share a row and do not see each other.

Best fit, longest first: chats stay whole, where cutting a stream into rows of one length would
split an answer from its question. Each chat counts its positions from 0, and the model masks by
that, so a packed chat computes what it computes alone.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monolane.tune._encoded import EncodedChat

IGNORED = -100  # the label that the loss leaves out, in the words of torch and Transformers


@dataclass(frozen=True, slots=True)
class Row:
    """The chats of one row of the batch."""

    chats: tuple[EncodedChat, ...]

    def __len__(self) -> int:
        return sum(map(len, self.chats))


def make_rows(chats: Sequence[EncodedChat], context: int, packing: bool) -> list[Row]:
    """Return the rows of at most ``context`` tokens; no chat is longer than that."""
    if not packing:
        return [Row((chat,)) for chat in chats]
    return [
        Row(tuple(chats[i] for i in places)) for places in _packed(list(map(len, chats)), context)
    ]


def _packed(lengths: Sequence[int], context: int) -> list[list[int]]:
    """Return the chats of each row: each into the fullest row with space, longest first."""
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (tokens left, row), ascending
    for place in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        at = bisect.bisect_left(free, (lengths[place], -1))
        if at == len(free):
            rows.append([])
            left, row = context, len(rows) - 1
        else:
            left, row = free.pop(at)
        rows[row].append(place)
        bisect.insort(free, (left - lengths[place], row))
    return rows


def row_arrays(rows: Sequence[Row], pad_id: int) -> dict[str, npt.NDArray[np.int64]]:
    """Return input_ids, labels and position_ids [B, T], T the longest row's length.

    Padding follows the chats, as one more sequence with positions of its own and without labels.
    """
    length = max(map(len, rows))
    ids_BT = np.full((len(rows), length), pad_id, dtype=np.int64)
    labels_BT = np.full((len(rows), length), IGNORED, dtype=np.int64)
    positions_BT = np.zeros((len(rows), length), dtype=np.int64)
    for b, row in enumerate(rows):
        begin = 0
        for chat in row.chats:
            end = begin + len(chat)
            ids_BT[b, begin:end] = chat.ids
            labels_BT[b, begin:end] = np.where(chat.spoken, chat.ids, IGNORED)
            positions_BT[b, begin:end] = np.arange(len(chat))
            begin = end
        positions_BT[b, begin:] = np.arange(length - begin)
    return {"input_ids": ids_BT, "labels": labels_BT, "position_ids": positions_BT}
