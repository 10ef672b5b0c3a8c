"""What a program sees of the engine: prompts, one or many, pieces as they come, and mistakes."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from monolane import Engine, Piece, SamplingParams
from monolane.errors import RequestError

SHORT = SamplingParams(max_tokens=6, ignore_eos=True)
PROMPTS = ["class Stack:", "def main(", "import os"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("demo", "cpu", max_sequences=2) as loaded:
        yield loaded


def test_several_prompts_are_answered_as_each_is_alone(engine: Engine) -> None:
    alone = [engine.generate(prompt, SHORT).token_ids for prompt in PROMPTS]
    assert [answer.token_ids for answer in engine.generate_all(PROMPTS, SHORT)] == alone
    assert engine.generate_all([], SHORT) == []


def test_one_prompt_among_several_that_is_wrong_ends_all(engine: Engine) -> None:
    with pytest.raises(RequestError, match="token ids: expected"):
        engine.generate_all([*PROMPTS, [10**6]], SHORT)
    assert engine.generate("x", SHORT).token_ids  # and all sequences are free again
    with pytest.raises(RequestError, match="prompts: expected a list of prompts"):
        engine.generate_all("class Stack:", SHORT)


def test_a_conversation_has_a_name_of_its_own(engine: Engine) -> None:
    messages = [{"role": "user", "content": "What is a stack?"}]
    assert engine.chat(messages, SHORT).token_ids == engine.generate(messages, SHORT).token_ids
    for wrong in ("What is a stack?", [], [1, 2]):
        with pytest.raises(RequestError, match="messages: expected a list such as"):
            engine.chat(wrong, SHORT)  # type: ignore[arg-type]


def test_a_stream_can_be_awaited(engine: Engine) -> None:
    async def read() -> list[Piece]:
        return [piece async for piece in engine.stream(PROMPTS[0], SHORT)]

    pieces = asyncio.run(read())
    ids = tuple(token for piece in pieces for token in piece.token_ids)
    assert ids == engine.generate(PROMPTS[0], SHORT).token_ids


def test_a_task_that_is_cancelled_frees_its_sequence(engine: Engine) -> None:
    endless = SamplingParams(max_tokens=1500, ignore_eos=True)

    async def begin() -> Any:
        stream = engine.stream(PROMPTS[0], endless)
        first = asyncio.Event()

        async def read() -> None:
            async for _ in stream:
                first.set()

        task = asyncio.create_task(read())
        await first.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return stream

    stream = asyncio.run(begin())
    assert len(stream.result().token_ids) < 1500
    for _ in range(3):  # more than there are sequences
        assert engine.generate(PROMPTS[1], SHORT).token_ids


def test_parameters_of_another_kind_are_named(engine: Engine) -> None:
    with pytest.raises(RequestError, match=r"params: expected SamplingParams, got dict; write"):
        engine.generate("x", {"max_tokens": 3})  # type: ignore[arg-type]


def test_an_engine_says_what_it_is() -> None:
    with Engine.load("demo", "cpu") as engine:
        assert "demo" in repr(engine)
        assert f"cpu, {engine.backend.dtype}, context {engine.backend.context}" in repr(engine)
    assert repr(engine).endswith(", closed>")
