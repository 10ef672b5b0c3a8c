"""The items of a conversation as messages of a chat, which is what templates read."""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

from monolane.errors import RequestError
from monolane.serve._openai.responses.tools import joined_name
from monolane.text import joined_texts

Json = dict[str, Any]
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
# Thoughts in a field that clients keep and send back without looking into it. They are the
# client's own to read, so there is nothing to encrypt.
SEALED = "text:"


def chat_messages(items: Sequence[Json], instructions: str | None) -> list[Json]:
    """Return the messages; RequestError for items that are none.

    An assistant's reasoning, text and calls are one message. System texts at the beginning are one,
    too: templates take no second one.
    """
    chat: list[Json] = []
    if instructions:
        chat.append({"role": "system", "content": instructions})
    thoughts = ""
    names: dict[Any, Any] = {}  # of the calls, by id
    for i, item in enumerate(items):
        where = f"input[{i}]"
        match item.get("type", "message"):
            case "message":
                chat.append(_message(item, thoughts, where))
                thoughts = ""
            case "reasoning":
                thoughts += _thoughts(item, where)
            case "function_call":
                names[_call_id(item, where)] = joined_name(item)
                _add_call(chat, item, thoughts)
                thoughts = ""
            case "custom_tool_call":
                names[_call_id(item, where)] = item.get("name")
                _add_call(chat, item, thoughts)
                thoughts = ""
            case "function_call_output" | "custom_tool_call_output":
                chat.append(_result(item, names, where))
            case "web_search_call" | "file_search_call":
                _check_bare(item, where)
            case other:
                raise RequestError(f"{where}.type: this server reads no {other!r:.80}")
    if not chat:
        raise RequestError("input: expected at least one message, got none")
    return _one_system(chat)


def _message(item: Json, thoughts: str, where: str) -> Json:
    role = _ROLES.get(str(item.get("role")))
    if role is None:
        expected = ", ".join(_ROLES)
        raise RequestError(f"{where}.role: expected {expected}, got {item.get('role')!r:.80}")
    content = item.get("content")
    if role == "assistant" and isinstance(content, list):  # pieces of one text
        text = "".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    else:
        text = _text(content, f"{where}.content")
    message = {"role": role, "content": text}
    if thoughts and role == "assistant":
        message["reasoning_content"] = thoughts
    return message


def _add_call(chat: list[Json], item: Json, thoughts: str) -> None:
    if item["type"] == "custom_tool_call":
        custom = {"name": item.get("name"), "input": item.get("input")}
        call = {"id": item.get("call_id"), "type": "custom", "custom": custom}
    else:
        function = {"name": joined_name(item), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
    if chat and chat[-1]["role"] == "assistant" and not thoughts:
        chat[-1].setdefault("tool_calls", []).append(call)
        return
    chat.append({"role": "assistant", "content": None, "tool_calls": [call]})
    if thoughts:
        chat[-1]["reasoning_content"] = thoughts


def _result(item: Json, names: Json, where: str) -> Json:
    called = _call_id(item, where)
    message = {"role": "tool", "tool_call_id": called}
    if called in names:
        message["name"] = names[called]
    return message | {"content": _text(item.get("output"), f"{where}.output")}


def _check_bare(item: Json, where: str) -> None:
    """Raise RequestError for a search of OpenAI's servers that has what was found.

    Without it the item says what was looked for, and no model here knows such calls: what came of
    it is in the message behind it. Of a web search the API tells nothing else.
    """
    known = ("id", "type", "status", "action", "queries", "results")
    found = [key for key, value in item.items() if key not in known and value is not None]
    if item.get("results"):
        found.append("results")
    if found:
        raise RequestError(
            f"{where}.{found[0]}: this server reads no {item['type']} with it; leave it out, or "
            "say it in a message"
        )


def _call_id(item: Json, where: str) -> str | None:
    called = item.get("call_id")
    if not isinstance(called, str | None):
        raise RequestError(f"{where}.call_id: expected text, got {called!r:.80}")
    return called


def _thoughts(item: Json, where: str) -> str:
    sealed = item.get("encrypted_content")
    if item.get("content"):
        return _text(item["content"], f"{where}.content")
    if isinstance(sealed, str) and sealed.startswith(SEALED):
        return sealed.removeprefix(SEALED)
    return _text(item.get("summary") or "", f"{where}.summary")


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where}: expected text or a list of parts")
    return joined_texts([_part(part, f"{where}[{i}]") for i, part in enumerate(content)])


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("refusal" if kind == "refusal" else "text") if kind else None
    if kind not in (*_TEXTS, "refusal") or not isinstance(text, str):
        raise RequestError(
            f"{where}: expected text, which is all this model reads, got {kind!r:.80}"
        )
    return text


def _one_system(chat: list[Json]) -> list[Json]:
    lead: Iterable[Json] = takewhile(lambda message: message["role"] == "system", chat)
    texts = [message["content"] for message in lead]
    if len(texts) < 2:
        return chat
    return [{"role": "system", "content": "\n\n".join(texts)}, *chat[len(texts) :]]
