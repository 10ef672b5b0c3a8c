"""How exactly JSON schemas are followed: schemas of others, with values that meet them or do not.

    git clone https://github.com/guidance-ai/jsonschemabench
    python bench/schemas.py jsonschemabench/maskbench/data --every 5 --out bench/results

The folder is MaskBench's: a file has a ``schema`` and ``tests``, each a value (``data``) that is
``valid`` or not. ``monolane`` is what a request's schema goes through in the server, limits on size
and steps included; ``llguidance`` is the library alone, with its own defaults and none of them.
A false accept is an invalid value that could be written; a false reject, a valid one that could not
(values are spelled as ``json.dumps`` does). A schema may also be refused, as a request with it
would be. Compile times are of schemas that were not refused, the first mask included.
"""

import argparse
import json
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llguidance
import numpy as np
from _document import publish
from _program import run_script

from monolane.engine import Engine
from monolane.errors import RequestError
from monolane.measure import Record
from monolane.serve._grammar.compiler import Compiler, grammar_of
from monolane.serve._grammar.structured import read_structured
from monolane.serve._grammar.vocabulary import Vocabulary

Compile = Callable[[Any], llguidance.LLMatcher]  # of a schema; RequestError, ValueError: refused


@dataclass
class Tally:
    """What became of the schemas of one source."""

    schemas: int = 0
    refused: int = 0
    valid: int = 0
    invalid: int = 0
    false_accepts: int = 0
    false_rejects: int = 0
    seconds: list[float] = field(default_factory=list)  # of compiling
    wrong: list[str] = field(default_factory=list)  # files with a false accept


def main() -> None:
    """Measure, and write one results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of MaskBench's data")
    parser.add_argument("--every", type=int, default=1, help="take one file in so many")
    parser.add_argument("--model", default="demo", help="whose vocabulary")
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.json"))[:: options.every]
    if not files:
        parser.error(f"{options.folder}: expected MaskBench's .json files, got none")
    records: list[Record] = []
    with Engine.load(options.model) as engine:
        for name, compiled in {"monolane": ours(engine), "llguidance": alone(engine)}.items():
            tallies = tally(files, compiled, engine)
            total = Tally()
            for one in tallies.values():
                for key, value in vars(one).items():
                    setattr(total, key, getattr(total, key) + value)
            for source, one in [*sorted(tallies.items()), ("all", total)]:
                records.append(record(name, source, one, options.model))
    publish(records, "schemas", options.out)


def ours(engine: Engine) -> Compile:
    """Return what the server does with a schema."""
    compiler = Compiler(engine)

    def compiled(schema: Any) -> llguidance.LLMatcher:
        wanted = read_structured(
            {"type": "json_schema", "json_schema": {"schema": schema}}, None, {}
        )
        assert wanted is not None
        return compiler.walk(grammar_of(wanted))._matcher

    return compiled


def alone(engine: Engine) -> Compile:
    """Return what the library does with one."""
    vocabulary = Vocabulary(engine)
    tokenizer = llguidance.LLTokenizer(
        vocabulary,  # type: ignore[arg-type]  # any object with a wrapper's attributes will do
        n_vocab=engine.config.vocab_size,
        eos_token=vocabulary.eos_token_ids,
    )

    def compiled(schema: Any) -> llguidance.LLMatcher:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    return compiled


def tally(files: Iterable[Path], compiled: Compile, engine: Engine) -> dict[str, Tally]:
    """Return what became of each source's schemas."""
    assert engine.tokenizer is not None
    tallies: dict[str, Tally] = defaultdict(Tally)
    for file in files:
        content = json.loads(file.read_text(encoding="utf-8"))
        one = tallies[re.split(r"---|_\d|_(?=java|simple|multiple|parallel|sql)", file.stem)[0]]
        one.schemas += 1
        begun = time.perf_counter()
        try:
            matcher = compiled(content["schema"])
        except (RequestError, ValueError):
            one.refused += 1
            continue
        one.seconds.append(time.perf_counter() - begun)
        for test in content["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False)
            ids = engine.tokenizer.encode(text, add_special_tokens=False)
            accepted = takes(matcher.deep_copy(), ids)
            one.valid += test["valid"]
            one.invalid += not test["valid"]
            one.false_rejects += test["valid"] and not accepted
            if accepted and not test["valid"]:
                one.false_accepts += 1
                one.wrong.append(file.name)
    return tallies


def takes(matcher: llguidance.LLMatcher, ids: list[int]) -> bool:
    """Tell whether an answer may be these tokens and nothing more."""
    return (
        matcher.validate_tokens(ids) == len(ids)
        and matcher.consume_tokens(ids)
        and (matcher.is_accepting() or matcher.is_stopped())
    )


def record(engine: str, source: str, one: Tally, model: str) -> Record:
    """Return a record of one source."""
    figures: dict[str, Any] = {
        "schemas": one.schemas,
        "refused": one.refused,
        "valid_values": one.valid,
        "invalid_values": one.invalid,
        "false_accepts": one.false_accepts,
        "false_rejects": one.false_rejects,
    }
    if one.seconds:
        milliseconds = np.array(one.seconds) * 1e3
        figures["compile_ms_median"] = round(statistics.median(milliseconds), 2)
        figures["compile_ms_p99"] = round(float(np.percentile(milliseconds, 99)), 2)
        figures["compile_ms_max"] = round(float(milliseconds.max()), 2)
    about = {"name": f"schemas: {source}", "engine": engine, "model": model}
    return about | figures | {"files_falsely_accepted": sorted(set(one.wrong))}


if __name__ == "__main__":
    run_script(main)
