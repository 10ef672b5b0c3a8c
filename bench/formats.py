"""What each format of a GGUF file costs in accuracy, and how fast it is, beside llama.cpp.

    python bench/formats.py --llama-cpp LLAMA_CPP --part accuracy --out FILE.json
    python bench/formats.py --llama-cpp LLAMA_CPP --part speed --out FILE.json  # adds to the file

LLAMA_CPP is a folder of llama.cpp's source that has been built into build/bin, with its
llama-quantize and llama-bench. --model is a .gguf file, or smollm2. Its own format is measured as
it is; the others of --type are made by llama-quantize of its numbers in float32.

Accuracy: the logits after each token of the help texts of Python's own library are held against
those of the same file's numbers in float32. So what is measured is the arithmetic alone, not what
the format took from the weights. --oracle says which backend has the float32: the two differ by
rounding in the last place, and cpu takes a tenth of the time. Monolane runs on each instruction set
of --isa. llama.cpp has its defaults; both take the file as a user would.

Speed: as bench/peers.py has it, in turns whose order changes, on a machine where nothing else runs.

What FILE.json has of the other part and of other formats stays there. Prints the table of
docs/benchmarks.md.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import peers
from _command import ROOT, shown_command
from _document import publish
from _formats_table import format_table
from _llama import PeerError
from _llama_logits import LlamaLogits, compile_logits, run_tool
from _program import run_script
from quantization import cut_windows

from monolane import _env
from monolane._results import current_commit
from monolane.cpu import find_isa
from monolane.engine import Engine
from monolane.evaluate import Tally, help_topics
from monolane.measure import Record
from monolane.sources import find_model, unpack_gguf

# What llama.cpp makes of a dense model and monolane reads.
TYPES = ("Q4_1", "Q4_0", "Q4_K_M", "Q5_0", "Q5_1", "Q5_K_M", "Q6_K", "Q8_0", "BF16", "F16")
# One thread each: no bit depends on their number, and none waits for another on a busy machine.
WORKERS = {"cpu": 1, "reference": None}

Logits = Callable[[Any], npt.NDArray[np.float32]]


def main() -> None:
    """Measure, write after each format, and print the table."""
    options = parse_arguments()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            program = compile_logits(options.llama_cpp, Path(scratch))
            for kind, path in find_files(options).items():
                if options.part == "speed":
                    records = measure_speed(options, kind, path)
                else:
                    records = measure_accuracy(options, kind, path, program)
                keep(options, kind, records)
    except PeerError as error:
        sys.exit(f"formats: {error}")
    print("\n".join(format_table(read_document(options.out)["records"])))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--llama-cpp", type=Path, required=True, help="folder that was built")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--type", nargs="+", default=list(TYPES), help="the model's own: as it is")
    parser.add_argument("--part", choices=("accuracy", "speed"), default="accuracy")
    parser.add_argument("--isa", nargs="+", default=["auto", "avx2"], help="auto: the best")
    parser.add_argument("--oracle", choices=("cpu", "reference"), default="cpu")
    parser.add_argument("--positions", type=int, default=2000, help="of text, at most")
    parser.add_argument("--context", type=int, default=512, help="of a window of text, in tokens")
    parser.add_argument("--runs", type=int, default=5, help="pairs of each speed")
    parser.add_argument("--out", type=Path, required=True, help=".json file, read and added to")
    return parser.parse_args()


def keep(options: argparse.Namespace, kind: str, records: list[Record]) -> None:
    """Write the records of one format, beside what the file has of others and of the other part."""
    document = read_document(options.out)
    older = [
        record
        for record in document["records"]
        if record["dtype"] != kind or (record["name"] == "accuracy") is (options.part == "speed")
    ]
    commands = document["commands"] | {options.part: shown_command(sys.argv)}
    commit = current_commit(ROOT)
    found = [record | {"dtype": kind, "commit": commit} for record in records]
    publish([*older, *found], "formats", options.out, timed=False, commands=commands)


def read_document(path: Path) -> dict[str, Any]:
    """Return what is in the results file, without records if there is none yet."""
    if not path.is_file():
        return {"records": [], "commands": {}}
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def find_files(options: argparse.Namespace) -> dict[str, Path]:
    """Return type -> file: the model as it is, and what llama-quantize makes of its numbers.

    They stay in the cache folder.
    """
    model = find_model(options.model)
    own, stem = peers.type_of(model), model.stem.partition(".")[0]
    folder = _env.CACHE.get() / "formats"
    folder.mkdir(parents=True, exist_ok=True)

    def made(kind: str, source: Path) -> Path:
        path = folder / f"{stem}.{kind}-of-{own}.gguf"
        if not path.is_file():
            aside = path.with_suffix(".part")
            tool = str(options.llama_cpp / "build/bin/llama-quantize")
            run_tool([tool, "--allow-requantize", str(source), str(aside), kind])
            aside.replace(path)
        return path

    return {kind: model if kind == own else made(kind, made("F32", model)) for kind in options.type}


def measure_accuracy(
    options: argparse.Namespace, kind: str, path: Path, program: Path
) -> list[Record]:
    """Hold the logits of one file, of each way to run it, against those in float32."""
    with ExitStack() as stack:
        oracle = stack.enter_context(opened_oracle(options.oracle, path, options.context))
        ways: dict[tuple[str, str], Logits] = {}
        for name in options.isa:
            isa = find_isa(None if name == _env.ISA.default else name)
            engine = stack.enter_context(opened(isa, path, options.context))
            ways["monolane", isa] = engine.logits
        peer = LlamaLogits(program, path, options.context, oracle.config.vocab_size)
        ways["llama.cpp", ""] = stack.enter_context(peer).logits
        windows, size, _ = cut_windows(oracle, help_topics(), options.positions)
        tallies = {way: Tally() for way in ways}
        for count, window in enumerate(windows, 1):
            sys.stderr.write(f"{kind}: window {count} of {len(windows)}\n")
            wanted = oracle.logits(window.ids).astype(np.float64)
            for way, logits in ways.items():
                tallies[way].add(window, logits(window.ids).astype(np.float64), wanted)
    common = {
        "name": "accuracy",
        "model": path.stem.partition(".")[0],
        "dtype": kind,
        "context": options.context,
        "oracle": options.oracle,
        "file_bytes": path.stat().st_size,
        "tensors": tensor_types(path),
    }
    return [
        common | {"engine": engine, "isa": isa} | tally.record(size)
        for (engine, isa), tally in tallies.items()
    ]


def tensor_types(path: Path) -> dict[str, int]:
    """Return how many tensors of each type are in a file: K types are for rows of 256 numbers."""
    return dict(Counter(tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors))


@contextmanager
def opened_oracle(backend: str, path: Path, context: int) -> Iterator[Engine]:
    """Load a file's numbers in float32."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / path.stem
        unpack_gguf(path, folder)
        with Engine.load(folder, backend, "float32", context, workers=WORKERS[backend]) as engine:
            yield engine


@contextmanager
def opened(isa: str, path: Path, context: int) -> Iterator[Engine]:
    """Load a file on the CPU with an instruction set."""
    os.environ[_env.ISA.name] = isa
    try:
        engine = Engine.load(path, "cpu", context=context, workers=1)
    finally:
        del os.environ[_env.ISA.name]
    with engine:
        yield engine


def measure_speed(options: argparse.Namespace, kind: str, path: Path) -> list[Record]:
    """Time decode behind 128 tokens and prompts of 512, in pairs with llama-bench."""
    bench = options.llama_cpp / "build/bin/llama-bench"
    words = ["--peer", f"llama.cpp={bench}", "--context", "128", "--prefill", "512"]
    of_peers = peers.parse_arguments([*words, "--runs", str(options.runs)])
    return peers.measure(of_peers, kind, path)


if __name__ == "__main__":
    run_script(main)
