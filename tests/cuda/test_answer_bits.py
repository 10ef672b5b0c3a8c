"""A GPU's answer, recorded, is computed anew on the processor: each token's logits, to the bit."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from emulated_gpu import EmulatedGpu
from models import random_weights

from monolane.cuda import AnswerBits, CudaExecutor, check_answer, record_answer
from monolane.errors import ConfigError
from monolane.model import Role, Weights

MakeGpu = Callable[..., EmulatedGpu]
PROMPT = (1, 17, 33, 5, 60, 2, 91, 44, 8, 71, 30)


@pytest.fixture(scope="module")
def weights() -> Weights:
    return random_weights()


@pytest.fixture
def answer(make_gpu: MakeGpu, weights: Weights) -> Iterator[AnswerBits]:
    executor = CudaExecutor(weights, "auto", make_gpu(sms=4), context=200, slots=2)
    yield record_answer(executor, weights, PROMPT, 6)
    executor.close()


def test_an_answer_is_computed_anew(answer: AnswerBits, weights: Weights, tmp_path: Path) -> None:
    answer.write(tmp_path / "answer.json")
    found = AnswerBits.read(tmp_path / "answer.json")
    assert found == answer
    assert (len(found.answer), len(found.logits)) == (6, len(PROMPT) + 5)
    assert list(check_answer(found, weights)) == [True] * len(found.logits)


def test_another_answer_is_told_from_where_it_differs(answer: AnswerBits, weights: Weights) -> None:
    other = (*answer.prompt[:3], answer.prompt[3] + 1, *answer.prompt[4:])
    found = list(check_answer(replace(answer, prompt=other), weights))
    assert found[:3] == [True] * 3
    assert not any(found[3:])


def test_another_model_and_another_cut_are_refused(answer: AnswerBits, weights: Weights) -> None:
    outer = weights.outer | {Role.FINAL_NORM: weights.outer[Role.FINAL_NORM] * 2}
    with pytest.raises(ConfigError, match="expected the model with weights of SHA-256"):
        list(check_answer(answer, replace(weights, outer=outer)))
    wrong = replace(answer, cut=answer.cut | {"warps": 3})
    with pytest.raises(ConfigError, match="expected a version that cuts as"):
        list(check_answer(wrong, weights))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}'])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "answer.json").write_text(text)
    with pytest.raises(ConfigError, match="expected an answer that 'monolane verify --bits"):
        AnswerBits.read(tmp_path / "answer.json")


def test_the_file_says_what_was_dealt_out(answer: AnswerBits, tmp_path: Path) -> None:
    answer.write(tmp_path / "answer.json")
    found = json.loads((tmp_path / "answer.json").read_text())
    assert found["gpu"]["sms"] == 4
    assert found["cut"]["blocks"] >= 1
