"""What the dtype of keys and values costs in accuracy: text, and strings found in long prompts.

    python bench/cache_accuracy.py [MODEL] [--cache-dtypes bfloat16 int8 int4] [--tokens 3000]
        [--context 2048] [--tasks niah_single_1 ...] [--lengths 1024 2048] [--samples 4]
        [--work DIR] [--out DIR]

Text: the help topics of Python's own library, in windows of ``--context`` tokens, read at once. The
CPU backend computes in float32 with the numbers of the model as it is; with keys and values in
float32 it is what the others are held against, so that a difference is the cache's own.

Long prompts: tasks in the manner of RULER (``monolane eval``), the model in the dtype in which it
is stored, each cache's answers to the same prompts. Their intervals say how much so few can show.
Answers are kept in ``--work``: a stopped run goes on there, and one with more ``--samples`` asks
only those that are new.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from _command import ROOT
from _document import publish
from _program import run_script
from quantization import cut_windows

from monolane.engine import Engine
from monolane.evaluate import EngineSubject, EvalOptions, Tally, help_topics, make_tasks
from monolane.measure import Record, shown_word
from monolane.model import is_gguf
from monolane.sources import find_model, unpack_gguf

ORACLE = "float32"
TASKS = ("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the dtype of keys and values costs.")
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--cache-dtypes", nargs="+", default=["bfloat16", "int8", "int4"])
    parser.add_argument("--tokens", type=int, default=3000, help="of text, at most; 0: none")
    parser.add_argument("--context", type=int, default=2048, help="of a window of text")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--samples", type=int, default=4, help="prompts of a task and length")
    parser.add_argument("--work", type=Path, help="folder in which answers are kept")
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    model = find_model(options.model)
    about = {"engine": "monolane", "model": shown_word(options.model, ROOT), "backend": "cpu"}
    with tempfile.TemporaryDirectory() as scratch:
        text: list[Record] = []
        if options.tokens:
            text = measure_text(
                model, Path(scratch), options.cache_dtypes, options.tokens, options.context
            )
        found = []
        work = options.work or Path(scratch)
        for name in options.cache_dtypes if options.tasks else []:
            found += measure_tasks(
                model, work / name, name, options.tasks, options.lengths, options.samples
            )
    publish(
        [about | record for record in (*text, *found)],
        f"cache-{'accuracy' if options.tokens else 'ruler'}-{model.stem.lower()}",
        options.out,
        timed=False,
    )


def measure_text(
    model: Path, scratch: Path, cache_dtypes: list[str], tokens: int, context: int
) -> list[Record]:
    """Score the same windows with each cache."""
    folder = model
    if is_gguf(model):
        folder = scratch / "float32"
        unpack_gguf(model, folder)
    names = [ORACLE, *(name for name in cache_dtypes if name != ORACLE)]
    engines = {
        name: Engine.load(folder, "cpu", "float32", context, prefix_cache="off", cache_dtype=name)
        for name in names
    }
    windows, size, _ = cut_windows(engines[ORACLE], help_topics(), tokens)
    tallies = {name: Tally() for name in names}
    for window in windows:
        wanted = engines[ORACLE].logits(window.ids)
        for name, engine in engines.items():
            found = wanted if name == ORACLE else engine.logits(window.ids)
            tallies[name].add(window, found, wanted)
    caches = {name: engine.backend.executor.cache_bytes for name, engine in engines.items()}
    for engine in engines.values():
        engine.close()
    base = tallies[ORACLE].record(size)["bits_per_byte"]
    records = []
    for name, tally in tallies.items():
        figures = tally.record(size)
        figures |= {"bits_per_byte_more": figures["bits_per_byte"] - base}
        figures |= {"context": context, "cache_bytes_per_token": caches[name] // context}
        records.append({"name": "cache_text", "dtype": "float32", "cache_dtype": name} | figures)
    return records


def measure_tasks(
    model: Path, folder: Path, cache_dtype: str, tasks: list[str], lengths: list[int], samples: int
) -> list[Record]:
    """Ask long prompts with one cache."""
    wanted = EvalOptions(tasks=tuple(tasks), limit=samples, lengths=tuple(lengths))
    with Engine.load(
        model, "cpu", context=max(lengths), prefix_cache="off", cache_dtype=cache_dtype
    ) as engine:
        subject = EngineSubject(engine, model.name)
        folder.mkdir(parents=True, exist_ok=True)
        outcomes = [task.run(subject, folder, lambda *_: None) for task in make_tasks(wanted)]
        dtype = engine.backend.dtype
    records: list[Record] = []
    for figure in (figure for outcome in outcomes for figure in outcome.figures):
        score: dict[str, Any] = {"score": figure.value, "low": figure.low, "high": figure.high}
        about = {"dtype": dtype, "cache_dtype": cache_dtype, "samples": figure.count}
        records.append({"name": "cache_ruler", **about, **figure.about, **score})
    return records


if __name__ == "__main__":
    run_script(main)
