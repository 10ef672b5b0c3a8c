"""Embeddings: the mean of a text's last hidden states, normalised, in two spellings.

A model that generates is no embedding model, and its vectors are no match for one. They are here
for clients that ask every server for them. Only an executor that hands out hidden states can do it.
"""

import base64
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from monolane.engine import Engine
from monolane.errors import RequestError
from monolane.serve._api.body import parse_body
from monolane.serve._api.limits import check_length, check_prompt
from monolane.serve._api.openapi import Operation
from monolane.serve._api.posted import answer_posted
from monolane.serve._api.wire import Body, TokenId
from monolane.serve._errors import ApiError
from monolane.serve._run.service import Service

Vector = npt.NDArray[np.float32]
Ids = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Input = (
    Annotated[str, Field(min_length=1)]
    | Ids
    | Annotated[
        list[Annotated[str, Field(min_length=1)] | Ids], Field(min_length=1, max_length=256)
    ]
)


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
        def work(data: bytes) -> dict[str, Any]:
            body = self._read(EmbeddingsRequest, data)
            assert isinstance(body, EmbeddingsRequest)
            size = self._service.engine.config.hidden_size
            if body.dimensions not in (None, size):
                raise RequestError(f"dimensions: expected {size} or null, got {body.dimensions}")
            ids, vectors = self._vectors(body.input)
            tokens = sum(map(len, ids))
            return {
                "object": "list",
                "data": [
                    {
                        "object": "embedding",
                        "index": i,
                        "embedding": _spelled(one, body.encoding_format),
                    }
                    for i, one in enumerate(vectors)
                ],
                "model": self._service.options.model_name,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }

        return await answer_posted(self._service, request, work)

    async def native(self, request: Request) -> Response:
        def work(data: bytes) -> list[dict[str, Any]]:
            body = self._read(NativeEmbeddingRequest, data)
            assert isinstance(body, NativeEmbeddingRequest)
            given = body.content if body.input is None else body.input
            if given is None:
                raise RequestError("content: expected a text, token ids, or a list of either")
            _, vectors = self._vectors(given)
            return [{"index": i, "embedding": [one.tolist()]} for i, one in enumerate(vectors)]

        return await answer_posted(self._service, request, work)

    def _read(self, kind: type[Body], data: bytes) -> Body:
        body = parse_body(kind, data)
        self._service.check_model(body.model)
        return body

    def _vectors(self, given: Any) -> tuple[list[tuple[int, ...]], list[Vector]]:
        engine = self._service.engine
        if not engine.backend.executor.has_hidden:
            raise ApiError(
                501,
                f"input: the {engine.backend.name} backend hands out no hidden states, so there "
                "are no embeddings; start the server with --backend reference, which is slow, or "
                "ask a server of an embedding model",
                "input",
            )
        several = isinstance(given, list) and not isinstance(given[0], int)
        ids = [_ids(one, engine) for one in (given if several else [given])]
        return ids, [_vector(engine.hidden(one)) for one in ids]


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
