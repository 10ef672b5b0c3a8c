"""What test_probe_device.py runs in a process of its own: libcuda.so.1 is the stub of tests/cuda.

    python driven.py FOLDER PROBE...

The probes' kernels are compiled for this processor; everything else is what runs on a GPU.
"""

import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cuda"), str(HERE.parents[1])]

from emulated import Kernels  # noqa: E402
from probing import run_probe  # noqa: E402

from bench.gpu.probes import _device  # noqa: E402
from bench.gpu.probes._scale import TINY  # noqa: E402
from monolane.cuda import CudaDevice  # noqa: E402
from monolane.cuda._compile import Compiled  # noqa: E402

kernels = Kernels(Path(sys.argv[1]))


def compile_for_the_stub(source: str, arch: str) -> Compiled:
    assert arch == "sm_90a", arch
    return Compiled(str(kernels[source].library).encode(), "")


_device.compile_probe = compile_for_the_stub  # type: ignore[assignment]
_device.PATIENCE = float(os.environ.get("PROBE_PATIENCE", "20"))
device = _device.ProbeDevice(CudaDevice())
for probe in sys.argv[2:]:
    for record in run_probe(probe, device, TINY):
        sys.stdout.write(json.dumps(record) + "\n")
