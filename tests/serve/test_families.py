"""Tools and thinking as each family spells them: real templates, and a model that says so."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monolane import Engine
from monolane.errors import RequestError, TextError
from monolane.model import Role, parse_config, tensor_specs, write_checkpoint
from monolane.serve import ServerOptions, serve
from monolane.serve._http.prepare import chat_prompt, prepare_chat
from monolane.serve._http.request import ChatAsked
from monolane.serve._openai.body import ChatRequest
from monolane.serve._tools.calls import Delta
from monolane.serve._tools.formats import FORMATS, format_of
from monolane.serve._tools.parser import ToolParser
from monolane.serve._tools.prompt import tool_prompt
from monolane.serve._tools.request import ToolUse, read_tools
from monolane.serve._tools.template_probe import Shown, shown_by
from monolane.text import ChatTemplate, find_thinking, thinking_switch

from .families import FAMILIES, TEMPLATES, Family, write_family

PROPERTIES: dict[str, Any] = {
    "city": {"type": "string", "description": "Where"},
    "days": {"type": "integer", "description": "How many"},
    "ratio": {"type": "number", "description": "How much"},
    "exact": {"type": "boolean", "description": "How well"},
    "where": {"type": "object", "description": "What else"},
    "tags": {"type": "array", "items": {"type": "string"}, "description": "Which"},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Tells something",
            "parameters": {"type": "object", "properties": PROPERTIES, "required": ["city"]},
        },
    }
    for name in ("get_weather", "now")
]
USER = {"role": "user", "content": "How is it?"}


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Engine]]:
    loaded: dict[str, Engine] = {}
    for name, family in FAMILIES.items():
        loaded[name] = Engine.load(write_family(tmp_path_factory.mktemp("family"), family))
    yield loaded
    for engine in loaded.values():
        engine.close()


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("qwen3.5", ["<|im_end|>"]),
        ("llama3.1", ["<|eot_id|>"]),
        ("nemo", ["[/INST]", "</s>"]),
        ("gpt-oss", ["<|end|>"]),
        ("deepseek-r1", ["<｜Assistant｜>", "<｜end▁of▁sentence｜>"]),
    ],
)
def test_what_ends_a_message(engines: dict[str, Engine], name: str, ends: list[str]) -> None:
    """Behind it a prompt is kept: see docs/prefix-cache.md."""
    engine = engines[name]
    assert engine.tokenizer is not None
    found = engine.chat_template.message_ends(engine.tokenizer)
    assert found == {engine.tokenizer.id_of(end) for end in ends}
    refusing = ChatTemplate("{{ raise_exception('no') }}")
    assert refusing.message_ends(engine.tokenizer) == frozenset()
    assert ChatTemplate("{{ messages }}").message_ends(engine.tokenizer) == frozenset()


def ask(**fields: Any) -> ChatAsked:
    return ChatRequest(**{"messages": [USER]} | fields).asked()


def use_of(engine: Engine, **fields: Any) -> ToolUse:
    use = read_tools(TOOLS, fields.get("tool_choice"), None, engine)
    assert use is not None
    return use


def calls_message(calls: Sequence[tuple[str, dict[str, Any]]], content: str | None) -> Any:
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "id": f"call{i:05}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for i, (name, arguments) in enumerate(calls)
        ],
    }


def turn_of(engine: Engine, family: Family, chat: list[Any], tools: Any) -> tuple[str, str]:
    """Return the prompt that the last message of a chat answers, and its text as rendered."""
    render = engine.chat_template.render
    prompt = render(chat[:-1], tools=tools)
    whole = render(chat, tools=tools, add_generation_prompt=False)
    if not whole.startswith(prompt):  # it opens a thinking part that history has not
        prompt = prompt.rstrip().removesuffix("<think>")
    assert whole.startswith(prompt)
    return prompt, whole[len(prompt) :].rstrip().removesuffix(family.eos)


def read(engine: Engine, prompt: str, text: str, use: ToolUse) -> tuple[Delta, list[Any]]:
    """Return an answer as the server reads it, and its calls."""
    ids = engine.tokenizer.encode(prompt, add_special_tokens=False, parse_special=True)
    thinking = find_thinking(engine.chat_template, engine.tokenizer, ids)
    thought = ""
    if thinking is not None:
        split = thinking.split()
        (thought, text), last = split.push(text), split.finish()
        thought, text = thought + last[0], text + last[1]
    parser = ToolParser(use)
    delta = Delta.joined([Delta("", thought), parser.push(text), parser.finish()])
    return delta, [(call.name, json.loads(call.arguments)) for call in delta.tool_calls]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_format_is_found(engines: dict[str, Engine], name: str) -> None:
    assert format_of(engines[name]).name == FAMILIES[name].format


def test_a_format_may_be_chosen(engines: dict[str, Engine]) -> None:
    for tool_format in FORMATS:
        assert format_of(engines["qwen3"], tool_format.name) is tool_format
    with pytest.raises(RequestError, match="expected one of auto, .*xml, hermes, .* got 'lama'"):
        format_of(engines["qwen3"], "lama")
    # The instructions, where the template has none, spell what is then read.
    use = read_tools(TOOLS, None, None, engines["smollm2"], "llama")
    told, _ = tool_prompt([USER], TOOLS, use, engines["smollm2"])
    assert '\n{"name": "function name", "parameters": {"argument name": ' in told[0]["content"]


# Line breaks of other systems and control characters are no matter of spelling: templates and XML
# keep them or not as they like.
texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12)
values = {
    "city": texts | st.sampled_from(["}", '"]', "</tool_call>", "two\nlines", " 7 ", "null", ""]),
    "days": st.integers(-(10**20), 10**20),
    "ratio": st.floats(allow_nan=False, allow_infinity=False, width=32),
    "exact": st.booleans(),
    "where": st.dictionaries(texts, texts | st.integers() | st.none(), max_size=2),
    "tags": st.lists(texts, max_size=2),
}
some_calls = st.lists(
    st.tuples(
        st.sampled_from(["get_weather", "now"]), st.fixed_dictionaries({}, optional=dict(values))
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=some_calls, content=st.sampled_from([None, "", "Let me see."]))
def test_calls_of_the_history_are_read_again(
    engines: dict[str, Engine], name: str, calls: list[Any], content: str | None
) -> None:
    """What a template shows of a call, the server reads as that call."""
    engine, family = engines[name], FAMILIES[name]
    use = use_of(engine)
    message = calls_message(calls, content)
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"seen-{i}"}
        for i, call in enumerate(message["tool_calls"])
    ]
    told, tools = tool_prompt([USER, message, *results], TOOLS, use, engine)
    found: list[Any] = []
    for i, turn in enumerate(told):
        if turn["role"] == "assistant":
            delta, again = read(engine, *turn_of(engine, family, told[: i + 1], tools), use)
            assert delta.content in ("", content)
            found += again
    assert found == calls
    whole = engine.chat_template.render(told, tools=tools)
    assert all(f"seen-{i}" in whole for i in range(len(calls)))


@pytest.mark.parametrize("name", FAMILIES)
def test_forced_calls_are_as_the_template_shows_them(engines: dict[str, Engine], name: str) -> None:
    """The grammar of a required call takes the text that the template renders of one."""
    engine, family = engines[name], FAMILIES[name]
    chosen = {"tools": TOOLS, "tool_choice": "required"}
    use = use_of(engine, **chosen)
    calls = [("get_weather", {"city": "Bern", "days": 2}), ("now", {"city": "Zürich"})]
    calls = calls if use.format.many else calls[:1]
    told, tools = tool_prompt([USER, calls_message(calls, None)], TOOLS, use, engine)
    _, text = turn_of(engine, family, told, tools)
    ids = engine.tokenizer.encode(text.strip(), add_special_tokens=False, parse_special=True)
    (choice,) = prepare_chat(ask(**chosen, max_tokens=len(ids) + 1), engine)
    walk = choice.stream._job.constraint
    if name == "deepseek-r1":  # the prompt begins a thinking part, which history leaves out
        thought = "Hm.</think>\n\n"
        ids = engine.tokenizer.encode(thought, add_special_tokens=False, parse_special=True) + ids
    if name == "nemo":  # its template adds ids to calls, which the API has beside them
        text = text.replace(', "id": "call00000"', "").replace(', "id": "call00001"', "")
        ids = engine.tokenizer.encode(text, add_special_tokens=False, parse_special=True)
    assert walk._matcher.validate_tokens(ids) == len(ids), text


TURN = "{{ m.role }}:{{ m.content }};"
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ ARGUMENTS }};{% endfor %}"
LOOP = "{% for t in tools or [] %}{{ t }}{% endfor %}{% for m in messages %}BODY{% endfor %}"


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (TURN + CALLS.replace("ARGUMENTS", "c.function.arguments | tojson"), Shown(True, True)),
        (
            TURN + CALLS.replace("ARGUMENTS", "'' + c.function.arguments"),
            Shown(True, True, objects=False),
        ),
        (
            "{{ m.content + '' }}" + CALLS.replace("ARGUMENTS", "c.function.arguments"),
            Shown(True, True, null=False),
        ),
        (
            "{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one') }}{% endif %}"
            + TURN
            + CALLS.replace("ARGUMENTS", "c.function.arguments"),
            Shown(True, True, many=False),
        ),
        (TURN, Shown(results=True)),
        ("{% if m.role != 'tool' %}" + TURN + "{% endif %}", Shown()),
    ],
)
def test_what_a_template_shows_is_found_by_trying(
    engines: dict[str, Engine], tmp_path: Path, body: str, shown: Shown
) -> None:
    """And a history in any of these forms holds what was called and seen."""
    assert shown_by(ChatTemplate(LOOP.replace("BODY", body))) == shown
    folder = write_family(tmp_path, FAMILIES["qwen2.5"])
    (folder / "chat_template.jinja").write_text(LOOP.replace("BODY", body))
    calls = [("get_weather", {"city": "Bern"}), ("now", {"city": "Chur"})]
    message = calls_message(calls, None)
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"seen-{i}"}
        for i, call in enumerate(message["tool_calls"])
    ]
    with Engine.load(folder) as engine:
        told, _ = tool_prompt([USER, message, *results], TOOLS, use_of(engine), engine)
        text = engine.chat_template.render(told)
    for word in ("get_weather", "Bern", "seen-0", "now", "Chur", "seen-1"):
        assert text.count(word) == 1, text
    if not shown.calls:
        assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}' in text
    if not shown.results:
        assert "user:<tool_response>\nseen-0\n</tool_response>" in text
    if not shown.many:  # each result behind its call
        assert text.index("seen-0") < text.index("Chur") < text.index("seen-1")


def test_a_deepseek_v4_without_a_template_chats_in_its_own(tmp_path: Path) -> None:
    """Its folders have a program in a template's place."""
    family = FAMILIES["deepseek-v4"]
    folder = write_family(tmp_path, family)
    (folder / "chat_template.jinja").unlink()
    config = {
        "model_type": "deepseek_v4",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "head_dim": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "qk_rope_head_dim": 4,
        "q_lora_rank": 8,
        "o_groups": 2,
        "o_lora_rank": 8,
        "index_n_heads": 2,
        "index_head_dim": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "vocab_size": 496,
        "max_position_embeddings": 600,
        "num_hash_layers": 1,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    tensors = [
        (
            spec.name,
            np.zeros(spec.shape, np.int64)
            if spec.role is Role.EXPERT_TABLE
            else rng.normal(scale=0.3, size=spec.shape).astype(np.float32),
        )
        for spec in tensor_specs(parse_config(config))
    ]
    write_checkpoint(folder, tensors)
    with Engine.load(folder, "reference") as engine:
        assert engine.chat_template.source == family.own
        assert engine.chat_template.found
        assert format_of(engine).name == "deepseek-v4"
        assert thinking_switch(engine.chat_template) == "enable_thinking"
        for thinks in (False, True):
            ids = engine.chat_template.encode(engine.tokenizer, [USER], thinking=thinks)
            found = find_thinking(engine.chat_template, engine.tokenizer, ids)
            assert (found is not None and found.opened) is thinks
    (tmp_path / "other").mkdir()
    other = write_family(tmp_path / "other", FAMILIES["nemo"])  # whose vocabulary has other tokens
    (folder / "tokenizer.json").write_text((other / "tokenizer.json").read_text())
    with Engine.load(folder, "reference") as engine, pytest.raises(TextError, match="no chat"):
        engine.chat_template.render([USER])


def test_an_empty_list_of_calls_is_none(engines: dict[str, Engine]) -> None:
    """Llama 3's template refuses a message with a list of any other length than one."""
    said = {"role": "assistant", "content": "Well.", "tool_calls": []}
    ids, _ = chat_prompt(ask(messages=[USER, said, USER]), None, engines["llama3.1"])
    assert "Well." in engines["llama3.1"].tokenizer.decode(ids)


def test_a_format_that_is_none_ends_the_server_before_it_listens() -> None:

    def load() -> Engine:
        raise AssertionError("not to be loaded")

    with pytest.raises(RequestError, match="tool_format: expected one of auto, .* got 'lama'"):
        serve(load, ServerOptions(port=0, tool_format="lama"))


@pytest.mark.parametrize("listed", [True, False])
def test_a_template_of_its_own_for_tools(tmp_path: Path, listed: bool) -> None:
    """As in the folders of Hermes models: ChatML, and "tool_use" beside it."""
    folder = write_family(tmp_path, FAMILIES["hermes"])
    first = TEMPLATES / f"{FAMILIES['smollm2'].file}.jinja"
    tool_use = (folder / "chat_template.jinja").read_text()
    if listed:
        (folder / "chat_template.jinja").unlink()
        path = folder / "tokenizer_config.json"
        both = (("default", first.read_text()), ("tool_use", tool_use))
        named = [{"name": name, "template": template} for name, template in both]
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": named}))
    else:
        (folder / "chat_template.jinja").write_text(first.read_text())
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(tool_use)
    with Engine.load(folder) as engine:
        assert format_of(engine).name == "hermes"
        texts = []
        for use in (None, use_of(engine)):
            ids, _ = chat_prompt(ask(tools=use and TOOLS), use, engine)
            texts.append(engine.tokenizer.decode(ids, skip_special_tokens=False))
    assert "named SmolLM" in texts[0]
    assert "You are a function calling AI model" in texts[1]
    assert "get_weather" in texts[1]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("more", [{}, {"description": None, "parameters": None}])
def test_a_tool_may_have_a_name_alone(
    engines: dict[str, Engine], family: str, more: dict[str, None]
) -> None:
    """As the API allows; the templates of GPT-OSS and Hermes 3 fail where a field is missing."""
    engine = engines[family]
    tools = [{"type": "function", "function": {"name": "get_weather", **more}}]
    asked = ask(tools=tools)
    ids, _ = chat_prompt(asked, read_tools(tools, None, None, engine), engine)
    assert "get_weather" in engine.tokenizer.decode(ids, skip_special_tokens=False)
