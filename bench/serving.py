"""What serving costs, and what requests get when several want the engine at once.

    python bench/serving.py --out bench/results                    all of it, on the demo model
    python bench/serving.py --what mixed --synthetic laneformer-2b --tokens 24 --requests 1 \
        --policy latency --policy share:8 --out bench/results

``stream``: a server whose tokens come at a set pace (no model), read by one client: which share of
the pace arrives, and the server's processor time per token. ``mixed``: a server with a model, asked
by 1 to 8 clients at once under each policy: the speed of one request, the total, and the waits.
docs/mixed-load.md quotes it.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from _document import publish
from _server import server

from monolane.measure import (
    IdPrompts,
    Level,
    Load,
    Loaded,
    LoadOptions,
    LoadTarget,
    Record,
    summary,
    synthetic,
)

PACES = (3000, 10_000)  # tokens/s
CLIENTS = (1, 2, 4, 8)
POLICIES = ("latency", "share:4", "share:8")
# Of token ids, so that a model without a tokenizer can be asked too; every vocabulary has these.
PROMPT = {"tokens": 32, "vocab": 1000}
SECONDS = 600  # for a server to begin: a model may have to come first


def main() -> None:
    """Measure, and write one results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="demo", help="for 'mixed'")
    parser.add_argument("--synthetic", help="random weights of a shape instead: laneformer-2b")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=256, help="of each answer of 'mixed'")
    parser.add_argument("--requests", type=int, default=4, help="of each client of 'mixed'")
    parser.add_argument(
        "--policy", action="append", help="repeatable [default: latency, share:4, share:8]"
    )
    parser.add_argument(
        "--clients", type=int, action="append", help="repeatable [default: 1, 2, 4, 8]"
    )
    parser.add_argument("--runs", type=int, default=3, help="of each case of 'stream'")
    parser.add_argument("--what", choices=("all", "stream", "mixed"), default="all")
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    options.name = Path(options.model).name
    if options.synthetic is not None:
        options.name = f"synthetic-{options.synthetic}"
        options.model = str(synthetic(options.synthetic, lambda text: None))
    records: list[Record] = []
    if options.what != "mixed":
        records += [record for pace in PACES for record in stream_records(pace, options.runs)]
    if options.what != "stream":
        for policy in options.policy or POLICIES:
            records += mixed_records(policy, options)
    what = "serving" if options.name == "demo" else f"serving-{options.name}"
    publish(records, what, options.out)


def stream_records(pace: int, runs: int) -> Iterator[Record]:
    """Measure how much of a pace one client gets, and what a token costs the server."""
    seconds = 4
    tokens = pace * seconds
    delivered, cost, events = [], [], []
    with server([sys.executable, __file__, "--paced", str(pace)], SECONDS) as paced:
        ask(paced.url, "paced", pace // 4, clients=1, requests=1)
        for _ in range(runs):
            before = cpu_seconds(paced.process)
            (answer,) = ask(paced.url, "paced", tokens, clients=1, requests=1).outcomes
            cost.append((cpu_seconds(paced.process) - before) / answer.tokens * 1e6)
            delivered.append(answer.speed or 0.0)
            events.append(answer.tokens / (len(answer.gaps) + 1))
    figures = summary(delivered, "tokens/s")
    yield (
        {"name": "http_stream", "engine": "paced", "tokens": tokens}
        | figures
        | {
            "pace": pace,
            "delivered_share": figures["median"] / pace,
            "server_cpu_us_per_token": statistics.median(cost),
            "tokens_per_event": statistics.median(events),
        }
    )


def mixed_records(policy: str, options: argparse.Namespace) -> Iterator[Record]:
    """Measure what 1 to 8 clients get under a policy."""
    command = [sys.executable, "-m", "monolane", "serve", "--port", "0", "--no-bandwidth"]
    command += ["--policy", policy, "--model", options.model, "--dtype", options.dtype]
    with server(command, SECONDS) as ours:
        ask(ours.url, options.model, options.tokens, clients=1, requests=1)
        for clients in options.clients or CLIENTS:
            requests = clients * options.requests
            loaded = ask(ours.url, options.model, options.tokens, clients, requests)
            answers = loaded.outcomes
            speeds = [answer.server_speed or 0.0 for answer in answers]
            firsts = [answer.first * 1e3 for answer in answers]
            total = sum(answer.tokens for answer in answers)
            yield (
                {
                    "name": "mixed_load",
                    "engine": "monolane",
                    "model": options.name,
                    "policy": policy,
                    "clients": clients,
                    "tokens": options.tokens,
                }
                | summary(speeds, "tokens/s of one request")
                | {
                    "total_tokens_per_s": total / loaded.seconds,
                    "whole_s": statistics.median(answer.whole for answer in answers),
                    "first_ms": statistics.median(firsts),
                    "first_ms_max": max(firsts),
                }
            )


def ask(url: str, model: str, tokens: int, clients: int, requests: int) -> Loaded:
    """Have ``clients`` ask again and again, ``requests`` in all; SystemExit where one fails."""
    load = Load(LoadTarget.parse(url), LoadOptions(model=model, max_tokens=tokens, timeout=600))
    level = Level(clients=clients, requests=requests, seconds=600)
    loaded = load.run(level, IdPrompts(**PROMPT), lambda: None)
    if loaded.failures:
        raise SystemExit(f"{clients} clients: {loaded.failures[0]}")
    return loaded


def cpu_seconds(process: "subprocess.Popen[bytes]") -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve_paced(pace: int) -> None:
    """Be the server of ``stream``."""
    from monolane.measure import paced_engine
    from monolane.serve import ServerOptions, serve

    options = ServerOptions(port=0, model_name="paced")
    serve(lambda: paced_engine(pace), options, announce=lambda url: print(f"at {url}", flush=True))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--paced"]:
        serve_paced(int(sys.argv[2]))
    else:
        main()
