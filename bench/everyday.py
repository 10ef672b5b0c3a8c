"""Fifty questions that a newcomer types: does an answer end in a loop where float32's does not?

    python bench/everyday.py [--model smollm2] [--isa avx2 --isa auto] [--kept FILE] [--out DIR]

Each question of everyday.txt is a conversation of its own, in the model's own chat template, and is
answered greedily and as the model's files say (else at temperature 0.7), by the CPU backend on each
instruction set, and in float32. Of a .gguf file float32 means the file dequantised, on the same
backend, whose logits 'monolane verify' holds against Transformers'. Both draw with the same noise,
so an answer differs by the arithmetic alone. A loop is what ends an answer of 'monolane chat'.

Answers are kept in --kept as they come: the same command goes on there. Prints a results document
or, with --out, writes it there. Exit code 1 if an answer loops that does not in float32.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from _document import publish
from _program import run_script

from monolane import _env
from monolane.cpu import find_isa
from monolane.engine import Engine, SamplingDefaults, SamplingParams
from monolane.measure import Record
from monolane.model import is_gguf
from monolane.sources import find_model, unpack_gguf
from monolane.text import Repetition

QUESTIONS = Path(__file__).with_name("everyday.txt")
FLOAT32 = "float32"
SEQUENCES = 8  # answered together, which changes no bit of an answer
TERMINAL = SamplingDefaults(temperature=0.7, min_p=0.05)  # as 'chat' has it for a silent model

Answer = dict[str, Any]


def main() -> None:
    """Ask, compare, and print."""
    options = parse_arguments()
    questions = [
        line for line in options.questions.read_text(encoding="utf-8").splitlines() if line
    ]
    sets = list(dict.fromkeys(_set_named(name) for name in options.isa or ["auto"]))
    kept = Kept(options.kept)
    for way in (FLOAT32, *sets):
        ask_all(way, options, questions, kept)
    records = [
        record(options.model, way, draw, questions, kept)
        for draw in ("greedy", "sampled")
        for way in (FLOAT32, *sets)
    ]
    publish(records, f"everyday-{Path(options.model).stem}", options.out)
    if any(one["loops_of_its_own"] for one in records):
        sys.exit(1)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--isa", action="append", help="instruction set; auto: the best")
    parser.add_argument("--questions", type=Path, default=QUESTIONS)
    parser.add_argument("--max-tokens", type=int, default=512)  # as of 'chat'
    parser.add_argument("--kept", type=Path, help="JSON lines of answers; a run goes on there")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


class Kept:
    """The answers so far, by way, draw and question."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path and path.is_file() else []
        self._answers = {_key(answer): answer for answer in map(json.loads, lines)}

    def get(self, way: str, draw: str, question: str) -> Answer | None:
        """Return an answer, None if there is none yet."""
        return self._answers.get((way, draw, question))

    def add(self, answer: Answer) -> None:
        """Keep one."""
        self._answers[_key(answer)] = answer
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(answer, ensure_ascii=False) + "\n")


def _key(answer: Answer) -> tuple[str, str, str]:
    return answer["way"], answer["draw"], answer["question"]


def ask_all(way: str, options: argparse.Namespace, questions: list[str], kept: Kept) -> None:
    """Have the questions answered that are not yet."""
    wanted = [
        (draw, question)
        for draw in ("greedy", "sampled")
        for question in questions
        if kept.get(way, draw, question) is None
    ]
    if not wanted:
        return
    with Engine.load(options.model, "cpu") as engine:  # its own, which a dequantised folder lacks
        drawn = engine.defaults.over(TERMINAL).said()
    drawn.pop("max_tokens", None)
    greedy = SamplingParams(max_tokens=options.max_tokens, temperature=0.0)
    params = {"greedy": greedy, "sampled": replace(greedy, **drawn, seed=0)}
    with opened(way, options.model) as engine, ThreadPoolExecutor(SEQUENCES) as pool:
        answers = pool.map(lambda one: ask(engine, way, one[0], one[1], params[one[0]]), wanted)
        for count, answer in enumerate(answers, 1):
            kept.add(answer)
            sys.stderr.write(f"{way}: {count} of {len(wanted)}\n")


@contextmanager
def opened(way: str, model: str) -> Iterator[Engine]:
    """Load a model in float32, or as it is on an instruction set."""
    load: dict[str, Any] = {"backend": "cpu", "max_sequences": SEQUENCES, "context": 1024}
    if way != FLOAT32:
        os.environ[_env.ISA.name] = way
        with Engine.load(model, **load) as engine:
            yield engine
        return
    os.environ.pop(_env.ISA.name, None)
    path = find_model(model)
    with tempfile.TemporaryDirectory() as name:
        folder = path
        if is_gguf(path):
            folder = Path(name) / path.stem
            unpack_gguf(path, folder)
        with Engine.load(folder, dtype="float32", **load) as engine:
            yield engine


def ask(engine: Engine, way: str, draw: str, question: str, params: SamplingParams) -> Answer:
    """Have one question answered, up to its end or to a loop."""
    assert engine.tokenizer is not None
    repetition, loop = Repetition(), None
    text, ids = "", list[int]()
    with engine.stream([{"role": "user", "content": question}], params) as stream:
        for piece in stream:
            text += piece.text
            for token_id in piece.token_ids:  # one by one: how many come at once is chance
                ids.append(token_id)
                if loop := repetition.add([token_id]):
                    break
            if loop:
                text = engine.tokenizer.decode(ids)
                break
    return {
        "way": way,
        "draw": draw,
        "question": question,
        "text": text,
        "tokens": len(ids),
        "loop": None if loop is None else {"period": loop.period, "times": loop.times},
    }


def record(model: str, way: str, draw: str, questions: list[str], kept: Kept) -> Record:
    """Count the loops of one way, and those that float32 does not have."""
    answers = {question: kept.get(way, draw, question) or {} for question in questions}
    exact = {question: kept.get(FLOAT32, draw, question) or {} for question in questions}
    loops, theirs = (
        [question for question, answer in found.items() if answer["loop"]]
        for found in (answers, exact)
    )
    return {
        "name": "everyday",
        "model": Path(model).stem,
        "way": way,
        "draw": draw,
        "questions": len(questions),
        "loops": loops,
        "loops_of_its_own": [question for question in loops if question not in theirs],
        "loops_of_float32_alone": [question for question in theirs if question not in loops],
        "same_text": sum(answers[q]["text"] == exact[q]["text"] for q in questions),
        "tokens": sum(answer["tokens"] for answer in answers.values()),
        "answers": {question: answer["text"] for question, answer in answers.items()},
    }


def _set_named(name: str) -> str:
    os.environ.pop(_env.ISA.name, None)
    return find_isa(None if name == _env.ISA.default else name)


if __name__ == "__main__":
    run_script(main)
