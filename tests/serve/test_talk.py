"""A talk of an agent over HTTP, with calls of tools: what is read again in each turn.

The model is a small random Qwen3.5, whose delta rules have states, with the real template: thoughts
before the last question are left out. tests/engine/test_talk.py counts other families, to the
token.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from monolane.text import Tokenizer

from .families import FAMILIES, write_family

Json = dict[str, Any]
TURNS, RESTART = 35, 20
PASS = 64  # tokens: the end of a message that one pass reaches may not be kept
CONFIG: Json = {
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 5,
    "head_dim": 8,
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 20000,
}
ARGUMENTS: Json = {
    "type": "object",
    "properties": {
        "path": {"enum": ["src/a.py", "src/b.py", "tests/test_a.py"]},
        "whole": {"type": "boolean"},
    },
    "required": ["path", "whole"],
    "additionalProperties": False,
}
FUNCTION = {"name": "read", "description": "Reads a file", "parameters": ARGUMENTS, "strict": True}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL: Json = {
    "tools": TOOLS,
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "chat_template_kwargs": {"enable_thinking": False},
    "max_tokens": 200,
}
ANSWER: Json = {"tools": TOOLS, "max_tokens": 30}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("family"), FAMILIES["qwen3.5"], **CONFIG)


def requests(rng: np.random.Generator) -> Iterator[tuple[Json, list[Json]]]:
    """Yield what each turn asks, and a list to which the message that answers is to be added."""

    def words(count: int) -> str:
        return " ".join(rng.choice(["call", "the", "function", "value", "name", "line"], count))

    chat: list[Json] = [
        {"role": "system", "content": words(120)},
        {"role": "user", "content": words(20)},
    ]
    other: list[Json] = []  # the other branch
    for turn in range(TURNS):
        answer: list[Json] = []
        yield {"messages": chat} | (ANSWER if turn % 6 == 5 else CALL), answer
        chat = [*chat, *answer]
        if turn == 30:  # the first question in other words
            chat = [chat[0], {"role": "user", "content": words(30)}]
        elif turn == 13:  # an earlier result was another: from here on there are two branches
            other = chat
            at = max(i for i, message in enumerate(chat[:-4]) if message["role"] == "tool")
            chat = [*chat[:at], chat[at] | {"content": words(40)}]
        elif turn == 16:
            chat = other  # back to the other one
        if chat[-1].get("tool_calls"):
            called = chat[-1]["tool_calls"][0]["id"]
            chat = [
                *chat,
                {"role": "tool", "tool_call_id": called, "content": words(rng.integers(10, 90))},
            ]
        elif chat[-1]["role"] == "assistant":
            chat = [*chat, {"role": "user", "content": words(rng.integers(5, 60))}]


def common(first: list[int], second: list[int]) -> int:
    both = zip(first, second, strict=False)
    return next(
        (i for i, (one, other) in enumerate(both) if one != other), min(len(first), len(second))
    )


def test_a_turn_reads_what_is_new(start: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    """Also behind a restart, a change, a branch, and where thoughts are left out."""
    options = ("--model", str(folder), "--prefix-file", str(tmp_path / "prefixes"))
    server = start(*options).wait_ready()
    tokenizer = Tokenizer.open(folder)
    end = tokenizer.id_of("<|im_end|>")
    before: list[list[int]] = []
    too_much, calls, read, least = [], 0, 0, 0
    for turn, (body, answer) in enumerate(requests(np.random.default_rng(3))):
        if turn == RESTART:
            assert server.stop() == 0
            server = start(*options).wait_ready()
        asked = {name: x for name, x in body.items() if name in ("messages", "tools")}
        asked["chat_template_kwargs"] = body.get("chat_template_kwargs", {})
        text = httpx.post(f"{server.url}/apply-template", json=asked).json()["prompt"]
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=True)
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=None)
        assert reply.status_code == 200, reply.text
        found = reply.json()
        message = found["choices"][0]["message"]
        if "tool_choice" in body:  # else it may call by chance, in 3 of 100 runs
            calls += len(message.get("tool_calls") or ())
        answer.append(message)
        usage = found["usage"]
        assert usage["prompt_tokens"] == len(ids)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        same = max((common(ids, other) for other in before), default=0)
        known = max((i + 1 for i in range(same) if ids[i] == end), default=0)
        if known - cached >= PASS:
            too_much.append((turn, known, cached))
        read, least = read + len(ids) - cached, least + len(ids) - known
        before.append(ids)
    assert not too_much
    assert calls == TURNS - TURNS // 6
    assert read < least + TURNS * PASS  # mostly less: the answers are known, too
