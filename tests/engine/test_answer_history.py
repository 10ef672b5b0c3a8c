"""Answers of one namespace are drafted from by its later requests, and by nobody else's."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from monolane import Engine, SamplingParams
from monolane.engine._answer_history import EarlierAnswers
from monolane.executor_api import TEXT_END

ONE, OTHER = list(range(10, 20)), list(range(30, 45))


def texts(earlier: EarlierAnswers, namespace: str, prompt_ids: list[int]) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for token in earlier.texts(namespace, prompt_ids).tolist():
        found[-1].append(token)
        if token == TEXT_END:
            found.append([])
    assert found.pop() == []
    assert all(text.pop() == TEXT_END for text in found)
    return found


def test_each_namespace_has_its_own() -> None:
    earlier = EarlierAnswers()
    earlier.add("a", 2, ONE)
    earlier.add("b", 2, OTHER)
    earlier.add("a", 0, OTHER)
    earlier.add("a", 5, ONE)  # again: now the newest
    assert texts(earlier, "a", [1]) == [OTHER, ONE]
    assert texts(earlier, "b", [1]) == [OTHER]
    assert texts(earlier, "c", [1]) == []
    earlier.add("c", 0, [1, 2, 3])  # too short to be of use
    assert texts(earlier, "c", [1]) == []


def test_a_conversation_that_is_sent_whole_holds_its_own() -> None:
    earlier = EarlierAnswers()
    earlier.add("", 2, ONE)
    earlier.add("", 14, OTHER)
    assert texts(earlier, "", [5, 6, *ONE, 7]) == [OTHER]
    assert texts(earlier, "", [5, 6, *ONE, 7, 8, *OTHER, 9]) == []
    assert texts(earlier, "", [5, *ONE, 7]) == [ONE, OTHER]  # there, but in another place


def test_memory_is_bounded() -> None:
    earlier = EarlierAnswers(most=40, namespaces=2)
    answers = [[100 * i + j for j in range(12)] for i in range(5)]
    for answer in answers:
        earlier.add("a", 0, answer)
    assert texts(earlier, "a", []) == answers[2:]  # 13 tokens each, with their ends
    long = list(range(1000, 1100))
    earlier.add("a", 3, long)
    assert texts(earlier, "a", []) == [long[-39:]]
    assert texts(earlier, "a", [0, 0, 0, *long]) == []  # it begins where its kept part does
    earlier.add("b", 0, ONE)
    earlier.texts("a", [])
    earlier.add("c", 0, ONE)
    assert [len(texts(earlier, name, [])) for name in "abc"] == [1, 0, 1]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("demo", context=400) as loaded:
        yield loaded


def test_a_second_answer_drafts_from_the_first(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As many drafted tokens in each pass: what pays would depend on the machine.
    monkeypatch.setattr(SamplingParams, "drafts", property(lambda params: 7))
    params = SamplingParams(max_tokens=80, ignore_eos=True, temperature=1.3, seed=3, logprobs=1)
    answers = {
        name: engine.generate("def parse(text):", params, namespace=namespace)
        for name, namespace in (("first", "a"), ("other key", "b"), ("second", "a"))
    }
    assert len({(a.token_ids, a.logprobs) for a in answers.values()}) == 1
    accepted = {name: answer.timings.draft_n_accepted for name, answer in answers.items()}
    assert accepted["second"] > 60
    assert accepted["first"] < 30
    assert accepted["other key"] < 30


def test_what_is_off_is_given_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    def texts(
        earlier: EarlierAnswers, namespace: str, prompt_ids: object
    ) -> npt.NDArray[np.uint32]:
        given.append(namespace)
        return np.zeros(0, np.uint32)

    monkeypatch.setattr(EarlierAnswers, "texts", texts)
    for speculation in ("off", "suffix"):
        engine.generate("x", SamplingParams(max_tokens=2, speculation=speculation))  # type: ignore[arg-type]
    assert len(given) == 1
