"""Does the GPU run a kernel at all, and as many blocks at once as the monokernel has?

The first rung: one block of a trivial kernel, then one block for each SM, all at the same time,
each with all the shared memory that a block may have.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.gpu._device import open_device
from bench.gpu._stage import Stage, expect
from monolane._results import Record
from monolane._structs import CUDA, Field, Struct
from monolane.cuda import Device
from monolane.cuda._device import Launch

SOURCE = Path(__file__).with_name("start.cu")
PARAMS = Struct(
    "StartParams",
    (
        Field("sums", "u32*", "[blocks] of the words in a block's shared memory"),
        Field("arrived", "u32*", "[1] blocks that have begun"),
        Field("late", "u32*", "[1] 1: the others did not come"),
        Field("patience_ns", "u64"),
        Field("shared_bytes", "u32", "dynamic"),
        Field("factor", "u32", "word i is i * factor + block, but for word 0"),
    ),
)
HEADERS = {
    "start_params.h": "\n".join(
        ["#pragma once", '#include "primitives.cuh"', "", PARAMS.declare(CUDA)]
    )
}
_FACTOR = 2_654_435_761
_THREADS = 256
_PATIENCE_NS = 2_000_000_000


def start(stage: Stage, job: str) -> None:
    """One block, then one for each SM."""
    device = open_device(stage.scale.emulated, stage.work)
    sms, shared = device.info.sms, device.info.shared_bytes
    first = Launch(1, _THREADS, 1 << 10)
    whole = Launch(sms, _THREADS, shared, cooperative=True)
    for shape in (first, whole):
        labels = {"blocks": shape.blocks, "shared_bytes": shape.shared_bytes}
        if stage.attempt("launch", _launch, device, shape, **labels) is None:
            break
    device.close()


def _launch(device: Device, shape: Launch) -> Record:
    kernel = device.kernel(str(SOURCE), "start", HEADERS)
    size = 4 * shape.blocks
    home, box = device.allocate(size + 8), device.pin(size + 8)
    device.clear(home, size + 8)
    params = np.zeros((), PARAMS.dtype)
    params["sums"], params["arrived"], params["late"] = home, home + size, home + size + 4
    params["shared_bytes"], params["factor"] = shape.shared_bytes, _FACTOR
    params["patience_ns"] = _PATIENCE_NS
    device.launch(kernel, shape, params.tobytes())
    device.copy_out(box, home, size + 8)
    device.wait(device.mark(), 20.0)
    *sums, arrived, late = box.array.view(np.uint32).tolist()
    device.unpin(box)
    device.free(home)
    expect(not late, f"expected {shape.blocks} blocks at the same time, {arrived} began within 2 s")
    count = shape.shared_bytes // 4 - 1
    words = _FACTOR * (count * (count + 1) // 2)
    expected = [(words + count * block) % (1 << 32) for block in range(shape.blocks)]
    wrong = sum(a != b for a, b in zip(sums, expected, strict=True))
    expect(wrong == 0, f"expected the words that were written, {wrong} blocks read others")
    return {"arrived": arrived}
