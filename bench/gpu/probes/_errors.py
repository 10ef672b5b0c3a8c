"""What can go wrong in a probe, and which of it is about the figure rather than the machine.

ProbeError
├── CheckError    a probe's own check: the figure must not be used
├── WaitStarvedError    a watchdog fired on the device and named the wait
├── NotMeasuredError    this variant has no meaning or no room here (said in the results)
└── DeviceError    the driver, the compiler or the device failed
    ├── CompileError
    └── DeviceHangError
"""

from __future__ import annotations


class ProbeError(Exception):
    """Base of everything below."""


class CheckError(ProbeError):
    """A probe's check of its own result failed."""


class WaitStarvedError(ProbeError):
    """A spin on the device ran into its watchdog."""


class NotMeasuredError(ProbeError):
    """A variant that cannot be measured here, with the reason."""


class DeviceError(ProbeError):
    """A driver call or the device failed."""


class CompileError(DeviceError):
    """A kernel did not compile; carries the compiler's log."""


class DeviceHangError(DeviceError):
    """The device did not finish in time."""
