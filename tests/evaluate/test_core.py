"""CORE: what is shown and scored of each kind, by a scorer of known numbers; engine and server."""

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from monolane.errors import DataError, MissingExtraError, MonolaneError, RequestError
from monolane.evaluate import (
    Answer,
    EvalOptions,
    Question,
    ScoringSubject,
    ServerSubject,
    evaluate,
    make_tasks,
    open_engine,
    render_markdown,
    render_page,
)
from monolane.evaluate._core.bundle import Part, read_bundle
from monolane.evaluate._core.prompts import render, scored_tokens
from monolane.evaluate._core.task import figures_of

CONFIG = """
icl_tasks:
-
  label: colours
  dataset_uri: choice/colours.jsonl
  num_fewshot: [2]
  icl_task_type: multiple_choice
  continuation_delimiter: "\\nAnswer: "
-
  label: heroes
  dataset_uri: heroes.jsonl
  num_fewshot: [0]
  icl_task_type: schema
-
  label: ends
  dataset_uri: ends.jsonl
  num_fewshot: [1]
  icl_task_type: language_modeling
"""
META = "Eval Task,Task Category,Random baseline\ncolours,x,25\nheroes,y,50\nends,z,0\n"
ROWS: dict[str, list[dict[str, Any]]] = {
    "choice/colours": [
        {"query": f"q{i}", "choices": ["red", "blue blue blue"], "gold": int(i < 3)}
        for i in range(4)
    ],
    "heroes": [
        {"context_options": ["Ann", "Bob"], "continuation": "was here now", "gold": gold}
        for gold in (0, 0, 1)
    ],
    "ends": [
        {"context": " one two ", "continuation": "three four"},
        {"context": "one two", "continuation": "three five"},
    ],
}
# Nats of a word, or of a word behind another.
TABLE: dict[Any, float] = {
    "red": -2, "blue": -1, "Ann": -9, "Bob": -0.1, ("Ann", "was"): -1, ("Bob", "was"): -4,
}  # fmt: skip
GREEDY = {("two", "three"), ("three", "four")}
# Of Python's own generator, seeds 1337 and 1234; "red" is right for q3 alone.
ORDER = ["q1", "q0", "q3", "q2"]
SHOWN = "q3\nAnswer: red\n\nq0\nAnswer: blue blue blue\n\nq1\nAnswer: "
# By hand: the mean over a choice's tokens prefers "blue blue blue" (-1) to "red" (-2), the sum
# would not; Ann's "was" is likelier than Bob's, names are not scored; one of two ends is greedy's.
CENTRED = {"colours": (0.75 - 0.25) / 0.75, "heroes": (2 / 3 - 0.5) / 0.5, "ends": 0.5}


class Table(ScoringSubject):
    """Knows how probable each word is."""

    name, chat, context = "table", False, None

    def __init__(self) -> None:
        self.about: dict[str, Any] = {"model": "table"}
        self.words: list[str] = ["<s>"]
        self.asked = 0

    @property
    def first_id(self) -> int:
        return 0

    def token_ids(self, text: str, special: bool = True) -> list[int]:
        assert not special
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
        return [self.words.index(word) for word in text.split()]

    def score(self, ids: Sequence[int], count: int) -> tuple[list[float], bool]:
        self.asked += 1
        assert ids[0] == 0
        words = [self.words[i] for i in ids]
        pairs = list(pairwise(words))[-count:]
        each = [TABLE.get(pair, TABLE.get(pair[1], -5)) for pair in pairs]
        return each, all(pair in GREEDY for pair in pairs)

    def ask(self, question: Question, sample: int = 0) -> Answer:
        raise AssertionError

    def count(self, question: Question) -> int:
        raise AssertionError


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A folder of the bundle's layout."""
    folder = tmp_path / "data" / "eval_bundle"
    for name, rows in ROWS.items():
        path = folder / "eval_data" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "core.yaml").write_text(CONFIG)
    (folder / "eval_meta_data.csv").write_text(META)
    return folder


def part(kind: str, rows: list[dict[str, Any]], shots: int = 1) -> Part:
    return Part("x", kind, shots, "|", 0.5, rows)


def test_core_is_the_mean_of_centred_accuracies(bundle: Path, tmp_path: Path) -> None:
    subject = Table()
    options = EvalOptions(tasks=("core",), data=(bundle.parent,))
    report = evaluate(subject, make_tasks(options), tmp_path / "out")
    (task,) = report["tasks"]
    found = {figure["metric"]: figure for figure in task["figures"]}
    for label, value in CENTRED.items():
        assert found[f"{label}: centred"]["value"] == pytest.approx(value), label
    core = found["CORE"]
    assert core["value"] == pytest.approx(sum(CENTRED.values()) / 3)
    assert core["low"] < core["value"] < core["high"]
    assert core["count"] == 9
    accuracy, centred = found["colours: accuracy"], found["colours: centred"]
    assert (accuracy["value"], accuracy["count"]) == (75, 4)
    assert accuracy["interval"].startswith("Wilson")
    assert centred["low"] == pytest.approx((accuracy["low"] / 100 - 0.25) / 0.75)
    assert "CORE has 22" in " ".join(task["notes"])
    asked = subject.asked
    assert asked == 4 * 2 + 3 * 2 + 2
    assert evaluate(subject, make_tasks(options), tmp_path / "out")["tasks"] == report["tasks"]
    assert subject.asked == asked


def test_one_item_of_each_task_leaves_core_no_interval() -> None:
    parts = [part("multiple_choice", [{}]), part("schema", [{}])]
    core, centred, accuracy, *_ = figures_of(parts, [[1], [0]])
    assert (core.value, core.low, core.high) == (0, None, None)
    assert (centred.low, centred.high) != (None, None) != (accuracy.low, accuracy.high)


def test_items_and_solved_ones_are_drawn_with_fixed_seeds(bundle: Path) -> None:
    colours, _, ends = read_bundle([bundle], None).parts
    assert [row["query"] for row in colours.rows] == ORDER
    assert render(colours, 0) == [SHOWN + "red", SHOWN + "blue blue blue"]
    assert [row["query"] for row in read_bundle([bundle], 3).parts[0].rows] == ORDER[:3]
    # The context's own spaces are taken away, and the delimiter's where nothing follows it.
    other = ends.rows[1]["continuation"]
    this = ends.rows[0]["continuation"]
    begun = f"one two {other}\n\none two"
    assert render(ends, 0) == [begun, f"{begun} {this}"]


def test_solved_items_are_of_each_kind_and_never_the_item_itself() -> None:
    schema = [
        {"context_options": [f"a{i}", f"b{i}"], "continuation": f"c{i}", "gold": i % 2}
        for i in range(2)
    ]
    assert render(part("schema", schema), 0) == ["b1|c1\n\na0|c0", "b1|c1\n\nb0|c0"]
    choice = [{"query": f"q{i}", "choices": ["x", "y"], "gold": i % 2} for i in range(2)]
    assert render(part("multiple_choice", choice), 0) == ["q1|y\n\nq0|x", "q1|y\n\nq0|y"]
    for number in range(2):
        assert f"q{number}|x\n\n" not in render(part("multiple_choice", choice), number)[0]


def test_what_is_scored_begins_where_ways_differ_and_has_a_token_at_least() -> None:
    def encode(text: str) -> list[int]:
        return [0, *map(ord, text)]

    choice = part("multiple_choice", [{"query": "q", "choices": ["an ape", "an", "an owl"]}], 0)
    # They differ behind "an"; of that choice its last token is scored, and so of the others.
    assert [way.count for way in scored_tokens(choice, 0, encode)] == [5, 1, 5]
    schema = part("schema", [{"context_options": ["his", "this"], "continuation": "is"}], 0)
    assert [way.count for way in scored_tokens(schema, 0, encode)] == [6, 6]
    lm = part("language_modeling", [{"context": "to be", "continuation": "or"}], 0)
    (way,) = scored_tokens(lm, 0, encode)
    assert (way.ids, way.count) == (encode("to be|or"), 2)


def test_an_engine_and_a_server_score_alike(bundle: Path, server_url: str, tmp_path: Path) -> None:
    options = EvalOptions(tasks=("core",), data=(bundle,))
    with open_engine("demo") as subject:
        ours = evaluate(subject, make_tasks(options), tmp_path / "engine")
        # The engine's logits, and nothing else.
        ids = subject.engine.prompt_ids("def f(x):\n    return x")
        nats, greedy = subject.score(ids, 3)
        logits_TV = subject.engine.logits(ids[:-1])
        assert greedy == all(logits_TV[i - 1].argmax() == ids[i] for i in (-3, -2, -1))
        assert len(nats) == 3
    theirs = evaluate(ServerSubject(server_url), make_tasks(options), tmp_path / "server")
    assert ours["tasks"] == theirs["tasks"]
    lines = [
        [json.loads(line) for line in (tmp_path / who / "core.jsonl").read_text().splitlines()[1:]]
        for who in ("engine", "server")
    ]
    assert len(lines[0]) == 9
    for one, other in zip(*lines, strict=True):
        # The engine's own two ways to a log-probability, float32.
        assert one["nats"] == pytest.approx(other["nats"], abs=1e-4)
        assert one["score"] == other["score"]


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("core.yaml", "icl_tasks: [1]", "core.yaml: expected icl_tasks"),
        ("core.yaml", CONFIG.replace("schema", "poem"), "heroes: expected one of multiple_choice"),
        ("core.yaml", CONFIG.replace("heroes.j", "gone.j"), "gone.jsonl: expected a file"),
        ("eval_meta_data.csv", META.replace("heroes", "h"), "random baseline of heroes"),
        ("eval_meta_data.csv", META.replace("50", "half"), "columns 'Eval Task'"),
        ("eval_data/ends.jsonl", '{"context": "a"}\n', "expected 'continuation'"),
        ("eval_data/ends.jsonl", "[]\n", "ends.jsonl, line 1"),
    ],
)
def test_a_malformed_bundle_is_named(bundle: Path, file: str, text: str, words: str) -> None:
    (bundle / file).write_text(text)
    with pytest.raises(DataError, match=re.escape(words)):
        make_tasks(EvalOptions(tasks=("core",), data=(bundle,)))


def test_too_few_items_for_solved_ones_are_refused(bundle: Path) -> None:
    with pytest.raises(RequestError, match="expected more than 2, since colours"):
        make_tasks(EvalOptions(tasks=("core",), data=(bundle,), limit=2))


def test_what_is_missing_is_a_line_of_the_report(tmp_path: Path) -> None:
    with pytest.raises(MonolaneError, match="eval_bundle.zip"):
        make_tasks(EvalOptions(tasks=("core",), data=(tmp_path,)))
    options = EvalOptions(tasks=("core",), data=(tmp_path,), skip_missing=True)
    report = evaluate(Table(), make_tasks(options), tmp_path / "out")
    (task,) = report["tasks"]
    assert (task["task"], list(task["figures"])) == ("core", [])
    for text in (render_markdown(report), render_page(report)):
        assert "Not measured: core: expected --data FOLDER" in text


def test_tool_calls_without_their_package_are_a_line_of_the_report_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monolane.evaluate._bfcl.checker.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install --no-deps bfcl-eval"):
        make_tasks(EvalOptions(tasks=("bfcl",)))
    options = EvalOptions(tasks=("bfcl_simple_python",), skip_missing=True)
    (task,) = evaluate(Table(), make_tasks(options), tmp_path / "out")["tasks"]
    assert task["task"] == "bfcl"
    assert task["notes"][0].startswith("Not measured: bfcl needs packages")


def test_the_card_is_all_that_was_published_with_the_model() -> None:
    names = EvalOptions(tasks=("perplexity", "card", "mbpp+")).names
    assert names == ("perplexity", "humaneval+", "mbpp+", "arc_challenge", "arc_easy", "ruler")
