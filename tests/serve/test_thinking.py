"""Thinking: told apart from the answer, switched by the template, and left alone by grammars."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from monolane import Engine
from monolane.errors import RequestError
from monolane.serve._http.prepare import chat_prompt, prepare_chat
from monolane.serve._http.request import ChatAsked
from monolane.serve._openai.body import ChatRequest
from monolane.serve._run.request import _update
from monolane.serve._tools.calls import Delta

from .families import CALL, CHATML, FAMILIES, THINK, Family, Says, write_family

USER = {"role": "user", "content": "How is it?"}
TOOLS = [{"type": "function", "function": {"name": "now", "description": "The time"}}]
NAMES = ("qwen2.5", "qwen3", "qwen3.5", "smollm3", "deepseek-r1")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}


# Marks that are control tokens which a text leaves out, of templates in small form.
GEMMA = Family(
    "", ("<|turn>", "<turn|>", "<|channel>", "<channel|>"), (), "", own="<|channel>thought"
)
COMMAND = Family(
    "",
    ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    (),
    "",
    own="<|START_THINKING|> <|START_RESPONSE|>",
)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Engine]]:
    families = {name: FAMILIES[name] for name in (*NAMES, "gpt-oss")}
    families["spelled"] = replace(FAMILIES["qwen3.5"], plain=CALL)  # marks letter by letter
    families["special"] = replace(FAMILIES["qwen3.5"], special=CHATML + THINK, plain=CALL)
    turn = "{# %s #}{%% for m in messages %%}{{ m.content }}{%% endfor %%}"
    for name, family in (("gemma", GEMMA), ("command", COMMAND)):
        families[name] = replace(family, own=turn % family.own)
    closed = "<|START_THINKING|><|END_THINKING|>"
    families["command, closed"] = replace(COMMAND, own=turn % COMMAND.own + closed)
    loaded: dict[str, Engine] = {}
    for name, family in families.items():
        loaded[name] = Engine.load(write_family(tmp_path_factory.mktemp("thinking"), family))
    yield loaded
    for engine in loaded.values():
        engine.close()


def ask(**fields: Any) -> ChatAsked:
    return ChatRequest(**{"messages": [USER]} | fields).asked()


def ids_of(engine: Engine, text: str) -> list[int]:
    return engine.tokenizer.encode(text, add_special_tokens=False, parse_special=True)


def said(engine: Engine, text: str, **fields: Any) -> tuple[Delta, str | None, int, str]:
    """Return (delta, finish_reason, reasoning tokens, deltas' kinds) of an answer of this text."""
    (choice,) = prepare_chat(ask(**fields), engine)
    job = choice.stream._job
    choice.stream = engine.stream(choice.prompt_ids, job.params, Says(ids_of(engine, text)))
    updates = [_update(choice, piece) for piece in choice.stream]
    deltas = [delta for update in updates for delta in update.deltas]
    kinds = "".join(
        "r" * bool(delta.reasoning) + "c" * bool(delta.content) + "t" * bool(delta.tool_calls)
        for delta in deltas
    )
    return (
        Delta.joined(deltas),
        updates[-1].finish_reason,
        choice.stream.thinking_tokens,
        re.sub(r"(.)\1+", r"\1", kinds),
    )


STATES: list[tuple[str, dict[str, Any], bool | None]] = [
    # None: no thinking part; else whether the prompt begins it
    ("qwen2.5", {}, None),
    ("qwen3", {}, False),
    ("qwen3", {"chat_template_kwargs": {"enable_thinking": False}}, None),
    ("qwen3", {"chat_template_kwargs": {"enable_thinking": True}}, False),
    ("qwen3", {"reasoning_effort": "none"}, None),
    ("qwen3", {"reasoning_effort": "high"}, False),
    ("qwen3", {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": 1}}, False),
    ("qwen3.5", {}, True),
    ("qwen3.5", {"chat_template_kwargs": {"enable_thinking": False}}, None),
    ("smollm3", {}, False),
    ("smollm3", {"reasoning_effort": "none"}, None),
    ("smollm3", {"messages": [{"role": "system", "content": "/no_think"}, USER]}, None),
    ("deepseek-r1", {}, True),
    ("spelled", {}, True),
    # A user's mark is text; the answer is begun by the template alone.
    ("qwen3", {"messages": [{"role": "user", "content": "<think>"}]}, False),
    ("qwen3.5", {"messages": [{"role": "user", "content": "</think>"}]}, True),
    # An answer that is continued goes on where it stands.
    ("qwen3", {"messages": [USER, {"role": "assistant", "content": "<think>\nWell,"}]}, True),
    ("qwen3", {"messages": [USER, {"role": "assistant", "content": "It is"}]}, None),
]


@pytest.mark.parametrize(("name", "fields", "opened"), STATES)
def test_where_the_answer_begins(
    engines: dict[str, Engine], name: str, fields: dict[str, Any], opened: bool | None
) -> None:
    _, thinking = chat_prompt(ask(**fields), None, engines[name])
    assert (thinking and thinking.opened) == opened


def test_effort_goes_to_the_templates_own_variable(
    engines: dict[str, Engine], tmp_path_factory: pytest.TempPathFactory
) -> None:
    # A template without such a setting cannot be told.
    plain, _ = chat_prompt(ask(), None, engines["qwen2.5"])
    for effort in ("none", "low"):
        assert chat_prompt(ask(reasoning_effort=effort), None, engines["qwen2.5"]) == (plain, None)
    folder = write_family(tmp_path_factory.mktemp("effort"), FAMILIES["qwen2.5"])
    (folder / "chat_template.jinja").write_text("{{ reasoning_effort }}:{{ messages[0].content }}")
    with Engine.load(folder) as engine:
        ids, _ = chat_prompt(ask(reasoning_effort="minimal"), None, engine)
        assert engine.tokenizer.decode(ids) == "minimal:How is it?"


@pytest.mark.parametrize("logprobs", [False, True])  # True: the tokens come one by one
@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "deepseek-r1", "spelled", "special"])
def test_an_answer_that_thinks(engines: dict[str, Engine], name: str, logprobs: bool) -> None:
    engine = engines[name]
    thought = "\nHm, a < b.\n\nSo </thin> it is.\n</think>"
    thought = thought if name != "qwen3" else f"<think>{thought}"
    delta, reason, count, kinds = said(engine, f"{thought}\n\nYes.\n", logprobs=logprobs)
    assert delta == Delta("Yes.\n", "Hm, a < b.\n\nSo </thin> it is.")
    assert (reason, kinds) == ("stop", "rc")
    # The token that ends the mark may hold what follows, where the mark is no token.
    assert count - len(ids_of(engine, thought)) in ((0, 1) if name == "spelled" else (0,))


@pytest.mark.parametrize("logprobs", [False, True])
def test_an_answer_that_does_not(engines: dict[str, Engine], logprobs: bool) -> None:
    for name, fields in (("qwen2.5", {}), ("qwen3", {}), ("qwen3.5", {"reasoning_effort": "none"})):
        text = " Of <think> and </think>."
        delta, _, count, kinds = said(engines[name], text, logprobs=logprobs, **fields)
        assert (delta, count, kinds) == (Delta(text), 0, "c")


def test_one_that_is_cut_off_has_thought_all_the_while(engines: dict[str, Engine]) -> None:
    delta, reason, count, _ = said(engines["qwen3"], "<think>\nHm, yes", max_tokens=3)
    assert (delta.content, reason, count) == ("", "length", 3)
    assert "Hm, yes".startswith(delta.reasoning)


def test_stop_texts_count_behind_the_thinking_part(engines: dict[str, Engine]) -> None:
    thought, _, _, _ = said(engines["qwen3.5"], "One\n\nTwo</think>Yes.\n\nNo.", stop=["\n\n"])
    assert thought == Delta("Yes.", "One\n\nTwo")
    delta, reason, _, _ = said(engines["qwen2.5"], "One\n\nTwo", stop=["\n\n"])
    assert (delta.content, reason) == ("One", "stop")


def test_calls_are_found_behind_the_thinking_part(engines: dict[str, Engine]) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for name, thought in (("qwen3", f"<think>Not {call}</think>\n\n"), ("qwen3.5", "Hm.</think>")):
        delta, reason, _, kinds = said(engines[name], thought + call, tools=TOOLS)
        assert [part.name for part in delta.tool_calls] == ["now"]
        assert (delta.content, reason, kinds) == ("", "tool_calls", "rt")
    assert delta.reasoning == "Hm."


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": FORMAT},
        {"structured_outputs": {"regex": r'\{"a": [12]\}'}},
        {"structured_outputs": {"choice": ['{"a": 1}', '{"a": 2}']}},
        {"structured_outputs": {"grammar": 'start: "{" KEY ": " /[12]/ "}"\nKEY: "\\"a\\""'}},
    ],
)
@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "spelled", "qwen2.5"])
def test_a_grammar_begins_behind_the_thinking_part(
    engines: dict[str, Engine], name: str, fields: dict[str, Any]
) -> None:
    engine = engines[name]

    def admits(text: str) -> bool:
        (choice,) = prepare_chat(ask(**fields), engine)
        ids = ids_of(engine, text)
        return choice.stream._job.constraint._matcher.validate_tokens(ids) == len(ids)

    begin = "<think>" if name == "qwen3" else ""
    thought = f'{begin}\nOne {{"a": 3}}\n\nTwo'
    thinks = name != "qwen2.5"
    for space in ("", "\n\n"):
        assert admits(f'{thought}</think>{space}{{"a": 1}}') == thinks
        assert not admits(f'{thought}</think>{space}{{"a": 3}}')
    assert admits(thought) == thinks  # goes on
    assert admits('{"a": 1}')  # where the prompt has begun to think, these are thoughts
    assert admits('{"a": 3}') == (name in ("qwen3.5", "spelled"))
    if name != "qwen2.5":  # the end of sequence ends no thinking part
        eos = engine.tokenizer.decode([engine.tokenizer.eos_id], skip_special_tokens=False)
        assert not admits(thought + eos)
    off = ask(**fields, reasoning_effort="none")
    (choice,) = prepare_chat(off, engine)
    ids = ids_of(engine, '{"a": 1}')
    assert choice.stream._job.constraint._matcher.validate_tokens(ids) == len(ids)


def test_thoughts_of_the_history_go_to_templates_that_read_them(
    engines: dict[str, Engine],
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    chat = [
        USER,
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "I should look.",
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    for name, shows in (("qwen3", True), ("qwen3.5", True), ("qwen2.5", False)):
        engine = engines[name]
        ids, _ = chat_prompt(ask(messages=chat), None, engine)
        text = engine.tokenizer.decode(ids, skip_special_tokens=False)
        assert ("<think>\nI should look.\n</think>" in text) == shows
        assert "noon" in text


def test_over_http_whole_and_streamed(start: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = write_family(tmp_path_factory.mktemp("served"), FAMILIES["qwen3.5"])
    server = start("--model", str(folder), "--name", "it", "--tool-format", "hermes").wait_ready()
    with Engine.load(folder) as engine:
        end = engine.tokenizer.id_of("</think>")
    body = {
        "messages": [USER],
        "max_tokens": 400,
        "seed": 1,
        "temperature": 1,
        "logit_bias": {str(end): 2},
        "response_format": FORMAT,
    }
    url = f"{server.url}/v1/chat/completions"
    reply = httpx.post(url, json=body, timeout=60).json()
    message, usage = reply["choices"][0]["message"], reply["usage"]
    assert json.loads(message["content"])["a"] in (1, 2)
    thought = message["reasoning_content"]
    assert thought
    assert "</think>" not in thought
    counted = usage["completion_tokens_details"]["reasoning_tokens"]
    assert 1 < counted < usage["completion_tokens"]

    options = {"stream": True, "stream_options": {"include_usage": True}}
    deltas: list[dict[str, Any]] = []
    with httpx.stream("POST", url, json=body | options, timeout=60) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                deltas += [choice["delta"] for choice in event["choices"]]
                used = event["usage"]
    assert used == usage
    assert "".join(d.get("reasoning_content", "") for d in deltas) == thought
    assert "".join(d.get("content", "") for d in deltas) == message["content"]
    assert deltas[0]["role"] == "assistant"

    plain = httpx.post(url, json=body | {"reasoning_effort": "none"}, timeout=60).json()
    assert "reasoning_content" not in plain["choices"][0]["message"]
    assert plain["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    wrong = httpx.post(url, json=body | {"reasoning_effort": "much"}, timeout=60)
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "reasoning_effort"


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        ("gemma", "<|channel>thought\nHm.\n<channel|>", ""),
        (
            "command",
            "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>",
            "<|END_RESPONSE|>",
        ),
        ("command, closed", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ],
)
def test_marks_of_control_tokens_and_around_the_answer(
    engines: dict[str, Engine], name: str, begin: str, end: str
) -> None:
    engine, thought = engines[name], "Hm." if "Hm." in begin else ""
    delta, _, count, _ = said(engine, f"{begin}Yes.{end}")
    assert delta == Delta("Yes.", thought)
    assert bool(count) == bool(thought)
    for text, admitted in (('{"a": 1}', True), ('{"a": 3}', False)):
        (choice,) = prepare_chat(ask(response_format=FORMAT), engine)
        for tried in (begin + text, text):
            ids = ids_of(engine, tried)
            matcher = choice.stream._job.constraint._matcher
            assert (matcher.validate_tokens(ids) == len(ids)) == admitted, tried


NEXT = "<|end|><|start|>assistant"
THOUGHT = f"<|channel|>analysis<|message|>Hm.{NEXT}"


def test_an_answer_in_channels_is_told_apart(engines: dict[str, Engine]) -> None:
    engine = engines["gpt-oss"]
    delta, reason, tokens, kinds = said(engine, f"{THOUGHT}<|channel|>final<|message|>Yes.")
    assert (delta, reason, kinds) == (Delta("Yes.", "Hm."), "stop", "rc")
    assert tokens > 0
    called = (
        f'{THOUGHT}<|channel|>commentary to=functions.now <|constrain|>json<|message|>{{"a": 1}}'
    )
    delta, reason, _, kinds = said(engine, called + "<|call|>", tools=TOOLS)
    assert (delta.content, delta.reasoning, reason, kinds) == ("", "Hm.", "tool_calls", "rt")
    assert [(call.name, call.arguments) for call in delta.tool_calls] == [("now", '{"a": 1}')]
    going_on = [USER, {"role": "assistant", "content": "It is"}]
    assert said(engine, " fine.", messages=going_on)[0] == Delta(" fine.")


def test_grammars_stand_in_the_last_channel(engines: dict[str, Engine]) -> None:
    engine = engines["gpt-oss"]

    def takes(text: str, **fields: Any) -> bool:
        ids = ids_of(engine, text)
        (choice,) = prepare_chat(ask(**fields, max_tokens=len(ids) + 1), engine)
        walk = choice.stream._job.constraint
        return walk._matcher.validate_tokens(ids) == len(ids)

    for before in ("", THOUGHT):
        assert takes(before + '<|channel|>final<|message|>{"a": 1}', response_format=FORMAT)
        assert not takes(before + '<|channel|>final<|message|>{"a": 3}', response_format=FORMAT)
        assert not takes(before + '{"a": 1}', response_format=FORMAT)
        call = " to=functions.now<|channel|>commentary json<|message|>{}<|call|>"
        assert takes(before + call, tools=TOOLS, tool_choice="required")
        text = before + "<|channel|>final<|message|>No."
        assert not takes(text, tools=TOOLS, tool_choice="required")
    with pytest.raises(RequestError, match="answers in channels, where a grammar holds either"):
        prepare_chat(ask(tools=TOOLS, response_format=FORMAT), engine)


def test_thoughts_before_calls_are_shown_in_their_channel(engines: dict[str, Engine]) -> None:
    engine = engines["gpt-oss"]
    function = {"name": "now", "arguments": "{}"}
    call = {"id": "a", "type": "function", "function": function}
    told = {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "a", "content": "noon"}
    (choice,) = prepare_chat(ask(messages=[USER, told, result], tools=TOOLS), engine)
    shown = engine.tokenizer.decode(choice.prompt_ids, skip_special_tokens=False)
    assert "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.now" in shown
    function = {"name": "now", "description": "The time", "strict": True}
    with pytest.raises(RequestError, match="harmony are messages of their own, so no grammar"):
        prepare_chat(ask(tools=[{"type": "function", "function": function}]), engine)
