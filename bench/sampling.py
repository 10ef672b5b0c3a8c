"""What drawing a token takes beside computing its logits: decode by how tokens are drawn.

    python bench/sampling.py [--model smollm2] [--label VERSION] [--out DIR]

Each way draws behind the same prompt, round after round, in an order that is reversed each time.
Run with two versions' interpreters in turns, each with its label, it says what a change brought.
"""

import argparse
from pathlib import Path

import numpy as np
from _document import publish
from _program import run_script

from monolane.executor_api import Advance, Draw
from monolane.measure import LoadedModel, Record, summary
from monolane.sources import find_model

PROMPT = 64
WAYS: dict[str, Draw] = {
    "greedy": Draw(),
    "temperature 1": Draw(temperature=1.0),
    "top_k 40": Draw(temperature=1.0, top_k=40),
    "top_p 0.95": Draw(temperature=1.0, top_p=0.95),
    "top_p 0.8, top_k 20, temperature 0.7": Draw(temperature=0.7, top_p=0.8, top_k=20),
    "min_p 0.05": Draw(temperature=1.0, min_p=0.05),
    "top_p 0.95, temperature 1.5": Draw(temperature=1.5, top_p=0.95),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What drawing a token takes.")
    parser.add_argument("--model", default="smollm2", help="a name, a folder or a .gguf file")
    parser.add_argument("--label", default="", help="name of the version that is measured")
    parser.add_argument("--tokens", type=int, default=64, help="drawn in one sample")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--out", type=Path, help=".json file, or folder of the results file")
    options = parser.parse_args()
    model = LoadedModel(
        find_model(options.model),
        "auto",
        context=PROMPT + options.tokens + 1,
        slots=1,
        workers=options.workers,
    )
    samples: dict[str, list[float]] = {way: [] for way in WAYS}
    for index in range(options.rounds + 1):  # the first warms up
        for way in WAYS if index % 2 == 0 else reversed(WAYS):
            speed = sample(model, WAYS[way], options.tokens)
            if index:
                samples[way].append(speed)
    records = [record(model, options, way, found) for way, found in samples.items()]
    for each in records:
        print(f"{each['draw']:38} {each['median']:8.1f} tokens/s")
    publish(records, "sampling", options.out)


def sample(model: LoadedModel, draw: Draw, tokens: int) -> float:
    """Return tokens/s from the first drawn token to the last."""
    executor = model.executor
    executor.truncate(0, 0)
    ids = np.random.default_rng(0).integers(model.config.vocab_size, size=PROMPT)
    asked = Advance(slot=0, token_ids=tuple(ids.tolist()), budget=tokens, draw=draw)
    executor.start([asked])
    events, over = [], False
    while not over:
        over = executor.read(1.0)
        events += executor.take()
    return (len(events) - 1) / (events[-1].time_ns - events[0].time_ns) * 1e9


def record(
    model: LoadedModel, options: argparse.Namespace, way: str, samples: list[float]
) -> Record:
    """Return the record of one way."""
    return {
        "name": "sampling_decode",
        "engine": "monolane",
        "model": Path(options.model).stem,
        "dtype": model.dtype,
        "workers": model.workers,
        "vocab": model.config.vocab_size,
        "context": PROMPT,
        "draw": way,
        "label": options.label,
        **summary(samples, "tokens/s"),
    }


if __name__ == "__main__":
    run_script(main)
