"""Which constants? The same decode by kernels with others, each in a process of its own."""

from __future__ import annotations

from bench.gpu._stage import Stage
from bench.gpu.monokernel._model import Model, Variant
from bench.gpu.monokernel._scale import Scale
from bench.gpu.monokernel.speed import GREEDY, Decode
from monolane._results import Record

KB = 1 << 10
# First what stands in the way of most, should time run out.
VARIANTS = (
    Variant("product"),
    Variant("ring 6 slots", ring_slots=6),
    Variant("ring 4 slots", ring_slots=4),
    Variant("slots 16 KB", slot_bytes=16 * KB),
    Variant("slots 8 KB", slot_bytes=8 * KB),
    Variant("slots 48 KB", slot_bytes=48 * KB),
    Variant("4 warps", warps=4),
    Variant("12 warps", warps=12, slot_bytes=36 * KB),
    Variant("16 warps", warps=16, slot_bytes=24 * KB),
    Variant("15 blocks a lane", blocks=15),
    Variant("12 blocks a lane", blocks=12),
    Variant("8 blocks a lane", blocks=8),
    Variant("chunk 32", chunk=32),
    Variant("chunk 64", chunk=64),
)
REHEARSED = (
    Variant("product"),
    Variant("other", warps=4, slot_bytes=4 * KB, ring_slots=3, blocks=1, chunk=32),
)


def variants(stage: Stage, job: str) -> None:
    """One of them; `job` ends with its name."""
    name = job.partition(":")[2]
    (variant,) = (x for x in known(stage.scale.emulated) if x.name == name)
    stage.attempt(
        "decode_variant", _decode, stage, variant,
        variant=name, context=stage.scale.middle, dtype="bfloat16",
    )  # fmt: skip


def known(emulated: bool) -> tuple[Variant, ...]:
    """All variants."""
    return REHEARSED if emulated else VARIANTS


def context_of(scale: Scale) -> int:
    """Tokens of a variant's executor."""
    return scale.middle + scale.tokens + 8


def _decode(stage: Stage, variant: Variant) -> Record:
    scale = stage.scale
    model = Model(stage, widths=(1,), variant=variant, context=context_of(scale))
    case = Decode(model, 0, scale.middle, scale.tokens, GREEDY)
    case.warm_up()
    for _ in range(min(3, scale.rounds)):
        case.run()
    layout = model.layout
    record = case.record() | {
        "ring_slots": layout.ring_slots,
        "slot_bytes": layout.slot_bytes,
        "warps": layout.warps,
        "blocks": layout.blocks,
        "chunk": layout.plan.device.chunk,
        "shared_bytes": layout.shared.total,
    }
    model.close()
    return record
