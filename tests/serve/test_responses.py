"""/v1/responses with the official client, against a server process."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest

from monolane.errors import RequestError
from monolane.serve._openai.responses.conversation import chat_messages
from monolane.serve._openai.responses.output import Output
from monolane.serve._openai.responses.store import ResponseStore, Stored
from monolane.serve._openai.responses.tools import chat_choice, read_offered
from monolane.serve._tools.calls import Delta, ToolCallDelta

from .families import FAMILIES, write_family

Json = dict[str, Any]
WEATHER: Json = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
RESULT: Json = {"type": "function_call_output", "output": "9"}
CALL_ITEM: Json = {"type": "function_call", "name": "now", "arguments": "{}"}
ASK: Json = {"model": "demo", "input": "def add(a, b):", "max_output_tokens": 24, "temperature": 0}
CALL: Json = {
    "model": "demo",
    "input": "How is the weather?",
    "tools": [WEATHER],
    "tool_choice": "required",
    "max_output_tokens": 200,
    "extra_body": {"seed": 1},
}
# Of one item each, as OpenAI's server sends them.
TEXT_EVENTS = [
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
CALL_EVENTS = [
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
]
THOUGHT_EVENTS = [name.replace("output_text", "reasoning_text") for name in TEXT_EVENTS]


@pytest.fixture
def client(demo_server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def names_once(events: list[Any]) -> list[str]:
    """Return the events' types, those of one kind behind each other as one."""
    names = [event if isinstance(event, str) else event.type for event in events]
    return [name for i, name in enumerate(names) if not i or name != names[i - 1]]


def test_a_text_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASK)
    chat = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": ASK["input"]}],
        max_tokens=24,
        temperature=0,
    )
    assert whole.output_text == chat.choices[0].message.content != ""
    assert whole.usage is not None
    assert chat.usage is not None
    assert whole.usage.input_tokens == chat.usage.prompt_tokens
    assert whole.usage.output_tokens == chat.usage.completion_tokens
    assert whole.usage.total_tokens == chat.usage.total_tokens

    events = list(client.responses.create(**ASK, stream=True))
    end = "response.incomplete" if whole.status == "incomplete" else "response.completed"
    assert names_once(events) == ["response.created", "response.in_progress", *TEXT_EVENTS, end]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    last = events[-1].response
    assert last.output_text == whole.output_text
    assert last.usage == whole.usage
    assert events[0].response.status == "in_progress"
    assert {event.item_id for event in events if hasattr(event, "item_id")} == {last.output[0].id}


def test_an_answer_that_is_cut_off_says_so(client: openai.OpenAI) -> None:
    cut = client.responses.create(**ASK | {"max_output_tokens": 2}, extra_body={"ignore_eos": True})
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    assert cut.output[0].status == "incomplete"
    ended = client.responses.create(**ASK, extra_body={"guided_choice": ["yes"]})
    assert (ended.status, ended.output_text) == ("completed", "yes")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_a_call_whole_and_streamed(client: openai.OpenAI, choice: Any) -> None:
    ask = CALL | {"tool_choice": choice, "parallel_tool_calls": False}
    whole = client.responses.create(**ask)
    assert whole.status == "completed"
    (call,) = whole.output
    assert call.type == "function_call"
    assert call.name == "get_weather"
    assert set(json.loads(call.arguments)) == {"city"}

    events = list(client.responses.create(**ask, stream=True))
    assert names_once(events) == [
        *("response.created", "response.in_progress"),
        *CALL_EVENTS,
        "response.completed",
    ]
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert "".join(deltas) == done.arguments == call.arguments
    assert events[2].item.arguments == ""
    assert events[2].item.call_id == events[-1].response.output[0].call_id


def test_a_result_goes_back_by_the_responses_id(client: openai.OpenAI) -> None:
    first = client.responses.create(**CALL, parallel_tool_calls=False)
    (call,) = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    ask: Json = {"model": "demo", "max_output_tokens": 8, "tools": [WEATHER]}
    then = client.responses.create(**ask, previous_response_id=first.id, input=[result])
    assert then.previous_response_id == first.id
    # The same, with the whole conversation sent again.
    spelled = [{"role": "user", "content": CALL["input"]}, call.to_dict(), result]
    again = client.responses.create(**ask, input=spelled)
    named = [
        {"role": "user", "content": CALL["input"]},
        {"type": "item_reference", "id": call.id},
        result,
    ]
    referred = client.responses.create(**ask, input=named)
    counts = {reply.usage.input_tokens for reply in (then, again, referred) if reply.usage}
    assert len(counts) == 1
    assert counts.pop() > first.usage.input_tokens  # type: ignore[union-attr]


def test_what_is_stored_can_be_read_and_forgotten(client: openai.OpenAI) -> None:
    made = client.responses.create(**ASK, instructions="Be brief.", metadata={"a": "b"})
    assert client.responses.retrieve(made.id) == made
    assert made.metadata == {"a": "b"}
    assert made.instructions == "Be brief."
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(made.id)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(**ASK, previous_response_id=made.id)
    kept = client.responses.create(**ASK, store=False)
    assert kept.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(kept.id)
    (*_, streamed) = client.responses.create(**ASK, stream=True)
    assert client.responses.retrieve(streamed.response.id) == streamed.response


def test_what_was_asked_is_told_again(client: openai.OpenAI) -> None:
    """Fields that Open Responses requires of every response."""
    plain = client.responses.create(**ASK).to_dict()
    required = ("presence_penalty", "frequency_penalty", "service_tier")
    assert [plain[name] for name in required] == [0, 0, "default"]
    assert plain["safety_identifier"] is plain["prompt_cache_key"] is None
    assert plain["text"] == {"format": {"type": "text"}}
    told: Any = {"safety_identifier": "s", "prompt_cache_key": "k", "service_tier": "flex"}
    told["text"] = {"verbosity": "low"}
    more = {"extra_body": {"presence_penalty": 0.5, "frequency_penalty": -0.5}}
    made = client.responses.create(**ASK, **told, **more).to_dict()
    assert [made[name] for name in required] == [0.5, -0.5, "default"]
    assert (made["safety_identifier"], made["prompt_cache_key"]) == ("s", "k")
    assert made["text"]["verbosity"] == "low"


def test_tokens_of_a_response_are_counted(client: openai.OpenAI) -> None:
    made = client.responses.create(**ASK, instructions="Be brief.")
    count = client.responses.input_tokens.count(
        model="demo", input=ASK["input"], instructions="Be brief."
    )
    assert made.usage is not None
    assert (count.object, count.input_tokens) == ("response.input_tokens", made.usage.input_tokens)


def test_input_items_of_a_stored_response(client: openai.OpenAI) -> None:
    given = [{"role": "user", "content": f"text {i}"} for i in range(5)]
    made = client.responses.create(**ASK | {"input": given})
    listed = client.responses.input_items.list
    page = listed(made.id)
    texts = [item.content[0].text for item in page.data]
    assert texts == [f"text {i}" for i in (4, 3, 2, 1, 0)]
    assert [item.type for item in page.data] == ["message"] * 5
    assert [item.content[0].text for item in listed(made.id, limit=2, order="asc")] == texts[::-1]
    again = listed(made.id, after=page.data[1].id, limit=2)
    assert [item.id for item in again.data] == [item.id for item in page.data[2:4]]
    assert again.has_more
    then = client.responses.create(**ASK, previous_response_id=made.id)
    assert len(listed(then.id).data) == 5 + len(made.output) + 1
    assert [item.id for item in listed(then.id, order="asc").data[:5]] == [
        item.id for item in reversed(page.data)
    ]
    for wrong in ({"order": "up"}, {"limit": 0}, {"limit": 101}, {"after": "msg_none"}):
        with pytest.raises(openai.BadRequestError, match=next(iter(wrong))):
            listed(made.id, **wrong)
    with pytest.raises(openai.NotFoundError):
        listed("resp_none")


def test_nothing_runs_in_the_background(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.create(**ASK, background=True)
    made = client.responses.create(**ASK)
    with pytest.raises(openai.BadRequestError, match="background can be cancelled"):
        client.responses.cancel(made.id)
    with pytest.raises(openai.BadRequestError, match="background can be streamed"):
        client.responses.retrieve(made.id, stream=True)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_none")


def test_what_is_stored_belongs_to_its_key(start: Callable[..., Any], tmp_path: Any) -> None:
    from monolane.serve._keys import add_key

    keys = [add_key(tmp_path / "keys.txt", name) for name in ("ann", "bob")]
    server = start("--api-keys", str(tmp_path / "keys.txt")).wait_ready()
    ann, bob = (openai.OpenAI(base_url=f"{server.url}/v1", api_key=key) for key in keys)
    with ann, bob:
        made = ann.responses.create(**ASK)
        assert ann.responses.retrieve(made.id).id == made.id
        for ask in (bob.responses.retrieve, bob.responses.delete):
            with pytest.raises(openai.NotFoundError):
                ask(made.id)
        with pytest.raises(openai.BadRequestError):
            bob.responses.create(**ASK, previous_response_id=made.id)
        assert ann.responses.retrieve(made.id).id == made.id


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=10)
    kind: Literal["cat", "dog"]


def test_parse_and_stream_give_an_object(client: openai.OpenAI) -> None:
    ask: Json = {"model": "demo", "input": "Who?", "text_format": Person, "max_output_tokens": 99}
    assert isinstance(client.responses.parse(**ask).output_parsed, Person)
    with client.responses.stream(**ask) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert "response.output_text.done" in kinds
    assert isinstance(final.output_parsed, Person)


def test_log_probabilities(client: openai.OpenAI) -> None:
    ask = ASK | {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    reply = client.responses.create(**ask)
    (part,) = reply.output[0].content
    assert len(part.logprobs) == reply.usage.output_tokens
    assert all(len(one.top_logprobs) == 2 for one in part.logprobs)
    assert "".join(one.token for one in part.logprobs).startswith(reply.output_text)
    events = list(client.responses.create(**ask, stream=True))
    told = [e.logprobs for e in events if e.type == "response.output_text.delta"]
    assert [one.token for some in told for one in some] == [one.token for one in part.logprobs]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "c"}, "conversation"),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"type": "code_interpreter_call", "code": "1"}]}, "code_interpreter_call"),
        ({"input": [{"type": "file_search_call", "results": [{"text": "x"}]}]}, "results"),
        ({"input": [{"type": "web_search_call", "output": "x"}]}, "input[0].output"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "only"),
        ({"input": [RESULT | {"call_id": {}}]}, "input[0].call_id"),
        ({"input": [RESULT | {"call_id": []}]}, "input[0].call_id"),
        ({"input": [CALL_ITEM | {"call_id": {}}]}, "input[0].call_id"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "no item 'x'"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"text": {"verbosity": "loud"}}, "text"),
        ({"tools": [{"type": "local_shell"}]}, "tools[0].type"),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "name"),
        ({"tool_choice": {"type": "mcp"}, "tools": [WEATHER]}, "tool_choice"),
        ({"extra_body": {"n": 2}}, "n"),
        ({"extra_body": {"suffix": "x"}}, "suffix"),
    ],
)
def test_what_cannot_be_is_a_400(client: openai.OpenAI, fields: Json, said: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**ASK | fields)
    assert said.replace("only", "all this model reads") in str(caught.value)


def test_an_error_after_the_start_is_an_event(client: openai.OpenAI) -> None:
    ask = ASK | {"extra_body": {"guided_regex": r"(\p{L}{1,200}){1,100}"}, "max_output_tokens": 400}
    events = list(client.responses.create(**ask, stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_thoughts_come_first_and_go_back(
    start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = write_family(tmp_path_factory.mktemp("thinks"), FAMILIES["qwen3.5"])
    server = start("--model", str(folder), "--name", "demo").wait_ready()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        ask = ASK | {"include": ["reasoning.encrypted_content"], "extra_body": {"ignore_eos": True}}
        events = list(client.responses.create(**ask, stream=True))
        assert names_once(events)[2:-1] == THOUGHT_EVENTS
        item = events[-1].response.output[0]
        assert events[-1].response.usage.output_tokens_details.reasoning_tokens == 24
        assert item.content[0].text
        assert item.encrypted_content == f"text:{item.content[0].text}"
        server.close()


def test_reasoning_text_and_calls_are_one_message() -> None:
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": "text:Hm."}
    call = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}
    items: list[Json] = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
        {"role": "user", "content": "When?"},
        sealed,
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
        call,
        call | {"call_id": "c2", "namespace": "clock"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "text", "text": "9"}],
        },
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "So."}]},
        {"role": "assistant", "content": "Nine."},
    ]
    system, user, said, result, last = chat_messages(items, "Be brief.")
    assert system == {"role": "system", "content": "Be brief.\n\nBe kind."}
    assert user == {"role": "user", "content": "When?"}
    assert (said["reasoning_content"], said["content"]) == ("Hm.", "A")
    assert [call["function"]["name"] for call in said["tool_calls"]] == ["now", "clock.now"]
    assert result == {"role": "tool", "tool_call_id": "c2", "name": "clock.now", "content": "9"}
    assert last == {"role": "assistant", "content": "Nine.", "reasoning_content": "So."}


def test_searches_of_openais_servers_are_left_out() -> None:
    """They tell what was looked for; what came of it is said in the message behind them."""
    action = {"type": "search", "query": "x", "sources": [{"type": "url", "url": "https://x.org"}]}
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": action}
    files = {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["x"]}
    said = {"role": "assistant", "content": "Found."}
    items = [{"role": "user", "content": "x"}, search, files | {"results": None}, said]
    assert chat_messages(items, None) == [items[0], said]


def test_tools_of_a_namespace_are_called_by_both_names() -> None:
    tools = read_offered([{"type": "namespace", "name": "clock", "tools": [WEATHER]}, WEATHER])
    assert [t["function"]["name"] for t in tools.chat] == ["clock.get_weather", "get_weather"]
    output = Output(tools, sealed=False)
    calls = (ToolCallDelta(0, "{}", "c0", "clock.get_weather"), ToolCallDelta(1, "{", "c1", "x"))
    events = [*output.add(Delta(tool_calls=calls), []), *output.close("incomplete")]
    assert names_once([event["type"] for event in events]) == CALL_EVENTS * 2
    named = [(item["name"], item.get("namespace"), item["status"]) for item in output.items]
    assert named == [("get_weather", "clock", "completed"), ("x", None, "incomplete")]
    hosted = read_offered([{"type": "web_search"}])  # which OpenAI's servers would run
    assert (hosted.chat, hosted.given) == ((), ())
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "x"}],
    }
    assert chat_choice(allowed)["allowed_tools"]["tools"][0]["function"] == {"name": "x"}
    with pytest.raises(RequestError, match="namespace with a name"):
        read_offered([{"type": "namespace", "name": "clock"}])


def test_the_store_is_bounded_in_count_and_in_bytes() -> None:
    store = ResponseStore(count=3, size=100)

    def put(name: str, size: int, owner: bytes = b"a") -> None:
        store.put(owner, Stored(name, b"{}", ({"id": f"item of {name}"},), size))

    for name in "1234":
        put(name, 10)
    assert [store.get(b"a", name) is not None for name in "1234"] == [False, True, True, True]
    store.get(b"a", "2")
    put("5", 10)  # 3 was used longest ago
    assert store.get(b"a", "3") is None
    put("6", 85)  # 85 and the last 10 fit into 100
    assert [store.get(b"a", name) is not None for name in "2456"] == [False, False, True, True]
    put("7", 1000)
    assert not any(store.get(b"a", name) for name in "24567")
    put("8", 100)
    assert store.item(b"a", "item of 8") == {"id": "item of 8"}
    assert store.item(b"b", "item of 8") is store.get(b"b", "8") is None
    assert not store.delete(b"b", "8")
    assert store.delete(b"a", "8")
    assert not store.delete(b"a", "8")
    put("9", 100)  # what was forgotten counts no more
    assert store.get(b"a", "9") is not None
