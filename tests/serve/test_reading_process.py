"""Long bodies that need no model are answered by a process of their own, as they would be here."""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from monolane import Engine
from monolane.errors import BackendError, EngineClosedError
from monolane.serve import ServerOptions
from monolane.serve._run.reading_process import LONG_BODY, ReadingProcess, Setup
from monolane.serve._run.service import Service
from monolane.serve._server import build_app

from .conftest import PATIENCE

# Of a process that reads for a server with the usual options.
SETUP: dict[str, Any] = {
    "context": 64,
    "adapters": (),
    "model_name": "demo",
    "any_model": False,
    "tool_format": "auto",
    "max_body_bytes": 8 << 20,
}
TEXT = "def f(x):\n" * (LONG_BODY // 10 + 1)
CHAT = [{"role": "user", "content": TEXT}]
POSTED: list[tuple[str, dict[str, Any]]] = [
    ("/tokenize", {"prompt": TEXT}),
    ("/tokenize", {"content": TEXT, "with_pieces": True}),
    ("/tokenize", {"messages": CHAT}),
    ("/detokenize", {"tokens": [1, 2, 3] * (LONG_BODY // 6)}),
    ("/apply-template", {"messages": CHAT}),
    ("/v1/chat/completions/input_tokens", {"messages": CHAT}),
    ("/v1/responses/input_tokens", {"input": TEXT}),
    ("/v1/messages/count_tokens", {"model": "demo", "messages": CHAT}),
    # And what gets an error, each API in its spelling.
    ("/tokenize", {"prompt": TEXT, "messages": CHAT}),
    ("/tokenize", {"prompt": TEXT, "model": "another"}),
    ("/v1/messages/count_tokens", {"model": "demo", "messages": [{"role": "x", "content": TEXT}]}),
    ("/v1/messages/count_tokens", {"model": "demo", "messages": [{"role": "user", "content": 1}]}),
    ("/apply-template", {"messages": TEXT}),
]
Ask = Callable[[str, dict[str, Any]], Coroutine[Any, Any, tuple[int, bytes]]]


async def asked(app: Any, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """Return the status and the body of a reply."""
    data, status, parts = json.dumps(body).encode(), 0, []
    messages = iter([{"type": "http.request", "body": data, "more_body": False}])

    async def receive() -> Any:
        return next(messages, None) or await asyncio.Event().wait()

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
    scope |= {"query_string": b"", "client": ("127.0.0.1", 1), "headers": headers}
    await app(scope, receive, send)
    return status, b"".join(parts)


def with_service(act: Callable[[Service, Any], Coroutine[Any, Any, None]], apart: bool) -> None:
    """Have ``act`` ask a service, whose other process runs where there is one."""

    async def run() -> None:
        service = Service(lambda: Engine.load("demo"), ServerOptions(), reads_apart=apart)
        await service.start()
        assert service.failure is None
        try:
            if apart:
                await until_ready(service)
            await act(service, build_app(service))
        finally:
            await service.close()

    asyncio.run(run())


async def until_ready(service: Service) -> None:
    assert service._apart is not None
    end = time.monotonic() + PATIENCE
    service._apart.takes_next()
    while not service._apart.is_ready:
        assert time.monotonic() < end, "it did not begin"
        await asyncio.sleep(0.02)


def test_replies_are_those_of_this_process() -> None:
    replies: dict[bool, list[tuple[int, bytes]]] = {False: [], True: []}
    here = []

    for apart in replies:

        async def act(service: Service, app: Any, apart: bool = apart) -> None:
            submit = service.preparers.submit
            service.preparers.submit = lambda *what: here.append(apart) or submit(*what)  # type: ignore
            for path, body in POSTED:
                replies[apart].append(await asked(app, path, body))

        with_service(act, apart)
    assert replies[True] == replies[False]
    assert {status for status, _ in replies[True]} == {200, 400, 404}
    assert here.count(False) == len(POSTED)
    # Those that name what this process keeps are read here.
    short = sum(len(json.dumps(body)) <= LONG_BODY for _, body in POSTED)
    assert here.count(True) == short + 1 == 2


def test_a_process_that_dies_is_begun_anew_and_nothing_is_lost() -> None:
    async def act(service: Service, app: Any) -> None:
        assert service._apart is not None
        first = service._apart._process
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        status, reply = await asked(app, "/tokenize", {"prompt": TEXT})
        assert status == 200
        await until_ready(service)
        second = service._apart._process
        assert second is not None
        assert second.pid != first.pid
        assert await asked(app, "/tokenize", {"prompt": TEXT}) == (status, reply)

    with_service(act, apart=True)


def test_where_none_can_be_begun_bodies_are_read_here(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")

    async def run() -> None:
        service = Service(lambda: Engine.load("demo"), ServerOptions(), reads_apart=True)
        await service.start()
        app = build_app(service)
        for _ in range(2):
            assert (await asked(app, "/tokenize", {"prompt": TEXT}))[0] == 200
        end = time.monotonic() + PATIENCE
        while "long bodies are read by this process" not in caplog.text:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        assert (await asked(app, "/tokenize", {"prompt": TEXT}))[0] == 200
        await service.close()

    asyncio.run(run())
    assert caplog.text.count("long bodies are read by this process") == 1


def test_it_ends_with_the_service_and_is_not_begun_for_short_bodies() -> None:
    processes = []

    async def act(service: Service, app: Any) -> None:
        assert service._apart is not None
        processes.append(service._apart._process)

    with_service(act, apart=True)
    assert processes[0].returncode is not None

    async def short(service: Service, app: Any) -> None:
        service._apart = made = ReadingProcess(Setup(str(service.engine.folder), **SETUP), 4)
        assert (await asked(app, "/tokenize", {"prompt": "x"}))[0] == 200
        assert not made._begun

    with_service(short, apart=False)


def test_who_waits_when_it_is_closed_is_told() -> None:
    made = ReadingProcess(Setup(str(Engine.load("demo").folder), **SETUP), 4)
    assert not made.takes_next()
    assert made._settled.wait(PATIENCE)
    made._closed = True
    process = made._process
    assert process is not None
    process.kill()
    with pytest.raises(EngineClosedError):
        made.answer("/tokenize", b"{}", lambda data: b"here")
    made.close()


def test_who_comes_while_it_begins_waits_for_it() -> None:
    """Only the body that has it begun is answered here: dozens of them would hold up all others."""
    gate, here = threading.Event(), []

    class Slow(ReadingProcess):
        def _start(self) -> None:
            gate.wait(PATIENCE)
            super()._start()

    async def act(service: Service, app: Any) -> None:
        service._apart = Slow(
            Setup(
                str(service.engine.folder), **SETUP | {"context": service.engine.backend.context}
            ),
            4,
        )
        submit = service.preparers.submit
        service.preparers.submit = lambda *what: here.append(1) or submit(*what)  # type: ignore
        first = await asked(app, "/tokenize", {"prompt": TEXT})
        others = [asyncio.create_task(asked(app, "/tokenize", {"prompt": TEXT})) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert not any(other.done() for other in others)
        gate.set()
        assert await asyncio.gather(*others) == [first] * 3

    with_service(act, apart=False)
    assert len(here) == 1


@pytest.mark.parametrize("ends", ["closed", "failed"])
def test_who_waits_for_one_that_never_comes_goes_on(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    gate = threading.Event()

    class Slow(ReadingProcess):
        def _start(self) -> None:
            gate.wait(PATIENCE)
            super()._start()

    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    made = Slow(Setup("demo", **SETUP), 4)
    assert not made.takes_next()
    assert made.takes_next()
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(made.answer, "/tokenize", b"{}", lambda data: b"here")
        with pytest.raises(TimeoutError):
            waits.result(timeout=0.05)
        if ends == "closed":
            made.close()
            with pytest.raises(EngineClosedError):
                waits.result(timeout=PATIENCE)
            gate.set()
        else:
            gate.set()
            assert waits.result(timeout=PATIENCE) == b"here"
            assert not made.takes_next()
            made.close()


def test_who_waited_behind_its_death_is_answered_here() -> None:
    """He was given to it before it died; no body comes after him that would have it begun anew."""
    made = ReadingProcess(Setup(str(Engine.load("demo").folder), **SETUP), 4)
    assert not made.takes_next()
    assert made._settled.wait(PATIENCE)
    process = made._process
    assert process is not None
    process.kill()
    process.wait()
    with ThreadPoolExecutor(1) as threads:
        try:
            for _ in range(2):
                waits = threads.submit(made.answer, "/tokenize", b"{}", lambda data: b"here")
                assert waits.result(timeout=PATIENCE) == b"here"
        finally:
            made.close()


def test_an_engine_for_reading_answers_nothing() -> None:
    with Engine.load("demo") as whole, Engine.for_reading("demo", whole.backend.context) as engine:
        assert engine.prompt_ids("def f(x):") == whole.prompt_ids("def f(x):")
        assert engine.chat_template.found == whole.chat_template.found
        with pytest.raises(BackendError, match="reads prompts and answers none"):
            engine.generate("def f(x):")
