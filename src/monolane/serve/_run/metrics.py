"""Metrics in Prometheus' text format, under vLLM's names.

vLLM's buckets for the time between tokens begin at 10 ms, ours at 50 µs: most of our samples would
fall into its first. Metrics that vLLM does not have begin with ``monolane:``.
"""

import bisect
import itertools
import threading
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from monolane._version import __version__
from monolane.engine import DraftCounts, Engine
from monolane.serve._run.choice import Choice
from monolane.serve._run.refusals import Refusals
from monolane.serve._run.scheduler import Scheduler

_LABELS = ("model_name", "engine")
_TOKEN_SECONDS = (
    *(50e-6, 100e-6, 150e-6, 200e-6, 250e-6, 300e-6, 350e-6, 400e-6, 500e-6, 750e-6),
    *(1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0, 2.5),
)
_SECONDS = (
    *(1e-3, 2.5e-3, 5e-3, 10e-3, 20e-3, 40e-3, 60e-3, 80e-3, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0),
)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
_SPEEDS = (10, 25, 50, 100, 200, 400, 800, 1200, 1600, 2000, 2500, 3000, 4000, 6000, 10_000)
_RECENT = 0.2  # weight of the newest sample in what the next sequence is expected to take


class Metrics:
    """All metrics of one server."""

    def __init__(self, model_name: str, scheduler: Scheduler) -> None:
        self.registry = CollectorRegistry()
        self._names = (model_name, "0")
        self._between = _TokenIntervals(self._names)
        self.registry.register(self._between)
        for name, what, read in (
            ("vllm:num_requests_running", "Sequences that decode", lambda: scheduler.running),
            ("vllm:num_requests_waiting", "Sequences that wait", lambda: scheduler.waiting),
            (
                "vllm:kv_cache_usage_perc",
                "Slots in use, 0 to 1",
                lambda: scheduler.running / scheduler.policy.slots,
            ),
        ):
            gauge = Gauge(name, what, _LABELS, registry=self.registry)
            gauge.labels(*self._names).set_function(read)
        self._generated = self._counter("vllm:generation_tokens", "Tokens drawn")
        self._prompts = self._counter("vllm:prompt_tokens", "Tokens of prompts")
        # The rate of hits is the second over the first.
        self._asked = self._counter("vllm:prefix_cache_queries", "Tokens of prompts looked up")
        self._hits = self._counter("vllm:prefix_cache_hits", "Of these, taken from kept prefixes")
        self._drafts = self._counter("vllm:spec_decode_num_drafts", "Passes that verified a draft")
        self._drafted = self._counter("vllm:spec_decode_num_draft_tokens", "Tokens drafted")
        self._accepted = self._counter(
            "vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were drawn"
        )
        self._accepted_at = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens that were drawn, by their place in the draft, from 0 on",
            (*_LABELS, "position"),
            registry=self.registry,
        )
        self._drafters = [
            Counter(name, what, (*_LABELS, "drafter"), registry=self.registry)
            for name, what in (
                ("monolane:drafter_tokens", "Tokens drafted, by who drafted them"),
                ("monolane:drafter_accepted_tokens", "Of these, those that were drawn"),
            )
        ]
        self._done = Counter(
            "vllm:request_success",
            "Choices that came to an end, by why",
            (*_LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._first = self._histogram("vllm:time_to_first_token_seconds", "To the first token")
        self._whole = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to last token")
        self._queued = self._histogram("vllm:request_queue_time_seconds", "Waiting for a turn")
        self._prefill = self._histogram("vllm:request_prefill_time_seconds", "Turn to first token")
        self._decode = self._histogram("vllm:request_decode_time_seconds", "First to last token")
        self._prompt_size = self._histogram("vllm:request_prompt_tokens", "Of a prompt", _TOKENS)
        self._size = self._histogram("vllm:request_generation_tokens", "Of an answer", _TOKENS)
        self._speed = self._histogram(
            "monolane:decode_tokens_per_second", "Decode speed of a choice", _SPEEDS
        )
        self.refusals = Refusals(self.registry, model_name)
        self._token_seconds, self._prompt_seconds = 1e-3, 1e-4  # until there are samples

    def ready(self, engine: Engine, seconds: float) -> None:
        """Note a loaded engine, ``seconds`` after the start."""
        startup = Gauge("monolane:startup_seconds", "To a loaded model", registry=self.registry)
        startup.set(seconds)
        kept = Gauge("monolane:prefix_cache_bytes", "Of kept prefixes", registry=self.registry)
        kept.set_function(lambda: engine.prefixes.tree.nbytes)
        build = Gauge(
            "monolane:build_info",
            "Version, backend and dtype",
            ("version", "backend", "dtype"),
            registry=self.registry,
        )
        build.labels(__version__, engine.backend.name, engine.backend.dtype).set(1)

    def text(self) -> bytes:
        """Return everything as Prometheus reads it."""
        return generate_latest(self.registry)

    def drawn(self, count: int) -> None:
        """Count tokens that have just been drawn, from any thread."""
        self._generated.inc(count)

    def expect(self, prompt: int, budget: int) -> float:
        """Return the seconds that a sequence is expected to take, by those before it."""
        return prompt * self._prompt_seconds + budget * self._token_seconds

    def finish(self, choices: Sequence[Choice]) -> None:
        """Count choices that are over, from any thread.

        The expected times, which two of them may move at once, are estimates in any case.
        """
        for choice in choices:
            reason = choice.stream.finish_reason if choice.first else None
            self._done.labels(*self._names, reason or "abort").inc()
            if reason is not None:
                self._observe(choice)

    def _observe(self, choice: Choice) -> None:
        prompt = len(choice.prompt_ids)
        self._prompts.inc(prompt)
        self._asked.inc(prompt)
        self._hits.inc(choice.cached)
        self._count_drafts(choice.drafts)
        read = prompt - choice.cached  # at least one
        prefill, decode = choice.first - choice.admitted, choice.last - choice.first
        for histogram, nanoseconds in (
            (self._first, choice.first - choice.arrived),
            (self._whole, choice.last - choice.arrived),
            (self._queued, choice.admitted - choice.arrived),
            (self._prefill, prefill),
            (self._decode, decode),
        ):
            histogram.observe(max(0, nanoseconds) / 1e9)
        self._prompt_size.observe(prompt)
        self._size.observe(choice.drawn)
        self._prompt_seconds += _RECENT * (prefill / 1e9 / read - self._prompt_seconds)
        if choice.drawn > 1:
            if choice.tokens_per_second:
                self._speed.observe(choice.tokens_per_second)
            self._between.observe(choice.times, choice.forced())
            seconds = decode / 1e9 / (choice.drawn - 1)
            self._token_seconds += _RECENT * (seconds - self._token_seconds)

    def _count_drafts(self, drafts: DraftCounts) -> None:
        self._drafts.inc(drafts.passes)
        self._drafted.inc(drafts.tokens)
        self._accepted.inc(drafts.accepted)
        for name, counts in drafts.by.items():
            for counter, key in zip(self._drafters, ("draft_n", "draft_n_accepted"), strict=True):
                counter.labels(*self._names, name).inc(counts[key])
        for position, count in enumerate(drafts.accepted_at):
            self._accepted_at.labels(*self._names, str(position)).inc(count)

    def _counter(self, name: str, what: str) -> Counter:
        return Counter(name, what, _LABELS, registry=self.registry).labels(*self._names)

    def _histogram(self, name: str, what: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
        made = Histogram(name, what, _LABELS, buckets=buckets, registry=self.registry)
        return made.labels(*self._names)


class _TokenIntervals(Collector):
    """A histogram of the times between tokens, a whole answer at a time.

    The library's own takes one sample per call, and a lock each: at 3,000 tokens/s that shows.
    """

    def __init__(self, names: tuple[str, str]) -> None:
        self._names = names
        self._counts = [0] * (len(_TOKEN_SECONDS) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, times_ns: Sequence[int], forced: int) -> None:
        """Count the times between moments in nanoseconds, without those of forced tokens.

        Forced tokens come together with another, so the shortest times are theirs.
        """
        intervals = [(later - sooner) / 1e9 for sooner, later in itertools.pairwise(times_ns)]
        if forced:
            intervals = sorted(intervals)[forced:]
        with self._lock:
            for interval in intervals:
                self._counts[bisect.bisect_left(_TOKEN_SECONDS, interval)] += 1
            self._sum += sum(intervals)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the family, as the registry asks for it."""
        with self._lock:
            totals, total = list(itertools.accumulate(self._counts)), self._sum
        bounds = [*map(str, _TOKEN_SECONDS), "+Inf"]
        family = HistogramMetricFamily(
            "vllm:inter_token_latency_seconds", "Time between two tokens", labels=_LABELS
        )
        family.add_metric(self._names, list(zip(bounds, totals, strict=True)), total)
        yield family
