"""A pseudo-random order of ``range(size)`` that is computed place by place.

Not a shuffled table: an epoch of 10^12 tokens has 2.4 x 10^8 rows of 4,096, and every rank of a run
would hold 2 GB of row numbers. A Feistel cipher permutes the numbers of an even count of bits; a
result that is not below ``size`` is enciphered again until it is ("cycle walking"), which happens
less than three times on average, as the cipher's domain is less than four times the size.
"""

import hashlib
from dataclasses import dataclass

_ROUNDS = 8  # twice the four after which a Feistel cipher with good rounds is pseudo-random
_WORD = (1 << 64) - 1


@dataclass(frozen=True)
class Permutation:
    """The order of ``range(size)`` that ``key`` names; ``order[place]`` is a number below size."""

    size: int
    key: bytes

    def __post_init__(self) -> None:
        assert self.size > 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: int) -> int:
        if not 0 <= place < self.size:
            raise IndexError(place)
        bits = max(1, -(-(self.size - 1).bit_length() // 2))  # of one half
        words = hashlib.shake_128(self.key).digest(8 * _ROUNDS)
        keys = [int.from_bytes(words[at : at + 8], "little") for at in range(0, 8 * _ROUNDS, 8)]
        mask = (1 << bits) - 1
        number = place
        while True:
            left, right = number >> bits, number & mask
            for key in keys:
                left, right = right, left ^ (_mix(right ^ key) & mask)
            number = left << bits | right
            if number < self.size:
                return number


def _mix(word: int) -> int:
    """Return 64 bits that each depend on every bit of ``word`` (SplitMix64's finaliser)."""
    word = (word + 0x9E3779B97F4A7C15) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)
