"""A vocabulary in a GGUF file costs what the model has use for, whatever the file says."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane.errors import TextError
from monolane.text import GgufText
from monolane.text._gguf import _LONGEST, _MOST_MERGED

PATH = Path("model.gguf")


class Counted(Sequence[str]):
    """A list in a file: its length is known, and its items are only made when they are read."""

    def __init__(self, count: int) -> None:
        self.count, self.made = count, 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[str]:
        for i in range(self.count):
            self.made += 1
            yield str(i)

    def __getitem__(self, place: Any) -> Any:
        raise AssertionError


def llama(tokens: Sequence[str]) -> dict[str, Any]:
    count = len(tokens)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.zeros(count, np.float32),
        "tokenizer.ggml.token_type": np.ones(count, np.int32),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }


def test_more_tokens_than_the_embedding_has_rows_are_not_read() -> None:
    tokens = Counted(3_000_000)
    with pytest.raises(TextError, match="tokens: expected at most 260 texts.* got 3000000"):
        GgufText.open(llama(tokens), PATH, 260)
    assert tokens.made == 0
    assert GgufText.open(llama(Counted(260)), PATH, 260) is not None


def test_more_merges_than_tokens_can_be_cut_are_not_read() -> None:
    merges = Counted(1_000_000)
    found = llama(["a", "b", "ab", "abc"]) | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.merges": merges,
    }
    with pytest.raises(TextError, match="merges: expected at most 3 texts.* got 1000000"):
        GgufText.open(found, PATH)
    assert merges.made == 0


def test_a_token_of_a_megabyte_is_not_cut_at_every_place() -> None:
    with pytest.raises(TextError, match=f"at most {_LONGEST} characters, got one of 1000000"):
        GgufText.open(llama(["a", "b", "c", "x" * 1_000_000]), PATH)


def test_runs_of_each_length_are_merges_of_each_other() -> None:
    """Runs of a few letters: each is made of every two whose lengths add up to its own."""
    runs = [letter * n for letter in "abcdefgh" for n in range(1, 600)]
    assert sum(n * (n - 1) for n in range(1, 600)) * 8 > _MOST_MERGED
    with pytest.raises(TextError, match=f"made of {_MOST_MERGED} characters of others"):
        GgufText.open(llama(runs), PATH)
    assert GgufText.open(llama(["▁" * n for n in range(1, 65)]), PATH) is not None
