"""Decode where others want the same cores: more workers than cores, and programs that never rest.

    python bench/crowded.py [--model smollm2] [--dtype auto] [--workers 2 3 4 16] [--programs 0 1 2]
        [--tokens 32] [--rounds 5] [--out DIR]

A program is a process of the same priority that does nothing but compute. Numbers of workers take
turns, in an order that is reversed each time; numbers of programs come one after the other. Speeds
are tokens/s behind 128 tokens.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _document import publish
from _program import run_script

from monolane._core import kernels
from monolane.measure import DecodeCase, LoadedModel, ReadProbe, Record, run_rounds, summary
from monolane.sources import find_model

CONTEXT = 128
PROBE_BYTES = 1 << 20  # its figure is not used: what memory gives beside other programs says little


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Decode where others want the same cores.")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 3, 4, 16])
    parser.add_argument("--programs", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tokens", type=int, default=32, help="of a sample")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    folder, probe = find_model(options.model), ReadProbe(1, PROBE_BYTES)
    models = [
        LoadedModel(
            folder, options.dtype, context=CONTEXT + options.tokens, slots=1, workers=workers
        )
        for workers in options.workers
    ]
    records: list[Record] = []
    for programs in options.programs:
        cases = [DecodeCase(model, 0, CONTEXT, options.tokens, probe) for model in models]
        with other_programs(programs):
            run_rounds(cases, options.rounds, lambda: None)
        records += [record(options.model, case, programs) for case in cases]
    publish(records, "crowded", options.out)


@contextmanager
def other_programs(count: int) -> Iterator[None]:
    """Keep ``count`` processes computing."""
    found = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in found:
            process.kill()
            process.wait()


def record(model: str, case: DecodeCase, programs: int) -> Record:
    """Return the record of a number of workers beside a number of programs."""
    return {
        "name": "crowded_decode",
        "engine": "monolane",
        "model": model,
        "dtype": case.model.dtype,
        "context": case.context,
        "workers": case.model.workers,
        "cores": len(os.sched_getaffinity(0)),
        "programs": programs,
        "isa": kernels.best(),
        **summary(case.samples, "tokens/s"),
    }


if __name__ == "__main__":
    run_script(main)
