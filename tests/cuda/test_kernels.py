"""Which kernels serve what."""

import pytest

from monolane.cuda._kernels import chain


@pytest.mark.parametrize(
    ("sequences", "rows", "expected"),
    [
        (1, 1, (1,)),  # a token after a token
        (1, 2, (8, 1)),
        (1, 8, (8, 1)),
        (1, 9, (64, 8, 1)),
        (1, 500, (64, 8, 1)),
        (2, 2, (8,)),
        (8, 8, (8,)),
        (8, 100, (64, 8)),
        (9, 9, (64,)),
        (64, 900, (64,)),
    ],
)
def test_chains_begin_wide_and_end_narrow(
    sequences: int, rows: int, expected: tuple[int, ...]
) -> None:
    assert chain((1, 8, 64), sequences, rows) == expected


def test_one_kernel_does_everything() -> None:
    assert chain((8,), 1, 1) == chain((8,), 8, 300) == (8,)
