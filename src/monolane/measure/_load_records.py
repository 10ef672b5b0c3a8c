"""What a load came to, as records of the results format; their name is "serve"."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from monolane._results import Record
from monolane.measure._load import Load, Loaded
from monolane.measure._samples import summary

_NOTES = {
    "timings": "no usage from this server: tokens counted by its timings.predicted_n",
    "events": "no usage from this server: events counted, and an event may hold several tokens",
}
_FEW = 10  # events of an answer: the first one's tokens may then be a tenth of all


def serve_record(load: Load, loaded: Loaded, engine: str, label: str) -> Record:
    """Return the record of one level.

    ``median``, ``min`` and ``max`` are decode speeds of single requests as their clients saw them,
    tokens after the first over the time from the first text to the last. Percentiles that go up
    are of what a client would rather have small: ``request_token_us`` (a request's mean time per
    token), ``first_ms``, ``whole_ms``, ``gap_ms`` (from event to event).
    """
    level, outcomes = loaded.level, loaded.outcomes
    record: Record = {
        "name": "serve",
        "engine": engine,
        "model": load.options.model,
        "label": label,
        "route": load.options.route,
        "clients": level.clients,
        "rate": level.rate,
        "tokens": load.options.max_tokens,
        "answers": len(outcomes),
        "failures": dict(Counter(failure.kind for failure in loaded.failures)),
        "client_cpu": loaded.client_cpu,
    }
    if loaded.failures:
        record["failure"] = loaded.failures[0].message
    if not outcomes:
        first = loaded.failures[0]
        return record | {
            "error": f"all {len(loaded.failures)} requests failed; the first ({first.kind}): "
            f"{first.message}"
        }
    return record | _figures(loaded)


def _figures(loaded: Loaded) -> dict[str, Any]:
    outcomes = loaded.outcomes
    speeds = [speed for outcome in outcomes if (speed := outcome.speed) is not None]
    theirs = [speed for outcome in outcomes if (speed := outcome.server_speed) is not None]
    prompts = [count for outcome in outcomes if (count := outcome.prompt_tokens) is not None]
    gaps = [gap * 1e3 for outcome in outcomes for gap in outcome.gaps]
    ways = {outcome.counted_by for outcome in outcomes}
    found: dict[str, Any] = {
        "total_tokens_per_s": sum(outcome.tokens for outcome in outcomes) / loaded.seconds,
        "answered_tokens": sum(outcome.tokens for outcome in outcomes),
        "seconds": loaded.seconds,
        "prompt_tokens": float(np.median(prompts)) if prompts else None,
        "server_tokens_per_s": float(np.median(theirs)) if theirs else None,
        "events": sum(len(outcome.gaps) + 1 for outcome in outcomes),
        "first_ms": percentiles([outcome.first * 1e3 for outcome in outcomes]),
        "whole_ms": percentiles([outcome.whole * 1e3 for outcome in outcomes]),
        "gap_ms": percentiles(gaps),
        "request_token_us": percentiles([1e6 / speed for speed in speeds]),
        "notes": [note for way, note in _NOTES.items() if way in ways],
    }
    events = found["events"] / len(outcomes)
    if events < _FEW and found["answered_tokens"] > found["events"]:
        found["notes"].append(
            f"an answer came in {events:.0f} events or so: the tokens of its first one blur its "
            "speed; ask for more with --max-tokens"
        )
    if not speeds:
        found["notes"].append("every answer came in one event: no speed can be told")
        return found
    figures = summary(speeds, "tokens/s of one request")
    speed = figures["median"]
    return figures | {"tokens_per_s": speed, "us_per_token": 1e6 / speed} | found


def percentiles(samples: Sequence[float]) -> dict[str, float] | None:
    """Return p50, p90, p99 (between two samples, linearly) and max; None of nothing."""
    if not samples:
        return None
    p50, p90, p99 = (float(value) for value in np.percentile(samples, (50, 90, 99)))
    return {"p50": p50, "p90": p90, "p99": p99, "max": max(samples)}
