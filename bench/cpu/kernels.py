"""The CPU kernels against this machine's memory and arithmetic; prints JSON.

    python bench/cpu/kernels.py [--threads 2] [--isa avx512bf16] [--cols 3072] [--pages small]

Small pages are what a mapped weight file has; memory of our own can have huge ones.

Width 1: bytes/s of weights (and scales), beside a pure read by the same threads on the same kind
of buffer, slice by slice in turn, so that both see the same minute of a shared machine. Slices are
short and all threads start one together; the quickest slices are reported, because whatever else
runs on the machine only ever adds time. Wider: operations per second of one thread.
"""

import argparse
import json
import mmap
import os
import threading
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from monolane._core import kernels

FORMATS = {  # name: (weights, activations, bytes per weight, scales included)
    "bf16 x bf16": ("bf16", "bf16", 2.0),
    "bf16 x f32": ("bf16", "f32", 2.0),
    "f16 x f32": ("f16", "f32", 2.0),
    "f32 x f32": ("f32", "f32", 4.0),
    "i8 x i8": ("q8_0p", "i8", 34 / 32),
    "i4 x i8": ("q4_0p", "i8", 18 / 32),
    "q4_1 x i8": ("q4_1p", "i8", 20 / 32),
    "q5_0 x i8": ("q5_0p", "i8", 22 / 32),
    "q5_1 x i8": ("q5_1p", "i8", 24 / 32),
    "q4_k x i8": ("q4_kp", "i8", 148 / 256),
    "q5_k x i8": ("q5_kp", "i8", 180 / 256),
    "q6_k x i8": ("q6_kp", "i8", 210 / 256),
    "q3_k x i8": ("q3_kp", "i8", 114 / 256),
    "q2_k x i8": ("q2_kp", "i8", 84 / 256),
    "iq4_nl x i8": ("iq4_nlp", "i8", 18 / 32),
    "iq4_xs x i8": ("iq4_xsp", "i8", 138 / 256),
    "nvfp4 x i8": ("nvfp4p", "i8", 36 / 64),
}
PANEL = 16  # rows that codes have together
SLICE = 8 << 20  # bytes of one timing
BUFFER = 384 << 20  # bytes per thread: far more than any cache


class Worker:
    """One thread's memory, and what it runs on a slice of it."""

    def __init__(self, isa: str, cols: int, pages: str) -> None:
        self.isa, self.cols = isa, cols
        memory = mmap.mmap(-1, BUFFER, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE if pages == "huge" else mmap.MADV_NOHUGEPAGE)
        self.data = np.frombuffer(memory, np.uint8)
        self.data[:] = 0x3C  # 0.01 as float32 or bfloat16: subnormal numbers would be slow
        self.position = 0

    def take(self, size: int) -> np.ndarray:
        """Return the next bytes of the buffer, so that no slice is still in a cache."""
        if self.position + size > BUFFER:
            self.position = 0
        found = self.data[self.position : self.position + size]
        self.position += (size + 4095) // 4096 * 4096
        return found

    def read(self) -> float:
        """Read a slice; bytes/s."""
        data = self.take(SLICE).reshape(-1, 512)
        start = time.perf_counter()
        kernels.read(self.isa, data)
        return SLICE / (time.perf_counter() - start)

    def multiply(self, name: str, rows: int, x: np.ndarray) -> float:
        """Multiply `rows` rows, whole panels of codes; rows/s."""
        fmt, activation, size = FORMATS[name]
        together = PANEL if activation == "i8" else 1
        values = self.take(int(rows * size * self.cols)).reshape(rows // together, -1)
        start = time.perf_counter()
        kernels.multiply(self.isa, fmt, values, None, activation, x, 0, rows)
        return rows / (time.perf_counter() - start)


def together(
    workers: list[Worker], rounds: int, work: list[Callable[[Worker], float]]
) -> np.ndarray:
    """Run each piece of work on all threads at once, in turn; rates [rounds, work], summed."""
    rates = np.zeros((len(workers), rounds, len(work)))
    gate = threading.Barrier(len(workers))

    def run(index: int) -> None:
        if len(workers) > 1:
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[index % len(cores)]})
        for r in range(rounds):
            for w, piece in enumerate(work):
                gate.wait()
                rates[index, r, w] = piece(workers[index])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(workers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    slowest: np.ndarray = rates.min(axis=0)  # all start together: none is faster
    return slowest * len(workers)


def widths(worker: Worker, name: str, rounds: int) -> dict[str, float]:
    """GFLOP/s of one thread, weights from memory."""
    found = {}
    for width in (2, 4, 8, 16, 64):
        x = np.ones((width, worker.cols), np.float32)
        rates = [worker.multiply(name, 1536, x) for _ in range(rounds)]
        found[str(width)] = round(2e-9 * max(rates) * worker.cols * width, 1)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", default=kernels.best(), choices=kernels.supported())
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cols", type=int, default=3072)
    parser.add_argument("--pages", choices=("small", "huge"), default="small")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=list(FORMATS))
    options = parser.parse_args()
    for name in FORMATS.keys() - set(options.formats):
        del FORMATS[name]
    workers = [Worker(options.isa, options.cols, options.pages) for _ in range(options.threads)]
    x = np.ones((1, options.cols), np.float32)
    rows = {
        name: int(SLICE / size / options.cols) // PANEL * PANEL
        for name, (_, _, size) in FORMATS.items()
    }

    def multiply(name: str, worker: Worker) -> float:  # bytes/s
        row: float = FORMATS[name][2] * options.cols
        return row * worker.multiply(name, rows[name], x)

    work: list[Callable[[Worker], float]] = [Worker.read]
    work += [partial(multiply, name) for name in FORMATS]
    rates = together(workers, options.rounds, work)
    best = np.percentile(rates, 95, axis=0) / 1e9
    median = np.median(rates, axis=0) / 1e9
    report = {
        "isa": options.isa, "threads": options.threads, "cols": options.cols,
        "pages": options.pages,
        "read": {"GB/s": round(best[0], 1), "median GB/s": round(median[0], 1)},
        "formats": {
            name: {
                "GB/s": round(best[i], 1),
                "% of read": round(100 * best[i] / best[0], 1),
                "median % of median read": round(100 * median[i] / median[0], 1),
                "GFLOP/s of one thread by width": widths(workers[0], name, options.rounds // 5),
            }
            for i, name in enumerate(FORMATS, start=1)
        },
    }  # fmt: skip
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
