"""What ordinary compressors need for the same held-out files, one file at a time.

A floor for judgement, not a rival: like the model they see each file alone from its start, but
unlike it they know nothing beforehand.
"""

import bz2
import lzma
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from monolane.train._demo.library import Document


@dataclass(frozen=True)
class Baseline:
    """Bits per byte of one compressor over some documents."""

    name: str
    bits_per_byte: float


def measure_baselines(documents: Sequence[Document]) -> tuple[Baseline, ...]:
    """Compress each document by itself with xz and bzip2 at their best level."""
    return (
        Baseline("xz -9e", _bits_per_byte(documents, _xz)),
        Baseline("bzip2 -9", _bits_per_byte(documents, bz2.compress)),
    )


def _xz(content: bytes) -> bytes:
    return lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)


def _bits_per_byte(documents: Sequence[Document], compress: Callable[[bytes], bytes]) -> float:
    bits = sum(8 * len(compress(document.text.encode())) for document in documents)
    return bits / sum(document.size for document in documents)
