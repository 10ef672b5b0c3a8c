"""How fast? Bandwidth of the memory, decode, prefill, widths; everything in interleaved rounds."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.gpu._stage import Stage, expect, speed
from bench.gpu.monokernel._model import Model, Tokens, Variant
from bench.gpu.probes._context import Context, make_stage
from bench.gpu.probes._test_data import KnownData
from bench.gpu.probes.bandwidth import Mover, bulk, plain
from monolane._results import Record
from monolane.epoch import Advance, Draw
from monolane.plan import MAX_WIDTH

# What is drawn how: the name of the record, and the fields of a Draw.
GREEDY = ("decode", {"temperature": 0.0})
TEMPERATURE = ("decode_temperature", {"temperature": 0.8})
TOP_P = ("decode_top_p", {"temperature": 0.8, "top_p": 0.95})
KB = 1 << 10
Sampling = tuple[str, dict[str, float]]


# ---- bandwidth -----------------------------------------------------------------------------------
def bandwidth(stage: Stage, job: str) -> None:
    """The probes' read kernels over a buffer far beyond L2: the best of a few ways is the limit."""
    ctx = make_stage(job, stage.scale.emulated, stage.work, stage.budget, stage.emit)
    assert isinstance(ctx, Context)
    info = ctx.device.info
    mover = Mover(ctx, KnownData(ctx, min(stage.scale.read_bytes, info.free_bytes // 4)), None)
    sms = info.sms
    variants = [plain(512 if sms > 8 else 64, 8, 2 * sms, True)]
    for ring, copy in stage.scale.rings:
        for blocks in sorted({sms, sms - sms % 8} - {0}, reverse=True):
            variants += [bulk(ring, copy, blocks, order) for order in (False, True)]
    for variant in variants:
        ctx.attempt("read_bandwidth", mover.measure, variant, **variant.labels())


# ---- decode --------------------------------------------------------------------------------------
@dataclass
class Decode:
    """Tokens of one epoch, behind `context` tokens that are there already, in a slot of its own."""

    model: Model
    slot: int
    context: int
    tokens: int
    sampling: Sampling = GREEDY
    samples: list[float] = field(default_factory=list)  # tokens/s
    _next: int = -1

    def warm_up(self) -> None:
        """Fill the context, and draw once."""
        self._fill()
        self._draw()

    def run(self) -> None:
        """Draw one epoch; its first token is not counted, for it holds the start of the launch."""
        times = self._draw()
        expect(len(times) == self.tokens, f"expected {self.tokens} tokens, got {len(times)}")
        self.samples.append((len(times) - 1) / (times[-1] - times[0]) * 1e9)

    def record(self) -> Record:
        """The figures."""
        moved = self.model.bytes_per_token(self.context + self.tokens // 2)
        return speed(self.samples, moved) | {"tokens": self.tokens}

    def _fill(self) -> None:
        self.model.empty(self.slot)
        self._next = self.model.feed(self.slot, self.model.random_tokens(self.context))

    def _draw(self) -> list[int]:
        executor = self.model.executor
        if executor.length(self.slot) > self.context:
            if self.tokens <= MAX_WIDTH or executor.length(self.slot) <= self._window():
                executor.truncate(self.slot, self.context)
            else:  # windowed layers no longer hold what the next token would see
                self._fill()
        wish = Advance(
            slot=self.slot,
            token_ids=(self._next,),
            budget=self.tokens,
            draw=Draw(**self.sampling[1], seed=len(self.samples)),  # type: ignore[arg-type]
        )
        return [x.time_ns for x in self.model.run(wish)]

    def _window(self) -> int:
        layers = self.model.layout.plan.config.layers
        return min((layer.window for layer in layers if layer.window), default=1 << 30)


def rounds(cases: Sequence[Decode], count: int, stage: Stage) -> None:
    """Warm up, then take a sample of every case in each round, beginning with another each time."""
    for case in cases:
        case.warm_up()
    for i in range(count):
        if i >= 2 and stage.budget.exhausted:
            return  # fewer rounds, and the record says how many
        first = i % len(cases)
        for case in (*cases[first:], *cases[:first]):
            case.run()


def decode(stage: Stage, job: str) -> None:
    """Greedy behind every context, and sampled behind the middle one."""
    middle = stage.scale.middle
    _decode(stage, "bfloat16", [*_greedy(stage), (middle, TEMPERATURE), (middle, TOP_P)])


def decode_again(stage: Stage, job: str) -> None:
    """Greedy behind the middle context, after everything else: has the machine drifted?"""
    _decode(stage, "bfloat16", [(stage.scale.middle, ("decode_again", GREEDY[1]))])


def decode_float8(stage: Stage, job: str) -> None:
    """Greedy behind every context, weights rounded to float8 while they are loaded."""
    _decode(stage, "float8", [(x, ("decode_float8", GREEDY[1])) for x, _ in _greedy(stage)])


def _greedy(stage: Stage) -> list[tuple[int, Sampling]]:
    return [(context, GREEDY) for context in stage.scale.contexts]


def _decode(stage: Stage, dtype: str, wishes: Sequence[tuple[int, Sampling]]) -> None:
    model = Model(stage, slots=len(wishes), dtype=dtype)
    cases = [
        Decode(model, slot, context, stage.scale.tokens, sampling)
        for slot, (context, sampling) in enumerate(wishes)
    ]
    rounds(cases, stage.scale.rounds, stage)
    for case in cases:
        stage.attempt(case.sampling[0], case.record, context=case.context, dtype=dtype)
    model.close()


# ---- the same by kernels with other constants, each in a process of its own ---------------------
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


def variant(stage: Stage, job: str) -> None:
    """One of them; `job` ends with its name."""
    name = job.partition(":")[2]
    (constants,) = (x for x in known_variants(stage.scale.emulated) if x.name == name)
    stage.attempt(
        "decode_variant", _decode_variant, stage, constants,
        variant=name, context=stage.scale.middle, dtype="bfloat16",
    )  # fmt: skip


def known_variants(emulated: bool) -> tuple[Variant, ...]:
    """All variants."""
    return REHEARSED if emulated else VARIANTS


def _decode_variant(stage: Stage, constants: Variant) -> Record:
    scale = stage.scale
    model = Model(stage, widths=(1,), variant=constants, context=scale.middle + scale.tokens + 8)
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


# ---- prefill and widths --------------------------------------------------------------------------
def prefill(stage: Stage, job: str) -> None:
    """From handing over a prompt to its first token."""
    model = Model(stage)
    prompts = {count: model.random_tokens(count) for count in stage.scale.prompts}
    samples: dict[int, list[float]] = {count: [] for count in prompts}
    for i in range(stage.scale.rounds + 1):
        for count, tokens in prompts.items():
            seconds = seconds_to_first(model, tokens)
            if i:  # the first round warms up
                samples[count].append(count / seconds)
    for count, rates in samples.items():
        figures = speed(rates)
        figures["ttft_ms"] = 1e3 * count / figures["median"]
        stage.attempt("prefill", lambda made=figures: made, tokens=count, dtype=model.dtype)
    model.close()


def seconds_to_first(model: Model, tokens: Tokens) -> float:
    """Seconds to a prompt's first token, in an empty slot 0."""
    model.empty(0)
    begin = time.perf_counter_ns()
    drawn = model.run(Advance(slot=0, token_ids=tokens, budget=1))
    return (drawn[-1].time_ns - begin) / 1e9


def widths(stage: Stage, job: str) -> None:
    """Microseconds of a pass of each width, and tokens per second of as many sequences at once."""
    scale = stage.scale
    model = Model(stage, widths=scale.widths, slots=max(scale.widths))
    for width in scale.widths:
        with model.forced(width):
            stage.attempt("pass", _pass_time, model, scale.rounds, width=width, dtype=model.dtype)
    for width in scale.widths:
        with model.forced(width):
            labels = {"width": width, "dtype": model.dtype, "context": scale.contexts[0]}
            stage.attempt("batch", _batch, model, width, stage, **labels)
    model.close()


def _pass_time(model: Model, count: int) -> Record:
    """The time of more passes of a prompt, over their number: a launch's start cancels out."""
    (width,) = model.executor._resident.kernels.chain(1, 1)
    few, many = 2, 10
    prompts = [model.random_tokens(width * passes) for passes in (few, many)]
    for tokens in prompts:
        seconds_to_first(model, tokens)
    pairs = [[seconds_to_first(model, tokens) for tokens in prompts] for _ in range(count)]
    samples = [1e6 * (long - short) / (many - few) for short, long in pairs]
    return speed(samples, unit="us") | {"rows": width}


def _batch(model: Model, width: int, stage: Stage) -> Record:
    scale, samples = stage.scale, []
    context, tokens = scale.contexts[0], min(scale.tokens, 64)
    prompts = [model.random_tokens(context) for _ in range(width)]
    for _ in range(3):
        for slot in range(width):
            model.empty(slot)
        model.run(*(Advance(slot=s, token_ids=x, budget=1) for s, x in enumerate(prompts)))
        drawn = model.run(
            *(Advance(slot=s, token_ids=(x[0],), budget=tokens) for s, x in enumerate(prompts))
        )
        times = [x.time_ns for x in drawn]
        samples.append((len(drawn) - width) / (times[-1] - times[width - 1]) * 1e9)
    figures = speed(samples)
    return figures | {"us_per_pass": 1e6 * width / figures["median"]}
