"""Tool calls: BFCL's own cases, conversion and checker, and a server that is asked."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from monolane.errors import BackendError, RequestError
from monolane.evaluate import (
    EvalOptions,
    ServerSubject,
    evaluate,
    make_tasks,
    open_engine,
)
from monolane.evaluate._bfcl.checker import as_tools, check, read_cases
from monolane.evaluate._bfcl.task import judge, read_calls

pytestmark = [
    pytest.mark.skipif(
        find_spec("bfcl_eval") is None, reason="needs bfcl-eval: pip install --no-deps bfcl-eval"
    ),
    pytest.mark.filterwarnings("ignore"),  # of the packages that it imports
]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": json.dumps(arguments)}}


def test_right_and_wrong_calls_are_told_apart() -> None:
    case, factorial, *_ = read_cases("simple_python", 2)
    right = [{"calculate_triangle_area": {"base": 10, "height": 5}}]
    assert check(case, right) == {"score": 1}
    for wrong in (
        [],
        right * 2,
        [{"calculate_triangle_area": {"base": 10, "height": "5"}}],
        [{"calculate_triangle_area": {"base": 11, "height": 5}}],
        [{"calculate_triangle_area": {"base": 10}}],
        [{"other": {"base": 10, "height": 5}}],
    ):
        assert check(case, wrong)["score"] == 0
    # OpenAI's API has no dots in names.
    assert as_tools(factorial)[0]["function"]["name"] == "math_factorial"
    assert check(factorial, [{"math_factorial": {"number": 5}}])["score"] == 1


def test_the_order_of_parallel_calls_is_free() -> None:
    (case,) = read_cases("parallel", 1)
    calls = [
        {name.replace(".", "_"): {key: values[0] for key, values in arguments.items()}}
        for wanted in case.wanted
        for name, arguments in wanted.items()
    ]
    assert len(calls) > 1
    assert check(case, calls) == check(case, calls[::-1]) == {"score": 1}
    assert check(case, calls[1:])["score"] == 0


def test_where_no_function_helps_none_is_to_be_called() -> None:
    for category, none, some in (("irrelevance", 1, 0), ("live_relevance", 0, 1)):
        (case,) = read_cases(category, 1)
        assert check(case, []) == {"score": none}
        assert check(case, [{"f": {}}]) == {"score": some}


def test_arguments_have_to_be_an_object() -> None:
    assert read_calls(None) == []
    assert read_calls([call("f", a=1), call("g")]) == [{"f": {"a": 1}}, {"g": {}}]
    for arguments in ("{", "[1]", None):
        assert read_calls([{"function": {"name": "f", "arguments": arguments}}]) is None


def test_a_call_that_cannot_be_read_is_none() -> None:
    cut_off = [{"function": {"name": "f", "arguments": '{"a": '}}]
    for category, score in (("simple_python", 0), ("irrelevance", 1), ("live_relevance", 0)):
        (case,) = read_cases(category, 1)
        assert judge(case, cut_off)["score"] == score
        assert judge(case, [call("f")])["score"] == (category == "live_relevance")


class Caller(BaseHTTPRequestHandler):
    """A server whose model calls the first function for the first case's triangle."""

    asked: list[dict[str, Any]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self._say({"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append(body)
        name = body["tools"][0]["function"]["name"]
        calls = [call(name, base=10, height=5)]
        self._say({"choices": [{"message": {"content": None, "tool_calls": calls}}]})

    def _say(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def caller() -> Iterator[ServerSubject]:
    """Return a server of ``Caller``'s as a subject; what it was asked is forgotten before."""
    Caller.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Caller)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield ServerSubject(f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()


def test_a_server_is_asked_case_by_case_and_once(caller: ServerSubject, tmp_path: Path) -> None:
    options = EvalOptions(tasks=("bfcl_simple_python", "bfcl_irrelevance"), limit=2)
    for _ in range(2):  # the second run finds all in its journal
        (task,) = evaluate(caller, make_tasks(options), tmp_path)["tasks"]
        values = {figure["metric"]: figure["value"] for figure in task["figures"]}
        assert values == {
            "all: accuracy": 25.0,
            "simple_python: accuracy": 50.0,
            "irrelevance: accuracy": 0.0,
        }
        assert len(Caller.asked) == 4
    assert Caller.asked[0]["tools"][0]["function"]["parameters"]["type"] == "object"
    assert Caller.asked[0]["temperature"] == 0


def test_a_case_that_the_server_refuses_is_wrong_and_ends_nothing(
    caller: ServerSubject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, *_: Any) -> dict[str, Any]:
        raise BackendError("/v1/chat/completions: HTTP 400: tools: cannot be followed")

    monkeypatch.setattr(ServerSubject, "chat_with_tools", refuse)
    options = EvalOptions(tasks=("bfcl_simple_python",), limit=2)
    (found,) = evaluate(caller, make_tasks(options), tmp_path)["tasks"]
    assert found["figures"][0]["value"] == 0
    assert "2 cases were refused by the server, and count as wrong." in found["notes"]


def test_calls_may_be_required(caller: ServerSubject, tmp_path: Path) -> None:
    options = EvalOptions(tasks=("bfcl",), limit=1, tool_choice="required")
    (task,) = evaluate(caller, make_tasks(options), tmp_path)["tasks"]
    assert {body["tool_choice"] for body in Caller.asked} == {"required"}
    assert task["settings"]["tool_choice"] == "required"
    metrics = {figure["metric"]: figure["value"] for figure in task["figures"]}
    assert metrics["simple_python: accuracy, calls required"] == 100
    # An answer that is nothing but calls cannot be right there.
    assert not any("irrelevance" in metric for metric in metrics)
    with pytest.raises(RequestError, match="category in which a call can be right"):
        make_tasks(EvalOptions(tasks=("bfcl_irrelevance",), tool_choice="required"))
    with pytest.raises(RequestError, match="expected auto or required, got 'never'"):
        EvalOptions(tasks=("bfcl",), tool_choice="never")


def test_our_server_takes_every_kind_of_case(server_url: str, tmp_path: Path) -> None:
    options = EvalOptions(tasks=("bfcl",), limit=1, max_tokens=2)
    (task,) = evaluate(ServerSubject(server_url), make_tasks(options), tmp_path)["tasks"]
    assert task["figures"][0]["count"] == 11
    # The demo model calls nothing in two tokens: right where nothing is to be called.
    found = {figure["metric"]: figure["value"] for figure in task["figures"]}
    assert found["irrelevance: accuracy"] == 100
    assert found["parallel: accuracy"] == 0
    # That of live_parallel has functions of 1,078 tokens; the demo model's context is 1,024.
    assert task["notes"][1].startswith("4 cases are longer")


def test_an_engine_alone_is_not_enough(tmp_path: Path) -> None:
    (task,) = make_tasks(EvalOptions(tasks=("bfcl_multiple",), limit=1))
    with open_engine("demo") as subject, pytest.raises(RequestError, match="--base-url"):
        task.run(subject, tmp_path, lambda *_: None)


def test_without_a_server_it_is_a_line_of_the_report_if_asked_for(tmp_path: Path) -> None:
    with open_engine("demo", backend="reference", context=64) as subject:
        with pytest.raises(RequestError, match="bfcl: expected --base-url"):
            evaluate(subject, make_tasks(EvalOptions(tasks=("bfcl",), limit=1)), tmp_path)
        options = EvalOptions(tasks=("bfcl",), limit=1, skip_missing=True)
        (task,) = evaluate(subject, make_tasks(options), tmp_path)["tasks"]
    assert task["notes"][0].startswith("Not measured: bfcl: expected --base-url")
