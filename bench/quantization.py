"""What quantising costs in accuracy: bits per byte on text, and logits against the oracle.

    python bench/quantization.py MODEL [TEXT...] [--tokens 20000] [--context N]
        [--goldens tests/golden] [--out DIR]

Each dtype gets the same windows of the same texts as the float32 oracle, so that differences are
the dtype's own and not the text's. int8 and int4 are measured twice: with the oracle's float32
arithmetic (what the codes cost), and on the CPU backend (with its int8 activations: what a user
gets). float8, which is for GPUs, with the oracle's: what its float16 activations add is less than
they add to float16 weights.

MODEL is a float folder, or a .gguf file, or smollm2. A file's own numbers in float32 are the oracle
then, and what the CPU backend makes of them in each dtype stands beside the file as it is. Without
TEXT, the texts are the help topics of Python's own library, which lie on every machine: English
prose with code, under Python's licence. Prints a results document or, with --out, writes it there.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _document import publish
from _program import run_script
from rich.console import Console
from rich.progress import track

from monolane.cuda._pack import widened
from monolane.engine import Engine, find_backend
from monolane.engine._shared_executor import SharedExecutor
from monolane.errors import ConfigError
from monolane.evaluate import Tally, Text, Window, cut_text, help_topics
from monolane.model import (
    Checkpoint,
    Quantization,
    Role,
    SafetensorsFile,
    Weights,
    is_gguf,
    quantize_folder,
    read_config,
)
from monolane.plan import build as build_plan
from monolane.plan import cpu
from monolane.sources import find_model, unpack_gguf

Record = dict[str, Any]

VARIANTS_OF_FILES = ("bfloat16", "int8", "int4")
SCHEMES = {"int8": Quantization(8), "int4": Quantization(4)}
GOLDEN_DTYPES = ("bfloat16", *SCHEMES)


Variants = dict[tuple[str, str], tuple[Engine, dict[str, Any]]]


def main() -> None:
    """Measure and print."""
    options = parse_arguments()
    model = find_model(options.model)
    label = options.label or Path(options.model).name
    texts = [Text(path.name, path.read_text(encoding="utf-8")) for path in options.text]
    records, used = measure_text(
        model, label, texts or help_topics(), options.tokens, options.context
    )
    if options.goldens is not None:
        records += measure_goldens(options.goldens)
    what = "quantization" if not is_gguf(model) else f"quantization-{label.removesuffix('.gguf')}"
    publish(records, what, options.out, timed=False, model=label, text=used)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="What quantising costs in accuracy.")
    parser.add_argument("model", help="a float model folder with a tokenizer, or a .gguf file")
    parser.add_argument("text", type=Path, nargs="*", help="files that the model has not seen")
    parser.add_argument("--tokens", type=int, default=20_000, help="to score at most")
    parser.add_argument("--context", type=int, help="of a window, in tokens [default: the model's]")
    parser.add_argument("--goldens", type=Path, help="folder of golden models to measure too")
    parser.add_argument("--label", help="name of the model in the results [default: its folder's]")
    parser.add_argument("--out", type=Path, help="folder for the results file")
    return parser.parse_args()


def measure_text(
    model: Path, label: str, texts: Sequence[Text], tokens: int, context: int | None = None
) -> tuple[list[Record], list[str]]:
    """Score texts with every variant of a model, window by window side by side.

    Returns the records, and which texts were scored.
    """
    with tempfile.TemporaryDirectory() as scratch:
        opened = open_file_variants if is_gguf(model) else open_variants
        engines = opened(model, Path(scratch), context)
        oracle = engines["reference", "float32"][0]
        windows, size, used = cut_windows(oracle, texts, tokens)
        tallies = {name: Tally() for name in engines}
        abouts = {name: about for name, (_, about) in engines.items()}
        for window in track(windows, "windows", console=Console(stderr=True), transient=True):
            wanted = oracle.logits(window.ids)
            for name, (engine, _) in engines.items():
                found = wanted if engine is oracle else engine.logits(window.ids)
                tallies[name].add(window, found, wanted)
        for engine, _ in engines.values():
            engine.close()
    common = {"name": "accuracy", "engine": "monolane", "context": oracle.backend.context}
    base = tallies["reference", "float32"].record(size)["bits_per_byte"]
    records = []
    for (backend, dtype), tally in tallies.items():
        figures = tally.record(size) | abouts[backend, dtype]
        figures["bits_per_byte_more"] = figures["bits_per_byte"] - base
        records.append(common | {"model": label, "backend": backend, "dtype": dtype} | figures)
    return records, used


def open_file_variants(model: Path, scratch: Path, context: int | None) -> Variants:
    """Load a .gguf file as it is, and its numbers in float32 and in dtypes of ours.

    What is said of each is the bytes that a token reads: a tied head counts, embedding rows do not.
    """
    folder = scratch / model.stem
    unpack_gguf(model, folder)
    found = {("reference", "float32"): Engine.load(folder, "reference", context=context)}
    for dtype in VARIANTS_OF_FILES:
        found["cpu", dtype] = Engine.load(folder, "cpu", dtype, context)
    as_it_is = Engine.load(model, "cpu", context=context)
    found["cpu", as_it_is.backend.dtype] = as_it_is
    read = {name: engine.backend.bytes_per_token(1) for name, engine in found.items()}
    return {
        name: (engine, {} if read[name] is None else {"bytes_per_token": read[name]})
        for name, engine in found.items()
    }


def open_variants(model: Path, scratch: Path, context: int | None) -> Variants:
    """Load (backend, dtype of the weights) -> engine, and what is to be said of its weights."""
    stored = sum(array.nbytes for array in Checkpoint.open(model).values())
    plain: dict[str, Any] = {"weight_bytes": stored}
    found = {
        ("reference", "float32"): (Engine.load(model, "reference", context=context), plain),
        ("cpu", "float32"): (Engine.load(model, "cpu", "float32", context), plain),
        ("cpu", "bfloat16"): (Engine.load(model, "cpu", "bfloat16", context), plain),
    }
    found["reference", "float8"] = open_float8(model, context)
    for dtype, scheme in SCHEMES.items():
        report = quantize_folder(model, scratch / dtype, scheme)
        worst = {role.value: error.relative_error for role, error in report.worst().items()}
        about = {"weight_bytes": report.bytes_after, "worst_matrix_errors": worst}
        for backend in ("reference", "cpu"):
            found[backend, dtype] = (
                Engine.load(scratch / dtype, backend, context=context),
                about,
            )
    return found


def open_float8(model: Path, context: int | None) -> tuple[Engine, dict[str, Any]]:
    """Load a model with the weights that a GPU makes of it in float8."""
    engine = Engine.load(model, "reference", context=context)
    weights = Weights.load(engine.config, Checkpoint.open(model))
    rounded = widened(weights)
    stored = [(dict(weights.outer), dict(rounded.outer))]
    stored += zip(map(dict, weights.layers), map(dict, rounded.layers), strict=True)
    size, worst = 0, dict[str, float]()
    for plain, ours in stored:
        for role, array in plain.items():
            wide = array.astype(np.float32)
            rows = array.size // array.shape[-1]
            is_matrix = role in lane_matrices(weights)
            size += array.size + 4 * rows if is_matrix else 2 * array.size
            error = float(np.linalg.norm(ours[role] - wide) / np.linalg.norm(wide))
            if is_matrix:
                worst[role.value] = max(worst.get(role.value, 0.0), error)
    make = find_backend("reference")
    executor = make(rounded, "auto", context=engine.backend.context, slots=1)
    engine.backend = SharedExecutor(executor)
    return engine, {"weight_bytes": size, "worst_matrix_errors": worst}


def lane_matrices(weights: Weights) -> frozenset[Role]:
    """Return the roles of the matrices that are multiplied."""
    plan = build_plan(weights.config, cpu(1), "float8", max_width=1)
    return frozenset(matrix.role for phase in plan.phases for matrix in phase.matrices)


def cut_windows(
    engine: Engine, texts: Sequence[Text], tokens: int
) -> tuple[list[Window], int, list[str]]:
    """Cut texts into contexts, each token scored once with half a context before it if there is.

    Whole texts are taken in order, those left out that no longer fit into ``tokens``, so bytes and
    tokens match. Returns the windows, the bytes of the texts taken, and their names.
    """
    windows: list[Window] = []
    used: list[str] = []
    size = scored = 0
    for text in texts:
        ids = engine.prompt_ids(text.text)
        if scored + len(ids) > tokens:
            continue
        windows += cut_text(ids, engine.backend.context)
        used.append(text.name)
        size, scored = size + len(text.text.encode()), scored + len(ids)
    if not windows:
        raise SystemExit(f"--tokens: expected room for one whole text, got {tokens}")
    return windows, size, used


def measure_goldens(folder: Path) -> list[Record]:
    """Hold each golden's logits against the CPU backend's in every dtype that can hold it."""
    records: list[Record] = []
    for golden in sorted(path for path in folder.iterdir() if path.is_dir()):
        for dtype in GOLDEN_DTYPES:
            common = {"name": "golden_logits", "engine": "monolane", "model": golden.name}
            records.append(
                common | {"backend": "cpu", "dtype": dtype} | golden_error(golden, dtype)
            )
    return records


def golden_error(golden: Path, dtype: str) -> Record:
    """Return the error of one golden in one dtype, or why there is none."""
    expected = SafetensorsFile(golden / "expected.safetensors")
    ids, wanted = expected["input_ids"][0], expected["logits"][0]
    weights = Weights.load(read_config(golden), Checkpoint.open(golden))
    try:
        executor = find_backend("cpu")(weights, dtype, context=len(ids), slots=1)
    except ConfigError as error:
        return {"not_measured": str(error)}
    difference = executor.logits(0, ids) - wanted
    return {
        "logit_rms_error": float(np.sqrt((difference**2).mean())),
        "logit_rms_error_share": float(np.sqrt((difference**2).mean()) / wanted.std()),
        "logit_largest_error": float(np.abs(difference).max()),
    }


if __name__ == "__main__":
    run_script(main)
