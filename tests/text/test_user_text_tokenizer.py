"""The tokenizer in which no text spells a control token: one model where that is enough."""

import json
from typing import Any

import pytest
import tokenizers

from monolane.text import _user_text_tokenizer
from monolane.text._control_token_search import Spellings
from monolane.text._user_text_tokenizer import Twin

# "<s>" is a piece of the vocabulary too; what reaches it is up to the merges.
PIECES = ["<s>", "<", "s", ">", "a", "<s", "aa", "as"]
PLAIN = ["< s", "a a", "a s"]


def make(merges: list[str], ignore_merges: bool = False) -> Twin:
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    data: dict[str, Any] = {
        "added_tokens": [
            {"id": 0, "content": "<s>", "special": True, **added},
            {"id": 8, "content": "  ", "special": False, **added},
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {
            "type": "BPE",
            "vocab": {piece: place for place, piece in enumerate(PIECES)},
            "merges": merges,
            "ignore_merges": ignore_merges,
        },
    }
    library = tokenizers.Tokenizer.from_str(json.dumps(data))
    return Twin(data, library, Spellings({"<s>"}))


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each second model that is built."""
    found: list[int] = []
    build = _user_text_tokenizer._load_renamed

    def counted(*arguments: Any) -> tokenizers.Tokenizer:
        found.append(1)
        return build(*arguments)

    monkeypatch.setattr(_user_text_tokenizer, "_load_renamed", counted)
    return found


def test_one_model_is_enough_where_no_text_reaches_a_control_token(builds: list[int]) -> None:
    twin = make(PLAIN)
    assert twin.plain("aa<s>as  a") == [6, 5, 3, 7, 8, 4]  # in the ids of the file
    assert twin.mixed("a<s>a", {}) == [4, 0, 4]
    assert builds == []


def test_merges_that_make_a_control_token_need_a_second_model(builds: list[int]) -> None:
    twin = make([*PLAIN, "<s >"])
    assert builds == [1]
    assert twin.plain("<s>") == [5, 3]
    assert twin.mixed("<s>a", {}) == [0, 4]


def test_a_control_token_among_whole_words_needs_a_second_model(builds: list[int]) -> None:
    twin = make(PLAIN, ignore_merges=True)
    assert twin.plain("aa a") == [6, 4]
    assert builds == []
    assert twin.plain("<s> a") == [5, 3, 4]
    assert twin.plain("<s>") == [5, 3]
    assert builds == [1]
