"""A load is what it says: so many at once, so long, counted in tokens; what fails is named.

Where times are what is tested, one of three attempts has to be right: the machine may stand still
during the others. What is wrong in the load is so in each.
"""

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from monolane.errors import BackendError, RequestError
from monolane.measure import (
    Failure,
    IdPrompts,
    Level,
    Load,
    Loaded,
    LoadOptions,
    LoadTarget,
    Outcome,
    Prompts,
    ask_models,
    build_document,
    describe_machine,
    percentiles,
    serve_record,
)
from monolane.measure._load_exchange import Exchange
from monolane.measure._load_outcome import read_stream


def make(url: str, **options: Any) -> Load:
    return Load(LoadTarget.parse(url), LoadOptions(**{"model": "plain", "timeout": 120} | options))


def run(load: Load, **level: Any) -> Loaded:
    return load.run(Level(**level), Prompts(8), lambda: None)


def one(load: Load) -> Outcome | Failure:
    loaded = run(load, clients=1, requests=1)
    return [*loaded.outcomes, *loaded.failures][0]


def figures(load: Load, **level: Any) -> dict[str, Any]:
    """Return a record that fits the results format."""
    record = serve_record(load, run(load, **level), "plain", "here")
    build_document(describe_machine(), "x", [record], "abc")
    return record


@pytest.mark.alone
@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("per_event", [1, 25])
def test_tokens_are_counted_by_usage(plain: Callable[..., Any], chat: bool, per_event: int) -> None:
    server = plain(tokens_per_second=500, per_event=per_event)
    speeds = []
    for _ in range(3):
        found = one(make(server.url, chat=chat, max_tokens=200))
        assert isinstance(found, Outcome)
        assert (found.tokens, found.counted_by) == (200, "usage")
        assert len(found.gaps) == 200 / per_event - 1
        assert found.prompt_tokens == 8 * 2 + 7
        assert 0 < found.first < found.whole
        assert found.decode == pytest.approx(sum(found.gaps))
        speeds.append(found.speed)
        # The last event comes per_event tokens before the end of the last token's time.
        if found.speed == pytest.approx(199 / (200 - per_event) * 500, rel=0.05):
            return
    raise AssertionError(f"tokens/s: {speeds}")


@pytest.mark.parametrize("status", [200, 429])
def test_connections_are_kept_unless_they_are_not_to_be(
    plain: Callable[..., Any], status: int
) -> None:
    """A refusal with Content-Length leaves a connection as free as a stream in chunks."""
    server = plain(keeps=100, status=status)
    for keep, connections in ((True, 3), (False, 12)):
        before = server.accepted
        found = run(make(server.url, max_tokens=9, keep_alive=keep), clients=3, requests=12)
        assert len(found.outcomes if status == 200 else found.failures) == 12
        assert server.accepted - before <= connections
        assert keep or server.accepted - before == connections


def test_a_connection_that_the_server_closed_is_replaced(plain: Callable[..., Any]) -> None:
    server = plain(keeps=2)
    found = run(make(server.url, max_tokens=9), clients=1, requests=7)
    assert [outcome.tokens for outcome in found.outcomes] == [9] * 7
    assert not found.failures
    assert server.accepted == 4
    assert len(server.bodies) == 7


def test_a_server_without_usage_is_counted_otherwise_and_that_is_said(
    plain: Callable[..., Any],
) -> None:
    bare = figures(make(plain(usage=False, per_event=4).url, max_tokens=40), clients=1, requests=2)
    assert bare["answered_tokens"] == 2 * 10
    assert bare["notes"][0].startswith("no usage from this server: events counted")
    assert bare["prompt_tokens"] is None
    server = plain(usage=False, timings=True, per_event=4)
    timed = figures(make(server.url, max_tokens=40), clients=1, requests=2)
    assert timed["answered_tokens"] == 2 * 40
    assert timed["notes"][0].endswith("counted by its timings.predicted_n")
    assert timed["server_tokens_per_s"] == 1234.5


def test_an_answer_in_one_event_has_no_speed(plain: Callable[..., Any]) -> None:
    load = make(plain(per_event=50).url, max_tokens=50)
    record = figures(load, clients=1, requests=1)
    assert "median" not in record
    assert record["answered_tokens"] == 50
    assert record["notes"][0].startswith("an answer came in 1 event or so")
    assert record["notes"][1:] == ["every answer came in one event: no speed can be told"]


def test_a_server_that_dies_midway(plain: Callable[..., Any]) -> None:
    load = make(plain(dies_after=30).url, max_tokens=100)
    found = one(load)
    assert isinstance(found, Failure)
    assert found.kind == "broken"
    assert "after 30 events" in found.message
    record = figures(load, clients=2, requests=3)
    assert record["failures"] == {"broken": 3}
    assert record["error"].startswith("all 3 requests failed; the first (broken)")
    assert "median" not in record
    with pytest.raises(BackendError, match=r"the first request failed \(broken\)"):
        load.warm_up(Prompts(8))


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"error_after": 3}, "error_event", "out of ideas"),
        ({"status": 429}, "http_429", "no, thanks"),
        ({"status": 500}, "http_500", "no, thanks"),
        ({"garbage": True}, "not_http", "it began with b'220 mail"),
    ],
)
def test_kinds_of_failure(
    plain: Callable[..., Any], options: dict[str, Any], kind: str, message: str
) -> None:
    found = one(make(plain(**options).url, max_tokens=100))
    assert isinstance(found, Failure)
    assert found.kind == kind
    assert message in found.message


@pytest.mark.alone
def test_an_answer_that_takes_too_long(plain: Callable[..., Any]) -> None:
    load = make(plain(silent_after=1).url, max_tokens=100, timeout=0.4)
    messages = []
    for _ in range(3):
        found = one(load)
        assert isinstance(found, Failure)
        assert found.kind == "timeout"
        messages.append(found.message)
        if "not over after 0.4 s, after 1 events" in found.message:
            return
    raise AssertionError(f"{messages}")


def test_a_port_where_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    found = one(make(url))
    assert isinstance(found, Failure)
    assert found.kind == "connect"
    assert isinstance(ask_models(LoadTarget.parse(url)), Failure)


@pytest.mark.alone
def test_failures_stand_beside_the_figures_of_the_others(plain: Callable[..., Any]) -> None:
    speeds = []
    for _ in range(3):
        server = plain(tokens_per_second=100)
        load = make(server.url, max_tokens=60)
        loaded = load.run(
            Level(clients=1, requests=3),
            Prompts(8),
            lambda server=server: server.options.update(dies_after=10),
        )
        record = serve_record(load, loaded, "plain", "here")
        assert record["answers"] == 1
        assert record["failures"] == {"broken": 2}
        speeds.append(record["median"])
        if speeds[-1] == pytest.approx(100, rel=0.1):
            return
    raise AssertionError(f"tokens/s: {speeds}")


@pytest.mark.alone
def test_so_many_at_once_and_no_more(plain: Callable[..., Any]) -> None:
    tried = []
    for _ in range(3):
        server = plain(tokens_per_second=100)
        loaded = run(make(server.url, max_tokens=40), clients=4, requests=12)
        assert server.most_open <= 4
        assert len(loaded.outcomes) == 12
        record = serve_record(make(server.url), loaded, "plain", "here")
        assert 0 < record["client_cpu"] < 1
        tried.append((server.most_open, loaded.seconds, record["total_tokens_per_s"]))
        # Three times 0.4 s.
        if tried[-1] == (4, pytest.approx(1.2, rel=0.25), pytest.approx(4 * 100, rel=0.25)):
            return
    raise AssertionError(f"answers at once, seconds, tokens/s: {tried}")


@pytest.mark.alone
def test_a_rate_does_not_wait_for_answers(plain: Callable[..., Any]) -> None:
    tried = []
    for _ in range(3):
        server = plain(tokens_per_second=20)  # 1 s for an answer
        loaded = run(make(server.url, max_tokens=20), rate=50, requests=30)
        assert len(loaded.outcomes) == 30
        assert server.most_open > 10
        sent = sorted(outcome.sent_ns for outcome in loaded.outcomes)
        between = (sent[-1] - sent[0]) / 1e9
        tried.append((loaded.seconds, between))
        # One after the other they would take 30 s; 29 gaps of 20 ms, at random.
        if loaded.seconds < 4 and 0.2 < between < 1.6:
            return
    raise AssertionError(f"seconds of all answers, and from first to last request: {tried}")


@pytest.mark.alone
def test_time_bounds_it(plain: Callable[..., Any]) -> None:
    """A client has time for ten answers and the rest of one; all of them would take 50 s."""
    counts = []
    for _ in range(3):
        load = make(plain(tokens_per_second=200).url, max_tokens=20)
        loaded = run(load, clients=2, requests=1000, seconds=1.0)
        assert len(loaded.outcomes) <= 2 * 11
        counts.append(len(loaded.outcomes))
        if counts[-1] >= 2 * 4:
            break
    assert max(counts) >= 2 * 4, counts
    assert len(run(load, rate=50, requests=1000, seconds=0.3).outcomes) < 40


def test_prompts_have_the_wanted_length_and_begin_differently(plain: Callable[..., Any]) -> None:
    server = plain()
    load = make(server.url, chat=True, max_tokens=4)
    prompts = load.find_length(301)
    loaded = load.run(Level(clients=1, requests=5), prompts, lambda: None)
    for outcome in loaded.outcomes:
        assert outcome.prompt_tokens == pytest.approx(301, rel=0.02)
    texts = [body["messages"][0]["content"] for body in server.bodies[-5:]]
    assert len({text.split()[0] for text in texts}) == 5
    assert Prompts(30).take() == Prompts(30).take()


def test_without_usage_words_stand_for_tokens(plain: Callable[..., Any]) -> None:
    assert make(plain(usage=False).url).find_length(50).words == 50


def test_what_is_asked_for(plain: Callable[..., Any]) -> None:
    server = plain()
    one(make(server.url + "/v1/", max_tokens=7, ignore_eos=False))
    (body,) = server.bodies
    assert len(body.pop("prompt").split()) == 8
    assert body == {
        "model": "plain",
        "max_tokens": 7,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": [{"text": "b"}], "usage": [2]},
        {"choices": [{"text": "b"}], "timings": "none", "usage": "none"},
        {"choices": ["c", {"text": "b"}]},
        {"choices": [{"delta": "c"}, {"text": "b"}]},
        {"choices": [{"text": "b"}], "usage": {"prompt_tokens": "64", "completion_tokens": "2"}},
    ],
)
def test_fields_of_other_kinds_count_as_left_out(odd: dict[str, Any]) -> None:
    events = [{"choices": [{"text": "a"}]}, odd]
    lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]
    body = "".join(lines).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(body)}"
    found = read_stream(Exchange(reads=[(1, head.encode() + b"\r\n\r\n" + body)]))
    assert isinstance(found, Outcome)
    assert (found.tokens, found.counted_by, found.prompt_tokens) == (2, "events", None)


def test_percentiles_lie_between_samples() -> None:
    assert percentiles([float(n) for n in range(101, 0, -1)]) == {
        "p50": 51,
        "p90": 91,
        "p99": 100,
        "max": 101,
    }
    assert percentiles([3.0, 1.0]) == {"p50": 2, "p90": pytest.approx(2.8), "p99": 2.98, "max": 3}
    assert percentiles([7.0]) == {"p50": 7, "p90": 7, "p99": 7, "max": 7}
    assert percentiles([]) is None


@pytest.mark.parametrize(
    ("url", "base", "loopback"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", True),
        ("http://localhost:8000/v1", "http://localhost:8000", True),
        ("http://[::1]:9/v1/", "http://[::1]:9", True),
        ("http://127.7.7.7/", "http://127.7.7.7", True),
        ("https://api.example/openai/v1", "https://api.example/openai", False),
        ("http://192.168.1.7:8000", "http://192.168.1.7:8000", False),
        ("http://localhost.example:80", "http://localhost.example", False),
        ("http://0.0.0.0:8000", "http://0.0.0.0:8000", False),
    ],
)
def test_urls(url: str, base: str, loopback: bool) -> None:
    target = LoadTarget.parse(url)
    assert (target.url, target.is_loopback) == (base, loopback)


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000", "ftp://x", "http://", "http://x:99999", "http://u:p@x", "http://x/?a=1"],
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(RequestError, match="url: "):
        LoadTarget.parse(url)


def test_the_key_goes_into_a_header_and_nowhere_else() -> None:
    target = LoadTarget.parse("http://127.0.0.1:1", "sesame")
    assert b"Authorization: Bearer sesame\r\n" in target.request("/v1/models")
    assert "sesame" not in repr(target)
    with pytest.raises(RequestError, match="printable ASCII"):
        LoadTarget.parse("http://127.0.0.1:1", "a\r\nHost: b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 1, "rate": 2.0}, "either clients or a rate"),
        ({}, "either clients or a rate"),
        ({"clients": 0}, "clients: expected 1 to 512"),
        ({"rate": 0.0}, "rate: expected requests/s above 0"),
        ({"clients": 1, "requests": 0}, "expected 1 request or more"),
        ({"clients": 1, "seconds": float("nan")}, "in more than 0 s"),
    ],
)
def test_loads_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Level(**options)
    with pytest.raises(RequestError, match="max_tokens: expected 2 or more"):
        LoadOptions(model="x", max_tokens=1)


def test_prompts_of_token_ids(demo_url: str, demo_key: str) -> None:
    """For models without a tokenizer: exactly as many tokens as wanted, and no two alike."""
    load = Load(LoadTarget.parse(demo_url, demo_key), LoadOptions(model="demo", max_tokens=8))
    loaded = load.run(Level(clients=2, requests=4), IdPrompts(32, 1000), lambda: None)
    assert not loaded.failures
    assert {(found.prompt_tokens, found.tokens) for found in loaded.outcomes} == {(32, 8)}
    prompts = IdPrompts(32, 1000)
    assert prompts.take() != prompts.take()
    assert IdPrompts(32, 1000, seed=3).take() == IdPrompts(32, 1000, seed=3).take()
