"""From the start of ``monolane generate`` to its first token, of GGUF files, and its memory.

    python bench/startup.py --type Q4_K_M Q8_0 BF16
    python bench/startup.py --gguf MODEL.gguf

The files lie in the page cache. Without --gguf they hold random weights in the shape --shape, with
a vocabulary of random merges. Types take turns; the first round is not counted. The clock runs from
before the process is started until its line with the answer, of one token, has been read; the peak
is what the system counted of the process when it had ended.

A virtual machine may have given its free memory back to its host, which then gives each page again
when it is touched, a tenth as fast as a page is cleared that the machine holds. So each file is
timed twice a round: as the memory is found, and after this program has touched and freed as much as
the file has. On a machine without a host the two are alike.
"""

import argparse
import json
import mmap
import multiprocessing
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _document import publish
from _llama import PeerError
from peers import find_files

from monolane.errors import BackendError, MonolaneError
from monolane.measure import Record, summary

_PROMPT = "The capital of France is"
FOUND, HELD = "memory as found", "memory held by the machine"


@dataclass(frozen=True, slots=True)
class Start:
    """What one process took, and told of itself."""

    seconds: float  # from before it was started until its answer was read
    load_seconds: float  # of these, Engine.load
    prefill_seconds: float  # of these, from the prompt to its first token
    prompt: int  # tokens
    cpu_seconds: float  # of all its threads, in programs and system, to its end
    peak_bytes: int  # resident at most, pages of mapped files included


def start(path: Path, prompt: str) -> Start:
    """Run the command on a file; BackendError if it fails."""
    words = ("generate", prompt, "--model", str(path), "--max-tokens", "1", "--json")
    begin = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "monolane", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        line = child.stdout.readline()
        seconds = time.perf_counter() - begin
        said = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise BackendError(f"monolane generate ended with {child.returncode}: {said.strip()}")
    timings = json.loads(line)["timings"]
    return Start(
        seconds,
        timings["load_seconds"],
        timings["time_to_first_token"],
        timings["prompt_tokens"],
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss * 1024,
    )


def main() -> int:
    """Measure, and write the results; return the exit code."""
    options = _options()
    try:
        files = find_files(options.gguf, options.shape, options.type)
        cases = [(name, path, memory) for name, path in files for memory in (FOUND, HELD)]
        starts: dict[tuple[str, str], list[Start]] = {(name, m): [] for name, _, m in cases}
        for turn in range(options.runs + 1):
            for name, path, memory in cases:
                _read(path)
                if memory == HELD:
                    hold(path.stat().st_size)
                found = start(path, options.prompt)
                if turn:
                    starts[name, memory].append(found)
    except (PeerError, MonolaneError) as error:
        sys.stderr.write(f"startup: {error}\n")
        return 1
    records = [record(name, path, memory, starts[name, memory]) for name, path, memory in cases]
    publish(records, "startup", options.out)
    return 0


def record(name: str, path: Path, memory: str, starts: list[Start]) -> Record:
    """Return times, and the highest peak, with what it has beyond the file, in bytes."""
    peak, size = max(start.peak_bytes for start in starts), path.stat().st_size
    about = {"name": f"startup, {memory}", "engine": "monolane", "model": path.stem, "dtype": name}
    return (
        about
        | summary([start.seconds for start in starts], "s")
        | {
            "load_s": _median([start.load_seconds for start in starts]),
            "prefill_s": _median([start.prefill_seconds for start in starts]),
            "cpu_s": _median([start.cpu_seconds for start in starts]),
            "page_cache": "warm",
            "program": "monolane generate",
            "tokens": starts[0].prompt,
            "file_bytes": size,
            "peak_bytes": peak,
            "beyond_file_bytes": peak - size,
        }
    )


def _median(samples: list[float]) -> float:
    return float(summary(samples, "s")["median"])


def _read(path: Path) -> None:
    """Have the system cache the file."""
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(1 << 24)
        while file.readinto(buffer):
            pass


def hold(size: int) -> None:
    """Have the machine's host give it as much memory, and free it.

    A process of its own does it: what is started afterwards would inherit this one's peak.
    """
    toucher = multiprocessing.get_context("fork").Process(target=_touch, args=(size,))
    toucher.start()
    toucher.join()


def _touch(size: int) -> None:
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        pages = np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE]
        pages[:] = 1
        del pages  # of which a mapping in use would keep its memory


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gguf", type=Path, nargs="+", help="files to use instead of random ones")
    parser.add_argument("--shape", default="llama-1.7b", help="of the random weights")
    parser.add_argument("--type", nargs="+", default=["Q4_K_M", "Q8_0", "BF16"])
    parser.add_argument("--prompt", default=_PROMPT)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help=".json file, or folder"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
