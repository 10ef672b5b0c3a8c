"""Time to the first token of an agent's conversation, which is sent whole again each turn.

    python bench/prefix.py [MODEL] [--tokens 8000] [--first 6000] [--runs 3] [--out DIR]

Ten turns. The first prompt has what an agent always sends, system prompt, tools and files; each
later one adds the last answer and what came of it, up to ``--tokens`` at the end.

``kept`` goes on from what the turns before have left, ``fresh`` reads all of the prompt; they take
turns. Before the last turn the engine is closed and loaded again, with the file that it wrote:
``restarted``. A share is the median of ``kept`` over that of ``fresh``. Token ids are random, since
reading takes as long whatever they are. MODEL may be a synthetic model's name. Fails if a first
token, or its log-probability, is another than that of the prompt read anew.
"""

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from _command import ROOT
from _document import publish
from _program import run_script

from monolane.engine import Engine, Generation, SamplingParams
from monolane.measure import SYNTHETIC, shown_word, summary, synthetic
from monolane.sources import find_model

TURNS = 10
ANSWER = 16  # tokens of each turn's answer

Times = dict[tuple[str, int, int], list[float]]  # (case, turn, tokens) -> ms to the first token


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time to the first token, prefixes kept or not.")
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--tokens", type=int, default=8000, help="of the last prompt")
    parser.add_argument("--first", type=int, help="tokens of the first one [default: 3/4 of them]")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    name = options.model
    folder = synthetic(name, lambda text: None) if name in SYNTHETIC else find_model(name)
    times: Times = defaultdict(list)
    cached: dict[tuple[str, int, int], int] = {}
    with Engine.load(folder, prefix_cache="off") as fresh:
        dtype = fresh.backend.dtype
        for run in range(options.runs):
            sizes = turn_sizes(options.tokens, options.first or options.tokens * 3 // 4)
            converse(folder, fresh, sizes, run, times, cached)
    model = f"synthetic-{name}" if name in SYNTHETIC else shown_word(name, ROOT)
    publish(records_of(times, cached, model, dtype), f"prefix-{Path(model).name}", options.out)


def turn_sizes(tokens: int, first: int) -> list[int]:
    """Return how many tokens each turn adds, besides the answers."""
    said = (tokens - first) // (TURNS - 1) - ANSWER
    if said < 1:
        raise SystemExit(f"prefix: expected --tokens {first + (TURNS - 1) * (ANSWER + 1)} or more")
    return [first, *[said] * (TURNS - 1)]


def converse(
    folder: Path,
    fresh: Engine,
    sizes: list[int],
    seed: int,
    times: Times,
    cached: dict[tuple[str, int, int], int],
) -> None:
    """Hold one conversation and note its times."""
    rng = np.random.default_rng(seed)
    prompt: list[int] = []
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "prefixes"
        engine = Engine.load(folder, prefix_cache="4G", prefix_file=file)
        for turn, said in enumerate(sizes, 1):
            case = "kept"
            if turn == len(sizes):
                engine.close()
                engine, case = Engine.load(folder, prefix_cache="4G", prefix_file=file), "restarted"
            prompt += rng.integers(fresh.config.vocab_size, size=said).tolist()
            whole, answer = ask(fresh, prompt, 1), ask(engine, prompt, ANSWER)
            if whole.logprobs != answer.logprobs[:1]:
                raise SystemExit(f"prefix: turn {turn}: not the bits of the prompt read anew")
            for name, found in (("fresh", whole), (case, answer)):
                key = name, turn, len(prompt)
                times[key].append(found.timings.time_to_first_token * 1e3)
                cached[key] = found.timings.cache_n
            sys.stderr.write(f"run {seed}, turn {turn}, {len(prompt)} tokens\n")
            prompt += answer.token_ids
        engine.close()


def ask(engine: Engine, prompt: list[int], tokens: int) -> Generation:
    """Answer a prompt greedily."""
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, logprobs=1)
    return engine.generate(prompt, params)


def records_of(
    times: Times, cached: dict[tuple[str, int, int], int], model: str, dtype: str
) -> list[dict[str, Any]]:
    """Return a record for each case and turn, with its share of a fresh reading."""
    records = []
    for (case, turn, tokens), found in times.items():
        anew = statistics.median(times["fresh", turn, tokens])
        records.append(
            {
                "name": "prefix",
                "engine": "monolane",
                "case": case,
                "turn": turn,
                "model": model,
                "dtype": dtype,
                "tokens": tokens,
                "cached": cached[case, turn, tokens],
                **summary(found, f"ms to the first token: {case}, turn {turn}"),
                "share": round(statistics.median(found) / anew, 4),
            }
        )
    return records


if __name__ == "__main__":
    run_script(main)
