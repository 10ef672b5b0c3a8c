"""A launch: kernels that are in the GPU's stream, one behind the other, and what came of them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from monolane.cuda._device import Mark
from monolane.cuda._kernel_header import EVENTS
from monolane.cuda._loaded_model import Resident
from monolane.cuda._slot_progress import Running
from monolane.executor_api import Guide

_LOGPROB_ROWS = 32  # of a launch: so long do tokens with log-probabilities wait at most
# Patience of a pass with a late guide: of one that serves nobody else, and of one that does.
_ALONE_SECONDS, _IN_COMPANY_SECONDS = 20e-3, 50e-6


@dataclass(slots=True)
class Launched:
    """Whom a launch serves, place by place, and how far the host has seen each."""

    served: list[Running]
    budgets: list[int]  # tokens to draw in this launch
    first_guides: list[int]  # the stamp of each one's first guide
    first: int  # number, among the epoch's tokens, of the launch's first
    recording: int  # advances whose tokens wait for their logits
    seen: int = 0  # events
    counts: list[int] = field(default_factory=list)  # tokens drawn
    ended: list[bool] = field(default_factory=list)
    parked: list[bool] = field(default_factory=list)  # given back for want of a guide
    broken: list[bool] = field(default_factory=list)  # ended by logits that are no finite numbers
    marks: list[Mark] = field(default_factory=list)  # of its end, on each device
    moved: float = 0.0  # when it last gave a sign of life

    def place(self, slot: int) -> int | None:
        """Return the place of a slot, if it is served."""
        return next((i for i, x in enumerate(self.served) if x.slot == slot), None)

    def guide_stamp(self, place: int) -> int:
        """Return the stamp that the guide of the next draw must have."""
        return self.first_guides[place] + self.counts[place]


def lay_out(resident: Resident, able: Sequence[Running], first: int) -> Launched:
    """Return a launch that serves as many as one can; nothing is sent yet."""
    served = list(able[: resident.layout.width])
    recording = sum(x.advance.logprobs is not None for x in served)
    guided = sum(x.advance.guided for x in served)
    limit = (EVENTS - guided) // len(served)  # a row that is given back is an event too
    if recording:
        limit = min(limit, max(1, min(resident.rows, _LOGPROB_ROWS) // recording))
    if recording and guided:
        limit = 1  # who guides must see each token at once, and those wait for the launch's end
    budgets = [min(x.budget, limit) for x in served]
    draws = [b if x.advance.guided else 0 for x, b in zip(served, budgets, strict=True)]
    launch = Launched(served, budgets, resident.take_guide_stamps(draws), first, recording)
    launch.counts = [0] * len(served)
    launch.ended, launch.parked = [False] * len(served), [False] * len(served)
    launch.broken = [False] * len(served)
    return launch


def post(resident: Resident, launch: Launched, place: int, guide: Guide) -> None:
    """Leave a guide for a kernel that runs: its mask, or the wish to have the row back."""
    mask = None if guide.forced else guide.mask
    resident.mailbox.guide(place, launch.guide_stamp(place), mask)


def send(
    resident: Resident,
    launch: Launched,
    guides: Mapping[int, Sequence[Guide]],
    seen: Mapping[int, npt.NDArray[np.uint32]],
    watchdog: float,
) -> None:
    """Send the kernels off, from wide to narrow.

    guides   those that are there, by slot
    seen     tokens before the launch, by slot, where penalties look at them
    """
    mailbox, served = resident.mailbox, launch.served
    rows = sum(len(x.tokens) for x in served)
    resident.make_stamps_last(rows + sum(launch.budgets))
    mailbox.ask_to_end(False)
    for each in resident.mailboxes:
        each.write(
            served,
            [resident.slots.length(x.slot) for x in served],
            launch.budgets,
            launch.first_guides,
            {"pass_number": resident.pass_number, "syncs": resident.syncs},
            [seen.get(x.slot) for x in served],
        )
    for place, x in enumerate(served):
        if waiting := guides.get(x.slot):
            post(resident, launch, place, waiting[0])
    patience = _ALONE_SECONDS if len(served) == 1 else _IN_COMPANY_SECONDS
    widths = resident.kernels.chain(len(served), rows)
    for i, width in enumerate(widths):
        resident.join()
        for number, each in enumerate(resident.mailboxes):
            params = resident.params(number)
            each.fill(params, i, len(widths))
            params["watchdog_ns"] = int(watchdog * 1e9)
            params["guide_patience_ns"] = int(patience * 1e9)
            params["advance_count"] = len(served)
            params["handover"] = widths[i + 1] if i + 1 < len(widths) else 0
            resident.kernels.launch(width, params)
    resident.join()  # logits come from all devices
    for each in resident.mailboxes:
        each.fetch()
    recorded = sum(
        len(x.tokens) if x.all_logits else budget
        for x, budget in zip(served, launch.budgets, strict=True)
        if x.all_logits or x.advance.logprobs is not None
    )
    if recorded:
        resident.fetch_logits(recorded)
    launch.marks = [device.mark() for device in resident.devices]
    launch.moved = time.monotonic()
