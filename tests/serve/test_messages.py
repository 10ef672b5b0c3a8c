"""/v1/messages with Anthropic's client, against a server process."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import pytest

from monolane.errors import RequestError
from monolane.serve._anthropic.conversation import chat_messages, chat_tools
from monolane.serve._anthropic.errors import error_json
from monolane.serve._errors import ApiError
from monolane.serve._tools.calls import whole_arguments

from .families import FAMILIES, write_family

Json = dict[str, Any]
WEATHER: Json = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
USER: Json = {"role": "user", "content": "def add(a, b):"}
ASK: Json = {"model": "demo", "messages": [USER], "max_tokens": 24}
GREEDY: Json = {"extra_body": {"temperature": 0}}
CALL: Json = ASK | {
    "tools": [WEATHER],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "max_tokens": 200,
    "extra_body": {"seed": 1},
}
RESULT: Json = {"type": "tool_result", "tool_use_id": "t1"}
DOCUMENT: Json = {"type": "document", "title": "Report", "context": "of May"}
PDF: Json = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf"}}
BLOCK = ["content_block_start", "content_block_delta", "content_block_stop"]


@pytest.fixture
def client(demo_server: Any) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=demo_server.url, api_key="none", max_retries=0) as client:
        yield client


def events_of(url: str, **fields: Any) -> list[Json]:
    """Return the events of a stream as they are sent, pings left out."""
    reply = httpx.post(f"{url}/v1/messages", json=fields | {"stream": True}, timeout=120)
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = []
    for event in reply.text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return [event for event in found if event["type"] != "ping"]


def names_once(events: list[Json]) -> list[str]:
    names = [event["type"] for event in events]
    return [name for i, name in enumerate(names) if not i or name != names[i - 1]]


def test_a_text_whole_and_streamed(demo_server: Any, client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**ASK, **GREEDY)
    (block,) = whole.content
    assert block.type == "text"
    assert whole.stop_reason in ("end_turn", "max_tokens")
    body = {"messages": [USER], "max_tokens": 24, "temperature": 0}
    chat = httpx.post(f"{demo_server.url}/v1/chat/completions", json=body, timeout=120).json()
    assert block.text == chat["choices"][0]["message"]["content"] != ""
    assert whole.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert whole.usage.output_tokens == chat["usage"]["completion_tokens"]

    with client.messages.stream(**ASK, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == block.text
    assert [block.text for block in final.content] == [block.text]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.input_tokens == whole.usage.input_tokens
    assert final.usage.output_tokens == whole.usage.output_tokens
    events = events_of(demo_server.url, **ASK, temperature=0)
    assert names_once(events) == ["message_start", *BLOCK, "message_delta", "message_stop"]
    assert {event["index"] for event in events if "index" in event} == {0}


def test_why_it_ended(client: anthropic.Anthropic) -> None:
    cut = client.messages.create(**ASK | {"max_tokens": 2}, extra_body={"ignore_eos": True})
    assert (cut.stop_reason, cut.stop_sequence) == ("max_tokens", None)
    said = {"guided_choice": ["one STOP two"]}
    stopped = client.messages.create(**ASK, stop_sequences=["x", "STOP"], extra_body=said)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "STOP")
    assert stopped.content[0].text == "one "
    ended = client.messages.create(**ASK, stop_sequences=["x"], extra_body=said)
    assert (ended.stop_reason, ended.stop_sequence) == ("end_turn", None)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_whole_and_streamed(
    demo_server: Any, client: anthropic.Anthropic, choice: Json
) -> None:
    ask = CALL | {"tool_choice": choice | {"disable_parallel_tool_use": True}}
    whole = client.messages.create(**ask)
    assert whole.stop_reason == "tool_use"
    (call,) = whole.content
    assert (call.type, call.name) == ("tool_use", "get_weather")
    assert set(call.input) == {"city"}
    with client.messages.stream(**ask) as stream:
        final = stream.get_final_message()
    assert final.content[0].input == call.input
    assert final.stop_reason == "tool_use"
    del ask["extra_body"]
    events = events_of(demo_server.url, **ask, seed=1)
    assert names_once(events) == ["message_start", *BLOCK, "message_delta", "message_stop"]
    deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
    assert {delta["type"] for delta in deltas} == {"input_json_delta"}
    assert json.loads("".join(delta["partial_json"] for delta in deltas)) == call.input
    assert events[1]["content_block"]["input"] == {}


def test_a_whole_turn_with_a_result(client: anthropic.Anthropic) -> None:
    called = client.messages.create(**CALL)
    result = {"type": "tool_result", "tool_use_id": called.content[0].id, "content": "sunny"}
    messages = [
        USER,
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    ask: Json = {"model": "demo", "messages": messages, "tools": [WEATHER]}
    count = client.messages.count_tokens(**ask)
    then = client.messages.create(**ask, max_tokens=4)
    # The API counts tokens of the prompt that came from a cache apart.
    read = then.usage.input_tokens + (then.usage.cache_read_input_tokens or 0)
    assert read == count.input_tokens > called.usage.input_tokens


def test_a_prompt_beyond_the_context_is_counted(demo_server: Any) -> None:
    """Claude Code counts to know what to leave out, and compacts when it reads these words."""
    url = demo_server.url
    ask: Json = {"messages": [{"role": "user", "content": "hello world " * 500}], "max_tokens": 1}
    count = httpx.post(f"{url}/v1/messages/count_tokens", json=ask, timeout=120).json()
    assert count["input_tokens"] > 1024
    chat = httpx.post(f"{url}/v1/chat/completions/input_tokens", json=ask, timeout=120).json()
    assert chat["input_tokens"] == count["input_tokens"]
    reply = httpx.post(f"{url}/v1/messages", json=ask, timeout=120)
    assert reply.status_code == 400
    said = reply.json()["error"]["message"]
    assert said.startswith(f"prompt is too long: {count['input_tokens']} tokens > 1024 maximum (")


def test_a_message_without_blocks_says_nothing(client: anthropic.Anthropic) -> None:
    empty: Json = {"role": "user", "content": []}
    count = client.messages.count_tokens(model="demo", messages=[empty])
    plain = client.messages.count_tokens(model="demo", messages=[{"role": "user", "content": ""}])
    assert count == plain
    assert client.messages.create(**ASK | {"messages": [empty]}).usage.input_tokens


def test_an_answer_that_was_begun_goes_on(client: anthropic.Anthropic) -> None:
    begun = {"role": "assistant", "content": "    return"}
    count = client.messages.count_tokens(model="demo", messages=[USER, begun])
    turn = client.messages.count_tokens(model="demo", messages=[USER, begun, USER])
    assert count.input_tokens < turn.input_tokens
    assert client.messages.create(**ASK | {"messages": [USER, begun]}).content


def test_a_schema(client: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    form = {"format": {"type": "json_schema", "schema": schema}}
    said = client.messages.create(**ASK, output_config=form).content[0].text
    assert json.loads(said)["a"] in (1, 2)


def test_keys_and_errors_have_anthropics_shape(keyed_server: Any, api_key: str) -> None:
    url = keyed_server.url
    with anthropic.Anthropic(base_url=url, api_key=api_key, max_retries=0) as client:
        assert client.messages.create(**ASK).content
        with pytest.raises(anthropic.NotFoundError) as caught:
            client.messages.create(**ASK | {"model": "other"})
        assert caught.value.body["error"]["type"] == "not_found_error"
        for path in ("/v1/messages/batches", "/v1/messages/batches/b/results"):  # not there
            with pytest.raises(anthropic.NotFoundError) as caught:
                client.get(path, cast_to=object)
            assert caught.value.body["error"]["type"] == "not_found_error"
        page = client.models.list()
        assert [(one.id, one.type, one.display_name) for one in page] == [("demo", "model", "demo")]
        assert client.models.retrieve("demo").created_at == page.data[0].created_at
        # The client itself checks nothing of a reply.
        (card,) = client.get("/v1/models", cast_to=object)["data"]
        checked = anthropic.types.ModelInfo.model_validate(card)
        assert (checked.lifecycle, checked.max_input_tokens) == ("active", 1024)
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            client.messages.create(**ASK | {"max_tokens": 0})
        with pytest.raises(anthropic.BadRequestError) as refused:
            client.messages.count_tokens(model="demo", messages=[])
        assert refused.value.body["error"]["type"] == "invalid_request_error"
    with anthropic.Anthropic(base_url=url, auth_token=api_key, api_key=None) as client:
        assert client.messages.create(**ASK).content
    with (
        anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError) as denied,
    ):
        client.messages.create(**ASK)
    assert denied.value.body["error"]["type"] == "authentication_error"
    assert denied.value.request_id == denied.value.response.headers["x-request-id"]
    assert json.loads(error_json(ApiError(503, "x"))) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "x"},
    }


def test_an_error_after_the_start_is_an_event(demo_server: Any) -> None:
    ask = ASK | {"guided_regex": r"(\p{L}{1,200}){1,100}", "max_tokens": 400}
    last = events_of(demo_server.url, **ask)[-1]
    assert last["type"] == "error"
    assert set(last["error"]) == {"type", "message"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"system": 5}, "system"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        (
            {"messages": [{"role": "system", "content": [{"type": "image"}]}]},
            "messages[0].content[0]: expected text",
        ),
        (
            {"messages": [{"role": "user", "content": [RESULT | {"content": [{}]}]}]},
            "messages[0].content[0].content[0]: expected text",
        ),
        (
            {"messages": [{"role": "user", "content": [PDF]}]},
            "messages[0].content[0].source: expected the type text or content, got 'base64'",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "tool", "name": "x"}, "tools": [WEATHER]}, "tool_choice"),
        ({"tool_choice": {"type": "some"}}, "tool_choice"),
        ({"thinking": {"type": "perhaps"}}, "thinking"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"container": "x"}, "container"),
        ({"n": 2}, "n:"),
        ({"suffix": "x"}, "suffix"),
    ],
)
def test_what_cannot_be_is_a_400(demo_server: Any, fields: Json, said: str) -> None:
    reply = httpx.post(f"{demo_server.url}/v1/messages", json=ASK | fields, timeout=120)
    assert reply.status_code == 400
    assert said in reply.json()["error"]["message"]


def test_thinking_is_a_block_and_can_be_switched(
    start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = write_family(tmp_path_factory.mktemp("thinks"), FAMILIES["qwen3.5"])
    server = start("--model", str(folder), "--name", "demo").wait_ready()
    more: Json = {"extra_body": {"ignore_eos": True, "seed": 1}}  # some seeds draw </think>
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        with client.messages.stream(**ASK, **more) as stream:
            final = stream.get_final_message()
        assert [block.type for block in final.content] == ["thinking"]
        assert final.content[0].thinking
        off = client.messages.create(**ASK, **more, thinking={"type": "disabled"})
        assert [block.type for block in off.content] == ["text"]
        low = {"output_config": {"effort": "low"}}  # of the answer, too: it turns nothing on
        off = client.messages.create(**ASK, **more, **low, thinking={"type": "disabled"})
        assert [block.type for block in off.content] == ["text"]
        on = {"type": "enabled", "budget_tokens": 1024}
        assert client.messages.create(**ASK, **more, thinking=on).content[0].type == "thinking"
        plain, told = (
            client.messages.count_tokens(model="demo", messages=[USER], **system).input_tokens
            for system in ({}, {"system": [{"type": "text", "text": "Be brief."}]})
        )
        assert told > plain
    server.close()


def test_an_effort_is_no_error_where_the_model_has_none(client: anthropic.Anthropic) -> None:
    for more in ({}, {"thinking": {"type": "adaptive"}}, {"thinking": {"type": "disabled"}}):
        asked = ASK | {"output_config": {"effort": "high"}} | more
        assert client.messages.create(**asked).role == "assistant"


def test_documents_and_search_results_are_text() -> None:
    found = {"type": "search_result", "source": "https://a.example", "title": "A"}
    blocks = [
        DOCUMENT | {"source": {"type": "text", "media_type": "text/plain", "data": "One."}},
        {"type": "document", "source": {"type": "content", "content": "Two."}},
        found
        | {"content": [{"type": "text", "text": "Three."}, {"type": "text", "text": "Four."}]},
        {"type": "text", "text": "Sum up."},
    ]
    result = RESULT | {"content": blocks[:1]}
    (asked,) = chat_messages([{"role": "user", "content": blocks}], None)
    assert asked["content"] == (
        "Report\nof May\n\nOne.\n\nTwo.\n\nA\nhttps://a.example\n\nThree.\n\nFour.\n\nSum up."
    )
    (told,) = chat_messages([{"role": "user", "content": [result]}], None)
    assert told["content"] == "Report\nof May\n\nOne.\n\n"


def test_blocks_become_messages() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "redacted_thinking", "data": "?"},
        {"type": "text", "text": "A"},
        {"type": "tool_use", "id": "t1", "name": "now", "input": {"at": 1}},
    ]
    results = [
        {"type": "text", "text": "See: "},
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "9"}]},
        {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True},
        {"type": "text", "text": "So"},
        {"type": "text", "text": "what?"},
    ]
    system = [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind"}]
    asked = [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
    function = {"name": "now", "arguments": {"at": 1}}
    assert chat_messages(asked, system) == [
        {"role": "system", "content": "Be\n\nkind"},
        {
            "role": "assistant",
            "content": "A",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "user", "content": "See: "},
        {"role": "tool", "tool_call_id": "t1", "content": "9"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no"},
        {"role": "user", "content": "So\nwhat?"},
    ]
    assert chat_tools([{"type": "web_search_20250305", "name": "web_search"}]) == []
    with pytest.raises(RequestError, match="a list of blocks"):
        chat_messages([{"role": "user", "content": ["x"]}], None)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('{"at": "x\\ud83d"}', {"at": "x?"}),
        ('{"at": NaN}', None),
        ('{"at": 1e999}', None),
        ('{"at": "x', None),
        ("[1]", None),
        ("", None),
    ],
)
def test_an_input_is_an_object_that_json_can_hold(written: str, told: Json | None) -> None:
    assert whole_arguments(written) == told
