"""The reduce rule of a module: when the outputs of the lanes meet.

With lanes l, module output o_l of layer i, and d the delay, the residual stream of lane l gains

    delay None   sqrt(L) * o_l                                    no exchange ("never")
    delay 0      sum over all lanes of o                          blocking sum ("now")
    delay d > 0  o_l + sum over j != l of o_j of layer i - d      Delayed Tensor Parallelism

One number says it all: a delay of zero layers *is* the blocking sum.
"""

from dataclasses import dataclass

from monolane.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Reduce:
    """When the other lanes' outputs of a module arrive: after ``delay`` layers, or never (None)."""

    delay: int | None

    def __post_init__(self) -> None:
        if self.delay is not None and self.delay < 0:
            raise ConfigError(f"reduce delay: expected None or 0 and more layers, got {self.delay}")

    def __str__(self) -> str:
        if self.delay is None:
            return "never"
        return "now" if self.delay == 0 else f"after {self.delay}"


NOW = Reduce(0)
NEVER = Reduce(None)
