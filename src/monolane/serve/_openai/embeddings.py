"""Embeddings: the mean of a text's last hidden states, normalised, in two spellings.

A model that generates is no embedding model, and its vectors are no match for one. They are here
for clients that ask every server for them. The ``cuda`` executor hands out no hidden states.
"""

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from monolane.engine import Engine
from monolane.errors import RequestError
from monolane.serve._errors import ApiError
from monolane.serve._http.body import MAX_PROMPTS, Body, TokenId, one_of
from monolane.serve._http.json_body import parse_body
from monolane.serve._http.limits import (
    LARGE_BODY,
    check_length,
    check_prompt,
    disconnected,
    read_body,
)
from monolane.serve._http.openapi import Operation
from monolane.serve._http.writer import long_json
from monolane.serve._run.request import Reason, ended
from monolane.serve._run.service import Service

Vector = npt.NDArray[np.float32]
Ids = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Input = Annotated[
    Annotated[str, Field(min_length=1)]
    | Ids
    | Annotated[
        list[Annotated[str, Field(min_length=1)] | Ids], Field(min_length=1, max_length=MAX_PROMPTS)
    ],
    one_of(f"a text, token ids (integers from 0), or a list of 1 to {MAX_PROMPTS} of either"),
]


class EmbeddingsRequest(Body):
    """``POST /v1/embeddings``."""

    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = Field(
        None, description="The model's hidden size, or none"
    )


class NativeEmbeddingRequest(Body):
    """``POST /embedding``, as llama.cpp has it."""

    content: Input | None = None
    input: Input | None = Field(None, description="As content")


@dataclass(frozen=True, slots=True)
class Texts:
    """What a request wants vectors of."""

    ids: list[tuple[int, ...]]
    model: str | None  # that was named
    form: str | None = None  # in which the vectors are written


EMBEDDINGS, NATIVE = "/v1/embeddings", "/embedding"
OPERATIONS = (
    Operation("post", EMBEDDINGS, "Vectors of texts", EmbeddingsRequest),
    Operation("post", NATIVE, "Vectors of texts", NativeEmbeddingRequest, lists=True),
)


def embedding_routes(service: Service) -> list[Route]:
    """Return the routes."""
    handlers = _Embeddings(service)
    return [
        Route(EMBEDDINGS, handlers.openai, methods=["POST"]),
        Route(NATIVE, handlers.native, methods=["POST"]),
        Route("/embeddings", handlers.native, methods=["POST"]),
    ]


class _Embeddings:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def openai(self, request: Request) -> Response:
        def read(data: bytes) -> Texts:
            body = self._read(EmbeddingsRequest, data)
            assert isinstance(body, EmbeddingsRequest)
            size = self._service.engine.config.hidden_size
            if body.dimensions not in (None, size):
                raise RequestError(f"dimensions: expected {size} or null, got {body.dimensions}")
            return Texts(self._texts(body.input), body.model, body.encoding_format)

        def reply(texts: Texts, vectors: list[Vector]) -> dict[str, Any]:
            tokens, form = sum(map(len, texts.ids)), texts.form
            return {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": i, "embedding": _spelled(one, form)}
                    for i, one in enumerate(vectors)
                ],
                "model": self._service.called(texts.model),
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }

        return await self._answer(request, read, reply)

    async def native(self, request: Request) -> Response:
        def read(data: bytes) -> Texts:
            body = self._read(NativeEmbeddingRequest, data)
            assert isinstance(body, NativeEmbeddingRequest)
            given = body.content if body.input is None else body.input
            if given is None:
                raise RequestError("content: expected a text, token ids, or a list of either")
            return Texts(self._texts(given), body.model)

        def reply(_: Texts, vectors: list[Vector]) -> list[dict[str, Any]]:
            return [{"index": i, "embedding": [one.tolist()]} for i, one in enumerate(vectors)]

        return await self._answer(request, read, reply)

    async def _answer(
        self,
        request: Request,
        read: Callable[[bytes], Texts],
        reply: Callable[[Texts, list[Vector]], Any],
    ) -> Response:
        service = self._service
        assert service.engine  # else a 503, before the body is read
        service.scheduler.check_room()
        with await read_body(request, service.bodies, service.options.max_body_bytes) as body:
            gone = asyncio.create_task(disconnected(request.receive))
            try:
                texts = await service.prepare(lambda: read(body.take()), gone, body)
                vectors = await _Turns(service, gone).vectors(texts)
                write = partial(long_json, reply(texts, vectors))
                found = await service.prepare(write, gone, body)
                return Response(found, media_type="application/json")
            finally:
                gone.cancel()
                if body.size > LARGE_BODY:
                    service.tidy()

    def _read(self, kind: type[Body], data: bytes) -> Body:
        body = parse_body(kind, data)
        self._service.check_model(body.model)
        return body

    def _texts(self, given: Any) -> list[tuple[int, ...]]:
        engine = self._service.engine
        if not engine.backend.executor.has_hidden:
            raise ApiError(
                501,
                f"input: the {engine.backend.name} backend hands out no hidden states, so there "
                "are no embeddings; start the server with --backend cpu, or ask a server of an "
                "embedding model",
                "input",
            )
        several = isinstance(given, list) and not isinstance(given[0], int)
        return [_ids(one, engine) for one in (given if several else [given])]


class _Turns:
    """The texts of one request, each of which takes a turn at the engine, as an answer does.

    So a request of many keeps nobody waiting for longer than one text. It ends within a pass once
    its client has gone, the server ends, or the deadline has come.
    """

    def __init__(self, service: Service, gone: "asyncio.Task[None]") -> None:
        self._service, self._gone = service, gone
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[ApiError] = self._loop.create_future()

    async def vectors(self, texts: Texts) -> list[Vector]:
        """Return the vector of each; ApiError where the request ends before."""
        cancels = self._service.cancels
        self._gone.add_done_callback(lambda _: self._end("client"))
        seconds = self._service.options.deadline_seconds
        timer = self._loop.call_later(seconds, self._end, "deadline")
        cancels.add(self._end)
        try:
            lora = self._service.engine.adapters.named(texts.model)
            return [await self._vector(ids, lora) for ids in texts.ids]
        finally:
            cancels.discard(self._end)
            timer.cancel()

    def _end(self, reason: Reason) -> None:
        if not self._over.done():
            self._over.set_result(ended(reason))

    async def _vector(self, ids: tuple[int, ...], lora: str) -> Vector:
        service = self._service
        turn = service.scheduler.enqueue(service.metrics.expect(len(ids), 1))
        await asyncio.wait((turn.granted, self._over), return_when=asyncio.FIRST_COMPLETED)
        if not turn.granted.done():
            turn.withdraw()
            turn.granted.exception()  # nobody else asks for it
            raise self._over.result()
        try:
            if not self._over.done():
                work = partial(service.engine.hidden, ids, self._over.done, lora=lora)
                hidden_TD = await self._loop.run_in_executor(service.decoders, work)
        finally:
            service.scheduler.release()
        if self._over.done():
            raise self._over.result()
        return _vector(hidden_TD)


def _ids(given: str | list[int], engine: Engine) -> tuple[int, ...]:
    if isinstance(given, str):
        check_length("input", given, engine)
    ids = engine.prompt_ids(given)
    check_prompt("input", ids, engine)
    return ids


def _vector(hidden_TD: Vector) -> Vector:
    """Return the mean over the tokens, of length 1."""
    mean_D: Vector = hidden_TD.mean(axis=0)
    return mean_D / max(float(np.linalg.norm(mean_D)), 1e-12)


def _spelled(vector: Vector, form: str | None) -> str | list[float]:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    values: list[float] = vector.tolist()
    return values
