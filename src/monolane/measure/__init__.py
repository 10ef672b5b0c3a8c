"""How fast, how large and how soon: measuring a model on this machine, and the results format.

``bench_cases`` and ``run_rounds`` time decode and prefill beside the machine's own read bandwidth,
``first_token`` a cold process, ``trace`` one epoch phase by phase; ``synthetic`` makes a model of
any size to measure.
"""

from monolane.measure._bandwidth import ReadProbe
from monolane.measure._bench import bench_records, memory_record, startup_record
from monolane.measure._cases import Case, DecodeCase, LoadedModel, PrefillCase, run_rounds
from monolane.measure._first_token import FirstToken, first_token
from monolane.measure._machine import describe_machine, load_average
from monolane.measure._results import (
    SCHEMA,
    Record,
    ResultsError,
    build_document,
    current_commit,
    result_name,
    validate_document,
    write_document,
)
from monolane.measure._samples import summary
from monolane.measure._synthetic import SYNTHETIC, synthetic, synthetic_config
from monolane.measure._trace import KindSummary, Trace, summarise, take_trace

__all__ = [
    "SCHEMA",
    "SYNTHETIC",
    "Case",
    "DecodeCase",
    "FirstToken",
    "KindSummary",
    "LoadedModel",
    "PrefillCase",
    "ReadProbe",
    "Record",
    "ResultsError",
    "Trace",
    "bench_records",
    "build_document",
    "current_commit",
    "describe_machine",
    "first_token",
    "load_average",
    "memory_record",
    "result_name",
    "run_rounds",
    "startup_record",
    "summarise",
    "summary",
    "synthetic",
    "synthetic_config",
    "take_trace",
    "validate_document",
    "write_document",
]
