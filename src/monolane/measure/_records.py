"""From samples to records of the results format: of cases here, and of loads on a server."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from monolane._results import Record
from monolane.measure._bandwidth import ReadProbe
from monolane.measure._cases import DecodeCase, PrefillCase
from monolane.measure._first_token import FirstToken
from monolane.measure._load import Load, Loaded
from monolane.plan import build, phase_cost

_NOTES = {
    "timings": "no usage from this server: tokens counted by its timings.predicted_n",
    "events": "no usage from this server: events counted, and an event may hold several tokens",
}
_FEW = 10  # events of an answer: the first one's tokens may then be a tenth of all


def summary(samples: Sequence[float], unit: str) -> dict[str, Any]:
    """Return runs, min, median and max of samples, and their unit."""
    assert samples
    return {
        "runs": len(samples),
        "unit": unit,
        "min": min(samples),
        "median": statistics.median(samples),
        "max": max(samples),
    }


def percentiles(samples: Sequence[float]) -> dict[str, float] | None:
    """Return p50, p90, p99 (between two samples, linearly) and max; None of nothing."""
    if not samples:
        return None
    p50, p90, p99 = (float(value) for value in np.percentile(samples, (50, 90, 99)))
    return {"p50": p50, "p90": p90, "p99": p99, "max": max(samples)}


_ENDS = {"": "median", "_min": "min", "_max": "max"}  # of a field's name


def bench_records(
    model: str,
    probe: ReadProbe,
    decodes: Sequence[DecodeCase],
    prefills: Sequence[PrefillCase],
) -> list[Record]:
    """Return a record of the bandwidth and of each case, which must have been run."""
    gigabytes = summary([sample / 1e9 for sample in probe.samples], "GB/s")
    about = {"workers": probe.workers, "buffer_bytes": probe.size, "width": 1}
    read = _record("read_bandwidth", **about) | gigabytes | {"gb_per_s": gigabytes["median"]}
    return [
        read,
        *(_decode_record(model, case) for case in decodes),
        *(_case_record("prefill", model, case, context=0) for case in prefills),
    ]


def _decode_record(model: str, case: DecodeCase) -> Record:
    record = _case_record("decode", model, case, context=case.context, width=1)
    p50, p90, p99 = (float(value) for value in np.percentile(case.token_us, (50, 90, 99)))
    return record | {
        "token_us": {"p50": p50, "p90": p90, "p99": p99},
        "bytes_per_token": case.bytes_per_token,
        "gb_per_s": case.bytes_per_token * record["median"] / 1e9,
        "mbu": statistics.median(case.shares),
        "mbu_min": min(case.shares),
        "mbu_max": max(case.shares),
    }


def _case_record(name: str, model: str, case: DecodeCase | PrefillCase, **about: Any) -> Record:
    dtype, workers = case.model.dtype, case.model.workers
    record = _record(name, model=model, dtype=dtype, workers=workers, tokens=case.tokens, **about)
    if case.model.ranks > 1:
        record |= {"ranks": case.model.ranks, "link_delay_us": case.model.link_delay * 1e6}
        record |= {"transport": case.model.transport}
    if case.model.draft is not None:
        record |= {"draft": case.model.draft, "drafter": case.model.drafter}
    if case.model.expert_memory is not None:
        record |= {"expert_memory": case.model.expert_memory}
    gflops = summary([each / 1e9 for each in case.arithmetic], "GFLOP/s")
    cores = {f"core_gflops{end}": gflops[name] for end, name in _ENDS.items()}
    return record | _speed(case.samples, "tokens/s") | cores


def _speed(samples: Sequence[float], unit: str) -> dict[str, Any]:
    figures = summary(samples, unit)
    return figures | {"tokens_per_s": figures["median"], "us_per_token": 1e6 / figures["median"]}


def startup_record(model: str, dtype: str, runs: Sequence[FirstToken]) -> Record:
    """Return the record of cold processes, the page cache being warm."""
    figures = summary([run.seconds for run in runs], "s")
    load = summary([run.load_seconds for run in runs], "s")["median"]
    return (
        _record("startup", model=model, dtype=dtype)
        | figures
        | {"load_s": load, "page_cache": "warm"}
    )


def memory_record(model: str, decode: DecodeCase, run: FirstToken) -> Record:
    """Return what a process held that answered at the context of a decode case.

    ``overhead_bytes`` is the peak less weights (the embedding included, in its own 16 bits) and the
    keys and values of the case's context; a slot of which a quarter is needed takes its memory
    whole, in huge pages. Weights that are read from a mapping are pages of the file, which
    processes share. With several ranks these figures are those of rank 0, and ``ranks`` has those
    of each.
    """
    plan = decode.model.plan
    whole = build(
        plan.config,
        plan.device,
        plan.dtype,
        keys=plan.keys,
        formats=dict(plan.formats),
    )
    weights = sum(matrix.bytes for phase in whole.phases for matrix in phase.matrices)
    weights += decode.model.embedding_bytes
    length = max(decode.context, 1)
    caches = [p for p in whole.phases if not p.matrices]
    keys_and_values = sum(phase_cost(whole, p, length=length).bytes for p in caches)
    about = {"model": model, "dtype": decode.model.dtype, "context": decode.context}
    return _record("memory", **about) | {
        "peak_bytes": run.memory.peak_bytes,
        "anonymous_bytes": run.memory.anonymous_bytes,
        "file_bytes": run.memory.file_bytes,
        "weight_bytes": weights,
        "kv_bytes": keys_and_values,
        "overhead_bytes": run.memory.peak_bytes - weights - keys_and_values,
        **({"ranks": [asdict(rank) for rank in run.ranks]} if len(run.ranks) > 1 else {}),
    }


def _record(name: str, **about: Any) -> Record:
    return {"name": name, "engine": "monolane", **about}


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
        "keep_alive": load.options.keep_alive,
        "clients": level.clients,
        "rate": level.rate,
        "tokens": load.options.max_tokens,
        "answers": len(outcomes),
        "failures": dict(Counter(failure.kind for failure in loaded.failures)),
        "client_cpu": loaded.client_cpu,
    }
    if loaded.failures:
        record["failure"] = loaded.failures[0].message
    if not outcomes and not loaded.failures:
        return record | {"error": f"no request began within {level.seconds:g} s; give it more"}
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
        count = round(events)
        found["notes"].append(
            f"an answer came in {count} event{'s' * (count != 1)} or so: the tokens of its first "
            "one blur its speed; ask for more with --max-tokens"
        )
    if not speeds:
        found["notes"].append("every answer came in one event: no speed can be told")
        return found
    return _speed(speeds, "tokens/s of one request") | found
