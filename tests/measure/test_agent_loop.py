"""An agent's loop: what a proxy sees of it, where the time went, what faster decode would save."""

import json
import socket
import sys
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from monolane.cli import app
from monolane.errors import BackendError, RequestError
from monolane.measure import Call, LoadTarget, RecordingProxy, account, record_loop, render_account
from monolane.measure._agent_loop.call import is_answer, read_call


def made(begin: float, end: float, waiting: float, prefill: float, generation: float) -> Call:
    return Call(begin, end, 200, waiting, prefill, generation, "server", 100, 60, 10)


def test_all_time_is_somebodys_and_faster_decode_saves_generation_alone() -> None:
    calls = [made(1, 5, 0.5, 0.5, 3), made(7, 12, 0.5, 1.5, 3)]
    found = account(calls, 20.0, price=36.0)
    assert found["parts"] == pytest.approx(
        {"generation": 6, "prefill": 2, "waiting": 1, "tools": 2, "outside": 9}
    )
    assert found["bound_by"] == "generation"
    assert (found["prompt_tokens"], found["cached_tokens"], found["tokens"]) == (200, 120, 20)
    rows = {row["factor"]: row for row in found["faster"]}
    assert rows[1]["seconds"] == pytest.approx(20)
    assert rows[4]["seconds"] == pytest.approx(20 - 6 * 3 / 4)
    assert rows[4]["saved"] == pytest.approx(4.5)
    # 36 per hour are 0.01 per second.
    assert rows[1]["cost"] == pytest.approx(0.20)
    assert rows[1]["cost_busy"] == pytest.approx(0.09)
    assert rows[4]["cost_busy"] == pytest.approx(0.045)
    assert found["most_saved"] == pytest.approx(6)
    text = render_account(found)
    assert "20.0 s, 2 requests, bound by generation: 30 % of the time." in text
    assert "| 4 | 15.50 | 4.50 | 0.155 | 0.045 |" in text
    assert "| 2 | 7.00 | 2.00 | 0.50 | 1.50 | 3.00 | 100 | 60 | 10 |" in text


def test_requests_that_overlap_share_the_time_that_they_cover() -> None:
    found = account([made(0, 4, 0, 1, 3), made(2, 6, 0, 1, 3)], 10.0, None)
    assert found["parts"] == pytest.approx(
        {"generation": 4.5, "prefill": 1.5, "waiting": 0, "tools": 0, "outside": 4}
    )
    assert found["overlapping"]
    assert found["faster"][0]["cost"] is None


def test_a_run_that_waits_for_its_tools_is_bound_by_them() -> None:
    found = account([made(0, 1, 0, 0.5, 0.5), made(9, 10, 0, 0.5, 0.5)], 10.0, None)
    assert found["bound_by"] == "tools"
    assert found["faster"][-1]["saved"] < 1


def test_replies_are_read_as_servers_spell_them() -> None:
    body: dict[str, Any] = {
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
        "timings": {"prompt_ms": 500.0, "predicted_ms": 1000.0},
    }
    ours = read_call(1.0, 3.0, 200, json.dumps(body).encode(), [])
    assert (ours.waiting, ours.prefill, ours.generation) == pytest.approx((0.5, 0.5, 1.0))
    assert (ours.split, ours.prompt_tokens, ours.cached, ours.tokens) == ("server", 9, 4, 5)
    stream = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: [DONE]\n\n'
    streamed = read_call(1.0, 3.0, 200, stream, [1.5, 2.5])
    assert (streamed.prefill, streamed.generation, streamed.split) == (0.5, 1.5, "stream")
    assert streamed.tokens is None
    anthropic = b'data: {"type": "message_delta", "usage": {"output_tokens": 7}}\n'
    assert read_call(0.0, 1.0, 200, anthropic, []).tokens == 7
    assert read_call(0.0, 1.0, 502, b"<html>", []).split == "none"


def test_tokens_are_counted_as_each_api_tells_them() -> None:
    begin = {"input_tokens": 5, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 7}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"usage": {**begin, "output_tokens": 1}}},
        {"type": "message_delta", "usage": {"output_tokens": 9, "input_tokens": None}},
    ]
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    anthropic = read_call(0.0, 1.0, 200, stream, [])
    assert (anthropic.prompt_tokens, anthropic.cached, anthropic.tokens) == (42, 30, 9)
    usage = {
        "input_tokens": 42,
        "input_tokens_details": {"cached_tokens": 30},
        "output_tokens": 9,
    }
    completed = {"type": "response.completed", "response": {"usage": usage}}
    responses = read_call(0.0, 1.0, 200, b"data: " + json.dumps(completed).encode(), [])
    assert (responses.prompt_tokens, responses.cached, responses.tokens) == (42, 30, 9)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}', False),
        (b'data: {"choices": [{"delta": {"role": "assistant", "content": "x"}}]}', True),
        (b'data: {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}', True),
        (b'data: {"choices": [{"text": "x"}]}', True),
        (b'data: {"choices": []}', False),
        (b'data: {"type": "content_block_delta"}', True),
        (b'data: {"type": "response.output_text.delta"}', True),
        (b"data: [DONE]", False),
        (b": keep-alive", False),
    ],
)
def test_only_what_is_of_an_answer_counts_as_its_begin(line: bytes, answer: bool) -> None:
    assert is_answer(line) is answer


AGENT = """
import json, os, sys, urllib.request

def ask(stream):
    body = {"model": "demo", "messages": [{"role": "user", "content": "import os" * 20}],
            "max_tokens": 12, "stream": stream, "ignore_eos": True}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=120).read()

print(json.loads(ask(False))["usage"]["completion_tokens"])
assert ask(True).rstrip().endswith(b"data: [DONE]")
"""


STUBBORN = """
import os, time, urllib.error, urllib.request
for _ in range(3):
    try:
        urllib.request.urlopen(os.environ["OPENAI_BASE_URL"] + "/chat/completions", b"{}")
    except urllib.error.HTTPError:
        time.sleep(0.1)
"""


def test_a_server_that_is_not_there_binds_nobody(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"  # bound, and nobody listens
        command = [sys.executable, "-c", STUBBORN]
        for _ in range(2):  # what failed is no record that stands in the way
            with pytest.raises(BackendError, match=r"got none: 3 requests failed, .* HTTP 502; is"):
                record_loop(command, LoadTarget.parse(url), tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_a_run_is_recorded_and_its_time_adds_up(server_url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", AGENT]
    found = record_loop(command, LoadTarget.parse(server_url), tmp_path, price=10.0)
    assert found["exit_code"] == 0
    assert sum(found["parts"].values()) == pytest.approx(found["seconds"])
    assert all(seconds >= 0 for seconds in found["parts"].values())
    one, two = found["steps"]
    assert (one["split"], one["tokens"], two["tokens"]) == ("server", 12, 12)
    assert one["prompt_tokens"] > 40
    assert two["cached"] > 0  # the same prompt again
    assert one["begin"] < one["end"] <= two["begin"] < two["end"] <= found["seconds"] + 1
    assert len((tmp_path / "calls.jsonl").read_text().splitlines()) == 2
    assert json.loads((tmp_path / "loop.json").read_text())["bound_by"] == found["bound_by"]
    assert (tmp_path / "loop.md").read_text() == render_account(found)
    with pytest.raises(RequestError, match="calls.jsonl: expected no record there, found that of"):
        record_loop(command, LoadTarget.parse(server_url), tmp_path)


def test_the_agents_failure_is_the_commands(server_url: str, tmp_path: Path) -> None:
    command = ["eval", "agent-loop", "--base-url", server_url, "--output", tmp_path]
    agent = [sys.executable, "-c", AGENT + "sys.exit(7)"]
    result = CliRunner().invoke(app, [*map(str, command), "--", *agent])
    assert result.exit_code == 7, result.output
    assert "the agent's command ended with code 7" in result.output
    assert json.loads((tmp_path / "loop.json").read_text())["exit_code"] == 7


def test_what_goes_wrong_is_passed_on_or_said(server_url: str, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="sent no request"):
        record_loop([sys.executable, "-c", ""], LoadTarget.parse(server_url), tmp_path)
    with pytest.raises(RequestError, match="expected a command"):
        record_loop(["/nowhere"], LoadTarget.parse(server_url), tmp_path)
    gone = LoadTarget.parse("http://127.0.0.1:1")
    with RecordingProxy(gone, tmp_path / "calls.jsonl") as proxy:
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(f"{proxy.url}/v1/completions", b"{}", timeout=60)
        assert raised.value.code == 502
        raised.value.close()
    with RecordingProxy(LoadTarget.parse(server_url), tmp_path / "calls.jsonl") as proxy:
        with urllib.request.urlopen(f"{proxy.url}/v1/models", timeout=60) as reply:
            assert json.loads(reply.read())["data"][0]["id"] == "demo"
        assert proxy.calls == []


def test_a_request_goes_through_however_its_client_sends_it(
    server_url: str, tmp_path: Path
) -> None:
    body = {"model": "demo", "prompt": "import", "max_tokens": 3, "ignore_eos": True}
    pieces = iter([json.dumps(body)[:20].encode(), json.dumps(body)[20:].encode()])
    with RecordingProxy(LoadTarget.parse(server_url), tmp_path / "calls.jsonl") as proxy:
        # Of an iterator nobody knows the length: it is sent in chunks.
        reply = httpx.post(
            f"{proxy.url}/v1/completions",
            content=pieces,
            headers={"Content-Type": "application/json"},
            timeout=60,
        )
        assert reply.json()["usage"]["completion_tokens"] == 3
        for method in ("HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"):
            url = "/v1/responses/resp_1"
            through = httpx.request(method, proxy.url + url, timeout=60)
            straight = httpx.request(method, server_url + url, timeout=60)
            assert (through.status_code, through.text) == (straight.status_code, straight.text)
        assert [call.tokens for call in proxy.settle()] == [3]


# The demo model writes no commands; its answer is held to one choice, whose command edits the file
# at the first step and ends the run at the second.
DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
EDIT = f"if grep -q old a.txt; then sed -i s/old/new/ a.txt; else echo {DONE}; fi"
MINI = """
agent:
  system_template: "You edit files."
  instance_template: "Task: {{task}}"
  mode: yolo
  confirm_exit: false
  step_limit: 5
environment:
  cwd: CWD
model:
  model_class: litellm_textbased
  observation_template: "Exit code {{output.returncode}}"
  cost_tracking: ignore_errors
  model_kwargs:
    api_key: none
    max_tokens: 200
    extra_body:
      structured_outputs:
        choice: [CHOICE]
"""


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("minisweagent") is None, reason="needs a real agent: pip install mini-swe-agent"
)
def test_a_real_agent_edits_a_file(server_url: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old\n")
    choice = json.dumps(f"```mswea_bash_command\n{EDIT}\n```")
    config = MINI.replace("CWD", str(tmp_path)).replace("CHOICE", choice)
    (tmp_path / "mini.yaml").write_text(config)
    command = [
        *("env", "MSWEA_CONFIGURED=true", f"MSWEA_GLOBAL_CONFIG_DIR={tmp_path}"),
        "LITELLM_LOCAL_MODEL_COST_MAP=True",
        *(sys.executable, "-m", "minisweagent.run.mini", "-m", "openai/demo"),
        *("-c", str(tmp_path / "mini.yaml"), "-t", "Replace old by new in a.txt."),
        *("-y", "--exit-immediately", "-o", str(tmp_path / "trajectory.json")),
    ]
    out = tmp_path / "out"
    found = record_loop(command, LoadTarget.parse(server_url), out, price=10.0)
    assert found["exit_code"] == 0
    assert (tmp_path / "a.txt").read_text() == "new\n"
    assert len(found["steps"]) == 2
    assert {step["split"] for step in found["steps"]} == {"server"}
    assert found["steps"][1]["cached"] > 0
    assert "bound by" in (out / "loop.md").read_text()
