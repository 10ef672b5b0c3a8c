"""Which switches of the kernel win? Base, each alone and all together, in turns in one window.

A switch is a shorter chain of waits that no GPU has judged yet: see monolane.cuda._switches. All
kernels of a format of weights share the loaded model, but for those that cut the weights for other
ring slots; they decode the same tokens behind the same context, one epoch of each in every round.
So two kernels that are compared have run within a second of each other, and a token that differs
from base's is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.gpu._device import gpu_info
from bench.gpu._stage import Stage, expect_equal, speed
from bench.gpu.monokernel._model import Model, Tokens, Variant
from bench.gpu.monokernel._scale import Scale
from bench.gpu.monokernel.speed import GREEDY, Decode
from bench.gpu.monokernel.variants import context_of
from monolane._results import Record
from monolane.cuda import CudaExecutor, GpuInfo
from monolane.cuda._kernels import Kernels
from monolane.cuda._layout import Layout
from monolane.cuda._plan_device import lay_out_widths
from monolane.cuda._switches import ALL, NONE, PREDICTIONS, Switch

BASE, TOGETHER = "base", "all"
DTYPES = ("bfloat16", "float8")
_PACKED = Switch.SLOTS  # decides how the weights lie in memory
_UPLOADED = Switch.TABLES  # decides what tables there are: one more does not disturb the others


def known(emulated: bool) -> dict[str, Switch]:
    """What is compared, by name; a rehearsal compiles few kernels."""
    each = {str(x.name).lower(): x for x in Switch}
    if emulated:
        each = {name: x for name, x in each.items() if x is _UPLOADED}
    return {BASE: NONE, **each, TOGETHER: ALL}


def dtypes(emulated: bool) -> tuple[str, ...]:
    """The formats of weights."""
    return DTYPES[:1] if emulated else DTYPES


def layouts(scale: Scale, gpu: GpuInfo, dtype: str) -> dict[str, Layout]:
    """The kernels of one row: base, which is the product's, and all others that differ from it."""
    context, found = context_of(scale), dict[str, Layout]()
    for name, chosen in known(scale.emulated).items():
        variant = Variant(name, slot_bytes=_slot_bytes(scale, gpu, dtype), switches=chosen)
        (made,) = variant.layouts(scale.config, gpu, dtype, context, (1,))
        if chosen != _PACKED or made.tilings != found[BASE].tilings:  # they are small already
            found[name] = made
    return found


def _slot_bytes(scale: Scale, gpu: GpuInfo, dtype: str) -> int:
    """Of the product's ring slots, whose kernels of all widths must fit."""
    context, widths = context_of(scale), CudaExecutor.WIDTHS
    return lay_out_widths(scale.config, gpu, dtype, context, widths)[0].slot_bytes


def switches(stage: Stage, job: str) -> None:
    """Every format of weights, each in its rounds."""
    for dtype in dtypes(stage.scale.emulated):
        stage.attempt("switches", _compare, stage, dtype, dtype=dtype, context=stage.scale.middle)


@dataclass
class Loaded:
    """A model whose kernels take turns."""

    model: Model
    case: Decode
    kernels: dict[str, Kernels] = field(default_factory=dict)

    def run(self, name: str) -> tuple[float, Tokens]:
        """Draw one epoch by one of the kernels: microseconds a token, and the tokens."""
        self.model.executor._resident.kernels = self.kernels[name]
        self.case.run()
        return 1e6 / self.case.samples[-1], self.case.drawn


def _compare(stage: Stage, dtype: str) -> Record:
    scale = stage.scale
    loaded = _load(stage, dtype)
    where = {name: x for x in loaded for name in x.kernels}
    names = [name for name in known(scale.emulated) if name in where]
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in names:  # warms up, and is right or wrong
        where[name].run(name)
    expected = where[BASE].run(BASE)[1]
    for i in range(scale.rounds):
        if i >= 2 and stage.budget.exhausted:
            break
        for name in (*names[i % len(names) :], *names[: i % len(names)]):
            took, tokens = where[name].run(name)
            expect_equal(f"tokens with switch {name!r}, {dtype}", tokens, expected)
            times[name].append(took)
    moved = where[BASE].model.bytes_per_token(scale.middle + scale.tokens // 2)
    for name in names:
        figures = speed([1e6 / x for x in times[name]], moved) | compare(times, name, dtype)
        stage.attempt("switch", lambda made=figures: made, switch=name, dtype=dtype,
                      context=scale.middle)  # fmt: skip
    for x in loaded:
        x.model.close()
    made = {name: compare(times, name, dtype)["verdict"] for name in names if name != BASE}
    return {
        "rounds": len(times[BASE]),
        "tokens_drawn": scale.tokens * len(times[BASE]) * len(names),
        "wins": [name for name, verdict in made.items() if verdict == "wins"],
        "loses": [name for name, verdict in made.items() if verdict == "loses"],
    }


def compare(times: dict[str, list[float]], name: str, dtype: str) -> Record:
    """What a kernel saves of base's microseconds a token, round by round, beside its prediction.

    It wins if it was faster than base in every round, and loses if it was slower in every one.
    """
    saved = np.subtract(times[BASE], times[name])
    least, most = float(saved.min()), float(saved.max())
    verdict = "wins" if least > 0 else "loses" if most < 0 else "neither"
    record: Record = {
        "saved_us": float(np.median(saved)), "saved_us_least": least, "saved_us_most": most,
        "verdict": BASE if name == BASE else verdict,
    }  # fmt: skip
    return record | predicted(name, dtype)


def predicted(name: str, dtype: str) -> Record:
    """The prediction of one switch; of several together there is none."""
    found = next((x for x in PREDICTIONS if str(x.name).lower() == name), None)
    if found is None:
        return {}
    least, most = PREDICTIONS[found].of(dtype)
    return {"predicted_us_least": least, "predicted_us_most": most}


def _load(stage: Stage, dtype: str) -> Sequence[Loaded]:
    """The model once for each way in which weights lie in memory, with the kernels for it."""
    scale = stage.scale
    groups: list[dict[str, Layout]] = []
    for name, layout in layouts(scale, gpu_info(scale.emulated), dtype).items():
        alike = (x for x in groups if next(iter(x.values())).tilings == layout.tilings)
        group = next(alike, None)
        if group is None:
            groups.append(group := {})
        group[name] = layout
    return [_load_group(stage, dtype, group) for group in groups]


def _load_group(stage: Stage, dtype: str, group: dict[str, Layout]) -> Loaded:
    scale = stage.scale
    slot_bytes = _slot_bytes(scale, gpu_info(scale.emulated), dtype)
    one = next(x for x in group.values() if _UPLOADED in x.switches)
    model = Model(
        stage, widths=(1,), context=context_of(scale), dtype=dtype,
        variant=Variant("switches", slot_bytes=slot_bytes, switches=one.switches),
    )  # fmt: skip
    resident = model.executor._resident
    kernels = {name: Kernels(resident.devices, (layout,)) for name, layout in group.items()}
    case = Decode(model, 0, scale.middle, scale.tokens, GREEDY)
    case.warm_up()
    return Loaded(model, case, kernels)
