"""Document-masked attention: packed rows in which no token sees another document's.

On CPUs the mask is a boolean matrix for SDPA. On GPUs it is a predicate for flex_attention, whose
compiled kernel skips the blocks that a mask empties: most of a packed row, and of a window. Both
come from :func:`visible`, and are held against each other by a test.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from monolane.hf import LaneformerConfig

Masks = dict[str, Any]  # by kind of attention, as the model's layers name it


def visible(query: Tensor, key: Tensor, window: int | None) -> Tensor:
    """Say which key positions a query position sees: causal, and within ``window`` if there is one.

    Key j is visible to query i iff i - window < j <= i; any shapes that broadcast.
    """
    seen = key <= query
    return seen if window is None else seen & (key > query - window)


def document_masks(config: LaneformerConfig, documents_BT: Tensor, flex: bool) -> Masks:
    """Return the mask of each kind of attention for rows of these document numbers [B, T].

    Boolean [B, 1, T, T], true where a key is seen, or a BlockMask where ``flex`` is set.
    """
    kinds = set(config.layer_types)
    build = _block_mask if flex else _boolean_mask
    return {
        kind: build(documents_BT, config.sliding_window if kind == "sliding_attention" else None)
        for kind in sorted(kinds)
    }


def _boolean_mask(documents_BT: Tensor, window: int | None) -> Tensor:
    place_T = torch.arange(documents_BT.shape[1], device=documents_BT.device)
    same_BTT = documents_BT[:, :, None] == documents_BT[:, None, :]
    return (same_BTT & visible(place_T[:, None], place_T[None, :], window))[:, None]


def _block_mask(documents_BT: Tensor, window: int | None) -> Any:
    rows, length = documents_BT.shape
    device = documents_BT.device.type
    # Uncompiled, the predicate is a matrix [B, T, T] that is written and read several times.
    make = _compiled() if device == "cuda" else create_block_mask
    return make(_predicate(documents_BT, window), rows, None, length, length, device)


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(create_block_mask, dynamic=False)


def _predicate(documents_BT: Tensor, window: int | None) -> Callable[..., Tensor]:
    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = documents_BT[row, query] == documents_BT[row, key]
        return same & visible(query, key, window)

    return sees
