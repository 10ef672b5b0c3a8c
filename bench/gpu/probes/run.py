"""What one GPU can do, measured for the monokernel: `python bench/gpu/probes/run.py`.

Compiles the probe kernels (nvcc or NVRTC), runs each probe in its own process within one budget,
writes one JSON in the results format after each, and prints a short table last. Needs a driver, one
of the two compilers and NumPy; `--compile-only` needs no GPU. It never changes the GPU's settings.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bench import _results
from bench._command import shown_command
from bench.gpu.probes import _compile
from bench.gpu.probes._campaign import Campaign
from bench.gpu.probes._child import Outcome, child_main, spawn
from bench.gpu.probes._context import Probe
from bench.gpu.probes._cuda import CudaDevice
from bench.gpu.probes._errors import CompileError, ProbeError
from bench.gpu.probes._registry import PROBES, probe
from bench.gpu.probes._table import table
from bench.gpu.probes._telemetry import Telemetry, driver_version, query

REPOSITORY = Path(__file__).resolve().parents[3]


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(prog="run.py", description=(__doc__ or "").split("\n\n")[0])
    p.add_argument("--only", default="", help="comma-separated probe names")
    p.add_argument("--out", type=Path, help="results file (default: bench/results/<name>.json)")
    p.add_argument("--budget-seconds", type=float, default=480.0, help="wall time of the probes")
    p.add_argument("--list", action="store_true", help="print the probes and stop")
    p.add_argument("--compile-only", action="store_true", help="compile, report registers, stop")
    p.add_argument("--arch", default="", help="such as sm_90a (default: the device's, else sm_90a)")
    p.add_argument("--compiler", choices=("any", "nvcc", "nvrtc"), default="any")
    p.add_argument("--commit", help="commit to record where the files are not in a git checkout")
    p.add_argument("--child", help=argparse.SUPPRESS)
    p.add_argument("--seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    p.add_argument("--records", type=Path, help=argparse.SUPPRESS)
    p.add_argument("--cubins", type=Path, help=argparse.SUPPRESS)
    return p.parse_args(arguments)


def chosen(only: str) -> list[Probe]:
    """The probes named on the command line, in their usual order; all of them for none."""
    wanted = {probe(name.strip()).name for name in only.split(",") if name.strip()}
    return [p for p in PROBES if not wanted or p.name in wanted]


def device_arch() -> str:
    """sm_90a for compute capability 9.0, and so on; sm_90a without an answer."""
    reading = query({"compute": "compute_cap"}) or {}
    capability = reading.get("compute")
    if not isinstance(capability, float):
        return "sm_90a"
    return f"sm_{round(capability * 10)}{'a' if capability >= 9 else ''}"


def compile_kernels(arch: str, folder: Path, prefer: str) -> tuple[str, list[_compile.Compiled]]:
    """Compiles every source side by side; failures go to stderr and cost their probe only."""
    compiler = _compile.find_compiler(prefer)
    results = list(_compile.compile_all(compiler, _compile.SOURCES, arch, folder).values())
    if prefer == "any" and all(isinstance(r, CompileError) for r in results):
        # nvcc also needs a host compiler, which a machine with nvcc may lack; NVRTC needs none.
        print(results[0], file=sys.stderr)
        compiler = _compile.find_compiler("nvrtc")
        results = list(_compile.compile_all(compiler, _compile.SOURCES, arch, folder).values())
    for failure in (r for r in results if isinstance(r, CompileError)):
        print(failure, file=sys.stderr)
    return compiler.name, [r for r in results if isinstance(r, _compile.Compiled)]


def report_usage(compiled: list[_compile.Compiled]) -> None:
    """Registers and spills of every kernel."""
    for unit in compiled:
        for use in _compile.usages(unit.log):
            print(
                f"{unit.source:14} {use.kernel:28} {use.registers:3} registers, "
                f"{use.spill_bytes} bytes spilled, {use.stack_bytes} bytes of stack"
            )


def child_command(
    options: argparse.Namespace, name: str, seconds: float, cubins: Path, records: Path
) -> list[str]:
    """This script again, for one probe."""
    return [
        sys.executable, str(Path(__file__).resolve()), "--child", name, "--seconds", str(seconds),
        "--records", str(records), "--cubins", str(cubins), "--arch", options.arch,
    ]  # fmt: skip


def run_all(options: argparse.Namespace, arguments: list[str]) -> int:
    """Compiles, runs, reports."""
    with tempfile.TemporaryDirectory(prefix="probes-") as name:
        folder = Path(name)
        compiler, compiled = compile_kernels(options.arch, folder, options.compiler)
        if options.compile_only:
            report_usage(compiled)
            return 0 if len(compiled) == len(_compile.SOURCES) else 1

        def runner(one: Probe, seconds: float) -> Outcome:
            print(f"{one.name}: up to {seconds:.0f} s ...", file=sys.stderr, flush=True)
            records = folder / f"{one.name}.jsonl"
            command = child_command(options, one.name, seconds, folder, records)
            return spawn(one.name, command, seconds, records)

        campaign = Campaign(
            probes=chosen(options.only),
            runner=runner,
            seconds=options.budget_seconds,
            command=shown_command([__file__, *arguments]),
            commit=options.commit or _results.current_commit(REPOSITORY),
            compiler=f"{compiler} {options.arch}",
            out=options.out,
            folder=REPOSITORY / "bench" / "results",
            driver=driver_version(),
        )
        return finish(campaign)


def finish(campaign: Campaign) -> int:
    """Runs the campaign between two looks at the clocks; the table comes last, whatever happens."""
    telemetry = Telemetry()
    telemetry.start()
    try:
        campaign.run()
    finally:  # also on a signal: what was measured is written
        telemetry.stop()
        campaign.records.append(telemetry.record())
        campaign.write()
        print(table(campaign.records))
    measured = any("median" in r and r["name"] != "clocks" for r in campaign.records)
    if campaign.device:
        print(f"results: {campaign.path()}")
    return 0 if measured and not any("error" in r for r in campaign.records) else 1


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(f"signal {number}")


def main(arguments: list[str]) -> int:
    """Exit status 0: all measured; 1: something failed; 2: usage."""
    options = parse(arguments)
    if options.list:
        for one in PROBES:
            print(f"{one.name:10} {(type(one).__doc__ or '').strip()}")
        return 0
    options.arch = options.arch or device_arch()
    if options.child:
        child_main(
            probe(options.child),
            lambda: CudaDevice(options.cubins, options.arch),
            options.seconds,
            options.records,
        )
        return 0
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        chosen(options.only)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        return run_all(options, arguments)
    except ProbeError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print(f"stopped: {error or 'interrupted'}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
