"""The demo's documents as ids, framed as its vocabulary (of the room ``data``) numbers them."""

from collections.abc import Iterable, Iterator

import numpy as np
from tokenizers import Tokenizer

BOS, EOS = 1, 2


def encode_documents(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[np.ndarray]:
    """Yield each text as uint16 ids [T], from ``<s>`` to ``</s>``.

    Source that spells a control token is text like any other.
    """
    tokenizer.encode_special_tokens = True
    try:
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            yield np.array([BOS, *ids, EOS], dtype=np.uint16)
    finally:
        tokenizer.encode_special_tokens = False
