"""Two versions of monolane on one machine: did a change cost speed?

    python bench/versions.py --python OTHER/bin/python --label v1 [--dtype int8] [--prefill 512]

Runs ``monolane bench --json`` by this interpreter and by that of another version's environment, in
turns whose order is swapped each time (A B, B A, ...), so that a machine that drifts drifts under
both. Each pair gives one ratio; the record holds their median, least and largest.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _document import publish

from monolane.measure import Record, summary

CASES = ("decode", "prefill")


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the ratios, and write the results; return the exit code."""
    options = _options(arguments)
    records: list[Record] = []
    for dtype in options.dtype:
        try:
            records += compare(options, dtype)
        except subprocess.CalledProcessError as error:
            last = (error.stderr.strip().splitlines() or ["no message"])[-1]
            sys.stderr.write(f"versions: {error.cmd[0]}: exit code {error.returncode}: {last}\n")
            return 1
    for record in records:
        print(ratio_line(record))
    publish(records, "versions", options.out)
    return 0


def compare(options: argparse.Namespace, dtype: str) -> list[Record]:
    """Return decode and prefill of this version, with their ratios to the other's."""
    model = ["--synthetic", options.synthetic] if options.model is None else [str(options.model)]
    command = ["-m", "monolane", "bench", *model, "--dtype", dtype]
    command += [
        "--context",
        str(options.context),
        "--prefill",
        str(options.prefill),
        "--startup",
        "0",
        "--json",
    ]
    command += ["--runs", str(options.runs), "--tokens", str(options.tokens)]
    pythons = {"this": sys.executable, "other": str(options.python)}
    samples: dict[str, list[dict[str, Record]]] = {"this": [], "other": []}
    for pair in range(options.pairs):
        order = list(pythons) if pair % 2 else list(reversed(pythons))
        for version in order:
            sys.stderr.write(f"{dtype}: pair {pair + 1} of {options.pairs}: {version}\n")
            told = subprocess.run(
                [pythons[version], *command], capture_output=True, text=True, check=True
            )
            samples[version].append({r["name"]: r for r in json.loads(told.stdout)["records"]})
    return [ratio_record(samples, name, options.label) for name in options.only or CASES]


def ratio_record(samples: dict[str, list[dict[str, Record]]], name: str, other: str) -> Record:
    """Return one kind of record over all pairs, with the other version's figures beside it."""
    this, that = ([run[name]["median"] for run in samples[who]] for who in ("this", "other"))
    ratios = [own / peer for own, peer in zip(this, that, strict=True)]
    first = samples["this"][0][name]
    kept = ("name", "engine", "model", "dtype", "context", "tokens", "workers")
    record: dict[str, Any] = {key: first[key] for key in kept if key in first}
    record["model"] = record["model"].rpartition("/")[2].removesuffix(".gguf")  # of a path
    record |= summary(this, first["unit"])
    record |= {"other": other, "other_median": statistics.median(that)}
    record |= {"ratio_to_other": statistics.median(ratios)}
    record |= {"ratio_to_other_min": min(ratios), "ratio_to_other_max": max(ratios)}
    record["read_bandwidth_gb_s"] = [
        round(run["read_bandwidth"]["median"], 2) for who in samples.values() for run in who
    ]
    return record


def ratio_line(record: Record) -> str:
    """Return what a person reads of one comparison."""
    return (
        f"{record['name']:8} {record['dtype']:9} {record['median']:9.2f} {record['unit']}, "
        f"{record['other']} {record['other_median']:.2f}: ratio {record['ratio_to_other']:.3f} "
        f"({record['ratio_to_other_min']:.3f} to {record['ratio_to_other_max']:.3f})"
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True, help="of the other version")
    parser.add_argument("--label", default="other", help="name of the other version, as a commit")
    parser.add_argument("--synthetic", default="laneformer-2b", help="shape of random weights")
    parser.add_argument("--model", type=Path, help="a folder or a GGUF file instead")
    parser.add_argument("--dtype", action="append", help="repeatable; default: bfloat16")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3, help="rounds of one process")
    parser.add_argument("--tokens", type=int, default=16, help="of one decode run")
    parser.add_argument("--prefill", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--context", type=int, default=128, help="tokens before those decoded")
    parser.add_argument("--only", nargs="+", choices=CASES, help="what to record")
    parser.add_argument("--out", type=Path, help="a folder, or a file that ends in .json")
    options = parser.parse_args(arguments)
    options.dtype = options.dtype or ["bfloat16"]
    return options


if __name__ == "__main__":
    raise SystemExit(main())
