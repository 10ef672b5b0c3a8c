"""What one GPU can do, measured for the monokernel: `python bench/gpu/probes/run.py`.

Compiles the probe kernels, runs each probe in its own process within one budget, and writes one
JSON in the results format, a page and a log, rewritten after each. Needs a driver and the packages
of `monolane[cuda]`; `--compile-only` needs no GPU, `--rehearse` runs tiny sizes on an emulated one.
It never changes the GPU's settings.
"""

from __future__ import annotations

import sys
from pathlib import Path

RUN = Path(__file__).resolve()
ROOT = RUN.parents[3]
for folder in (ROOT / "src", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from bench.gpu._campaign import FIRST, Part  # noqa: E402
from bench.gpu._script import Script  # noqa: E402
from bench.gpu.probes._build import report  # noqa: E402
from bench.gpu.probes._context import make_stage  # noqa: E402
from bench.gpu.probes._page import render  # noqa: E402

# What the design needs first comes first; with their shares of the time.
PROBES = tuple(
    Part(name, f"probes.{entry}", 600, tells, weight=weight)
    for name, entry, weight, tells in (
        ("topology", "topology:topology", 0.5, "clusters that fit, and which SMs share a GPC"),
        ("read", "bandwidth:read", 4.0, "what the memory delivers, by mechanism"),
        ("waits", "waits:waits", 2.0, "what a dependency among SMs costs"),
        ("launch", "launches:launches", 0.5, "what a kernel boundary costs"),
        ("token", "choose:token", 1.0, "choosing a token, and its way to the host and back"),
        ("litmus", "litmus:litmus", 2.0, "does the memory keep the order that protocols need?"),
        ("matrix-unit", "matrix_unit:matrix_unit", 2.0, "are the matrix unit's sums as published?"),
        ("mailbox", "mailbox:mailbox", 1.0, "kernels that push words to each other"),
        ("matvec", "matvec:matvec", 4.0, "can arithmetic keep up with the stream of weights?"),
    )
)
PARTS = (Part(FIRST, "probes._build:build", 120, "every kernel compiled"), *PROBES)
SCRIPT = Script(
    path=RUN,
    doc=__doc__ or "",
    engine="probe",
    what="probes",
    minutes=8.0,
    parts=lambda rehearse: PARTS,
    stage=make_stage,
    render=render,
    # Eager loading: a lazily loaded kernel may wait for the running ones, which wait for it. And
    # more queues than the default 8, or two of the mailbox probe's streams would share one.
    environment={"CUDA_MODULE_LOADING": "EAGER", "CUDA_DEVICE_MAX_CONNECTIONS": "32"},
)


def main(arguments: list[str]) -> int:
    """Exit status 0: all measured; 1: something failed; 2: usage."""
    parser = SCRIPT.parser()
    parser.add_argument("--budget-seconds", type=float, help="instead of --minutes")
    parser.add_argument("--compile-only", action="store_true", help="report registers, and stop")
    parser.add_argument("--arch", default="sm_90a", help="of --compile-only; default: sm_90a")
    options = parser.parse_args(arguments)
    if options.compile_only:
        return 0 if report(options.arch) else 1
    if options.budget_seconds is not None:
        options.minutes = options.budget_seconds / 60
    return SCRIPT.main(arguments, options)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
