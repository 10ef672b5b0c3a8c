"""Several GPUs that share a model: opened, found able to store in each other's memory, and joined.

Each has a run of the model's lanes. Kernels store words into their peers' memory and read their
own alone, so what a machine needs is that every GPU may write to every other one.
"""

from collections.abc import Sequence
from itertools import permutations, product

from monolane import _env
from monolane.cuda._device import Device
from monolane.cuda._driver import CudaDevice
from monolane.errors import BackendError


def open_devices(count: int) -> tuple[Device, ...]:
    """Return the first GPUs that CUDA_VISIBLE_DEVICES shows; BackendError if there are fewer."""
    if type(count) is not int or count < 1:
        raise BackendError(f"devices: expected a number of GPUs from 1 on, got {count!r}")
    opened: list[Device] = []
    try:
        for number in range(count):
            opened.append(CudaDevice(number))
    except BaseException:
        close_all(opened)
        raise
    return tuple(opened)


def close_all(devices: Sequence[Device]) -> None:
    """Close each of them, the last opened first."""
    for device in reversed(devices):
        device.close()


def connect(devices: Sequence[Device]) -> None:
    """Let every GPU store in every other one's memory; BackendError says which pair cannot.

    They must be of one kind: they run the same code, and a token takes as long as the slowest.
    """
    if len(devices) > 1 and _env.LAUNCH_BLOCKING.get():
        raise BackendError(
            f"devices: expected launches that return at once, got {_env.LAUNCH_BLOCKING.name} set: "
            "the first GPU's kernel would wait for the second one's, which is never launched; "
            "unset it, or use one device"
        )
    first = devices[0].info
    for number, device in enumerate(devices):
        info = device.info
        if (info.compute, info.sms, info.shared_bytes) != (
            first.compute, first.sms, first.shared_bytes,
        ):  # fmt: skip
            raise BackendError(
                f"devices: expected GPUs of one kind, got {first.name} ({first.sms} SMs) as GPU 0 "
                f"and {info.name} ({info.sms} SMs) as GPU {number}; choose equal ones with "
                "CUDA_VISIBLE_DEVICES"
            )
    for (number, device), (other, peer) in permutations(enumerate(devices), 2):
        if not device.reach(peer):
            raise BackendError(
                f"devices: expected every GPU to reach the memory of every other one, but GPU "
                f"{number} ({device.info.name}) cannot reach GPU {other} ({peer.info.name}); "
                "'nvidia-smi topo -p2p w' shows which can: choose such ones with "
                "CUDA_VISIBLE_DEVICES, or use fewer devices"
            )


def join(devices: Sequence[Device]) -> None:
    """Let no GPU go on before all have come to the present end of their streams.

    A kernel stores in its peers' memory from its first pass on: what is to be cleared there must be
    clear by then, and a kernel of another width, which lays the same words out anew, over.
    """
    marks = [device.mark() for device in devices]
    for (i, device), (j, mark) in product(enumerate(devices), enumerate(marks)):
        if i != j:
            device.follow(mark)
