"""What the phases of an operation are described with: all that an operation's ``plan`` imports."""

from monolane.plan._builder import Builder, own, shared
from monolane.plan._device import Choice, DeviceDescription
from monolane.plan._interpreter_memory import Floats
from monolane.plan._interpreter_worker import Worker, cut
from monolane.plan._kind import Kind, Part, Touches, check_pairs, joined_before, last_product, says
from monolane.plan._phase import OUTPUTS, Matrix, Phase, PhaseKind
from monolane.plan._plan import Plan
from monolane.plan._split import Scope, Share, choose_align, split

__all__ = [
    "OUTPUTS",
    "Builder",
    "Choice",
    "DeviceDescription",
    "Floats",
    "Kind",
    "Matrix",
    "Part",
    "Phase",
    "PhaseKind",
    "Plan",
    "Scope",
    "Share",
    "Touches",
    "Worker",
    "check_pairs",
    "choose_align",
    "cut",
    "joined_before",
    "last_product",
    "own",
    "says",
    "shared",
    "split",
]
