"""monolane beside llama.cpp: the same sizes, the same machine, in turns.

    python bench/peers.py --llama-bench LLAMA_CPP/build/bin/llama-bench

Both measure decode behind a context and prefill of a prompt, in BF16, 8 and 4 bits, round after
round, so that a machine that drifts drifts under both. llama.cpp runs a Llama of Laneformer 2B's
sizes with random weights, monolane a Laneformer of those sizes with random weights.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _document import publish
from _gguf import FORMATS, import_gguf, random_gguf
from _llama import LlamaCase, PeerError

from monolane import _env
from monolane.errors import MonolaneError
from monolane.measure import (
    SYNTHETIC,
    Case,
    DecodeCase,
    Neighbours,
    PrefillCase,
    ReadProbe,
    Record,
    bench_cases,
    bench_records,
    describe_machine,
    drop_from_page_cache,
    run_rounds,
    summary,
    synthetic,
    synthetic_config,
)

OURS = {"BF16": "bfloat16", "Q8_0": "int8", "Q4_0": "int4"}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the ratios, and write the results; return the exit code."""
    options = _options(arguments)
    try:
        records = measure(options)
    except (PeerError, MonolaneError) as error:
        sys.stderr.write(f"peers: {error}\n")
        return 1
    for line in ratio_table(records):
        print(line)
    publish(records, "peers", options.out)
    return 0


def measure(options: argparse.Namespace) -> list[Record]:
    """Run everything in turns; return the records of both, each of ours with its ratio."""
    probe, decodes, prefills = _our_cases(options)
    ours: list[DecodeCase | PrefillCase] = [*decodes, *prefills]
    theirs = sorted(_their_cases(options), key=lambda case: case.prompt > 0)
    cases: list[Case] = [probe]
    for own, peer in zip(ours, theirs, strict=True):
        cases += [own, peer]
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        sys.stderr.write(f"\r{done} of {(options.runs + 1) * len(cases)} steps")

    disturbed = run_rounds(cases, options.runs, step, Neighbours(patience=60.0 * options.runs))
    sys.stderr.write(f"\n{disturbed} samples were taken while other programs ran\n")
    records = bench_records(f"synthetic-{options.model}", probe, decodes, prefills)
    for record, own, peer in zip(records[1:], ours, theirs, strict=True):
        record |= ratio_figures(own.samples, peer.samples)
        records.append(_peer_record(options.model, peer))
    return records


def ratio_figures(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Return the median, least and largest ratio of the two samples of a round.

    They were taken one right after the other, so a machine whose memory changes its speed from
    minute to minute changes it under both; the medians of all rounds may be of other minutes.
    """
    ratios = [own / peer for own, peer in zip(ours, theirs, strict=True)]
    found = {"": statistics.median(ratios), "_min": min(ratios), "_max": max(ratios)}
    return {f"ratio_to_llama_cpp{end}": value for end, value in found.items()}


def _our_cases(
    options: argparse.Namespace,
) -> tuple[ReadProbe, list[DecodeCase], list[PrefillCase]]:
    folder = synthetic(options.model, lambda text: print(text, file=sys.stderr))
    for path in folder.glob("*.safetensors"):
        drop_from_page_cache(path)
    return bench_cases(
        folder,
        [OURS[dtype] for dtype in options.dtype],
        contexts=options.context,
        prompts=options.prefill,
        tokens=options.tokens,
        workers=options.threads,
        buffer=options.buffer << 20,
    )


def _their_cases(options: argparse.Namespace) -> list[LlamaCase]:
    config = synthetic_config(options.model)
    threads = options.threads or describe_machine()["cores"]
    cases = []
    for dtype in options.dtype:
        path = options.gguf
        if path is None:
            gguf = import_gguf(options.gguf_py)
            home = _env.CACHE.get() / "synthetic"
            path = random_gguf(gguf, home, f"llama-{options.model}", config, dtype)
        if path.is_file():
            drop_from_page_cache(path)
        common: dict[str, Any] = {"program": options.llama_bench, "model": path, "dtype": dtype}
        common["threads"] = threads
        cases += [LlamaCase(**common, context=c, tokens=options.tokens) for c in options.context]
        cases += [LlamaCase(**common, prompt=length) for length in options.prefill]
    return cases


def _peer_record(model: str, case: LlamaCase) -> Record:
    figures = summary(case.samples, "tokens/s")
    record = {
        "name": "prefill" if case.prompt else "decode",
        "engine": "llama.cpp",
        "model": f"llama with the sizes of {model}",
        "dtype": case.dtype,
        "context": case.context,
        "tokens": case.prompt or case.tokens,
        "workers": case.threads,
        "build": case.build,
    }
    return record | figures | {"tokens_per_s": figures["median"]}


def ratio_table(records: Sequence[Record]) -> list[str]:
    """Return what a person reads: ours, theirs, and the one by the other."""
    ours = [record for record in records if "ratio_to_llama_cpp" in record]
    theirs = [record for record in records if record["engine"] == "llama.cpp"]
    head = f"{'':8} {'dtype':9} {'tokens':>7} {'monolane':>10} {'llama.cpp':>10}"
    lines = [f"{head} {'ratio':>6} {'MBU':>5}"]
    for own, peer in zip(ours, theirs, strict=True):
        tokens = own["context"] if own["name"] == "decode" else own["tokens"]
        mbu = f"{own['mbu']:5.0%}" if "mbu" in own else ""
        lines.append(
            f"{own['name']:8} {own['dtype']:9} {tokens:7,} {own['median']:10,.2f} "
            f"{peer['median']:10,.2f} {own['ratio_to_llama_cpp']:6.2f} {mbu}".rstrip()
        )
    return lines


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--llama-bench", type=Path, required=True, help="llama.cpp's program")
    parser.add_argument(
        "--gguf-py", type=Path, help="llama.cpp's gguf-py, if gguf is not installed"
    )
    parser.add_argument("--gguf", type=Path, help="a GGUF to use instead of a random one")
    parser.add_argument("--model", choices=SYNTHETIC, default="laneformer-2b")
    parser.add_argument("--dtype", choices=FORMATS, nargs="+", default=list(FORMATS))
    parser.add_argument("--context", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--prefill", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--tokens", type=int, default=32, help="of one decode run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of both [default: one per core]")
    parser.add_argument("--buffer", type=int, default=1024, help="MB read to find the bandwidth")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help=".json file, or folder"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
