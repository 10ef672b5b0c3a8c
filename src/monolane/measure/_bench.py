"""From samples to records of the results format."""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from monolane._results import Record
from monolane.measure._bandwidth import ReadProbe
from monolane.measure._cases import DecodeCase, PrefillCase
from monolane.measure._first_token import FirstToken
from monolane.measure._samples import summary
from monolane.plan import build, phase_cost


def bench_records(
    model: str,
    probe: ReadProbe,
    decodes: Sequence[DecodeCase],
    prefills: Sequence[PrefillCase],
) -> list[Record]:
    """Return a record of the bandwidth and of each case, which must have been run."""
    records = [_probe_record(probe)]
    records += [_decode_record(model, case) for case in decodes]
    records += [_prefill_record(model, case) for case in prefills]
    return records


def _probe_record(probe: ReadProbe) -> Record:
    figures = summary([sample / 1e9 for sample in probe.samples], "GB/s")
    more = {"width": 1, "gb_per_s": figures["median"]}
    return _record(probe.name, workers=probe.workers, buffer_bytes=probe.size) | figures | more


def _decode_record(model: str, case: DecodeCase) -> Record:
    figures = summary(case.samples, "tokens/s")
    moved, speed = case.bytes_per_token, figures["median"]
    p50, p90, p99 = (float(value) for value in np.percentile(case.token_us, (50, 90, 99)))
    return (
        _record("decode", model, case.model.dtype, case.context, workers=case.model.workers)
        | figures
        | {
            "width": 1,
            "tokens": case.tokens,
            "tokens_per_s": speed,
            "us_per_token": 1e6 / speed,
            "token_us": {"p50": p50, "p90": p90, "p99": p99},
            "bytes_per_token": moved,
            "gb_per_s": moved * speed / 1e9,
            "mbu": statistics.median(case.shares),
            "mbu_min": min(case.shares),
            "mbu_max": max(case.shares),
        }
    )


def _prefill_record(model: str, case: PrefillCase) -> Record:
    figures = summary(case.samples, "tokens/s")
    speed = figures["median"]
    return (
        _record("prefill", model, case.model.dtype, 0, workers=case.model.workers)
        | figures
        | {"tokens": case.tokens, "tokens_per_s": speed, "us_per_token": 1e6 / speed}
    )


def startup_record(model: str, dtype: str, runs: Sequence[FirstToken]) -> Record:
    """Return the record of cold processes, the page cache being warm."""
    figures = summary([run.seconds for run in runs], "s")
    load = summary([run.load_seconds for run in runs], "s")["median"]
    return _record("startup", model, dtype) | figures | {"load_s": load, "page_cache": "warm"}


def memory_record(model: str, decode: DecodeCase, run: FirstToken) -> Record:
    """Return what a process held that answered at the context of a decode case.

    ``overhead_bytes`` is the peak less weights (the embedding included, in its own 16 bits) and the
    keys and values of the model's whole context: huge pages make the cache resident as soon as its
    heads are touched. Weights that are read from a mapping are pages of the file, which processes
    share.
    """
    plan = decode.model.plan
    whole = build(plan.config, plan.device, plan.dtype, kv_bytes=plan.kv_bytes)
    weights = sum(matrix.bytes for phase in whole.phases for matrix in phase.matrices)
    weights += decode.model.embedding_bytes
    keys_and_values = sum(phase_cost(whole, p).bytes for p in whole.phases if not p.matrices)
    return _record("memory", model, decode.model.dtype, decode.context) | {
        "peak_bytes": run.peak_bytes,
        "anonymous_bytes": run.anonymous_bytes,
        "file_bytes": run.file_bytes,
        "weight_bytes": weights,
        "kv_bytes": keys_and_values,
        "overhead_bytes": run.peak_bytes - weights - keys_and_values,
    }


def _record(
    name: str,
    model: str | None = None,
    dtype: str | None = None,
    context: int | None = None,
    **more: Any,
) -> Record:
    described = {"model": model, "dtype": dtype, "context": context} | more
    known = {key: value for key, value in described.items() if value is not None}
    return {"name": name, "engine": "monolane"} | known
