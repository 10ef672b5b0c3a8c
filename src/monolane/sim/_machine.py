"""A device by name, as the plan sees it and as the clock does."""

import re
from dataclasses import dataclass, replace

from monolane.errors import ConfigError, RequestError
from monolane.plan import DeviceDescription, cpu, find_device
from monolane.sim._constants import Timing, timings

PREDICTED = "predicted: nothing of this project has run on such a device"
MODELLED = "modelled: processes of one request, each with a processor of its own"
CALIBRATED = "modelled with constants measured on such a processor"
UNKNOWN = "modelled with constants of other processors: measure your own with monolane bench"


@dataclass(frozen=True, slots=True)
class Machine:
    """One device or several equal ones, and what is known of their timing."""

    device: DeviceDescription
    timing: Timing

    @property
    def name(self) -> str:
        """Name as it was asked for."""
        return self.device.name

    @property
    def standing(self) -> str:
        """What a forecast for it is worth, to be said wherever one is shown."""
        if not self.timing.executed:
            return PREDICTED
        if self.device.devices > 1:
            return MODELLED
        return CALIBRATED if self.timing.processors else UNKNOWN

    def stated(
        self,
        *,
        bandwidth: float | None = None,
        link_latency: float | None = None,
        link_bandwidth: float | None = None,
    ) -> "Machine":
        """Return it with figures that the caller states: GB/s of a device, us, GB/s."""
        timing = self.timing
        said = {
            "bandwidth_gb_s": bandwidth,
            "link_us": link_latency,
            "link_gb_s": link_bandwidth,
        }
        for name, value in said.items():
            if value is not None:
                if name != "link_us" and not 0 < value < float("inf"):
                    raise RequestError(
                        f"{name}: expected a finite number above zero, got {value:g}"
                    )
                timing = timing.stated(name, value)
        return replace(self, timing=timing)


def find_machine(name: str) -> Machine:
    """Return the machine of a name: h200, 8xmi300x, 8xh200-kog, cpu:2, amd-epyc:2, 4xcpu:1, ..."""
    known = timings()
    match = re.fullmatch(r"(?:(\d{1,4})x)?([a-z][a-z0-9-]*)(?::(\d{1,4}))?", name.lower())
    count, kind, threads = match.groups() if match is not None else (None, "", None)
    timing = known.get(kind)
    if timing is None or (threads is not None and not _is_processor(kind)):
        raise RequestError(
            f"device: expected one of {', '.join(known)}, several as in 8xh200, or a processor's "
            f"threads as in cpu:2, got {name!r}"
        )
    try:
        if not _is_processor(kind):
            device = find_device(kind.split("-")[0])
        else:
            device = cpu(int(threads)) if threads is not None else find_device("cpu")
        several = int(count) if count is not None else 1
        device = replace(device, name=name.lower(), devices=several)
    except ConfigError as error:
        raise RequestError(str(error)) from None
    return Machine(device, timing)


def find_processor(processor: str, workers: int) -> Machine:
    """Return the machine of a processor's name as results spell it; else the generic one."""
    known = timings()
    found = (n for n, timing in known.items() if processor in timing.processors)
    return find_machine(f"{next(found, 'cpu')}:{workers}")


def _is_processor(kind: str) -> bool:
    return kind == "cpu" or bool(timings()[kind].processors)
