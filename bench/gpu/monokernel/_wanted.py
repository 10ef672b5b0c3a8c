"""Which kernels each part asks for: what is compiled before it runs, here or on another machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from bench.gpu._campaign import FIRST
from bench.gpu._child import ROOT
from bench.gpu._stage import NotMeasuredError
from bench.gpu.monokernel import start, switches, variants, words
from bench.gpu.monokernel._scale import Scale
from bench.gpu.monokernel.sanitizer import small_layouts
from bench.gpu.monokernel.speed import widths_context
from bench.gpu.probes import _kernels as probes
from monolane.cuda import CudaExecutor, GpuInfo
from monolane.cuda._kernel_header import specialisation
from monolane.cuda._layout import Layout
from monolane.cuda._load import pack_header
from monolane.cuda._plan_device import lay_out_widths
from monolane.errors import MonolaneError
from monolane.model import read_config

_DRIVER_BYTES = 1 << 30  # of a GPU's memory, and what a context takes; it is not opened here
BANDWIDTH_SOURCES = ("bandwidth.cu", "memory.cu")
# Of each probe, by the name of its part. The yardstick of cooperative groups needs the toolkit's
# headers, which are where they are on each machine: it is compiled there.
PROBE_SOURCES = {
    "topology": ("topology.cu",),
    "read": BANDWIDTH_SOURCES,
    "waits": ("waits.cu", "memory.cu"),
    "launch": ("launch.cu",),
    "token": ("token.cu",),
    "mailbox": ("mailbox.cu", "memory.cu"),
    "matvec": ("matvec.cu", "memory.cu"),
    "litmus": ("litmus.cu",),
    "matrix-unit": ("matrix_unit.cu",),
}


@dataclass(frozen=True)
class Wanted:
    """A file to compile, with the constants of a layout or without."""

    name: str
    source: str
    layout: Layout | None = None
    extra: tuple[tuple[str, str], ...] = ()  # headers besides
    fuse: bool = False

    def headers(self) -> Mapping[str, str]:
        """The generated ones; to make them proves the program."""
        if self.layout is None:
            return dict(self.extra)
        return {"specialisation.h": specialisation(self.layout), **dict(self.extra)}


def wanted(part: str, scale: Scale, info: GpuInfo) -> Iterator[Wanted]:
    """What a part will ask for, of a GPU that is not opened yet; nothing for a peer's."""
    family, _, which = part.partition(":")
    match family:
        case "launch":
            yield Wanted("start", str(start.SOURCE), extra=tuple(start.HEADERS.items()))
        case "first-golden":
            yield from _packing()
            yield from _golden(scale, info, scale.goldens[:1], scale.golden_dtypes[:1])
        case "goldens":
            yield from _packing()
            yield from _golden(scale, info, scale.goldens, scale.golden_dtypes)
        case "decode-float8":
            yield from _packing()
            yield from _product(scale, info, "float8")
        case "widths":
            yield from _packing()
            with suppress(NotMeasuredError):
                context = widths_context(scale, _nearly_free(info))
                yield from _product(scale, info, "bfloat16", scale.widths, context)
        case "width-1" | "other-compiler":
            yield from wanted("first-golden", scale, info)
            yield from _product(scale, info, "bfloat16")
        case "variant":
            yield from _packing()
            yield from _variant(scale, info, which)
        case "switches":
            yield from _packing()
            for dtype in switches.dtypes(scale.emulated):
                for name, layout in switches.layouts(scale, info, dtype).items():
                    yield Wanted(f"switch {name} {dtype}", "monokernel.cu", layout)
        case "sanitizer" | "small-model":
            # Compiled under a sanitizer they would take more than its time.
            yield from _packing()
            for layout in small_layouts(info):
                yield Wanted("sanitizer", "monokernel.cu", layout)
        case "words":
            yield from _packing()
            for layout in words.layouts(info):
                yield Wanted("words", "monokernel.cu", layout)
        case "bandwidth":
            yield from _probe(BANDWIDTH_SOURCES)
        case "probe":
            yield from _probe(PROBE_SOURCES[which])
        case _ if part in PRODUCT:
            yield from _packing()
            yield from _product(scale, info, "bfloat16")


# Parts, or families of them, that load no weights of the full shape.
WITHOUT_WEIGHTS = (
    FIRST, "launch", "first-golden", "goldens", "bandwidth", "probe", "sanitizer", "words",
)  # fmt: skip
# Parts that run the product's kernels of the full shape.
PRODUCT = ("first-tokens", "full", "decode", "decode-again", "prefill", "phases", "soak", "profile")


def _packing() -> Iterator[Wanted]:
    for source in ("pack.cu", "pack_float8.cu"):
        yield Wanted("pack", source, extra=(("pack_params.h", pack_header()),))


def _product(
    scale: Scale,
    info: GpuInfo,
    dtype: str,
    widths: Sequence[int] = CudaExecutor.WIDTHS,
    context: int | None = None,
) -> Iterator[Wanted]:
    for layout in lay_out_widths(scale.config, info, dtype, context or scale.context, widths):
        yield Wanted("product" if dtype == "bfloat16" else dtype, "monokernel.cu", layout)


def _golden(
    scale: Scale, info: GpuInfo, names: Sequence[str], dtypes: Sequence[str]
) -> Iterator[Wanted]:
    for dtype in dtypes:
        for name in names:
            config = read_config(ROOT / "tests" / "golden" / name)
            context, widths = config.max_positions, scale.golden_widths
            for layout in lay_out_widths(config, info, dtype, context, widths):
                yield Wanted(f"golden {name} {dtype}", "monokernel.cu", layout)


def _variant(scale: Scale, info: GpuInfo, name: str) -> Iterator[Wanted]:
    for variant in variants.known(scale.emulated):
        # What does not fit, the variant's own part will say.
        with suppress(MonolaneError):
            if name in ("", variant.name):
                context = variants.context_of(scale)
                (layout,) = variant.layouts(scale.config, info, "bfloat16", context, (1,))
                yield Wanted(variant.name, "monokernel.cu", layout)


def _probe(sources: Sequence[str]) -> Iterator[Wanted]:
    for source in sources:
        extra = tuple(probes.headers().items())
        yield Wanted(f"probe {source}", str(probes.KERNELS / source), extra=extra, fuse=True)


def _nearly_free(info: GpuInfo) -> GpuInfo:
    """Nothing runs on it yet: nearly what a part will find free."""
    return replace(info, free_bytes=info.free_bytes or info.total_bytes - _DRIVER_BYTES)
