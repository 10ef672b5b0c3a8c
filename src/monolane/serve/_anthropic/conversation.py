"""Anthropic's messages and tools in the spelling of chat completions, which templates read."""

from collections.abc import Sequence
from typing import Any

from monolane.errors import RequestError
from monolane.text import joined_texts

Json = dict[str, Any]
# Tools that Anthropic's own servers run. The model is not shown them, so it calls none.
_HOSTED = ("web_search_", "web_fetch_", "code_execution_", "tool_search_")


def chat_messages(messages: Sequence[Json], system: str | Sequence[Json] | None) -> list[Json]:
    """Return the messages; RequestError for blocks that this model does not read."""
    chat: list[Json] = []
    if system:
        chat.append({"role": "system", "content": _text(system, "system", "\n\n")})
    for i, message in enumerate(messages):
        where, content = f"messages[{i}]", message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
            raise RequestError(f"{where}.content: expected text or a list of blocks")
        role = message.get("role")
        if role == "user":
            chat += _asked(content, where)
        elif role == "assistant":
            chat.append(_answered(content, where))
        elif role == "system":
            chat.append({"role": "system", "content": _text(content, f"{where}.content", "\n\n")})
        else:
            raise RequestError(f"{where}.role: expected user or assistant, got {role!r:.80}")
    return chat


def chat_tools(tools: Sequence[Json] | None) -> list[Json]:
    """Return the tools that the model may be shown; RequestError for one that nobody could run."""
    found: list[Json] = []
    for i, tool in enumerate(tools or ()):
        kind = tool.get("type") or "custom"
        if str(kind).startswith(_HOSTED):
            continue
        if kind != "custom":
            raise RequestError(f"tools[{i}].type: expected 'custom', got {kind!r:.80}")
        kept: Json = {key: tool[key] for key in ("name", "description", "strict") if key in tool}
        function: Json = {**kept, "parameters": tool.get("input_schema")}
        found.append({"type": "function", "function": function})
    return found


def chat_choice(choice: Json | None) -> tuple[Any, bool | None]:
    """Return ``tool_choice`` and ``parallel_tool_calls`` as chat completions spell them."""
    if choice is None:
        return None, None
    parallel = not choice.get("disable_parallel_tool_use")
    match choice:
        case {"type": "auto" | "none" as mode}:
            return mode, parallel
        case {"type": "any"}:
            return "required", parallel
        case {"type": "tool", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}, parallel
    raise RequestError(
        f"tool_choice: expected the type auto, any, none, or tool with a name, got {choice!r:.80}"
    )


def _asked(blocks: list[Json], where: str) -> list[Json]:
    """Return a user's blocks: results of calls are messages of their own."""
    said: list[Json] = []
    for j, block in enumerate(blocks):
        place = f"{where}.content[{j}]"
        if block.get("type") == "tool_result":
            text = _text(block.get("content") or "", f"{place}.content")
            text = f"Error: {text}" if block.get("is_error") else text
            said.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text})
        elif said and said[-1]["role"] == "user":
            said[-1]["content"] = joined_texts((said[-1]["content"], _block_text(block, place)))
        else:
            said.append({"role": "user", "content": _block_text(block, place)})
    return said or [{"role": "user", "content": ""}]


def _answered(blocks: list[Json], where: str) -> Json:
    message: Json = {"role": "assistant", "content": ""}
    thoughts, calls = "", []
    for j, block in enumerate(blocks):
        match block:
            case {"type": "thinking", "thinking": str(text)}:
                thoughts += text
            case {"type": "redacted_thinking"}:
                continue  # another server's, which nobody but it can read
            case {"type": "tool_use", "name": str(name)}:
                function = {"name": name, "arguments": block.get("input")}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            case _:
                message["content"] += _block_text(block, f"{where}.content[{j}]")
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message |= {"content": message["content"] or None, "tool_calls": calls}
    return message


def _text(content: Any, where: str, between: str = "") -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where}: expected text or a list of blocks")
    texts = [_block_text(block, f"{where}[{j}]") for j, block in enumerate(content)]
    return between.join(texts) if between else joined_texts(texts)


def _block_text(block: Any, where: str) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "document", "source": dict(source)}:
            return _titled(block, _document_text(source, f"{where}.source"))
        case {"type": "search_result", "source": str(source), "content": list(found)}:
            text = _text(found, f"{where}.content", "\n\n")
            return _titled({**block, "context": source}, text)
        case {"type": "tool_reference", "tool_name": str(name)}:  # found among those shown
            return name
    kind = block.get("type") if isinstance(block, dict) else None
    raise RequestError(f"{where}: expected text, which is all this model reads, got {kind!r:.80}")


def _document_text(source: Json, where: str) -> str:
    match source:
        case {"type": "text", "data": str(text)}:
            return text
        case {"type": "content", "content": content}:
            return _text(content, f"{where}.content", "\n\n")
    kind = source.get("type")
    raise RequestError(f"{where}: expected the type text or content, got {kind!r:.80}")


def _titled(block: Json, text: str) -> str:
    """Return a text below its title and what else is known of it, set apart from its neighbours."""
    known = (block.get("title"), block.get("context"))
    head = "\n".join(one for one in known if isinstance(one, str) and one)
    return f"{head}\n\n{text}\n\n" if head else f"{text}\n\n"
