"""A corpus of 10^12 tokens is opened and read at once, in a few megabytes."""

import os
import tracemalloc
from pathlib import Path

import numpy as np

from monolane.data._permutation import Permutation
from monolane.data._stream import Stream
from monolane.data._tokens import ENDS, Part, TokenFiles

TOKENS, DOCUMENTS = 10**12, 10**6


def test_rows_of_a_trillion_tokens(tmp_path: Path) -> None:
    """The file is sparse: 2 TB of zeros that take no disk."""
    with (tmp_path / "big.ds").open("wb") as file:
        os.truncate(file.fileno(), 2 * TOKENS)
    size = TOKENS // DOCUMENTS
    np.arange(size, TOKENS + 1, size, dtype=ENDS).tofile(tmp_path / "big.ds.index")
    tracemalloc.start()
    try:
        files = TokenFiles(tmp_path, [Part("big", DOCUMENTS, TOKENS, "")], np.dtype("<u2"))
        stream = Stream("big", files, 4096, 0)
        for row in (0, 1, stream.rows - 1, stream.rows, 10 * stream.rows + 12345):
            place = stream.place(row)
            ids, begins = stream.read(place)
            assert 0 < len(ids) <= 4097
            assert begins.sum() <= 2
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert stream.rows == -(-TOKENS // 4096)
    assert peak < 2e6  # bytes; the index alone is 8e6, an order of rows would be 1e9


def test_walks_of_the_cipher_are_short() -> None:
    """The domain is below four times the size: even the worst size takes four rounds on average."""
    size = (1 << 30) + 1  # one past a power of four
    order = Permutation(size, b"key")
    places = np.random.default_rng(0).integers(0, size, 200)
    assert len({order[int(place)] for place in places}) == len(set(places.tolist()))
