"""monolane beside llama.cpp and what descends from it: one file, one machine, in turns.

    python bench/peers.py --peer llama.cpp=LLAMA_CPP/build/bin/llama-bench --type Q4_K_M Q8_0 BF16
    python bench/peers.py --peer llama.cpp=... --peer ik_llama.cpp=... --gguf MODEL.gguf
    python bench/peers.py --peer openvino=PYTHON ...    # a Python that has openvino-genai
    python bench/peers.py ... --journal FILE    # what FILE keeps of earlier runs is not run again

All measure decode behind a context and prefill of a prompt, of the same GGUF file, round after
round, so that a machine that drifts drifts under all. The memory is read before and after each
sample of decode, and a round in which it changed its speed does not count. Without --gguf the files
hold random weights in the shape --shape, which are written to the cache folder once.
"""

import argparse
import re
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from _document import publish
from _llama import LlamaCase, PeerError, Program, program_of
from _pairing import Journal, Pairing

from monolane import _env
from monolane.errors import MonolaneError
from monolane.measure import (
    Case,
    Neighbours,
    ReadProbe,
    Record,
    bench_cases,
    bench_records,
    describe_machine,
    drop_from_page_cache,
    run_rounds,
    summary,
)

_ATTEMPTS = 4  # at each round that is wanted
_PEERS = "NAME=PATH of a llama-bench, or openvino=PYTHON"


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the ratios, and write the results; return the exit code."""
    options = parse_arguments(arguments)
    try:
        records: list[Record] = []
        # One file after the other: each is to be in memory alone. What is measured is kept.
        files = find_files(options.gguf, options.shape, options.type, options.quantize)
        for name, path in files:
            records += measure(options, name, path)
            publish(records, "peers", options.out)
    except (PeerError, MonolaneError) as error:
        sys.stderr.write(f"peers: {error}\n")
        return 1
    for line in ratio_table(records):
        print(line)
    return 0


def measure(options: argparse.Namespace, name: str, path: Path) -> list[Record]:
    """Run everything on one file, in turns; return our records, with ratios, and the peers'."""
    drop_from_page_cache(path)
    threads = options.threads or describe_machine()["cores"]
    probe, decodes, prefills = bench_cases(
        path,
        ["auto"],
        contexts=options.context,
        prompts=options.prefill,
        tokens=options.tokens,
        workers=threads,
        buffer=options.buffer << 20,
    )

    def peers(prompt: int = 0, context: int = 0, tokens: int = 0) -> tuple[LlamaCase, ...]:
        read = None if prompt else probe  # a prompt does not wait for the memory
        return tuple(
            LlamaCase(peer, program, path, name, threads, prompt, context, tokens, read)
            for peer, program in options.peer
        )

    pairings = [Pairing(case, peers(context=case.context, tokens=case.tokens)) for case in decodes]
    pairings += [Pairing(case, peers(prompt=case.tokens)) for case in prefills]
    journal = Journal(options.journal)
    journal.restore(path.stem, probe, pairings, options.runs)
    left_out = dict.fromkeys(map(id, pairings), 0)
    for index in range(_ATTEMPTS * options.runs):
        done = min(pairing.rounds for pairing in pairings)
        if done >= options.runs:
            break
        left = [pairing for pairing in pairings if pairing.rounds == done]
        run_round(options, f"{name}, round {index + 1}", index, probe, left)
        steady = [pairing for pairing in left if pairing.is_steady(options.steady)]
        journal.keep(path.stem, probe, steady)
        for pairing in left:
            if pairing not in steady:
                pairing.forget()
                left_out[id(pairing)] += 1
    if any(not pairing.rounds for pairing in pairings):
        raise PeerError(
            f"expected a memory that keeps its speed to a factor of {options.steady} in a round, "
            f"got {_ATTEMPTS * options.runs} rounds in which it did not; try again later, or give "
            "--steady"
        )
    records = bench_records(path.stem, probe, decodes, prefills)
    types = mix_of(options.shape, path) if options.gguf is None else {}
    for record, pairing in zip(records[1:], pairings, strict=True):
        record["dtype"] = name
        if types and record["name"] == "decode":
            record["types"] = types
        if left_out[id(pairing)]:
            record["rounds_left_out"] = left_out[id(pairing)]
        for peer in pairing.peers:
            record |= ratio_figures(peer.name, pairing.own.samples, peer.samples)
            records.append(_peer_record(path.stem, peer))
    return records


def run_round(
    options: argparse.Namespace,
    title: str,
    index: int,
    probe: ReadProbe,
    pairings: Sequence[Pairing],
) -> None:
    """Take a round of these pairings; every other one goes backwards."""
    cases: list[Case] = [probe, *(case for pairing in pairings for case in pairing.cases)]
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        sys.stderr.write(f"\r{title}: {done} of {2 * len(cases)} steps")

    disturbed = run_rounds(cases, index + 1, step, Neighbours(options.patience), first=index)
    sys.stderr.write(f"\n{disturbed} samples were taken while other programs ran\n")


def ratio_figures(peer: str, ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Return the median, least and largest ratio of the two samples of a round.

    They were taken one right after the other, so a machine whose memory changes its speed from
    minute to minute changes it under both; the medians of all rounds may be of other minutes.
    """
    ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
    found = {"": statistics.median(ratios), "_min": min(ratios), "_max": max(ratios)}
    return {f"ratio_to_{_key(peer)}{end}": value for end, value in found.items()}


def _key(peer: str) -> str:
    return peer.replace(".", "_")


def _peer_record(model: str, case: LlamaCase) -> Record:
    figures = summary(case.samples, "tokens/s")
    record = {
        "name": "prefill" if case.prompt else "decode",
        "engine": case.name,
        "model": model,
        "dtype": case.dtype,
        "context": case.context,
        "tokens": case.prompt or case.tokens,
        "workers": case.threads,
        "build": case.build,
    }
    return record | figures | {"tokens_per_s": figures["median"]}


def ratio_table(records: Sequence[Record]) -> list[str]:
    """Return what a person reads: our speed, each peer's, and the one by the other."""
    theirs = {(r["engine"], *_case(r)): r for r in records if "build" in r}
    peers = list(dict.fromkeys(engine for engine, *_ in theirs))
    head = f"{'':8} {'type':9} {'tokens':>7} {'monolane':>10} {'MBU':>5}"
    lines = [head + "".join(f" {peer:>14} {'ratio':>6}" for peer in peers)]
    for own in records:
        if own["engine"] != "monolane" or own["name"] == "read_bandwidth":
            continue
        tokens = own["context"] if own["name"] == "decode" else own["tokens"]
        mbu = f"{own['mbu']:5.0%}" if "mbu" in own else ""
        line = f"{own['name']:8} {own['dtype']:9} {tokens:7,} {own['median']:10,.2f} {mbu:>5}"
        for peer in peers:
            median = theirs[peer, *_case(own)]["median"]
            line += f" {median:14,.2f} {own[f'ratio_to_{_key(peer)}']:6.2f}"
        lines.append(line)
    return lines


def _case(record: Record) -> tuple[str, str, int, int]:
    return record["name"], record["dtype"], record.get("context", 0), record["tokens"]


def find_files(
    given: Sequence[Path] | None, shape: str, types: Sequence[str], quantize: Path | None = None
) -> list[tuple[str, Path]]:
    """Return (name of the type, file): those that were given, or random ones, written if need be.

    PeerError for a shape or a type that is not known.
    """
    if given:
        return [(type_of(path), path) for path in given]
    try:
        from _gguf import SHAPES, TYPES, random_gguf
        from _qwen35 import HYBRIDS, random_hybrid
    except ImportError:
        raise PeerError("expected the gguf package, or --gguf FILE: pip install gguf") from None
    home = _env.CACHE.get() / "synthetic"
    if shape in HYBRIDS:
        if quantize is None:
            raise PeerError(f"--shape {shape}: expected --quantize PATH, of a llama-quantize")
        try:
            return [(kind, random_hybrid(home, shape, kind, quantize)) for kind in types]
        except (OSError, ValueError) as error:
            raise PeerError(str(error)) from None
    if shape not in SHAPES or (wrong := set(types) - set(TYPES)):
        said = shape if shape not in SHAPES else sorted(wrong)
        shapes = ", ".join((*SHAPES, *HYBRIDS))
        raise PeerError(
            f"expected --shape of {shapes} and --type of {', '.join(TYPES)}, got {said}"
        )
    return [(kind, random_gguf(home, shape, kind)) for kind in types]


def mix_of(shape: str, path: Path) -> dict[str, str]:
    """Return the types of the tensors of a file whose mix the peer's own llama-quantize made.

    Of other random files bench/_gguf.py tells them. Without them nobody could compute afterwards
    what a token had to read.
    """
    from _qwen35 import HYBRIDS, types_of

    return types_of(path) if shape in HYBRIDS else {}


def type_of(path: Path) -> str:
    """Return the type that a file's name tells, or what stands behind its last dot."""
    found = re.search(r"\b(I?Q\d_\w+|BF16|F16|F32|MXFP4(_MOE)?)\b", path.stem)
    return found.group() if found else path.stem.rpartition(".")[2]


def _peer(text: str) -> tuple[str, Program]:
    name, _, path = text.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(f"expected {_PEERS}, got {text!r}")
    if shutil.which(path) is None:  # before files of gigabytes are written, and rounds are taken
        raise argparse.ArgumentTypeError(f"expected {_PEERS}, got no program at {path!r}")
    return name, program_of(name, path)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", type=_peer, action="append", required=True, help=_PEERS)
    parser.add_argument("--gguf", type=Path, nargs="+", help="files to use instead of random ones")
    parser.add_argument("--shape", default="llama-1.7b", help="of the random weights")
    parser.add_argument("--type", nargs="+", default=["Q4_K_M", "Q8_0", "BF16"])
    parser.add_argument(
        "--quantize", type=Path, help="llama.cpp's llama-quantize, which says what a mix is"
    )
    parser.add_argument("--context", type=int, nargs="+", default=[128, 4096])
    parser.add_argument("--prefill", type=int, nargs="*", default=[512])
    parser.add_argument("--tokens", type=int, default=32, help="of one decode run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--journal", type=Path, help="file of rounds, read and added to, for a run in pieces"
    )
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds a round to wait for other programs"
    )
    parser.add_argument(
        "--steady",
        type=float,
        default=1.15,
        help="factor between readings of the memory beyond which a round of decode does not count",
    )
    parser.add_argument("--threads", type=int, help="of all [default: one per core]")
    parser.add_argument("--buffer", type=int, default=1024, help="MB read to find the bandwidth")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help=".json file, or folder"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
