"""A large buffer of known words: any part's sum is known without reading it.

The fill kernel reports each granule's sum from registers; windows of the memory are downloaded and
compared with the same hash in NumPy, so neither the kernel nor the memory vouches for itself.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench.gpu._stage import expect, expect_equal
from bench.gpu.probes._context import Context
from bench.gpu.probes._kernels import FILL, Buffer
from monolane.cuda._device import Launch

Words = npt.NDArray[np.uint32]


def test_words(first: int, count: int, seed: int) -> Words:
    """`test_word` of primitives.cuh for indices first .. first + count - 1."""
    index = np.arange(first, first + count, dtype=np.uint64)
    low, high = index.astype(np.uint32), (index >> np.uint64(32)).astype(np.uint32)
    v = low * np.uint32(0x9E3779B1) + high * np.uint32(0x85EBCA77) + np.uint32(seed)
    v = (v ^ (v >> np.uint32(16))) * np.uint32(0x7FEB352D)
    v = (v ^ (v >> np.uint32(15))) * np.uint32(0x846CA68B)
    out: Words = v ^ (v >> np.uint32(16))
    return out


test_words.__test__ = False  # type: ignore[attr-defined]  # not a pytest case


class TestData:
    """`nbytes` (a multiple of the granule) of test words on the device."""

    __test__ = False

    def __init__(self, ctx: Context, nbytes: int, seed: int = 1) -> None:
        self._ctx, self._seed, self.granule = ctx, seed, ctx.scale.granule
        self.nbytes = nbytes // self.granule * self.granule
        self.buffer = ctx.device.allocate(self.nbytes)
        sums = self._granule_sums("fill_words", self.buffer, self.nbytes)
        self._prefix = np.concatenate([[0], np.cumsum(sums, dtype=np.uint64)])
        self._check_windows(sums)

    def _granule_sums(self, kernel: str, buffer: Buffer, nbytes: int) -> Words:
        ctx, count = self._ctx, nbytes // self.granule
        with ctx.buffers(sums=4 * count) as b:
            shape = Launch(min(ctx.device.info.sms * 4, count), 256, 16)
            ctx.run(
                "memory.cu", kernel, shape, FILL, words=buffer, granule_sums=b["sums"],
                granules=count, granule_words=self.granule // 4, seed=self._seed,
            )  # fmt: skip
            sums: Words = ctx.device.download(b["sums"], np.uint32, count)
        return sums

    def _check_windows(self, sums: Words) -> None:
        count, words = len(sums), self.granule // 4
        for g in sorted({0, count // 3, count // 2, count - 1}):
            got = self._ctx.device.download(self.buffer, np.uint32, words, g * self.granule)
            expected = test_words(g * words, words, self._seed)
            expect(bool(np.array_equal(got, expected)), f"fill: granule {g} holds other words")
            expect_equal(f"fill: sum of granule {g}", int(sums[g]), wrapped_sum(expected))

    def expected_sum(self, offset: int, nbytes: int) -> int:
        """Sum modulo 2^32 of the words of a granule-aligned part."""
        first, last = offset // self.granule, (offset + nbytes) // self.granule
        if offset % self.granule or nbytes % self.granule or last >= len(self._prefix):
            raise ValueError(f"expected a granule-aligned part, got {nbytes} bytes at {offset}")
        return int(self._prefix[last] - self._prefix[first]) & 0xFFFFFFFF

    def check_copy(self, buffer: Buffer, nbytes: int) -> None:
        """Raises CheckError unless `buffer` starts with this data's first `nbytes` bytes."""
        whole = nbytes // self.granule * self.granule
        sums = self._granule_sums("sum_words", buffer, whole)
        expected = np.diff(self._prefix[: len(sums) + 1]).astype(np.uint32)
        wrong = np.flatnonzero(sums != expected)
        expect(
            wrong.size == 0,
            f"copy: {wrong.size} of {len(sums)} granules differ, first {wrong[:1].tolist()}",
        )


def wrapped_sum(words: Words) -> int:
    """Sum modulo 2^32."""
    return int(words.sum(dtype=np.uint64)) & 0xFFFFFFFF
