"""The first part: what the device is, weights, and every kernel that later parts need, compiled
side by side into one cache, with what the compiler says about them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from bench.gpu._child import ROOT
from bench.gpu._device import compiler, device_line, gpu_info
from bench.gpu._stage import NotMeasuredError, Stage, expect
from bench.gpu.monokernel._random_weights import make_block
from bench.gpu.monokernel.correctness import full_context
from bench.gpu.monokernel.sanitizer import small_layouts
from bench.gpu.monokernel.speed import widths_context
from bench.gpu.monokernel.variants import known
from monolane._results import Record
from monolane.cuda import CudaExecutor
from monolane.cuda._compile import architecture, compile_kernel
from monolane.cuda._layout import Layout
from monolane.cuda._load import pack_header
from monolane.cuda._machine import lay_out_widths
from monolane.cuda._specialise import specialisation
from monolane.errors import MonolaneError
from monolane.model import read_config

_DRIVER_BYTES = 1 << 30  # of a GPU's memory, and what a context takes; it is not opened here


def build(stage: Stage, job: str) -> None:
    """What the device is, weights, then kernels.

    The emulated device compiles its own, when it first meets them: a rehearsal compiles one for a
    GPU, where it can.
    """
    stage.emit(device_line(stage.scale.emulated))
    make_block(stage.scale.config, stage.work)
    stage.attempt("kernels", _compile_all, stage)


def _compile_all(stage: Stage) -> Record:
    """Every kernel; what one of them takes of an SM, and which do not compile."""
    begin, arch = time.monotonic(), architecture(*gpu_info(stage.scale.emulated).compute)
    for source in ("pack.cu", "pack_float8.cu"):
        compile_kernel(source, {"pack_params.h": pack_header()}, arch)
    wanted = list(_layouts(stage))[: 1 if stage.scale.emulated else None]

    def compile_in_time(item: tuple[str, Layout]) -> Record | None:
        return None if stage.budget.exhausted else _compile(*item, arch)

    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        done = list(pool.map(compile_in_time, wanted))
    found = [x for x in done if x is not None]
    failed = [x for x in found if "error" in x]
    expect(not failed, f"{len(failed)} of {len(found)} kernels do not compile: {failed[:3]}")
    kept = [x for x in found if not x["kernel"].startswith(("golden", "sanitizer"))]
    return {
        "compiled": len(found),
        "left_to_parts": len(done) - len(found),  # for want of time
        "compiler": compiler(arch),
        "seconds": time.monotonic() - begin,
        "kernels": kept,
    }


def _compile(name: str, layout: Layout, arch: str) -> Record:
    record: Record = {
        "kernel": name,
        "width": layout.width,
        "ring_slots": layout.ring_slots,
        "slot_bytes": layout.slot_bytes,
        "shared_bytes": layout.shared.total,
    }
    headers = {"specialisation.h": specialisation(layout)}
    try:
        compiled = compile_kernel("monokernel.cu", headers, arch)
    except MonolaneError as error:
        return record | {"error": str(error)[:300]}
    for usage in compiled.usages:
        record |= {"registers": usage.registers, "spill_bytes": usage.spill_bytes}
    return record


def _layouts(stage: Stage) -> Iterator[tuple[str, Layout]]:
    """Of every kernel, what matters most first; the same that the parts will ask for."""
    scale, info = stage.scale, gpu_info(stage.scale.emulated)
    wanted = [(CudaExecutor.WIDTHS, scale.context), (scale.checked_widths, scale.context)]
    # Nothing runs on it yet: nearly what the part will find free.
    free = info.free_bytes or info.total_bytes - _DRIVER_BYTES
    with suppress(NotMeasuredError):
        wanted.append((scale.widths, widths_context(scale, replace(info, free_bytes=free))))
    yielded = set()
    for widths, context in wanted:
        for layout in lay_out_widths(scale.config, info, "bfloat16", context, widths):
            if (layout.width, context) not in yielded:
                yielded.add((layout.width, context))
                yield "product", layout
    for layout in lay_out_widths(scale.config, info, "float8", scale.context, CudaExecutor.WIDTHS):
        yield "float8", layout
    length = full_context(scale)
    for layout in lay_out_widths(scale.config, info, "bfloat16", length, scale.checked_widths):
        yield "full model", layout
    for dtype in scale.golden_dtypes:
        for name in scale.goldens:
            config = read_config(ROOT / "tests" / "golden" / name)
            for layout in lay_out_widths(
                config, info, dtype, config.max_positions, scale.golden_widths
            ):
                yield f"golden {name} {dtype}", layout
    context = scale.middle + scale.tokens + 8
    for variant in known(scale.emulated):
        try:
            (layout,) = variant.layouts(scale.config, info, "bfloat16", context, (1,))
        except MonolaneError:
            continue  # the variant's own part will say why
        yield variant.name, layout
    # Compiled under a sanitizer they would take more than its time.
    for layout in small_layouts(info):
        yield "sanitizer", layout
