"""Values that stand for a field's absence or for another value in one of the APIs that we speak."""

from typing import Any

import pytest
from pydantic import ValidationError

from monolane.errors import RequestError
from monolane.serve._anthropic.conversation import chat_messages
from monolane.serve._grammar.schema_rewrite import rewritten
from monolane.serve._grammar.structured import read_structured
from monolane.serve._openai.body import ChatRequest, CompletionRequest
from monolane.serve._openai.responses.body import ResponsesRequest
from monolane.serve._openai.responses.conversation import chat_messages as response_messages
from monolane.serve._tools.custom import as_function_choice

USER = [{"role": "user", "content": "x"}]


def chat(**fields: Any) -> Any:
    return ChatRequest.model_validate({"messages": USER, **fields}).asked()


def test_a_whole_number_may_have_a_point() -> None:
    asked = chat(max_tokens=20.0, seed=7.0, top_k=40.0, n=2.0, temperature=1.0)
    assert (asked.max_tokens, asked.sampling.seed, asked.sampling.top_k) == (20, 7, 40)
    assert (asked.choices, asked.sampling.temperature) == (2, 1)
    for wrong in (20.5, 1e300, "20"):
        with pytest.raises(ValidationError):
            chat(max_tokens=wrong)


@pytest.mark.parametrize("stop", ["", [], [""], None])
def test_an_empty_stop_text_is_none(stop: Any) -> None:
    assert chat(stop=stop).sampling.stop == ()
    assert chat(stop=["", "end"]).sampling.stop == ("end",)


def test_no_logprobs() -> None:
    assert chat(logprobs=0).sampling.logprobs is None
    body = CompletionRequest.model_validate({"prompt": "x", "logprobs": False})
    assert body.asked().sampling.logprobs is None
    with pytest.raises(ValidationError):
        chat(logprobs=1)


@pytest.mark.parametrize("verbosity", ["low", "medium", "high"])
def test_verbosity_changes_nothing(verbosity: str) -> None:
    assert chat(verbosity=verbosity, seed=1) == chat(seed=1)
    body = ResponsesRequest.model_validate({"input": "x", "text": {"verbosity": verbosity}})
    assert body.structured() is None
    with pytest.raises(RequestError, match="verbosity"):
        chat(verbosity="loud")


@pytest.mark.parametrize("below", [-1, -2])
def test_limits_below_zero_are_none(below: int) -> None:
    for name in ("max_tokens", "n_predict"):
        assert chat(**{name: below}).max_tokens is None
    body = ResponsesRequest.model_validate({"input": "x", "max_output_tokens": below})
    assert body.token_limit == ("max_output_tokens", None)


@pytest.mark.parametrize(
    ("choice", "same"),
    [
        ("any", "required"),
        ({"type": "any"}, "required"),
        ({"type": "required"}, "required"),
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_tool_choice_as_other_apis_spell_it(choice: Any, same: Any) -> None:
    assert as_function_choice(choice) == same


def test_a_schema_beside_its_type() -> None:
    schema = {"type": "object"}
    found = read_structured({"type": "json_schema", "schema": schema}, None, {})
    assert found is not None
    assert found.source == schema
    with pytest.raises(RequestError, match=r"response_format\.json_schema: expected an object"):
        read_structured({"type": "json_schema"}, None, {})


def test_formats_that_json_schema_does_not_define_are_notes() -> None:
    for note in ("int32", "password", "binary"):
        schema = {"properties": {"a": {"type": "string", "format": note}}}
        assert rewritten(schema) == {"properties": {"a": {"type": "string"}}}
    for known in ("date", "regex"):
        assert rewritten({"type": "string", "format": known})["format"] == known


def test_blocks_and_parts_do_not_run_together() -> None:
    texts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    result = {"type": "tool_result", "tool_use_id": "t", "content": texts}
    found = {"type": "tool_reference", "tool_name": "f"}
    told = chat_messages(
        [
            {"role": "user", "content": texts},
            {"role": "assistant", "content": texts},
            {"role": "user", "content": [result, {**result, "content": [found]}]},
        ],
        None,
    )
    assert [message["content"] for message in told] == ["one\ntwo", "onetwo", "one\ntwo", "f"]
    parts = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]
    (message,) = response_messages([{"role": "user", "content": parts}], None)
    assert message["content"] == "one\ntwo"
