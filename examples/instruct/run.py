"""Teach the demo model to answer requests, with data made from the standard library.

    python examples/instruct/run.py OUT --steps 600       took 35 minutes of a shared core
    python examples/instruct/run.py OUT --score-only      ask a model that is there already

Requests and answers come from the library's own source (see ``monolane.tune.write_requests``); what
the demo never read in its training is held out, and asked before and after. OUT/tuned is the model,
OUT/scores.json what it answered right. results.json beside this script is such a file, of the demo
that is shipped; docs/post-training.md shows it.
"""

import argparse
import ast
import dataclasses
import hashlib
import json
import platform
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monolane import Engine, SamplingParams
from monolane.sources import find_model
from monolane.tune import read_recipe, tune_folder, write_requests

ASKED = 40  # held-out requests of a kind, at most
LONGEST = 256  # tokens of a request that is asked


def parses(answer: str, wanted: str, request: str) -> bool:
    """Whether the answer is a function of the name that was asked for."""
    try:
        body = ast.parse(answer).body
    except (SyntaxError, ValueError):
        return False
    name = ast.parse(wanted).body[0]
    return len(body) == 1 and getattr(body[0], "name", None) == getattr(name, "name", "")


def completes(answer: str, wanted: str, request: str) -> bool:
    """Whether request and answer together are Python, whatever it does."""
    code = request.split("\n\n", 1)[1]
    indent = len(code.splitlines()[-1]) - len(code.splitlines()[-1].lstrip())
    for blanks in (indent, indent + 4, max(indent - 4, 4)):
        try:
            ast.parse(f"{code}\n{' ' * blanks}{answer}")
        except (SyntaxError, ValueError):
            continue
        return bool(answer)
    return False


def same(answer: str, wanted: str, request: str) -> bool:
    """Whether the answer is the one that the file gives."""
    return answer.strip() == wanted


SCORES: dict[str, Callable[[str, str, str], bool]] = {
    "write": parses,
    "complete": completes,
    "parameters": same,
    "methods": same,
    "imports": same,
    "explain": same,
}


def score(model: Path, held_out: Path) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Ask a model the held-out requests, greedily; return shares that are right, and samples."""
    asked: dict[str, list[bool]] = defaultdict(list)
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    stopped = total = 0
    samples = []
    with Engine.load(model, "cpu") as engine:
        for line in held_out.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            kind, (user, wanted) = row["kind"], row["messages"]
            if len(asked[kind]) == ASKED or len(engine.prompt_ids([user])) > LONGEST:
                continue
            found = engine.generate([user], SamplingParams(max_tokens=200))
            text = found.text.strip()
            asked[kind].append(SCORES[kind](text, wanted["content"], user["content"]))
            answers[kind][wanted["content"]] += 1
            stopped += found.finish_reason == "stop"
            total += 1
            if len(asked[kind]) <= 2:
                samples.append({"kind": kind, "asked": user["content"], "answered": text})
    shares: dict[str, Any] = {}
    for kind, right in sorted(asked.items()):
        shares[kind] = f"{sum(right)}/{len(right)}"
        if SCORES[kind] is same:  # what one answer to every request would get
            shares[f"{kind}, one answer"] = f"{answers[kind].most_common(1)[0][1]}/{len(right)}"
    return {**shares, "ended by itself": f"{stopped}/{total}"}, samples


def about(given: argparse.Namespace) -> dict[str, Any]:
    """What was tuned, and for how long."""
    weights = (find_model("demo") / "model.safetensors").read_bytes()
    return {
        "demo": hashlib.sha256(weights).hexdigest(),
        "python": platform.python_version(),  # its library is the data
        "steps": given.steps,
        "tokens_per_step": given.rows * given.context,
    }


def main() -> None:
    """Make the data, tune, and ask before and after."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--context", type=int, default=LONGEST)
    parser.add_argument("--score-only", action="store_true")
    given = parser.parse_args()
    out: Path = given.out
    if given.steps < 1:
        parser.error(f"--steps: expected 1 or more, got {given.steps}")
    if given.score_only and not (out / "tuned").is_dir():
        parser.error(
            f"--score-only: expected a model in {out / 'tuned'}; tune one first, without it"
        )
    counts = write_requests(out / "data")
    sys.stdout.write(f"requests: {counts}\n")
    if not given.score_only:
        recipe = dataclasses.replace(
            read_recipe("demo_sft"),
            steps=given.steps,
            rows_per_step=given.rows,
            context=given.context,
        )

        def report(step: int, logs: dict[str, float]) -> None:
            if step % 10 == 0:
                sys.stdout.write(f"step {step}: loss {logs['loss']:.3f}\n")
                sys.stdout.flush()

        demo = find_model("demo")
        tune_folder(demo, out / "data" / "train.jsonl", out / "tuned", recipe, report=report)
    found: dict[str, Any] = {"run": about(given)}
    for name, folder in (("demo", find_model("demo")), ("tuned", out / "tuned")):
        found[name], samples = score(folder, out / "data" / "held_out.jsonl")
        found[f"{name}, samples"] = samples
        sys.stdout.write(f"{name}: {json.dumps(found[name])}\n")
    (out / "scores.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
