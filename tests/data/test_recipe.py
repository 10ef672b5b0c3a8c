"""A recipe is read whole or refused with the key at fault; its paths are those beside it."""

import re
from pathlib import Path

import pytest

from monolane.data import read_recipe
from monolane.errors import ConfigError

LEAST = """
[tokenizer]
vocabulary = 300
[[sources]]
name = "a"
kind = "text"
path = "texts"
"""


def read(tmp_path: Path, text: str) -> object:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return read_recipe(path)


def test_paths_are_below_the_recipe_or_absolute(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    more = (
        '[[sources]]\nname = "b"\nkind = "code"\npath = "/elsewhere"\npattern = ["**/*.c"]\n'
        '[[sources]]\nname = "c"\nkind = "python-library"\n'
        '[decontamination]\nsets = [{ name = "s", path = "s.jsonl" }]\n'
    )
    path.write_text(LEAST + more)
    recipe = read_recipe(path)
    paths = [source.path for source in recipe.sources]
    assert paths == [str(tmp_path / "texts"), "/elsewhere", ""]
    assert recipe.decontamination.sets[0].path == str(tmp_path / "s.jsonl")
    assert recipe.source("b").patterns == ("**/*.c",)
    assert recipe.source("a").patterns == ("**/*.txt", "**/*.md", "**/*.rst")


def test_priority_comes_before_the_order_of_sources(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    other = '[[sources]]\nname = "b"\nkind = "text"\npath = "b"\n'
    path.write_text(LEAST + other + '[duplicates]\npriority = ["b"]\n')
    assert [source.name for source in read_recipe(path).by_priority()] == ["b", "a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[", "expected TOML, got"),
        ("", "the config: expected sources, tokenizer, found none"),
        (
            LEAST + "colour = 3\n",
            r"expected a field of \[sources\[0\]\], got 'colour'; known are name, kind",
        ),
        (LEAST.replace('"text"', '"word"'), r"sources\[0\].kind: expected one of 'text', 'code'"),
        (LEAST.replace("300", '"many"'), "tokenizer.vocabulary: expected an integer"),
        (LEAST.replace("300", "100"), r"tokenizer.vocabulary: expected 261 .*, got 100"),
        (LEAST + '[duplicates]\npriority = ["b"]', r"duplicates.priority: .* \(a\), got 'b'"),
        (LEAST + "[stages.one]\nb = 1", r"stages.one: expected names of sources \(a\), got 'b'"),
        (
            LEAST + "[stages.one]\na = -1",
            r"stages.one: weights: expected a finite number from 0 on",
        ),
        (
            LEAST + "[stages.one]\na = 0",
            "stages.one: weights: expected at least one source above 0",
        ),
        (LEAST + LEAST.partition("300")[2], "expected distinct names, got 'a' twice"),
        (LEAST.replace('"a"', '"../a"'), r"expected a name of letters, .* got '../a'"),
        (LEAST.replace('"a"', '"work"'), "expected another name than 'work'"),
        (LEAST.replace('path = "texts"', ""), "sources.a: expected a path, found none"),
        ("held_out = 1.0\n" + LEAST, "held_out: expected less than 1, got 1.0"),
        (LEAST + "[duplicates]\nbuckets = 0", "duplicates.buckets: expected more than 0, got 0"),
        (
            LEAST.replace("vocabulary = 300", "vocabulary = 300\npath = 'x'"),
            "expected either path, .* or vocabulary",
        ),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


def test_the_recipe_of_the_documentation_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    (block,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    path = tmp_path / "recipe.toml"
    path.write_text(block)
    assert list(read_recipe(path).stages) == ["pretrain", "midtrain"]


def test_a_missing_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.toml: expected a TOML file, found none"):
        read_recipe(tmp_path / "none.toml")
