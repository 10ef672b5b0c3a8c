import json
import sysconfig
from itertools import chain
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from monolane.data import library_texts, train_vocabulary, write_vocabulary
from monolane.errors import TextError
from monolane.text import Tokenizer

_SIZE = 768
_BOS = 1
_CODE = "class A:\n    def f(self):\n        return {'id': 10}  # <s> é\n\n\n\tx\r\n"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Two packages of the running Python, 15 to 20 files."""
    root = Path(sysconfig.get_path("stdlib"))
    packages = (library_texts(root / name) for name in ("json", "email"))
    return [text for _, text in chain.from_iterable(packages)]


@pytest.fixture(scope="module")
def vocabulary(texts: list[str]) -> tokenizers.Tokenizer:
    return train_vocabulary(texts, _SIZE)


@settings(max_examples=300, deadline=None)
@given(text=st.text())
@example(text=_CODE)
@example(text="</s><|start_header_id|>\x00 \u00a0\u2028 \r\r\n\n  ")
def test_any_text_survives_the_round_trip(vocabulary: tokenizers.Tokenizer, text: str) -> None:
    vocabulary.encode_special_tokens = True  # a text that spells one is text
    try:
        ids = vocabulary.encode(text, add_special_tokens=False).ids
    finally:
        vocabulary.encode_special_tokens = False
    assert not set(ids) & set(range(5))
    assert vocabulary.decode(ids, skip_special_tokens=False) == text


def test_special_tokens_come_first(vocabulary: tokenizers.Tokenizer) -> None:
    assert vocabulary.get_vocab_size() == _SIZE
    assert [vocabulary.id_to_token(place) for place in range(5)] == [
        "<unk>",
        "<s>",
        "</s>",
        "<|start_header_id|>",
        "<|end_header_id|>",
    ]


def test_digits_stand_alone(vocabulary: tokenizers.Tokenizer) -> None:
    assert vocabulary.encode("x2025", add_special_tokens=False).tokens == ["x", "2", "0", "2", "5"]
    digits = [t for t in vocabulary.get_vocab() if any(c.isdigit() for c in t) and len(t) > 1]
    assert digits == []


@pytest.mark.parametrize("depth", [4, 8, 12])
def test_a_line_break_with_its_indentation_is_one_token(
    vocabulary: tokenizers.Tokenizer, depth: int
) -> None:
    tokens = vocabulary.encode("\n" + " " * depth + "return", add_special_tokens=False).tokens
    assert tokens == ["Ċ" + "Ġ" * depth, "return"]


def test_training_is_deterministic(texts: list[str], vocabulary: tokenizers.Tokenizer) -> None:
    assert train_vocabulary(texts, _SIZE).to_str() == vocabulary.to_str()


def test_too_little_text_is_an_error() -> None:
    with pytest.raises(TextError, match="enough distinct pieces for 512 tokens, it gave 26"):
        train_vocabulary(["abc"], 512)


def test_two_readers_of_the_folder_agree(vocabulary: tokenizers.Tokenizer, tmp_path: Path) -> None:
    write_vocabulary(vocabulary, tmp_path, 64)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert settings["add_bos_token"] is True
    text = _CODE.replace("<s>", "")
    expected = [_BOS, *vocabulary.encode(text, add_special_tokens=False).ids]
    assert vocabulary.encode(text).ids == expected
    ours = Tokenizer.open(tmp_path)
    assert ours is not None
    assert ours.encode(text) == expected


def test_transformers_reads_the_folder_alike(
    vocabulary: tokenizers.Tokenizer, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    write_vocabulary(vocabulary, tmp_path, 64)
    text = _CODE.replace("<s>", "")
    expected = vocabulary.encode(text).ids
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.encode(text) == expected
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.unk_token_id) == (_BOS, 2, 0)
    assert theirs.decode(expected[1:]) == text
