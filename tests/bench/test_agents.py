"""A loop of edits, runs and fixes by the answers of our server, as coding agents go through it.

The clients are the public packages, unmodified; tools are run for real. Whole agents do the same in
bench/agents.py, which is not part of the gate.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import agents
import anthropic
import openai
import pytest
from _copier import NOTHING, call, order, write_copier
from _server import server

from monolane import Engine

Json = dict[str, Any]
Turns = Iterator[tuple[str, list[Json]]]  # what an answer says, and the arguments of its calls
PARAMETERS = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
}


def replace(path: Path, old: str, new: str) -> list[str]:
    return [call(2, "bash", {"command": f"sed -i 's/{old}/{new}/' {path.name}"})]


AGENT = agents.Agent(agents.Client(("none",)), "", "bash", "command", replace, {})
PROMPT = f"Run the check, and mend mean.py until it passes.\n{order(1, AGENT.run(1))}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_copier(tmp_path_factory.mktemp("copier") / "model")


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    command = [agents.sys.executable, "-m", "monolane", "serve", "--port", "0", "--no-bandwidth"]
    with server([*command, "--model", str(model), "--name", "local"], 120) as ours:
        yield ours.url


def by_chat(url: str, run: Callable[[Json], str]) -> Turns:
    function = {"name": "bash", "description": "Runs a command.", "parameters": PARAMETERS}
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        while True:
            answer = client.chat.completions.create(
                model="local",
                messages=messages,
                tools=[{"type": "function", "function": function}],  # type: ignore[typeddict-item]
            )
            said = answer.choices[0].message
            calls: list[Any] = said.tool_calls or []
            yield said.content or "", [json.loads(one.function.arguments) for one in calls]
            messages.append(said)
            for one in calls:
                result = run(json.loads(one.function.arguments))
                messages.append({"role": "tool", "tool_call_id": one.id, "content": result})


def by_responses(url: str, run: Callable[[Json], str]) -> Turns:
    tool: Any = {"type": "function", "name": "bash", "strict": False, "parameters": PARAMETERS}
    items: list[Any] = [{"role": "user", "content": PROMPT}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        while True:
            answer = client.responses.create(model="local", input=items, tools=[tool], store=False)
            calls: list[Any] = [one for one in answer.output if one.type == "function_call"]
            yield answer.output_text, [json.loads(one.arguments) for one in calls]
            items += answer.output
            for one in calls:
                result = {"type": "function_call_output", "call_id": one.call_id}
                items.append(result | {"output": run(json.loads(one.arguments))})


def by_messages(url: str, run: Callable[[Json], str]) -> Turns:
    tool: Any = {"name": "bash", "description": "Runs a command.", "input_schema": PARAMETERS}
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        while True:
            with client.messages.stream(
                model="local", max_tokens=500, messages=messages, tools=[tool]
            ) as stream:
                answer = stream.get_final_message()
            calls: list[Any] = [one for one in answer.content if one.type == "tool_use"]
            texts = [one.text for one in answer.content if one.type == "text"]
            yield "".join(texts), [one.input for one in calls]
            results = [
                {"type": "tool_result", "tool_use_id": one.id, "content": run(one.input)}
                for one in calls
            ]
            messages.append({"role": "assistant", "content": answer.content})
            messages.append({"role": "user", "content": results})


@pytest.mark.parametrize("fault", agents.FAULTS.values())
@pytest.mark.parametrize("api", [by_chat, by_responses, by_messages])
def test_the_second_call_follows_from_what_the_first_one_found(
    url: str, api: Callable[..., Turns], fault: str, tmp_path: Path
) -> None:
    project = tmp_path / "p"
    agents.write_project(project, AGENT, fault)

    def run(arguments: Json) -> str:
        done = subprocess.run(
            ["bash", "-c", arguments["command"]],
            cwd=project,
            env={**agents.os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    turns = api(url, run)
    check = {"command": agents.CHECK}
    calls = [next(turns)[1] for _ in range(3)]
    edit = f"sed -i 's/count = len(x){fault}/count = len(x)/' mean.py"
    assert calls == [[check], [{"command": edit}], [check]]
    assert next(turns) == (agents.DONE, [])
    assert (project / agents.FILE).read_text() == agents.TEXT.format(fault="")


def test_the_last_order_counts_and_without_one_there_is_nothing_to_do(model: Path) -> None:
    with Engine.load(model) as engine:
        assert engine.chat([{"role": "user", "content": "Hello"}]).text == NOTHING
        far = "\n".join(f"line {i}" for i in range(300))
        text = order(1, "one two") + far + order(1, "three two") + far + order(2, "four")
        said: Json = {"role": "user", "content": text}
        assert engine.chat([said]).text == "three two"
        again = [
            said,
            {"role": "assistant", "content": "three two"},
            {"role": "user", "content": ""},
        ]
        assert engine.chat(again).text == "four"
