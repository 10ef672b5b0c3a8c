"""How fast, how large and how soon: measuring a model on this machine, and the results format.

``bench_cases`` and ``run_rounds`` time decode and prefill beside the machine's own read bandwidth,
``first_token`` a cold process, ``trace`` one epoch phase by phase; ``synthetic`` makes a model of
any size to measure. ``Load`` asks a server, ours or another, as clients would. ``record_loop`` says
where the time of an agent's run goes.
"""

from monolane._results import (
    Record,
    ResultsError,
    build_document,
    current_commit,
    result_name,
    shown_word,
    validate_document,
    write_document,
)
from monolane.measure._agent_loop.account import account, render_account
from monolane.measure._agent_loop.call import Call
from monolane.measure._agent_loop.proxy import RecordingProxy
from monolane.measure._agent_loop.run import record_loop
from monolane.measure._arithmetic import ArithmeticProbe
from monolane.measure._bandwidth import ReadProbe
from monolane.measure._bench_plot import plot_bench
from monolane.measure._cases import DecodeCase, LoadedModel, PrefillCase, bench_cases
from monolane.measure._first_token import first_token
from monolane.measure._load import (
    IdPrompts,
    Level,
    Load,
    Loaded,
    LoadOptions,
    Prompts,
    ask_models,
)
from monolane.measure._load_exchange import LoadTarget
from monolane.measure._load_outcome import Failure, Outcome
from monolane.measure._load_plot import plot_load, require_plot
from monolane.measure._machine import (
    describe_machine,
    document_here,
    drop_from_page_cache,
    load_average,
)
from monolane.measure._paced import PacedExecutor, paced_engine
from monolane.measure._records import (
    bench_records,
    memory_record,
    percentiles,
    serve_record,
    startup_record,
    summary,
)
from monolane.measure._rounds import Case, Neighbours, run_rounds
from monolane.measure._synthetic import SYNTHETIC, synthetic, synthetic_config
from monolane.measure._trace import take_trace, trace_epoch
from monolane.measure._trace_picture import trace_page, trace_svg
from monolane.measure._writing import writing_told

__all__ = [
    "SYNTHETIC",
    "ArithmeticProbe",
    "Call",
    "Case",
    "DecodeCase",
    "Failure",
    "IdPrompts",
    "Level",
    "Load",
    "LoadOptions",
    "LoadTarget",
    "Loaded",
    "LoadedModel",
    "Neighbours",
    "Outcome",
    "PacedExecutor",
    "PrefillCase",
    "Prompts",
    "ReadProbe",
    "Record",
    "RecordingProxy",
    "ResultsError",
    "account",
    "ask_models",
    "bench_cases",
    "bench_records",
    "build_document",
    "current_commit",
    "describe_machine",
    "document_here",
    "drop_from_page_cache",
    "first_token",
    "load_average",
    "memory_record",
    "paced_engine",
    "percentiles",
    "plot_bench",
    "plot_load",
    "record_loop",
    "render_account",
    "require_plot",
    "result_name",
    "run_rounds",
    "serve_record",
    "shown_word",
    "startup_record",
    "summary",
    "synthetic",
    "synthetic_config",
    "take_trace",
    "trace_epoch",
    "trace_page",
    "trace_svg",
    "validate_document",
    "write_document",
    "writing_told",
]
