"""What Ray Serve adds to an answer: examples/scale_out with one replica, beside the server itself.

    pip install 'monolane[scale]'
    python bench/scale_out.py --out bench/results

Both have the demo model and one core, the same one, and one client asks them in turns, while the
other stands still. docs/scale-out.md quotes it.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

from _command import ROOT
from _document import publish
from _program import run_script
from _server import server

from monolane.measure import (
    Level,
    Load,
    LoadOptions,
    LoadTarget,
    Outcome,
    Prompts,
    Record,
    summary,
)

APP = ROOT / "examples" / "scale_out" / "app.py"
RAY_PORT = 8765
SECONDS = 180  # for a server to begin


def main() -> None:
    """Measure, and write one results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=256, help="of each answer")
    parser.add_argument("--runs", type=int, default=40, help="requests to each")
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    core = str(min(os.sched_getaffinity(0)))  # the one that the example's first replica takes
    direct = ["-m", "monolane", "serve", "--port", "0", "--no-bandwidth"]
    ray = [str(APP), "--replicas", "1", "--cores", "1", "--port", str(RAY_PORT)]
    with (
        server(["taskset", "-c", core, sys.executable, *direct], SECONDS) as one,
        server([sys.executable, *ray], SECONDS) as other,
    ):
        records = measure({"direct": one.url, "ray": other.url}, options.tokens, options.runs)
    publish(records, "scale-out", options.out)


def measure(urls: Mapping[str, str], tokens: int, runs: int) -> list[Record]:
    """Ask each URL in turn; return a record for each."""
    wish = LoadOptions(model="demo", max_tokens=tokens)
    loads = {way: Load(LoadTarget.parse(url), wish) for way, url in urls.items()}
    found: dict[str, list[Outcome]] = {way: [] for way in urls}
    prompts = Prompts(20)
    for load in loads.values():
        load.warm_up(prompts)
    for _ in range(runs):
        for way, load in loads.items():
            loaded = load.run(Level(clients=1, requests=1), prompts, lambda: None)
            if loaded.failures:
                raise SystemExit(f"{way}: {loaded.failures[0]}")
            found[way] += loaded.outcomes
    return [record(way, tokens, outcomes) for way, outcomes in found.items()]


def record(way: str, tokens: int, outcomes: list[Outcome]) -> Record:
    """Return the record of one way to the engine."""
    speeds = [outcome.speed for outcome in outcomes if outcome.speed is not None]
    about = {"name": "scale_out", "engine": "monolane", "model": "demo", "way": way}
    return (
        {**about, "tokens": tokens}
        | summary(speeds, f"tokens/s, {way}")
        | {
            "first_ms": statistics.median(outcome.first for outcome in outcomes) * 1e3,
            "whole_ms": statistics.median(outcome.whole for outcome in outcomes) * 1e3,
            "server_tokens_per_s": statistics.median(
                outcome.server_speed or 0.0 for outcome in outcomes
            ),
        }
    )


if __name__ == "__main__":
    run_script(main)
