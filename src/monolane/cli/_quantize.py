"""``monolane quantize``: write a model folder whose matrices are int8 or int4, or repack one."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from monolane.cli import _options as options

if TYPE_CHECKING:
    from monolane.model import QuantizeReport

DTYPES = {"int8": 8, "int4": 4}
AS_IT_IS = "auto"


def quantize(
    model: options.ModelNeeded,
    output: options.Output,
    dtype: Annotated[
        str,
        typer.Option(
            help="int8 (8.5 bits a weight, scales included) or int4 (4.5); auto: as the model has "
            "them, which another tool quantised."
        ),
    ],
    overwrite: options.ReplaceOut = False,
    as_json: options.Json = False,
) -> None:
    """Write a model with its matrices in int8 or int4.

    Each group of 32 codes has a float16 scale. Embedding and norms stay as they are. The folder
    loads wherever a model does; Transformers does not read it. What it costs in accuracy:
    docs/quantization.md.

    A .gguf file is dequantised first, and then quantised anew: its own codes are lost.

    A folder of compressed-tensors, GPTQ or AWQ is repacked with --dtype auto: the same numbers, in
    the order in which monolane reads them, so that nothing is to be repacked at each load.
    """
    from monolane._progress import shown_progress
    from monolane.cli._model_folder import model_folder
    from monolane.model import Quantization, check_place, quantize_folder, repack_folder

    if dtype not in (*DTYPES, AS_IT_IS):
        known = ", ".join((*DTYPES, AS_IT_IS))
        raise typer.BadParameter(f"--dtype: expected one of {known}, got {dtype!r}")
    check_place(output)  # before a model is fetched
    if dtype == AS_IT_IS:
        _check_packed(model)
    with (
        model_folder(model, output, overwrite) as source,
        shown_progress("bytes", shown=not as_json) as report_progress,
    ):

        def progress(name: str, done: int, total: int) -> None:
            report_progress("quantizing", done, total, name)

        if dtype == AS_IT_IS:
            report = repack_folder(source, output, overwrite=overwrite, progress=progress)
        else:
            scheme = Quantization(DTYPES[dtype])
            report = quantize_folder(source, output, scheme, overwrite=overwrite, progress=progress)
    if as_json:
        sys.stdout.write(json.dumps(_record(report)) + "\n")
        return
    sys.stderr.write("\n".join(_table(report)) + "\n")
    sys.stdout.write(f"{output}\n")


def _check_packed(model: str) -> None:
    """Refuse a .gguf file: its blocks have no folder format, so nothing could stay as it is."""
    from monolane.errors import ConfigError
    from monolane.model import is_gguf
    from monolane.sources import find_model

    if is_gguf(path := find_model(model)):
        raise ConfigError(
            f"{path}: dtype auto: expected a folder that another tool quantised, got a .gguf file, "
            "which runs as it is; name a dtype, int8 or int4, to make a folder of it"
        )


def _table(report: "QuantizeReport") -> list[str]:
    before, after = report.bytes_before, report.bytes_after
    lines = [f"weights {before / 1e6:,.1f} MB -> {after / 1e6:,.1f} MB ({after / before:.1%})"]
    if not report.matrices:
        return [*lines, "the same numbers as before, in another order"]
    lines += [
        "",
        f"{'matrix':8} {'worst error':>11}  of",
    ]
    for role, worst in report.worst().items():
        lines.append(f"{role.value:8} {worst.relative_error:11.2%}  {worst.name}")
    return [*lines, "error: |W' - W| / |W| of a whole matrix"]


def _record(report: "QuantizeReport") -> dict[str, object]:
    return {
        "destination": str(report.destination),
        "dtype": report.dtype,
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "matrices": [
            {"name": m.name, "role": m.role.value, "relative_error": m.relative_error}
            for m in report.matrices
        ],
    }
