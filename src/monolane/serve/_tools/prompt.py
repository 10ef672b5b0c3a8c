"""Shows tools to a model, and the calls and results so far.

A chat template that knows tools does it. Where it does not, or drops calls, a text says the same in
the spelling of the model's family: what the model reads of its calls is what it is to write.
"""

import contextlib
import json
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any

from monolane.engine import Engine
from monolane.errors import RequestError, TextError
from monolane.serve._tools.calls import read_arguments
from monolane.serve._tools.custom import as_functions, with_functions
from monolane.serve._tools.format import ToolFormat
from monolane.serve._tools.formats import AUTO, format_of
from monolane.serve._tools.placement import placed
from monolane.serve._tools.request import ToolUse
from monolane.serve._tools.template_probe import (
    Shown,
    shown_by,
    takes_bare_tools,
    thoughts_shown_by,
)
from monolane.serve._tools.thoughts import NAME as THOUGHTS
from monolane.serve._tools.thoughts import with_one_name, with_thoughts
from monolane.serve._tools.turns import with_system, with_texts_in_results
from monolane.text import ChatTemplate

Message = dict[str, Any]
_KNOWS_TOOLS = re.compile(r"\btools\b")
_PROBE = "how may I help you"
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_ID_CHARS = string.ascii_letters + string.digits

INSTRUCTIONS = """\
You may call functions to help with the user's request. Their signatures, one JSON object a line:
<tools>
{tools}
</tools>
To call one, answer with its name and arguments {where}:
{call}
What it gives comes within <tool_response> tags."""


def tool_prompt(
    messages: Sequence[Mapping[str, Any]],
    given: Sequence[Mapping[str, Any]] | None,
    use: ToolUse | None,
    engine: Engine,
    format_name: str = AUTO,
) -> tuple[list[Message], Sequence[Mapping[str, Any]] | None]:
    """Return the messages and tools for the template; RequestError for calls that are none.

    ``given`` are the tools as the client spelled them, ``use`` what was read from them.
    ``format_name`` is the server's ``--tool-format``.
    """
    messages = with_functions([*map(with_one_name, messages)])
    given, _ = as_functions(given)
    chat = [_parsed(message, f"messages[{i}]") for i, message in enumerate(messages)]
    form = format_of(engine, format_name) if use is None else use.format
    template = template_for(use, engine)
    if "developer" not in template.source:
        chat = with_system(chat)
    called = any(message.get("tool_calls") or message.get("role") == "tool" for message in chat)
    knows = bool(_KNOWS_TOOLS.search(template.source))
    if called and knows:
        chat = _adapted(chat, form, shown_by(template))
    elif called:
        chat = _with_results_as_text(_with_calls_as_text(chat, form))
    if not knows:
        given = None
        if use is not None:
            chat = _instructed(chat, use, engine)
    if use and given and not takes_bare_tools(template):
        given = [*map(_with_all_fields, given)]
    chat = placed(chat, template, bool(use and given))
    return [_with_thoughts(message, template) for message in chat], given if use else None


def template_for(use: ToolUse | None, engine: Engine) -> ChatTemplate:
    """Return the template of a chat, which may be another where there are tools to call."""
    return engine.chat_template if use is None else engine.chat_template.for_tools


def _with_all_fields(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool for a template that reads description and parameters unasked."""
    function = {key: value for key, value in tool["function"].items() if value is not None}
    fields = {"description": "", "parameters": {"type": "object", "properties": {}}}
    return {**tool, "function": {**fields, **function}}


def _with_thoughts(message: Message, template: ChatTemplate) -> Message:
    """Return a message with its thoughts as the template shows them; some show none."""
    if THOUGHTS not in message:
        return message
    way = thoughts_shown_by(template, bool(message.get("content")), "tool_calls" in message)
    bare = {key: value for key, value in message.items() if key != THOUGHTS}
    return message if way is None else with_thoughts(bare, message[THOUGHTS], way)


def _parsed(message: Mapping[str, Any], where: str) -> Message:
    """Return a message whose calls have their arguments as objects, and which has no empty list."""
    calls = message.get("tool_calls")
    _check_id(message.get("tool_call_id"), f"{where}.tool_call_id")
    if not calls:
        return {key: value for key, value in message.items() if key != "tool_calls"}
    if not isinstance(calls, list):
        raise RequestError(f"{where}.tool_calls: expected a list")
    return {**message, "tool_calls": [_call(call, where) for call in calls]}


def _call(call: Any, where: str) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}.tool_calls: expected functions with a name and arguments")
    _check_id(call.get("id"), f"{where}.tool_calls")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        # What a model wrote may be no JSON. Then it is shown again as it is.
        with contextlib.suppress(ValueError, RecursionError):
            arguments = read_arguments(arguments or "{}")
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def _check_id(value: Any, where: str) -> None:
    if not isinstance(value, str | None):
        raise RequestError(f"{where}: expected the id of a call to be text, got {value!r:.80}")


def _adapted(chat: list[Message], form: ToolFormat, shown: Shown) -> list[Message]:
    """Return the messages in the form that a template takes, which knows tools."""
    if not shown.calls:
        chat = _with_calls_as_text(chat, form)
        if not shown.results:
            return _with_results_as_text(chat)
        return chat if shown.then else with_texts_in_results(chat)
    if form.short_ids:
        chat = [_with_short_ids(message) for message in chat]
    if not shown.many:
        chat = list(_one_by_one(chat))
    if not shown.then:
        chat = with_texts_in_results(chat)
    return [_in_form(message, shown) for message in chat]


def _in_form(message: Message, shown: Shown) -> Message:
    if not (calls := message.get("tool_calls")):
        return message
    if message.get("content") is None:
        message = {**message, "content": None if shown.null else ""}
    if not shown.objects:
        return {**message, "tool_calls": [*map(_as_text, calls)]}
    return message if shown.texts else {**message, "tool_calls": [*map(_as_object, calls)]}


def _as_object(call: Message) -> Message:
    """Return a call for a template that goes through the arguments one by one."""
    function, arguments = call["function"], call["function"]["arguments"]
    if isinstance(arguments, Mapping):
        return call
    # What was cut off, or is no object: it has no names of its own.
    return {**call, "function": {**function, "arguments": {"arguments": arguments}}}


def _as_text(call: Message) -> Message:
    function, arguments = call["function"], call["function"]["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def _one_by_one(chat: list[Message]) -> Iterator[Message]:
    """Yield messages of one call each, every one with its result behind it."""
    results = {m.get("tool_call_id"): m for m in chat if m.get("role") == "tool"}
    placed: set[int] = set()
    for message in chat:
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            if id(message) not in placed:
                yield message
            continue
        for i, call in enumerate(calls):
            yield {
                **message,
                "tool_calls": [call],
                "content": None if i else message.get("content"),
            }
            result = results.get(call.get("id"))
            if result is not None and id(result) not in placed:
                placed.add(id(result))
                yield result


def _with_short_ids(message: Message) -> Message:
    """Return a message with ids of nine letters and digits, equal ones for equal ones."""
    if message.get("role") == "tool" and isinstance(message.get("tool_call_id"), str):
        return {**message, "tool_call_id": _short_id(message["tool_call_id"])}
    if calls := message.get("tool_calls"):
        short = [
            {**call, "id": _short_id(call["id"])} if isinstance(call.get("id"), str) else call
            for call in calls
        ]
        return {**message, "tool_calls": short}
    return message


def _short_id(text: str) -> str:
    if _SHORT_ID.fullmatch(text):
        return text
    digest = sha256(text.encode("utf-8", "replace")).digest()
    return "".join(_ID_CHARS[byte % len(_ID_CHARS)] for byte in digest[:9])


def _with_calls_as_text(chat: list[Message], form: ToolFormat) -> list[Message]:
    """Return the messages with calls as part of their text."""
    spelled = []
    for message in chat:
        if calls := message.get("tool_calls"):
            functions = (call["function"] for call in calls)
            text = form.spell([(f["name"], f["arguments"]) for f in functions])
            lines = (content_text(message), text)
            message = {**message, "content": "\n".join(line for line in lines if line)}
            del message["tool_calls"]
        spelled.append(message)
    return spelled


def _with_results_as_text(chat: list[Message]) -> list[Message]:
    """Return the messages with the results of calls as a user's text."""
    spelled: list[Message] = []
    for are_results, group in groupby(chat, lambda message: message.get("role") == "tool"):
        if not are_results:
            spelled += group
            continue
        texts = [f"<tool_response>\n{content_text(m)}\n</tool_response>" for m in group]
        spelled.append({"role": "user", "content": "\n".join(texts)})
    return spelled


def _instructed(messages: list[Message], use: ToolUse, engine: Engine) -> list[Message]:
    """Return the messages with the instructions, where the template shows them."""
    tools = (
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        for tool in use.tools
    )
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    call = use.format.spell([("function name", {"argument name": "value"})])
    where = "within these tags" if use.format.ends else "like this"
    text = INSTRUCTIONS.format(tools=lines, where=where, call=call)
    role = "system" if _shows_system(engine.chat_template.for_tools) else "user"
    for place, message in enumerate(messages):
        if message.get("role") == role:
            content = message.get("content")
            joined: Any = f"{text}\n\n{content}"
            if isinstance(content, list):
                joined = [{"type": "text", "text": f"{text}\n\n"}, *content]
            return [*messages[:place], {**message, "content": joined}, *messages[place + 1 :]]
    return [{"role": role, "content": text}, *messages]


def _shows_system(template: ChatTemplate) -> bool:
    chat = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "x"}]
    try:
        return _PROBE in template.render(chat)
    except TextError:
        return False


def content_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message's content."""
    content = message.get("content")
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return "" if content is None else str(content)
