"""Validation: the sources' bits and the tasks' accuracies, under the names that boards show."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel as ByteLevelPieces

from monolane.data import Encoded
from monolane.errors import ConfigError
from monolane.train._inputs import Validator, choose_documents
from monolane.train._tasks import Example, Task


class Uniform(torch.nn.Module):
    """Gives each of ``tokens`` the same probability; counts the rows that it saw."""

    rows, tokens = 0, 8

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        self.rows += len(input_ids)
        return SimpleNamespace(logits=torch.zeros(*input_ids.shape, self.tokens))


def _document(tokens: int, size: int) -> Encoded:
    return Encoded(np.ones(tokens, dtype=np.uint16), size)


def test_bits_of_each_source_and_of_all_bytes_together() -> None:
    held_out = {"web": [_document(11, 10)], "code": [_document(31, 15), _document(61, 75)]}
    scores = Validator(held_out, context=64).run(Uniform())
    assert scores == {
        "bits_per_byte": pytest.approx(3 * 100 / 100),
        "bits_per_byte/web": pytest.approx(3 * 10 / 10),
        "bits_per_byte/code": pytest.approx(3 * 90 / 90),
    }
    uneven = {"web": [_document(11, 10)], "code": [_document(31, 90)]}
    scores = Validator(uneven, context=64).run(Uniform())
    assert scores["bits_per_byte/code"] == pytest.approx(1.0)
    assert scores["bits_per_byte"] == pytest.approx(1.2)  # of all bytes, not of the sources' means


def test_tasks_come_with_their_mean() -> None:
    words = Tokenizer(WordLevel({"a": 0, "b": 1}, "a"))
    example = Example((("a", "a"),), 0)  # the first of equals is argmax: right
    other = Example((("a", "b"), ("a", "a")), 1)  # a tie: wrong, chance 1/2
    tasks = [Task("copy", (example,)), Task("choice", (other,))]
    scores = Validator({}, tasks, words, context=8).run(_Letters())
    assert scores == {
        "centred_accuracy": 0.0,
        "centred_accuracy/copy": 1.0,
        "centred_accuracy/choice": -1.0,
    }


class _Letters(torch.nn.Module):
    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 2))


def test_tasks_need_a_tokenizer() -> None:
    with pytest.raises(ConfigError, match="expected a tokenizer"):
        Validator({}, [Task("t", (Example((("a", "b"),), 0),))], context=8)


def test_whole_documents_within_the_rows() -> None:
    documents = [_document(10, 1), _document(1, 1), _document(1000, 2), _document(96, 3)]
    documents += [_document(64, 4), _document(64, 5)]
    chosen = choose_documents(documents, context=64, rows=4)
    assert [size for _, size in chosen] == [1, 3, 4]  # 1 + 2 + 1 rows; 1000 tokens are too long
    model = Uniform()
    Validator({"x": documents}, context=64, rows=4).run(model)
    assert model.rows == 4


def _bytes_tokenizer() -> Tokenizer:
    """A token for each byte; ids 0 to 255 are those of its alphabet."""
    alphabet = sorted(ByteLevelPieces.alphabet())
    tokenizer = Tokenizer(BPE({piece: i for i, piece in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = ByteLevelPieces(add_prefix_space=False)
    tokenizer.decoder = ByteLevel()
    return tokenizer


def test_of_a_long_document_the_beginning_is_scored() -> None:
    tokenizer = _bytes_tokenizer()
    text = "é" * 500  # of two tokens each, so that a cut may fall into one
    long = Encoded(np.array(tokenizer.encode(text).ids, np.uint16), len(text.encode()))
    assert len(long.ids) == 1000
    (beginning,) = choose_documents([long], 64, 2, tokenizer)
    assert (len(beginning.ids), beginning.bytes) == (96, 96)
    (beginning,) = choose_documents([long], 62, 2, tokenizer)  # 93 tokens would cut a character
    assert (len(beginning.ids), beginning.bytes) == (92, 92)
    np.testing.assert_array_equal(beginning.ids, long.ids[:92])
    # Whole documents come first, and what they leave is the beginning's.
    documents = [long, _document(96, 3), long]
    chosen = choose_documents(documents, 64, 4, tokenizer)
    assert [len(ids) for ids, _ in chosen] == [96, 96]
    model = Uniform()
    model.tokens = 256  # 8 bits each
    scores = Validator({"x": documents}, (), tokenizer, context=64, rows=4).run(model)
    assert model.rows == 4
    assert scores["bits_per_byte"] == pytest.approx(8 * (95 + 95) / (3 + 96))


def test_rows_for_no_document_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 2 rows of 64 tokens, found none among 1"):
        choose_documents([_document(1000, 1)], context=64, rows=2)
