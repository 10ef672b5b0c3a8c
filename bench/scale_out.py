"""What Ray Serve adds to an answer: examples/scale_out with one replica, beside the server itself.

    pip install 'monolane[scale]'
    python bench/scale_out.py --out bench/results

Both have the demo model and one core, the same one, and one client asks them in turns, while the
other stands still. docs/scale-out.md quotes it.
"""

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from monolane.measure import (
    Level,
    Load,
    LoadOptions,
    LoadTarget,
    Outcome,
    Prompts,
    Record,
    build_document,
    current_commit,
    describe_machine,
    load_average,
    result_name,
    summary,
    write_document,
)

ROOT = Path(__file__).parents[1]
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
        server(["taskset", "-c", core, sys.executable, *direct]) as one,
        server([sys.executable, *ray]) as other,
    ):
        records = measure({"direct": one, "ray": other}, options.tokens, options.runs)
    document = build_document(
        describe_machine(),
        "python bench/scale_out.py " + " ".join(sys.argv[1:]),
        records,
        current_commit(ROOT),
        load_average=load_average(),
    )
    if options.out is None:
        print(json.dumps(document, indent=1))
        return
    path = options.out / result_name(document, "scale-out")
    write_document(path, document)
    print(path)


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


@contextlib.contextmanager
def server(command: list[str]) -> Iterator[str]:
    """Run a server that prints "at URL"; yield the URL once its model is loaded."""
    with tempfile.NamedTemporaryFile(prefix="monolane-scale-out-") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield wait_ready(process, Path(log.name))
        finally:
            process.terminate()
            process.wait(timeout=60)


def wait_ready(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Return the URL; SystemExit where there is none in time."""
    import urllib.error
    import urllib.request

    end = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
        if found := re.search(r"at (http://\S+:\d+)", log.read_text()):
            with contextlib.suppress(urllib.error.HTTPError):
                urllib.request.urlopen(f"{found[1]}/health").close()
                return found[1]
    process.kill()
    raise SystemExit(f"{' '.join(process.args)}: no server\n{log.read_text()}")  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
