"""What the simulator knows of the kernel's time between products, from its machine code.

    python bench/gpu/monokernel/chains.py            # writes src/monolane/sim/configs/chains.json
    python bench/gpu/monokernel/chains.py --show     # and where the cycles go, on stdout

It needs NVRTC and nvdisasm, and no GPU: nothing here is measured. tests/bench/test_chains.py fails
where the kernel, or a latency, has changed since.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
for folder in (ROOT / "src", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from bench.gpu.monokernel._chains import Chain, Code, chains, totals  # noqa: E402
from bench.gpu.monokernel._machine_code import disassemble  # noqa: E402
from monolane.cuda import GpuInfo, compiler_version  # noqa: E402
from monolane.cuda._compile import architecture, compile_kernel  # noqa: E402
from monolane.cuda._kernel_header import specialisation  # noqa: E402
from monolane.cuda._layout import Layout  # noqa: E402
from monolane.cuda._plan_device import lay_out_widths  # noqa: E402
from monolane.plan import named_config  # noqa: E402
from monolane.sim import latencies  # noqa: E402

FILE = ROOT / "src" / "monolane" / "sim" / "configs" / "chains.json"
GPUS = (GpuInfo("H200", (9, 0), 132, 227 << 10, 141 << 30, 141 << 30),)
MODEL, DTYPE, LIMIT, CONTEXT = "laneformer-2b", "bfloat16", 4096, 1024


def layout_of(gpu: GpuInfo) -> Layout:
    """The kernel that decodes one sequence."""
    return lay_out_widths(named_config(MODEL), gpu, DTYPE, LIMIT, (1,), 1)[0]


def read_code(gpu: GpuInfo) -> Code:
    """Compile and disassemble it."""
    layout = layout_of(gpu)
    headers = {"specialisation.h": specialisation(layout)}
    arch = architecture(*gpu.compute)
    compiled = compile_kernel("monokernel.cu", headers, arch, use_cache=False, lines=True)
    return Code(disassemble(compiled.cubin, "monokernel"), layout)


def extract() -> dict[str, Any]:
    """What is in the file."""
    kernels = {}
    for gpu in GPUS:
        code = read_code(gpu)
        kernels[architecture(*gpu.compute)] = {
            "kernel": f"{MODEL}, {DTYPE}, one token a pass, {gpu.name}, {CONTEXT:,} tokens behind",
            "compiler": "NVRTC {}.{}".format(*compiler_version()),
            "steps": {
                name: {"instructions": count, "stalls": stalls}
                for name, (count, stalls) in sorted(totals(code).items())
                if name
            },
            "chains": {
                kind: _record(chain) for kind, chain in chains(code, latencies(), CONTEXT).items()
            },
        }
    return kernels


def _record(chain: Chain) -> dict[str, Any]:
    return {
        "instructions": chain.instructions,
        "stalls": chain.stalls,
        "cycles": dict(chain.cycles),
        "waits": dict(sorted(chain.waits.items())),
    }


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", action="store_true", help="print what was found")
    show = parser.parse_args().show
    text = json.dumps(extract(), indent=2) + "\n"
    FILE.write_text(text)
    print(text if show else f"wrote {FILE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
