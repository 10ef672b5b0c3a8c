"""Tasks tell a model that knows from one that does not, and chance from knowledge."""

import ast
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing

import monolane
from monolane.errors import ConfigError
from monolane.hf import LaneformerForCausalLM
from monolane.train._tasks import (
    Example,
    Task,
    TaskScore,
    centred_accuracy,
    load_task,
    score_tasks,
    shipped_tasks,
)

DEMO = Path(monolane.__file__).parent / "demo"
LETTERS = "_^abcdefgh"


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    """One token per letter, after a beginning of text ``^``."""
    tokenizer = Tokenizer(WordLevel({letter: at for at, letter in enumerate(LETTERS)}, "_"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    tokenizer.post_processor = TemplateProcessing(single="^ $A", special_tokens=[("^", 1)])
    return tokenizer


class Bigrams(torch.nn.Module):
    """Gives the odds of each letter after each other letter; 1 where nothing is said."""

    def __init__(self, odds: dict[str, float]) -> None:
        super().__init__()
        table = torch.ones(len(LETTERS), len(LETTERS))
        for (first, second), value in odds.items():
            table[LETTERS.index(first), LETTERS.index(second)] = value
        self.logits = table.log()

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits[input_ids])


def _accuracy(odds: dict[str, float], tokenizer: Tokenizer, *examples: Example) -> float:
    return score_tasks(Bigrams(odds), [Task("t", examples)], tokenizer, 64)["t"].accuracy


def test_the_cheapest_continuation_per_byte_is_chosen(letters: Tokenizer) -> None:
    choices = Example((("a", "b"), ("a", "c")), answer=1)
    assert _accuracy({"ac": 2.0}, letters, choices) == 1
    assert _accuracy({"ab": 2.0}, letters, choices) == 0
    # Six letters cost more than one, but less for each of them.
    longer = Example((("a", "b"), ("a", "cdefgh")), answer=1)
    odds = {"ab": 4.0, "cd": 99.0, "de": 99.0, "ef": 99.0, "fg": 99.0, "gh": 99.0}
    assert _accuracy(odds, letters, longer) == 1


def test_a_tie_is_no_knowledge(letters: Tokenizer) -> None:
    assert _accuracy({}, letters, Example((("a", "b"), ("a", "c")), answer=0)) == 0
    assert _accuracy({"ab": float("nan")}, letters, Example((("a", "b"), ("a", "c")), 0)) == 0


def test_of_contexts_the_one_is_chosen_that_makes_the_text_likely(letters: Tokenizer) -> None:
    schema = Example((("ab", "c"), ("ad", "c")), answer=1)
    assert _accuracy({"dc": 2.0}, letters, schema) == 1
    assert _accuracy({"bc": 2.0, "ad": 50.0}, letters, schema) == 0  # contexts cost nothing


def test_a_target_must_be_what_greedy_decoding_writes(letters: Tokenizer) -> None:
    target = Example((("a", "bcd"),), answer=0)
    odds = {"ab": 2.0, "bc": 2.0, "cd": 2.0}
    assert _accuracy(odds, letters, target) == 1
    assert _accuracy({**odds, "ce": 3.0}, letters, target) == 0
    half = [Example((("a", "b"),), 0), Example((("a", "c"),), 0)]
    assert _accuracy(odds, letters, *half) == 0.5


def test_accuracy_is_centred_on_chance() -> None:
    assert TaskScore(accuracy=0.25, chance=0.25).centred == 0
    assert TaskScore(accuracy=1.0, chance=0.25).centred == 1
    assert TaskScore(accuracy=0.5, chance=0.0).centred == 0.5
    assert TaskScore(accuracy=0.0, chance=0.5).centred == -1
    scores = {"a": TaskScore(1.0, 0.5), "b": TaskScore(0.25, 0.25)}
    assert centred_accuracy(scores) == 0.5
    assert Example((("a", "b"),) * 4, 0).chance == 0.25
    assert Example((("a", "b"),), 0).chance == 0


def test_scores_do_not_depend_on_the_other_tasks_or_the_size_of_a_pass(letters: Tokenizer) -> None:
    tasks = [
        Task("short", (Example((("a", "b"), ("a", "c")), 0), Example((("a", "b"), ("c", "b")), 1))),
        Task("long", (Example((("abcdefgh" * 4, "b"),), 0), Example((("a", "c"), ("a", "d")), 0))),
    ]
    model = Bigrams({"ab": 2.0, "cb": 3.0, "hb": 2.0, "ad": 4.0})
    together = score_tasks(model, tasks, letters, 64)
    assert together == {"short": TaskScore(1.0, 0.5), "long": TaskScore(0.5, 0.25)}
    for rows in (1, 3):
        apart = [score_tasks(model, [task], letters, 64, rows) for task in tasks]
        assert apart[0] | apart[1] == together


def test_a_token_across_the_border_counts_as_continuation() -> None:
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    from monolane.train._tasks import _window

    window = _window(("x = self.na", "me\n"), tokenizer, 64)
    texts = [tokenizer.decode([token]) for token in window.ids[window.first :].tolist()]
    assert "".join(texts).endswith("me\n")
    assert tokenizer.decode(window.ids[: window.first].tolist()) in ("x = self.na", "x = self.")


def test_the_shipped_tasks_are_ten_small_files() -> None:
    folder = Path(monolane.__file__).parent / "train" / "tasks"
    sizes = {path.stem: path.stat().st_size for path in folder.iterdir()}
    assert set(sizes) == set(shipped_tasks())
    assert len(sizes) == 10
    assert max(sizes.values()) < 10_000


@pytest.mark.parametrize("name", shipped_tasks())
def test_a_shipped_task_cannot_be_guessed_by_place_or_length(name: str) -> None:
    examples = load_task(name).examples
    assert len(examples) >= 36
    assert len(set(examples)) == len(examples)
    several = [example for example in examples if len(example.pairs) > 1]
    for place in range(max((len(example.pairs) for example in several), default=0)):
        share = sum(example.answer == place for example in several) / len(several)
        assert share <= 2 * several[0].chance - 0.05, f"place {place}"
    for pick in (min, max):
        lengths = [
            example.pairs[example.answer] == pick(example.pairs, key=lambda pair: len(pair[1]))
            for example in several
        ]
        assert sum(lengths) <= 0.6 * len(lengths), f"the {pick.__name__} is right too often"


def test_the_syntax_task_is_right_about_python() -> None:
    for example in load_task("syntax").examples:
        for at, (context, choice) in enumerate(example.pairs):
            code = context + choice
            body = "    pass\n" if code.endswith(":\n") else ""
            rest = "except OSError:\n    pass\n" if code.startswith("try:") and not body else ""
            try:
                ast.parse(code + body + rest)
                valid = True
            except SyntaxError:
                valid = False
            assert valid == (at == example.answer), code


def test_the_demo_model_is_told_from_random_weights() -> None:
    """Of some 80 examples with 4 choices, chance is 0 +- 0.064 (sqrt(3/16/80) / 0.75): 5 sigma."""
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    tasks = [load_task(name) for name in ("names", "syntax")]
    model = LaneformerForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    trained = centred_accuracy(score_tasks(model, tasks, tokenizer, 1024, 16))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random = LaneformerForCausalLM(model.config)
    untrained = centred_accuracy(score_tasks(random, tasks, tokenizer, 1024, 16))
    assert abs(untrained) < 0.32
    assert trained > 0.64


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Expecting property name"),
        ('{"context": "a"}', "of no kind"),
        ('{"context": "a", "choices": ["b"], "answer": 0}', "answer 0 of 1 choices"),
        ('{"context": "a", "choices": ["b", "c"], "answer": 2}', "answer 2 of 2 choices"),
        ('{"context": "a", "target": ""}', "a continuation is empty"),
        ('["a"]', "not an object"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"context": "a", "target": "b"}) + f"\n{line}\n")
    with pytest.raises(ConfigError, match=rf"mine.jsonl: line 2: .*{message}.*; mend"):
        load_task(path)


def test_a_line_of_json_may_hold_other_ends_of_lines(tmp_path: Path) -> None:
    text, path = "a\u2028\u2029\x85b", tmp_path / "mine.jsonl"
    line = json.dumps({"context": text, "target": "b"}, ensure_ascii=False)
    path.write_text(f"{line}\n\n{line}\n", encoding="utf-8")
    assert [example.pairs for example in load_task(path).examples] == [((text, "b"),)] * 2


def test_what_is_no_task_is_refused(tmp_path: Path, letters: Tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"validation.tasks: nonsense: expected .* one of agre"):
        load_task("nonsense")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ConfigError, match="expected examples"):
        load_task(tmp_path / "empty.jsonl")
    with pytest.raises(ConfigError, match="at most 4 tokens, .* got 6"):
        score_tasks(Bigrams({}), [Task("t", (Example((("abcd", "e"),), 0),))], letters, 4)
