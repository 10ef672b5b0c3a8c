"""examples/scale_out: requests that begin alike have one key, and others do not."""

import importlib.util
import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[2] / "examples" / "scale_out" / "affinity.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("affinity", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


affinity = load()


def key(**asked: Any) -> str:
    made: str = affinity.prefix_key(json.dumps(asked).encode())
    return made


def say(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_a_conversation_keeps_its_key_as_it_grows() -> None:
    turns = [say("system", "You write code."), say("user", "A stack, please.")]
    first = key(messages=turns)
    turns += [say("assistant", "class Stack: ..."), say("user", "Now a queue.")]
    assert key(messages=turns, temperature=0.5) == first
    assert key(messages=[turns[0], say("user", "A queue, please.")]) != first
    assert key(messages=[say("system", "You write prose."), turns[1]]) != first


def test_messages_of_parts_have_a_key_too() -> None:
    parts = [say("user", [{"type": "text", "text": "hello"}])]
    assert key(messages=parts) == key(messages=parts)
    assert key(messages=parts) != key(messages=[say("user", [{"type": "text", "text": "bye"}])])


def test_a_prompt_that_grows_behind_its_beginning_keeps_its_key() -> None:
    text = "x = 1\n" * 100
    assert key(prompt=text) == key(prompt=text + "y = 2\n", max_tokens=9)
    assert key(prompt=text) != key(prompt="z" + text)
    ids = list(range(1000))
    assert key(prompt=ids) == key(prompt=[*ids, 7])
    assert key(prompt=[text, "else"]) == key(prompt=[text])


def test_what_has_no_beginning_goes_anywhere() -> None:
    for body in (b"", b"{", b"[]", b"7", b"{}", b'{"prompt": ""}', b'{"prompt": []}'):
        assert affinity.prefix_key(body) != affinity.prefix_key(body)
    for body in (b'{"messages": "x"}', b'{"prompt": {"a": 1}}', b'{"prompt": [[]]}'):
        assert affinity.prefix_key(body) != affinity.prefix_key(body)
    odd = b'{"messages": [7, null]}'
    assert affinity.prefix_key(odd) == affinity.prefix_key(odd)
