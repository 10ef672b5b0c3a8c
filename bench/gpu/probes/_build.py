"""The first part: what the device is, and every probe kernel compiled into one cache."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from bench.gpu._device import compiler, device_line, gpu_info
from bench.gpu._stage import Stage, record_of_error
from bench.gpu.probes._kernels import SOURCES, compile_probe
from monolane._results import Record
from monolane.cuda._compile import Usage, architecture
from monolane.errors import MonolaneError


def build(stage: Stage, job: str) -> None:
    """The emulated device compiles its own kernels, when it first meets them."""
    emulated = stage.scale.emulated
    stage.emit(device_line(emulated))
    arch = architecture(*gpu_info(emulated).compute)
    sources = SOURCES[:1] if emulated else SOURCES
    stage.attempt("kernels", lambda: {"compiler": compiler(arch)})
    # A source that does not compile costs its own probe only.
    for source, found in compile_all(sources, arch).items():
        label: Record = {"name": "kernels", **stage.labels, "source": source}
        if isinstance(found, MonolaneError):
            stage.emit(record_of_error(label, found))
        else:
            kernels = [{"kernel": x.kernel, "registers": x.registers, "spill_bytes": x.spill_bytes}
                       for x in found]  # fmt: skip
            stage.emit(label | {"compiled": len(kernels), "kernels": kernels})


def compile_all(
    sources: tuple[str, ...], arch: str, *, use_cache: bool = True
) -> dict[str, tuple[Usage, ...] | MonolaneError]:
    """What the compiler says about each source, or why it does not compile; side by side."""

    def one(source: str) -> tuple[Usage, ...] | MonolaneError:
        try:
            return compile_probe(source, arch, use_cache=use_cache).usages
        except MonolaneError as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(sources, pool.map(one, sources), strict=True))


def report(arch: str) -> bool:
    """Print registers and spills of every kernel; return whether all compile."""
    found = compile_all(SOURCES, arch, use_cache=False)
    for source, usages in found.items():
        if isinstance(usages, MonolaneError):
            print(usages)
            continue
        for use in usages:
            print(
                f"{source:14} {use.kernel:28} {use.registers:3} registers, "
                f"{use.spill_bytes} bytes spilled, {use.stack_bytes} bytes of stack"
            )
    return not any(isinstance(usages, MonolaneError) for usages in found.values())
