"""The model on the device, as the suite drives it: below the engine, above the kernels.

The executor is the product's own. Three things are done to it that no user can do, each through one
name: other widths (a class attribute), other constants of the layout (the function that lays out),
and a kernel of one width for everything (the chain of kernels of a launch).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from bench.gpu._device import open_device
from bench.gpu._stage import Stage, expect
from bench.gpu.monokernel._random_weights import random_weights
from monolane.cuda import CudaExecutor, Device, GpuInfo, _executor, _plan_device
from monolane.cuda._lay_out import lay_out
from monolane.cuda._layout import Layout
from monolane.cuda._switches import NONE, Switch
from monolane.executor_api import Advance, TokenEvent
from monolane.model import ModelConfig, Weights
from monolane.plan import build, pass_cost

Tokens = tuple[int, ...]
KEPT_SLOTS = 10  # of the model that parts share: more than the 8 rows of the second kernel
Times = npt.NDArray[np.uint64]  # [passes, phases, blocks, 3] ns: arrived, begun, ended


@dataclass(frozen=True)
class Variant:
    """Constants of a kernel that differ from the product's; None: as there."""

    name: str
    warps: int = 8
    slot_bytes: int | None = None
    ring_slots: int | None = None  # at most
    blocks: int | None = None  # of a lane
    chunk: int | None = None  # keys
    kept_passes: int = 0  # see Layout
    switches: Switch = NONE

    def layouts(
        self,
        config: ModelConfig,
        gpu: GpuInfo,
        dtype: str,
        context: int,
        widths: Sequence[int],
        devices: int = 1,
    ) -> tuple[Layout, ...]:
        """Lay out kernels of several widths, for one device."""
        assert devices == 1
        if self.blocks is not None:
            gpu = replace(gpu, sms=min(gpu.sms, self.blocks * config.num_lanes))
        usual = _plan_device.lay_out_widths(config, gpu, dtype, context, widths)
        found = []
        for layout in usual:
            plan = layout.plan
            if self.chunk is not None:
                device = replace(plan.device, chunk=self.chunk)
                plan = build(config, device, dtype, max_width=layout.width, context=context)
            slot_bytes = self.slot_bytes or layout.slot_bytes
            made = lay_out(
                plan, warps=self.warps, slot_bytes=slot_bytes, shared_limit=gpu.shared_bytes,
                kept_passes=self.kept_passes, switches=self.switches,
            )  # fmt: skip
            while self.ring_slots is not None and made.ring_slots > self.ring_slots:
                # Less memory, one slot at a time: sections are rounded up.
                limit = made.shared.total - slot_bytes
                made = lay_out(
                    plan, warps=self.warps, slot_bytes=slot_bytes, shared_limit=limit,
                    kept_passes=self.kept_passes, switches=self.switches,
                )  # fmt: skip
            found.append(made)
        return tuple(found)


class Model:
    """A model in an executor of its own."""

    def __init__(
        self,
        stage: Stage,
        *,
        widths: Sequence[int] | None = None,
        slots: int = 1,
        context: int | None = None,
        weights: Weights | None = None,
        dtype: str = "bfloat16",
        variant: Variant | None = None,
        watchdog: float | None = None,
        hang: float | None = None,
        sms: int | None = None,
        devices: int = 1,
        lanes: int | None = None,
    ) -> None:
        """`widths` None: the product's; `sms` of each device, `lanes` of a dense model.

        `watchdog`, `hang`: seconds of patience, the kernel's and the host's.
        """
        self.scale, self.dtype = stage.scale, dtype
        weights = weights or random_weights(stage.scale.config, stage.work)
        opened = [
            open_device(stage.scale.emulated, stage.work, sms, number) for number in range(devices)
        ]
        self.device: Device = opened[0]
        attributes: dict[str, Any] = {"HANG_SECONDS": hang or watchdog or 30.0}
        if widths is not None:
            attributes["WIDTHS"] = tuple(widths)
        if watchdog is not None:
            attributes["WATCHDOG_SECONDS"] = watchdog
        kind: Any = type("SuiteExecutor", (CudaExecutor,), attributes)
        context = context or stage.scale.context
        with contextlib.ExitStack() as stack:
            if variant is not None:
                patched = patch.object(_executor, "lay_out_widths", variant.layouts)
                stack.enter_context(patched)
            self.executor: CudaExecutor = kind(
                weights, dtype, opened, context=context, slots=slots, lanes=lanes
            )
        self._rng = np.random.default_rng(0)

    @property
    def layout(self) -> Layout:
        """Of the widest kernel; blocks and weights are those of all."""
        return self.executor.layout

    def random_tokens(self, count: int) -> Tokens:
        """Tokens without meaning: speed does not depend on them."""
        vocab = self.layout.plan.config.vocab_size
        return tuple(int(token) for token in self._rng.integers(vocab, size=count))

    def bytes_per_token(self, length: int) -> int:
        """Bytes that a pass of one token must stream when its sequence has `length` tokens."""
        return pass_cost(self.layout.plan, 1, length).bytes

    def run(self, *advances: Advance) -> list[TokenEvent]:
        """One epoch, to its end."""
        self.executor.start(advances)
        while not self.executor.read(1.0):
            pass
        return self.executor.take()

    def feed(self, slot: int, tokens: Tokens) -> int:
        """Feed tokens to a slot; return the next one, drawn greedily."""
        return self.run(Advance(slot=slot, token_ids=tokens, budget=1))[-1].token_id

    def empty(self, slot: int) -> None:
        """Forget a slot's tokens."""
        self.executor.truncate(slot, 0)

    def logits(self, slot: int, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Feed tokens; their logits [T, V]."""
        return self.executor.logits(slot, tokens)

    @contextlib.contextmanager
    def forced(self, width: int) -> Iterator[None]:
        """Every launch by the kernel of one width."""
        kernels = self.executor._resident.kernels
        expect(width in kernels.widths, f"width {width}: expected one of {kernels.widths}")
        with patch.object(kernels, "chain", lambda sequences, rows: (width,)):
            yield

    def close(self) -> None:
        """Give the device back."""
        self.executor.close()

    @contextlib.contextmanager
    def tracing(self) -> Iterator[Callable[[], Times]]:
        """What begins within it is traced; the function that it gives returns the last passes."""
        self.executor.set_trace(True)
        try:
            yield self._traced
        finally:
            self.executor.set_trace(False)

    def _traced(self) -> Times:
        """Whole passes only, the oldest first."""
        times = self.executor.take_trace()
        whole = (times[..., 0] > 0).all(axis=(1, 2)) & (times[..., 2] > 0).all(axis=(1, 2))
        times = times[whole]
        return times[np.argsort(times[:, 0, 0, 0])]


def kept_model(stage: Stage, dtype: str = "bfloat16") -> Model:
    """The product's model, loaded once in a process and kept for the parts behind; it is empty.

    Whoever gets it does not close it.
    """
    model: Model | None = stage.kept.get(dtype)
    if model is None:
        model = stage.kept[dtype] = Model(stage, slots=KEPT_SLOTS, dtype=dtype)
    for slot in range(KEPT_SLOTS):
        model.empty(slot)
    return model
