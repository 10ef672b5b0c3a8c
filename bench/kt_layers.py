"""Layers of experts beside those of kt-kernel, on which KTransformers runs them on a CPU.

    pip install --target KT --no-deps kt-kernel==0.7.2      # beside a Python that has torch
    PYTHONPATH=KT python bench/kt_layers.py --peer PYTHON [--shape moe-2b] [--out DIR]

kt-kernel has no model of its own: KTransformers' attention needs a GPU. So layers are compared, not
tokens. Ours are the phases of a whole model that decodes, or reads a prompt: from when the first
worker begins the choice of experts to when the last has added up their outputs. Theirs are layers
of the same sizes in turns, each expert as likely, without the choice; the time holds a call from
Python, some 10 us. The peer is stopped while ours run.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from _document import publish
from _gguf import SHAPES, random_gguf

from monolane._env import CACHE
from monolane.cpu import CpuExecutor
from monolane.engine import ModelFiles
from monolane.executor_api import Advance, Draw
from monolane.measure import ReadProbe, Record, summary
from monolane.plan import PhaseKind, phase_cost

# Our type beside the class of kt-kernel's that has as many bits.
PAIRS = {"Q8_0": "AMXInt8_MOE", "Q4_0": "AMXInt4_MOE"}
PROMPT = 256  # tokens of a pass
ROUNDS = 16  # of the peer's, over all of its layers


class Peer:
    """A process with layers of kt-kernel's, which is stopped but when asked."""

    def __init__(self, python: str, shape: str, method: str, threads: int) -> None:
        sizes = SHAPES[shape]
        wish = {name: getattr(sizes, name) for name in ("experts", "chosen", "inner", "hidden")}
        wish |= {"layers": sizes.layers, "threads": threads, "most": PROMPT, "method": method}
        command = [python, str(Path(__file__).with_name("_kt_layers.py")), json.dumps(wish)]
        self.process = subprocess.Popen(
            command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.ask(1, 2)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *what: object) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, width: int, rounds: int) -> float:
        """Return the median time of a layer, in seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(f"{width} {rounds}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        while line and not line.startswith("["):  # it tells of itself
            line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"kt_layers: the peer ended with exit code {self.process.wait()}")
        self.process.send_signal(signal.SIGSTOP)
        times: list[float] = json.loads(line)
        return statistics.median(times)


def layer_seconds(executor: CpuExecutor, ids: np.ndarray, budget: int) -> float:
    """Return the median time of a layer's experts: of decode, or of the pass of a prompt."""
    executor.truncate(0, 0)
    executor.set_trace(True)
    draw = Draw(temperature=1.0, seed=1)
    executor.start([Advance(slot=0, token_ids=tuple(ids.tolist()), budget=budget, draw=draw)])
    while not executor.read(0.1):
        pass
    executor.take()
    spans = executor.take_spans()
    executor.set_trace(False)
    spans = spans[spans["width"] == (1 if budget > 1 else len(ids))]
    times: list[float] = []
    for gate in (p for p in executor.plan.phases if p.kind is PhaseKind.EXPERT_GATE_UP):
        begun = _by_worker(spans, gate.index, "begun_ns").min(0)
        ended = _by_worker(spans, gate.index + 1, "ended_ns").max(0)  # of EXPERT_DOWN
        times += (ended - begun).tolist()
    return statistics.median(times) / 1e9


def _by_worker(spans: np.ndarray, phase: int, field: str) -> np.ndarray:
    """Return a field of a phase's spans, [workers, passes]."""
    found = spans[spans["phase"] == phase]
    return np.stack([found[found["worker"] == w][field] for w in np.unique(found["worker"])])


def measure(kind: str, options: argparse.Namespace) -> list[Record]:
    """Return the records of one type: of a token's layer, and of a prompt's."""
    path = random_gguf(CACHE.get() / "synthetic", options.shape, kind)
    weights = ModelFiles.open(path).weights()
    ids = np.arange(PROMPT) * 7919 % weights.config.vocab_size
    executor = CpuExecutor(weights, context=1024, slots=1, workers=options.threads)
    probe = ReadProbe(executor.workers, 1 << 30)
    cases = {"experts_decode": (ids[:1], 64), "experts_prefill": (ids, 1)}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    bandwidth = []
    threads = options.peer_threads or executor.workers
    with Peer(options.peer, options.shape, PAIRS[kind], threads) as peer:
        for index in range(options.pairs):
            bandwidth.append(probe.measure() / 1e9)
            for name, (tokens, budget) in cases.items():
                theirs = peer.ask(len(tokens), ROUNDS) if index % 2 else None
                ours = layer_seconds(executor, tokens, budget)
                found[name].append((ours, theirs or peer.ask(len(tokens), ROUNDS)))
                pair = " us, kt-kernel ".join(f"{x * 1e6:.0f}" for x in found[name][-1])
                sys.stderr.write(f"{kind} {name}: {pair} us\n")
    executor.close()
    experts = (PhaseKind.EXPERT_GATE_UP, PhaseKind.EXPERT_DOWN)
    costs = [phase_cost(executor.plan, p).bytes for p in executor.plan.phases if p.kind in experts]
    records = []
    for name, pairs in found.items():
        width = len(cases[name][0])
        record = _record(pairs, path.stem, kind) | {"name": name, "tokens": width}
        record |= {"workers": executor.workers, "peer_threads": threads}
        record["peer"] = f"kt-kernel, {PAIRS[kind]}"
        record["read_bandwidth_gb_s"] = bandwidth
        if width == 1:  # of more tokens nobody knows how many experts serve them
            record["bytes"] = round(2 * sum(costs) / len(costs))
        records.append(record)
    return records


def _record(pairs: Sequence[tuple[float, float]], model: str, kind: str) -> Record:
    ratios = [theirs / ours for ours, theirs in pairs]
    record: Record = {"name": "", "engine": "monolane", "model": model, "dtype": kind}
    record |= summary([ours * 1e6 for ours, _ in pairs], "us/layer")
    record["peer_median"] = statistics.median(theirs * 1e6 for _, theirs in pairs)
    record["ratio_to_kt_kernel"] = statistics.median(ratios)
    return record | {"ratio_to_kt_kernel_min": min(ratios), "ratio_to_kt_kernel_max": max(ratios)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the results; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peer", default=sys.executable, help="a Python that has kt_kernel")
    parser.add_argument("--shape", default="moe-2b", help="of the random weights")
    parser.add_argument("--type", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of ours [default: one per core]")
    parser.add_argument("--peer-threads", type=int, help="[default: as many as ours]")
    parser.add_argument("--out", type=Path, help=".json file, or folder of the results file")
    options = parser.parse_args(arguments)
    records = [record for kind in options.type for record in measure(kind, options)]
    for record in records:
        print(
            f"{record['dtype']} {record['name']:16} {record['median']:9.0f} us/layer, kt-kernel "
            f"{record['peer_median']:.0f}: {record['ratio_to_kt_kernel']:.2f} times as fast"
        )
    publish(records, "kt-layers", options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
