"""How fast? Bandwidth of the memory, decode, prefill, widths; everything in interleaved rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bench.gpu._device import open_device
from bench.gpu._stage import NotMeasuredError, Stage, expect, speed
from bench.gpu.monokernel._model import Model, Tokens, kept_model
from bench.gpu.monokernel._scale import Scale
from bench.gpu.probes._context import Context, make_stage
from bench.gpu.probes._test_data import TestData
from bench.gpu.probes.bandwidth import Mover, Variant, bulk_readers
from monolane._results import Record
from monolane.cuda import GpuInfo
from monolane.cuda._plan_device import lay_out_widths
from monolane.cuda._requirements import bytes_of
from monolane.executor_api import Advance, Draw
from monolane.plan import MAX_WIDTH

# What is drawn how: the name of the record, and the fields of a Draw.
GREEDY = ("decode", {"temperature": 0.0})
TEMPERATURE = ("decode_temperature", {"temperature": 0.8})
TOP_P = ("decode_top_p", {"temperature": 0.8, "top_p": 0.95})
Sampling = tuple[str, dict[str, float]]
_FEW, _MANY = 2, 10  # passes of a prompt
_BATCH_TOKENS = 64  # of each of many sequences


# ---- bandwidth -----------------------------------------------------------------------------------
def bandwidth(stage: Stage, job: str) -> None:
    """The probes' read kernels over a buffer far beyond L2: the best of a few ways is the limit."""
    ctx = make_stage(job, stage.scale.emulated, stage.work, stage.budget, stage.emit)
    assert isinstance(ctx, Context)
    ctx.injected = stage.injected
    info = ctx.device.info
    mover = Mover(ctx, TestData(ctx, min(stage.scale.read_bytes, info.free_bytes // 4)), None)
    sms = info.sms
    variants = [Variant("read_plain_8", 2 * sms, 512 if sms > 8 else 64, 0, 0, True)]
    variants[0] = replace(variants[0], chunk=variants[0].threads * 16 * 8)
    for ring, copy in stage.scale.rings:
        for blocks in sorted({sms, sms - sms % 8} - {0}, reverse=True):
            slots = ring // copy
            threads = 32 * (1 + bulk_readers(slots))
            variants += [
                Variant("read_bulk", blocks, threads, copy, slots, order) for order in (False, True)
            ]
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
    drawn: Tokens = ()  # of the last epoch
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
        events = self.model.run(wish)
        self.drawn = tuple(x.token_id for x in events)
        return [x.time_ns for x in events]

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
    scale = stage.scale
    wishes = [(context, GREEDY) for context in scale.contexts]
    if job == "decode":
        wishes += [(scale.middle, TEMPERATURE), (scale.middle, TOP_P)]
    else:
        wishes = [(scale.middle, GREEDY)]  # again, after everything else: has the machine drifted?
    model = kept_model(stage)
    cases = [
        Decode(model, slot, context, scale.tokens, sampling)
        for slot, (context, sampling) in enumerate(wishes)
    ]
    rounds(cases, scale.rounds, stage)
    for case in cases:
        name = case.sampling[0] if job == "decode" else "decode_again"
        stage.attempt(name, case.record, context=case.context, dtype=model.dtype)


def decode_float8(stage: Stage, job: str) -> None:
    """Greedy behind every context, weights rounded to float8 while they are loaded."""
    scale = stage.scale
    model = kept_model(stage, "float8")
    cases = [Decode(model, s, context, scale.tokens) for s, context in enumerate(scale.contexts)]
    rounds(cases, scale.rounds, stage)
    for case in cases:
        stage.attempt("decode_float8", case.record, context=case.context, dtype=model.dtype)


# ---- prefill and widths --------------------------------------------------------------------------
def prefill(stage: Stage, job: str) -> None:
    """From handing over a prompt to its first token."""
    model = kept_model(stage)
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


def seconds_to_first(model: Model, tokens: Tokens) -> float:
    """Seconds to a prompt's first token, in an empty slot 0."""
    model.empty(0)
    begin = time.perf_counter_ns()
    drawn = model.run(Advance(slot=0, token_ids=tokens, budget=1))
    return (drawn[-1].time_ns - begin) / 1e9


def widths(stage: Stage, job: str) -> None:
    """Microseconds of a pass of each width, and tokens per second of as many sequences at once."""
    scale, slots = stage.scale, max(stage.scale.widths)
    device = open_device(scale.emulated, stage.work)
    context = widths_context(scale, device.info)
    device.close()
    model = Model(stage, widths=scale.widths, slots=slots, context=context)
    room = {"dtype": model.dtype, "slots": slots, "slot_tokens": context}
    for width in scale.widths:
        with model.forced(width):
            stage.attempt("pass", _pass_time, model, scale.rounds, width=width, **room)
    for width in scale.widths:
        with model.forced(width):
            labels = {"width": width, "context": scale.contexts[0], **room}
            stage.attempt("batch", _batch, model, width, stage, **labels)
    model.close()


def widths_context(scale: Scale, gpu: GpuInfo) -> int:
    """Tokens of each sequence of `widths`: the scale's, halved until all of them fit on a GPU.

    64 sequences of 4,608 tokens take 17.4 GB, and 22.6 with the model and all else; of 1,152 tokens
    12 in all. NotMeasuredError where not even what is timed fits.
    """
    slots, context = max(scale.widths), scale.context
    least = max(_MANY * slots, scale.contexts[0] + _BATCH_TOKENS) + 1
    while True:
        layouts = lay_out_widths(scale.config, gpu, "bfloat16", context, scale.widths)
        needed = bytes_of(layouts, slots).total
        if needed <= gpu.free_bytes:
            return context
        if context // 2 < least:
            raise NotMeasuredError(
                f"{slots} sequences of {context:,} tokens take {needed / 1e9:.1f} GB, "
                f"{gpu.free_bytes / 1e9:.1f} are free"
            )
        context //= 2


def _pass_time(model: Model, count: int) -> Record:
    """The time of more passes of a prompt, over their number: a launch's start cancels out."""
    (width,) = model.executor._resident.kernels.chain(1, 1)
    prompts = [model.random_tokens(width * passes) for passes in (_FEW, _MANY)]
    for tokens in prompts:
        seconds_to_first(model, tokens)
    pairs = [[seconds_to_first(model, tokens) for tokens in prompts] for _ in range(count)]
    samples = [1e6 * (long - short) / (_MANY - _FEW) for short, long in pairs]
    return speed(samples, unit="us") | {"rows": width}


def _batch(model: Model, width: int, stage: Stage) -> Record:
    scale, samples = stage.scale, []
    context, tokens = scale.contexts[0], min(scale.tokens, _BATCH_TOKENS)
    make: Callable[[int], Tokens] = model.random_tokens
    prompts = [make(context) for _ in range(width)]
    for _ in range(3):
        for slot in range(width):
            model.empty(slot)
        model.run(*(Advance(slot=s, token_ids=x, budget=1) for s, x in enumerate(prompts)))
        drawn = model.run(
            *(Advance(slot=s, token_ids=(x[0],), budget=tokens) for s, x in enumerate(prompts))
        )
        times = [x.time_ns for x in drawn]
        samples.append((len(drawn) - width) / (times[-1] - times[width - 1]) * 1e9)
    return speed(samples) | {"us_per_pass": 1e6 * width / speed(samples)["median"]}
