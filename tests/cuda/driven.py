"""What test_driver.py runs in a process of its own, whose libcuda.so.1 is the stub.

    python driven.py FOLDER SCENARIO ...

Kernels are compiled by the host's compiler for emulation; everything else is what runs on a GPU.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import numpy as np  # noqa: E402
from emulated_gpu import build_kernel  # noqa: E402
from models import random_weights  # noqa: E402

from monolane.cuda import CudaDevice, CudaExecutor, _driver, _load, _peers  # noqa: E402
from monolane.cuda._compile import Compiled  # noqa: E402
from monolane.executor_api import Advance  # noqa: E402

FOLDER = Path(sys.argv[1])
PROMPT = (1, 17, 33, 5, 60, 2, 91, 44, 8, 71, 30)


def compile_for_the_stub(source: str, headers: Mapping[str, str], arch: str) -> Compiled:
    assert arch == "sm_90a", arch
    return Compiled(str(build_kernel(FOLDER, source, headers).library).encode(), "")


def new_executor(device: CudaDevice) -> CudaExecutor:
    return CudaExecutor(random_weights(), "auto", device, context=200, slots=2)


def tell(*values: object) -> None:
    sys.stdout.write(" ".join(map(str, values)) + "\n")


def decode() -> None:
    """Two sequences together, then logits; everything is given back at the end."""
    device = CudaDevice()
    executor = new_executor(device)
    executor.start([Advance(slot=slot, token_ids=PROMPT, budget=6 + 4 * slot) for slot in (0, 1)])
    while not executor.read(1.0):
        pass
    drawn = executor.take()
    tell(*(x.token_id for x in drawn if x.slot == 0))
    tell(len(drawn))
    executor.truncate(0, 0)
    tell(float(np.abs(executor.logits(0, PROMPT)).sum()))
    executor.close()
    executor.close()


def engine() -> None:
    """The engine finds the GPU by itself."""
    from monolane import Engine, SamplingParams

    with Engine.load(sys.argv[3]) as loaded:
        tell(loaded.backend.name, loaded.backend.dtype)
        answer = loaded.generate([1, 5, 9], SamplingParams(max_tokens=5, ignore_eos=True))
        tell(len(answer.token_ids))


def fall_back() -> None:
    """What 'auto' takes: arguments are a model and a dtype."""
    from monolane import Engine, SamplingParams

    with Engine.load(sys.argv[3], dtype=sys.argv[4]) as loaded:
        answer = loaded.generate([1, 5, 9], SamplingParams(max_tokens=5, ignore_eos=True))
        tell(loaded.backend.name, loaded.backend.dtype, len(answer.token_ids))


def doctor() -> None:
    from monolane.cli._doctor import examine

    for finding in examine(sys.argv[3], sys.argv[4]):
        if finding.name == "auto":
            tell(finding.state, finding.value)


def broken_kernel() -> None:
    """A kernel that faults: the context is lost, and that is said."""
    new_executor(CudaDevice()).logits(0, PROMPT)


def refused_launch() -> None:
    """A GPU that has no room for all blocks at once."""
    new_executor(CudaDevice()).logits(0, PROMPT)


def too_much_memory() -> None:
    CudaDevice().allocate(2 << 30)


def hang() -> None:
    device = CudaDevice()
    device.wait(device.mark(), 0.05)


def load() -> None:
    """Weights are packed by kernels, of which one fails, or does not end."""
    _load._PATIENCE = 0.05
    new_executor(CudaDevice())


def beside_another_library() -> None:
    """Which has made its own context the thread's."""
    device = CudaDevice()
    device._driver.cuCtxSetCurrent(0)
    device.free(device.allocate(256))
    device.close()


def peers() -> None:
    """Two GPUs that must reach each other's memory, and follow each other's marks."""
    devices = _peers.open_devices(2)
    _peers.connect(devices)
    _peers.join(devices)
    _peers.close_all(devices)


def words() -> None:
    """The GPU suite's part, twice one case of it: arguments are what it carries, and the job."""
    from bench.gpu._stage import Budget, Stage
    from bench.gpu.monokernel import words as part
    from bench.gpu.monokernel._scale import REHEARSAL

    part.CASES = (part.CASES[0],) * 2
    part.compile_kernel = compile_for_the_stub
    stage = Stage(
        replace(REHEARSAL, emulated=False), FOLDER, Budget(1000.0),
        lambda record: tell(json.dumps(record)), carried=Path(sys.argv[3]),
    )  # fmt: skip
    part.words(stage, sys.argv[4])


def open_gpu() -> None:
    tell(CudaDevice().info.run_limited)


_driver.compile_kernel = compile_for_the_stub  # type: ignore[assignment]
CudaExecutor.WIDTHS = (1, 8)  # what a third kernel would add is not the driver's
globals()[sys.argv[2]]()
