"""The static decode plan: what each worker does in a pass, in which order, and what it waits for.

``build`` makes a plan of a model config and a device description; ``validate`` proves it sound,
``interpret`` runs it slowly under hostile schedules, ``to_arrays`` and ``c_header`` hand it to
native executors, ``phase_cost`` and ``pass_cost`` count its bytes and operations.
"""

from monolane.ops import MAX_WIDTH, Buffer
from monolane.plan._abi import PlanArrays, c_header, to_arrays
from monolane.plan._build import build, padding
from monolane.plan._cost import Cost, main_format, pass_cost, phase_cost, worker_bytes
from monolane.plan._device import (
    B200,
    H100,
    H200,
    MI300X,
    MI350X,
    Choice,
    DeviceDescription,
    cpu,
    find_device,
)
from monolane.plan._groups import Groups
from monolane.plan._interpret import Interpretation, interpret
from monolane.plan._phase import OUTPUTS, Access, Matrix, Phase, PhaseKind, Update, Wait
from monolane.plan._plan import (
    MIXTURE_WIDTH,
    PROMPT_WIDTH,
    Place,
    Plan,
    PlanError,
)
from monolane.plan._shapes import NAMES, named_config
from monolane.plan._split import PERIOD, Scope, Share, split
from monolane.plan._trace import KindSummary, Slice, Trace, summarise
from monolane.plan._validate import faults, validate

__all__ = [
    "B200",
    "H100",
    "H200",
    "MAX_WIDTH",
    "MI300X",
    "MI350X",
    "MIXTURE_WIDTH",
    "NAMES",
    "OUTPUTS",
    "PERIOD",
    "PROMPT_WIDTH",
    "Access",
    "Buffer",
    "Choice",
    "Cost",
    "DeviceDescription",
    "Groups",
    "Interpretation",
    "KindSummary",
    "Matrix",
    "Phase",
    "PhaseKind",
    "Place",
    "Plan",
    "PlanArrays",
    "PlanError",
    "Scope",
    "Share",
    "Slice",
    "Trace",
    "Update",
    "Wait",
    "build",
    "c_header",
    "cpu",
    "faults",
    "find_device",
    "interpret",
    "main_format",
    "named_config",
    "padding",
    "pass_cost",
    "phase_cost",
    "split",
    "summarise",
    "to_arrays",
    "validate",
    "worker_bytes",
]
