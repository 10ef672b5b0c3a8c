"""The official client, and a framework on top of it, against a server process."""

import asyncio
import warnings
from collections.abc import Iterator
from typing import Any

import openai
import pytest

ASK: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "def add(a, b):"}],
    "max_tokens": 32,
    "temperature": 0,
}


@pytest.fixture
def client(keyed_server: Any, api_key: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{keyed_server.url}/v1", api_key=api_key) as client:
        yield client


def test_models_and_completions(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").owned_by == "monolane"
    reply = client.completions.create(
        model="demo", prompt="import ", max_tokens=5, logprobs=2, extra_body={"ignore_eos": True}
    )
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 5
    assert reply.choices[0].logprobs is not None
    assert len(reply.choices[0].logprobs.tokens or ()) == 5


def test_a_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASK)
    text = whole.choices[0].message.content
    assert text
    assert whole.usage is not None
    stream = client.chat.completions.create(
        **ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].timings["predicted_n"] == whole.usage.completion_tokens  # type: ignore[attr-defined]


def test_many_at_once_from_one_loop(keyed_server: Any, api_key: str) -> None:
    async def ask_all() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{keyed_server.url}/v1", api_key=api_key) as client:

            async def ask(i: int) -> str | None:
                if i % 2:
                    return (await client.chat.completions.create(**ASK)).choices[0].message.content
                parts = []
                async for chunk in await client.chat.completions.create(**ASK, stream=True):
                    parts.append(chunk.choices[0].delta.content or "")
                return "".join(parts)

            return await asyncio.gather(*map(ask, range(8)))

    assert len(set(asyncio.run(ask_all()))) == 1


def test_errors_come_as_the_clients_own(
    client: openai.OpenAI, keyed_server: Any, api_key: str
) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**ASK | {"temperature": -1})
    assert bad.value.param == "temperature"
    assert bad.value.body["code"] == 400  # type: ignore[index]
    with pytest.raises(openai.NotFoundError, match="expected 'demo', got 'gpt-5'"):
        client.chat.completions.create(**ASK | {"model": "gpt-5"})
    wrong = openai.OpenAI(base_url=f"{keyed_server.url}/v1", api_key=api_key + "x")
    with wrong, pytest.raises(openai.AuthenticationError, match="expected a valid key"):
        wrong.models.list()


def test_langchain(keyed_server: Any, api_key: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports warn of each other
        from langchain_openai import ChatOpenAI

        chat = ChatOpenAI(
            model="demo",
            base_url=f"{keyed_server.url}/v1",
            api_key=api_key,
            max_completion_tokens=16,
            temperature=0,
            stop_sequences=["\n\n\n"],
            stream_usage=True,
        )
        whole = chat.invoke("def add(a, b):")
        parts = list(chat.stream("def add(a, b):"))
    assert "".join(str(part.content) for part in parts) == whole.content
    assert whole.response_metadata["model_name"] == "demo"
    assert parts[-1].usage_metadata or any(part.usage_metadata for part in parts)
