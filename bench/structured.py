"""What a constraint costs a token, against the same engine without one.

    python bench/structured.py [MODEL] [--tokens 300] [--runs 7] [--out DIR]

Cases take turns, each drawing as many tokens; from the first token's time to the last's.
``guide_us`` is the median time of one step of the constraint, which the pass that needs it hides if
it can. Prints a results document or, with --out, writes it there.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _command import ROOT
from _document import publish
from _program import run_script

from monolane.engine import Constraint, Engine, Guide, SamplingParams
from monolane.measure import shown_word, summary
from monolane.serve._http.prepare import constraint_of
from monolane.serve._openai.body import CompletionRequest
from monolane.serve._tools.grammar import answer_grammar

PROMPT = "def f(x):\n"
TEXT = {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 100_000}}
ROWS = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "identifier": {"type": "integer", "maximum": 99},
            "category": {"enum": ["alpha", "beta"]},
            "enabled": {"type": "boolean"},
        },
        "required": ["identifier", "category", "enabled"],
        "additionalProperties": False,
    },
}


class Anything:
    """The mask that allows all tokens: what guiding costs by itself."""

    def __init__(self, vocab: int) -> None:
        self._guide = Guide(np.full(-(-vocab // 32), 0xFFFFFFFF, np.uint32))

    def step(self, token_id: int | None) -> Guide:
        """Allow all."""
        return self._guide


class Timed:
    """A constraint whose steps are timed and whose forced tokens are counted."""

    def __init__(self, inner: Constraint) -> None:
        self._inner = inner
        self.seconds: list[float] = []
        self.forced = 0

    def step(self, token_id: int | None) -> Guide:
        """Pass on."""
        begin = time.perf_counter()
        guide = self._inner.step(token_id)
        self.seconds.append(time.perf_counter() - begin)
        self.forced += len(guide.forced)
        return guide


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What a constraint costs a token.")
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    with Engine.load(options.model) as engine:
        records = measure(engine, shown_word(options.model, ROOT), options.tokens, options.runs)
    publish(records, "structured", options.out)


def measure(engine: Engine, model: str, tokens: int, runs: int) -> list[dict[str, Any]]:
    """Return a record for each case."""
    cases = make_cases(engine)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    samples: dict[str, list[float]] = {name: [] for name in cases}
    more: dict[str, dict[str, Any]] = {name: {} for name in cases}
    for _ in range(runs):
        for name, make in cases.items():
            inner = make()
            timed = None if inner is None else Timed(inner)
            answer = engine.generate(PROMPT, params, timed)
            assert len(answer.token_ids) == tokens, f"{name}: the answer ended early"
            samples[name].append(1e6 / answer.timings.tokens_per_second)
            if timed is not None:
                guide = statistics.median(timed.seconds) * 1e6
                more[name] = {"guide_us": round(guide, 1), "forced_tokens": timed.forced}
    return [
        {
            "name": "structured",
            "engine": "monolane",
            "case": name,
            "model": model,
            "dtype": engine.backend.dtype,
            "tokens": tokens,
            **summary(found, f"µs a token: {name}"),
            **more[name],
        }
        for name, found in samples.items()
    ]


def make_cases(engine: Engine) -> dict[str, Callable[[], Constraint | None]]:
    """Return what makes each case's constraint."""

    def json_of(schema: dict[str, Any]) -> Callable[[], Constraint | None]:
        request = CompletionRequest.model_validate({"prompt": PROMPT, "guided_json": schema})
        return lambda: constraint_of(
            request.asked(), answer_grammar(request.structured(), None), engine
        )

    return {
        "no constraint": lambda: None,
        "all tokens allowed": lambda: Anything(engine.config.vocab_size),
        "inside a JSON string": json_of(TEXT),
        "array of JSON objects": json_of(ROWS),
    }


if __name__ == "__main__":
    run_script(main)
