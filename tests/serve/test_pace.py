"""What a fast stream loses on its way through HTTP: next to nothing, at 10,000 tokens/s too."""

from collections.abc import Callable
from typing import Any

import pytest

from monolane.measure import Level, Load, LoadOptions, LoadTarget, Outcome, Prompts


def ask(server: Any, tokens: int) -> Outcome:
    load = Load(LoadTarget.parse(server.url), LoadOptions(model="paced", max_tokens=tokens))
    loaded = load.run(Level(clients=1, requests=1), Prompts(1), lambda: None)
    assert not loaded.failures, loaded.failures
    return loaded.outcomes[0]


@pytest.mark.slow
@pytest.mark.parametrize(("pace", "share"), [(3000, 0.95), (10_000, 0.9)])
def test_a_client_gets_the_pace_of_the_backend(
    paced: Callable[..., Any], pace: int, share: float
) -> None:
    """The client is a process of its own kind of work too: server and client have 2 cores."""
    server = paced(tokens_per_second=pace)
    ask(server, 100)
    answers = [ask(server, pace * 2) for _ in range(3)]
    assert {(answer.tokens, answer.counted_by) for answer in answers} == {(pace * 2, "usage")}
    assert max(answer.speed or 0 for answer in answers) >= share * pace


def test_many_tokens_share_an_event_and_the_first_comes_at_once(paced: Callable[..., Any]) -> None:
    answer = ask(paced(tokens_per_second=2000, prefill=1e9), 1000)
    assert answer.tokens == 1000
    assert answer.tokens / (len(answer.gaps) + 1) > 3  # one each 5 ms would be 10
    answer = ask(paced(tokens_per_second=50), 20)
    assert len(answer.gaps) + 1 == 20  # and a slow one is not held back to share
    assert answer.first < 0.2


def test_many_streams_are_looked_at_as_often_as_one(paced: Callable[..., Any]) -> None:
    """Each look takes a core from decode for a moment, so eight do not make eight times as many."""
    server = paced(tokens_per_second=1000, policy="share:8")
    load = Load(LoadTarget.parse(server.url), LoadOptions(model="paced", max_tokens=1000))
    loaded = load.run(Level(clients=8, requests=8), Prompts(1), lambda: None)
    assert len(loaded.outcomes) == 8
    per_event = [answer.tokens / (len(answer.gaps) + 1) for answer in loaded.outcomes]
    assert min(per_event) > 10  # one each 16 ms would be 16, one each 5 ms is 5
    assert max(max(answer.gaps) for answer in loaded.outcomes) < 0.5
