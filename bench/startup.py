"""From the start of a process to its first token, of GGUF files, and the memory that it takes.

    python bench/startup.py --type Q4_K_M Q8_0 BF16
    python bench/startup.py --gguf MODEL.gguf

The files lie in the page cache. Without --gguf they are those of bench/peers.py: random weights in
a Llama's shape, without a vocabulary, so prompts are token ids. Types take turns; the first round
is not counted.
"""

import argparse
import sys
from pathlib import Path

from _document import publish
from peers import find_files

from monolane.errors import MonolaneError
from monolane.measure import FirstToken, Record, first_token, startup_record


def main() -> int:
    """Measure, and write the results; return the exit code."""
    options = _options()
    try:
        files = find_files(options.gguf, options.shape, options.type)
        starts: dict[str, list[FirstToken]] = {name: [] for name, _ in files}
        for turn in range(options.runs + 1):
            for name, path in files:
                with path.open("rb") as file:
                    while file.read(1 << 24):
                        pass
                found = first_token(path, prompt=options.prompt)
                if turn:
                    starts[name].append(found)
    except (RuntimeError, MonolaneError) as error:
        sys.stderr.write(f"startup: {error}\n")
        return 1
    records = [_record(name, path, options.prompt, starts[name]) for name, path in files]
    publish(records, "startup", options.out)
    return 0


def _record(name: str, path: Path, prompt: int, starts: list[FirstToken]) -> Record:
    """Return times, and the highest peak, with what it has beyond the file, in bytes."""
    peak = max(start.memory.peak_bytes for start in starts)
    size = path.stat().st_size
    return startup_record(path.stem, name, starts) | {
        "tokens": prompt,
        "file_bytes": size,
        "peak_bytes": peak,
        "beyond_file_bytes": peak - size,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gguf", type=Path, nargs="+", help="files to use instead of random ones")
    parser.add_argument("--shape", default="llama-1.7b", help="of the random weights")
    parser.add_argument("--type", nargs="+", default=["Q4_K_M", "Q8_0", "BF16"])
    parser.add_argument("--prompt", type=int, default=16, help="tokens")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help=".json file, or folder"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
