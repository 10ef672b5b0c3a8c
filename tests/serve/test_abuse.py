"""What one client asks too much of is refused at once, forgotten, and felt by nobody else."""

import asyncio
import json
import logging
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from monolane import Engine
from monolane.measure import paced_engine
from monolane.serve._errors import ApiError, ContextError
from monolane.serve._http import limits
from monolane.serve._http.handler import Answers
from monolane.serve._http.limits import check_counted, check_length
from monolane.serve._http.prepare import prepare_chat
from monolane.serve._openai.body import ChatRequest, CompletionRequest
from monolane.serve._openai.completions import completions
from monolane.serve._options import Policy, ServerOptions
from monolane.serve._run.refusals import Refusals
from monolane.serve._run.scheduler import Scheduler
from monolane.serve._run.service import Service
from monolane.serve._server import _listen, _Server
from monolane.text import Tokenizer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
FOREVER = 30_000


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("demo") as engine:
        yield engine


def test_a_text_that_cannot_fit_is_not_encoded(engine: Engine, demo_server: Any) -> None:
    longest = max(len(engine.tokenizer.pieces.get(i) or b"") for i in range(2048))
    limit = 2 * longest * engine.backend.context
    with pytest.raises(ContextError, match="cannot be so few"):
        check_length("prompt", "7" * (limit + 1), engine)
    digits = "7" * (limit + 1)
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": digits}}
    for path, body in (
        (TEXT, {"prompt": digits}),
        (CHAT, {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]}),
    ):
        reply = httpx.post(f"{demo_server.url}{path}", json=body, timeout=120)
        assert reply.status_code == 400
        assert "which cannot be so few" in reply.json()["error"]["message"]


def test_what_is_only_counted_has_a_bound_of_its_own(
    engine: Engine, demo_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = "7" * 200_000
    with pytest.raises(ContextError):
        check_length("prompt", digits, engine)
    for name, value in (
        ("prompt", digits),
        ("content", digits),
        ("messages", [{"role": "user", "content": digits}]),
    ):
        reply = httpx.post(f"{demo_server.url}/tokenize", json={name: value}, timeout=120)
        assert len(reply.json()["tokens"]) > engine.backend.context
    check_counted("prompt", digits, engine)
    monkeypatch.setattr(limits, "MAX_COUNTED", 2000)
    told = "at most 2000 tokens to count, got 200000 chara"
    with pytest.raises(ApiError, match=told) as refused:
        check_counted("prompt", digits, engine)
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")


def test_what_may_fit_is_counted_in_pieces(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that could be few tokens, were they long ones, is not encoded whole to know."""
    context = engine.backend.context
    pieces = []
    count = Tokenizer.count
    monkeypatch.setattr(
        Tokenizer, "count", lambda self, text: pieces.append(len(text)) or count(self, text)
    )
    text = "\u4e2d" * (80 * context)  # three tokens each
    for value in (text, {"a": ["b", {"c": text}], "d": None, "e": 5}):
        pieces.clear()
        with pytest.raises(ContextError, match=f"expected at most {context} tokens, got more than"):
            check_length("messages", value, engine)
        assert max(pieces) <= 1 << 15
        assert sum(pieces) < len(text)  # it ends as soon as it is sure
    pieces.clear()
    check_length("prompt", "    " * 2 * context, engine)  # eight bytes a token, and not more
    assert not pieces
    check_length("prompt", "        " * 2 * context, engine)  # long, but of few tokens
    assert pieces


def test_work_of_clients_that_left_is_dropped(engine: Engine) -> None:
    """Two threads are busy; what waits behind them for nobody is never begun."""

    async def run() -> tuple[int, str]:
        service = Service(lambda: engine, ServerOptions())
        block, begun = threading.Event(), []

        async def never() -> None:
            await asyncio.Event().wait()

        busy = [asyncio.create_task(service.prepare(block.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        gone = asyncio.create_task(never())
        waiting = asyncio.create_task(service.prepare(lambda: begun.append(1), gone))
        await asyncio.sleep(0)
        gone.cancel()
        message = ""
        try:
            await waiting
        except Exception as error:
            message = str(error)
        block.set()
        await asyncio.gather(*busy)
        await service.prepare(lambda: None)
        return len(begun), message

    assert asyncio.run(run()) == (0, "the client closed the connection")


def test_threads_wait_a_millisecond_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's 5 ms, several times for one event, would be a pause of all streams."""
    seen: list[float] = []
    monkeypatch.setattr(_Server, "run", lambda *_, **__: seen.append(sys.getswitchinterval()))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    before = sys.getswitchinterval()
    with _listen("127.0.0.1", 0) as listener:
        service = Service(lambda: pytest.fail("not to be loaded"), ServerOptions())
        _Server(service, listener, lambda: None).run_until_signal()
    assert seen == [pytest.approx(0.001)]
    assert sys.getswitchinterval() == before


def test_a_head_is_written_after_the_engine_has_begun() -> None:
    """Writing it takes as long as reading a short prompt."""
    running: list[int] = []

    async def ask() -> None:
        service = Service(lambda: paced_engine(1000), ServerOptions())
        await service.start()
        body = json.dumps({"prompt": "x", "max_tokens": 1, "stream": True}).encode()
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            return next(messages, None) or await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                running.append(service.scheduler.running)

        scope = {
            "type": "http",
            "method": "POST",
            "raw_path": b"",
            "headers": [],
            "monolane.owner": b"",
            "monolane.request_id": "",
            "monolane.answer": {},
            "monolane.choices": [],
        }
        await Answers(service, completions(service, CompletionRequest))(scope, receive, send)
        await service.close()

    asyncio.run(ask())
    assert running == [1]


def test_a_queue_of_n_holds_n(paced: Callable[..., Any], eventually: Callable[..., None]) -> None:
    """As many as asked for, also beyond what may wait to be read; and not one more."""
    server = paced(tokens_per_second=100, queue_limit=80)
    body = {"prompt": [5], "max_tokens": FOREVER, "ignore_eos": True, "stream": True}
    with ExitStack() as stack:
        client = stack.enter_context(
            httpx.Client(
                base_url=server.url, timeout=120, limits=httpx.Limits(max_connections=None)
            )
        )
        for _ in range(81):
            reply = stack.enter_context(client.stream("POST", TEXT, json=body))
            assert reply.status_code == 200
        eventually(lambda: server.metric("vllm:num_requests_waiting") == 80)
        assert client.post(TEXT, json=body).status_code == 429


def test_answers_of_one_request_take_no_more_than_the_queue() -> None:
    scheduler = Scheduler(Policy(4), 2)
    assert scheduler.places == 6
    scheduler.running = 4
    assert scheduler.places == 2
    assert Scheduler(Policy(1), 0).places == 1


def test_requests_that_wait_to_be_read_are_those_of_the_queue() -> None:
    service = Service(lambda: pytest.fail("not to be loaded"), ServerOptions(queue_limit=500))
    assert service.preparers._limit == 501


def test_forced_tokens_are_no_speed(engine: Engine) -> None:
    schema = {"const": {"a_rather_long_name": "and a long value that nobody draws", "x": [1, 2]}}
    messages = [{"role": "user", "content": "x"}]
    for more, drawn in (({}, False), ({"logprobs": True}, True)):
        request = ChatRequest(messages=messages, json_schema=schema, seed=1, **more)
        (choice,) = prepare_chat(request.asked(), engine)
        with choice.stream as stream:
            for piece in stream:
                choice.first = choice.first or piece.times_ns[0]
                choice.times.extend(piece.times_ns)
        assert choice.drawn > 15
        if drawn:
            assert choice.forced() == 0
            assert choice.tokens_per_second > 0
        else:
            assert choice.forced() >= choice.drawn - 2
            assert choice.tokens_per_second == 0
            assert choice.timings(1000, 1e9)["mbu"] in (0, None)


def listens(server: Any) -> bool:
    try:
        server.connect().close()
    except OSError:
        return False
    return True


def test_a_second_sigterm_ends_the_server_at_once(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    server = paced(tokens_per_second=10, drain_seconds=100_000)
    body = {"prompt": [5], "max_tokens": FOREVER, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}{TEXT}", json=body, timeout=120) as reply:
        next(reply.iter_bytes())
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: not listens(server))
        assert server.process.poll() is None
        assert server.stop() == 0


def test_errors_are_counted_and_a_few_logged(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    registry = CollectorRegistry()
    refusals = Refusals(registry, "m", clock=lambda: now[0])
    with caplog.at_level(logging.INFO, "monolane.serve"):
        for _ in range(1000):
            refusals.note(400, "id", "prompt: no\nsuch thing" + "x" * 5000)
        refusals.note(429, "id", "full")
        now[0] = 1.0
        refusals.note(400, "id", "again")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert lines[0].startswith("id refused with 400: prompt: no\\nsuch thing")
    assert "\n" not in lines[0]
    assert len(lines[0]) < 300
    assert lines[2].endswith("again (999 more since the last line)")
    text = generate_latest(registry).decode()
    assert 'monolane:requests_refused_total{code="400",model_name="m"} 1001.0' in text


def test_a_server_counts_what_it_refuses(demo_server: Any) -> None:
    def count() -> float:
        text = httpx.get(f"{demo_server.url}/metrics", timeout=120).text
        found = re.search(r'^monolane:requests_refused_total{code="400".*} (\S+)$', text, re.M)
        return float(found[1]) if found else 0

    before = count()
    assert httpx.post(f"{demo_server.url}{TEXT}", json={}, timeout=120).status_code == 400
    assert count() == before + 1
    # The command line's log says when.
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ WARNING", demo_server.words, re.M)


def test_memory_at_rest_and_after_large_requests(
    start: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    """At most 150 MB beside the model's 9, and large bodies leave nothing behind."""
    server = start().wait_ready()
    at_rest = server.status("VmRSS")
    assert at_rest < 160_000
    lists = "[" + "[]," * 1_500_000 + "[]]"
    text = json.dumps("7" * 5_000_000)
    for body in (f'{{"prompt": "x", "max_tokens": 1, "junk": {lists}}}', f'{{"prompt": {text}}}'):
        for path in (TEXT, "/tokenize"):
            headers = {"Content-Type": "application/json"}
            httpx.post(f"{server.url}{path}", content=body, headers=headers, timeout=120)
    eventually(lambda: server.status("VmRSS") < at_rest + 30_000)
