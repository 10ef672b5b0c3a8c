"""Weights from memory-mapped files into the blocks' runs on a GPU.

Rows go through two pinned staging buffers: while one is on its way and being packed, the next is
read from the file, and widened to numbers where it is quantised. On a PCIe 5 bus 4.4 GB (2.2
billion 16-bit parameters) take 0.1 s to cross and some 10 ms to pack; what counts is reading the
page cache into pinned memory, at 5 GB/s of one thread 0.9 s, and so several threads share it.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane._structs import CUDA, Field, Struct
from monolane.cuda._device import Device, Kernel, Launch, Mark, Pinned
from monolane.cuda._layout import PRODUCTS, Layout
from monolane.cuda._pack import STORED, phase_of, pieces, plain, staged
from monolane.cuda._tiling import Tiling
from monolane.model import Matrix, Role, Weights
from monolane.plan import PhaseKind

STAGING_BYTES = 64 << 20  # large enough that a copy's start does not count
THREADS = 4  # that read: more do not help a memory bus which two or three fill
_SHARE_BYTES = 1 << 20  # of a read that is worth a thread of its own
_PACK_THREADS = 256  # of a block of kernels/pack.cu
_PATIENCE = 60.0  # seconds for one staging buffer: hundreds of times what it takes

Array = npt.NDArray[Any]

# One row of a matrix: whose run it belongs to, and which row of that block's list it is.
PLACE = Struct("Place", (Field("worker", "u32"), Field("row", "u32", "of the block's list")))
PACK_PARAMS = Struct(
    "PackParams",
    (
        Field("from", "const u16*", "[rows][columns]"),
        Field("places", "const Place*", "[rows]"),
        Field("to", "u8*", "the phase's tiles in the run of block 0"),
        Field("run_bytes", "u64", "from block to block"),
        Field("scales", "f32*", "of the phase's rows of block 0; float8 only"),
        Field("scale_rows", "u64", "from block to block"),
        Field("from_bfloat16", "u32", "0: float16; float8 only"),
        Field("rows", "u32"),
        Field("columns", "u32"),
        Field("warps", "u32", "the tiling: see monolane.cuda._tiling"),
        Field("group", "u32"),
        Field("parts", "u32"),
        Field("step", "u32"),
        Field("steps", "u32"),
    ),
)
PLACE_DTYPE, PACK_DTYPE = PLACE.dtype, PACK_PARAMS.dtype


def pack_header() -> str:
    """Return the text of ``pack_params.h``."""
    top = ["#pragma once", '#include "primitives.cuh"', ""]
    return "\n".join([*top, PLACE.declare(CUDA), PACK_PARAMS.declare(CUDA)])


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A matrix with its rows one below the other, lane after lane, and where its tiles go.

    A device has neighbouring lanes, and of one matrix for all lanes neighbouring rows. One that the
    files do not hold lane after lane comes lane by lane.
    """

    rows: Matrix  # those of the device's blocks [R, columns], as stored
    places: int  # on the device: a Place of each of them
    tiling: Tiling
    offset: int  # of the phase in a run
    first_row: int  # of the phase in a block's list of scales


@dataclass(frozen=True, slots=True)
class Loaded:
    """Addresses of a model's weights on a device."""

    runs: int  # [W of the device][RUN_BYTES]
    row_scales: int  # float32 [W of the device][SCALE_ROWS], or 0 where rows have none


def load(device: Device, layout: Layout, weights: Weights, number: int = 0) -> Loaded:
    """Put the runs of all blocks of device ``number``, and their scales, on it, and wait for them.

    Of a model on several devices, only the rows of its own blocks are read.
    """
    loader = _Loader(device, layout, number)
    try:
        loader.run(weights)
    finally:
        loader.close()
    return Loaded(loader.runs, loader.scales)


class _Loader:
    def __init__(self, device: Device, layout: Layout, number: int) -> None:
        self._device, self._layout = device, layout
        first = number * layout.device_workers
        self._workers = range(first, first + layout.device_workers)
        name = "pack_float8" if layout.scale_rows else "pack"
        headers = {"pack_params.h": pack_header()}
        self._kernel: Kernel = device.kernel(f"{name}.cu", name, headers)
        row_bytes = 2 * max(tiling.columns for tiling in layout.tilings.values())
        self._staging = max(STAGING_BYTES, row_bytes)
        self._pinned = [device.pin(self._staging) for _ in range(2)]
        self._landing = [device.allocate(self._staging) for _ in range(2)]
        self._marks: list[Mark | None] = [None, None]
        self._turn = 0
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="monolane-load")
        self._tables: list[int] = []
        self._bytes = layout.device_workers * layout.run_bytes
        self.runs = device.allocate(self._bytes)
        self._scale_bytes = 4 * layout.device_workers * layout.scale_rows
        self.scales = device.allocate(self._scale_bytes) if self._scale_bytes else 0

    def run(self, weights: Weights) -> None:
        self._device.clear(self.runs, self._bytes)  # the padding
        if self.scales:
            self._device.clear(self.scales, self._scale_bytes)
        for matrix in self._matrices(weights):
            step = self._staging // (2 * matrix.rows.shape[1])
            for first in range(0, matrix.rows.shape[0], step):
                self._send(matrix, first, matrix.rows[first : first + step])
        self._device.wait(self._device.mark(), _PATIENCE)

    def close(self) -> None:
        self._pool.shutdown()
        for pinned in self._pinned:
            self._device.unpin(pinned)
        for address in (*self._landing, *self._tables):
            self._device.free(address)

    def _matrices(self, weights: Weights) -> Iterator[_Matrix]:
        layout = self._layout
        ways = layout.share_layers
        places = {(kind, i): self._places(kind, i) for kind in PRODUCTS[:-1] for i in range(ways)}
        places[PhaseKind.HEAD, 0] = self._places(PhaseKind.HEAD, 0)
        products: list[tuple[PhaseKind, int | None]] = [
            (kind, layer) for layer in range(len(layout.layers)) for kind in PRODUCTS[:-1]
        ]
        products.append((PhaseKind.HEAD, None))
        for i, (kind, layer) in enumerate(products):
            at = layout.phase_offsets[i], layout.row_offsets[i]
            for role, (rows, address) in places[kind, (layer or 0) % ways].items():
                for first, part in _rows(weights.matrix(role, layer), rows):
                    place = address + first * PLACE_DTYPE.itemsize
                    yield _Matrix(part, place, layout.tilings[kind], *at)

    def _places(self, kind: PhaseKind, layer: int) -> dict[Role, tuple[slice, int]]:
        """Return the device's rows of a phase's matrices and, on the device, their places."""
        plan = self._layout.plan
        tables = {
            matrix.role: np.zeros(matrix.lanes * matrix.rows, PLACE_DTYPE)
            for matrix in phase_of(plan, kind, 0).matrices
        }
        per_lane = {matrix.role: matrix.rows for matrix in phase_of(plan, kind, 0).matrices}
        own: dict[Role, slice] = {}
        for worker in self._workers:
            for x in pieces(plan, kind, worker, layer):
                base = x.lane * per_lane[x.role]
                begin, end = base + x.begin, base + x.end
                taken = tables[x.role][begin:end]
                taken["worker"] = worker - self._workers.start
                taken["row"] = np.arange(x.at, x.at + end - begin)
                own[x.role] = slice(own[x.role].start if x.role in own else begin, end)
        return {role: (rows, self._put(tables[role][rows])) for role, rows in own.items()}

    def _put(self, table: Array) -> int:
        address = self._device.allocate(max(table.nbytes, 1))
        self._tables.append(address)
        raw = table.view(np.uint8)
        for first in range(0, raw.size, self._staging):
            piece = raw[first : first + self._staging]
            slot, pinned = self._next()
            pinned.array[: piece.size] = piece
            self._device.copy_in(address + first, pinned, piece.size)
            self._marks[slot] = self._device.mark()
        return address

    def _next(self) -> tuple[int, Pinned]:
        """Return the staging buffer whose turn it is, once its last content has been packed."""
        slot, self._turn = self._turn, 1 - self._turn
        mark = self._marks[slot]
        if mark is not None:
            self._device.wait(mark, _PATIENCE)
        return slot, self._pinned[slot]

    def _send(self, matrix: _Matrix, first: int, rows: Matrix) -> None:
        slot, pinned = self._next()
        count, columns = rows.shape
        nbytes = 2 * count * columns
        dtype = self._layout.plan.dtype
        if dtype in STORED:
            crossing = STORED[dtype]
        else:
            crossing = staged(rows.dtype if isinstance(rows, np.ndarray) else np.dtype(np.float32))
        self._read(rows, pinned.array[:nbytes].view(crossing).reshape(count, columns))
        self._device.copy_in(self._landing[slot], pinned, nbytes)
        params = np.zeros((), PACK_DTYPE)
        params["from"] = self._landing[slot]
        params["places"] = matrix.places + first * PLACE_DTYPE.itemsize
        params["to"] = self.runs + matrix.offset
        params["run_bytes"] = self._layout.run_bytes
        params["scales"] = self.scales + 4 * matrix.first_row
        params["scale_rows"] = self._layout.scale_rows
        params["from_bfloat16"] = crossing == STORED["bfloat16"]
        params["rows"], params["columns"] = count, columns
        for name in ("warps", "group", "parts", "step", "steps"):
            params[name] = getattr(matrix.tiling, name)
        blocks = min(-(-count * columns // (2 * _PACK_THREADS)), 16 * self._device.info.sms)
        self._device.launch(self._kernel, Launch(blocks, _PACK_THREADS), params.tobytes())
        self._marks[slot] = self._device.mark()

    def _read(self, rows: Matrix, into: Array) -> None:
        """Copy rows, converted if they are stored in another format, by several threads."""
        count, columns = rows.shape
        if isinstance(rows, np.ndarray):
            share = max(-(-count // THREADS), _SHARE_BYTES // (2 * columns) + 1)
        else:
            share = _SHARE_BYTES // (4 * columns) + 1  # what is widened stays in a thread's cache
        if share >= count:
            into[...] = plain(rows)
            return

        def read(part: slice) -> None:
            np.copyto(into[part], plain(rows[part]), casting="unsafe")

        parts = [slice(first, first + share) for first in range(0, count, share)]
        for job in [self._pool.submit(read, part) for part in parts]:
            job.result()


def _rows(matrix: Matrix, rows: slice) -> Iterator[tuple[int, Matrix]]:
    """Yield rows of a matrix [L, R, columns], lane below lane, without a copy: the first, and they.

    In one piece if the lanes lie so. Lanes that are parts of a dense matrix's columns do not.
    """
    if isinstance(matrix, np.ndarray) and matrix.flags.c_contiguous:
        yield 0, matrix.reshape(-1, matrix.shape[-1])[rows]
        return
    count = matrix.shape[1]
    for lane in range(rows.start // count, -(-rows.stop // count)):
        begin, end = max(rows.start, lane * count), min(rows.stop, (lane + 1) * count)
        yield begin - rows.start, matrix[lane, begin - lane * count : end - lane * count]
