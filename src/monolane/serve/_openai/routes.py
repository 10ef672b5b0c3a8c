"""The table of routes, and the short ones: models, tokens, health, metrics."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from monolane._version import __version__
from monolane.errors import RequestError
from monolane.serve._errors import RETRY_SECONDS
from monolane.serve._http.body import Body
from monolane.serve._http.handler import Answers
from monolane.serve._http.json_body import parse_body
from monolane.serve._http.limits import check_counted
from monolane.serve._http.openapi import Operation, openapi
from monolane.serve._http.post_json import answer_posted
from monolane.serve._http.prepare import render_ids
from monolane.serve._openai.body import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from monolane.serve._openai.completions import completions
from monolane.serve._run.preparers import next_unit
from monolane.serve._run.service import Service
from monolane.serve._tools.prompt import tool_prompt
from monolane.text import Tokenizer, spoken_messages

B = TypeVar("B", bound=Body)

OPEN = ("/health", "/ping")  # need no key, like the page
OPERATIONS = (
    Operation("get", "/health", "Whether requests can be served", None, (503,)),
    Operation("get", "/ping", "As /health", None, (503,)),
    Operation("get", "/version", "The server's version", None, (401,)),
    Operation("get", "/v1/models", "The model and its limits", None, (401, 503)),
    Operation("post", "/v1/chat/completions", "Continue a conversation", ChatRequest),
    Operation("post", "/v1/completions", "Continue texts or token ids", CompletionRequest),
    Operation("post", "/tokenize", "Token ids of a text or of messages", TokenizeRequest),
    Operation("post", "/detokenize", "Text of token ids", DetokenizeRequest),
)


def routes(service: Service, more: tuple[Operation, ...]) -> list[Route]:
    """Return the routes of OpenAI's older API and the small ones.

    ``more``: the operations of other routes, for /openapi.json.
    """
    handlers = _Handlers(service, (*OPERATIONS, *more))
    chat = Answers(service, completions(service, ChatRequest))
    text = Answers(service, completions(service, CompletionRequest))
    return [  # those that are asked most are found first
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", text, methods=["POST"]),
        Route("/health", handlers.health, methods=["GET"]),
        Route("/ping", handlers.health, methods=["GET", "POST"]),
        Route("/version", handlers.version, methods=["GET"]),
        Route("/metrics", handlers.metrics, methods=["GET"]),
        Route("/openapi.json", handlers.openapi, methods=["GET"]),
        Route("/v1/models", handlers.models, methods=["GET"]),
        Route("/v1/models/{name:path}", handlers.model, methods=["GET"]),
        Route("/tokenize", handlers.tokenize, methods=["POST"]),
        Route("/detokenize", handlers.detokenize, methods=["POST"]),
    ]


class _Handlers:
    def __init__(self, service: Service, operations: tuple[Operation, ...]) -> None:
        self._service, self._operations = service, operations

    async def health(self, _: Request) -> Response:
        code, status = self._service.health()
        later = {} if code == 200 else {"Retry-After": RETRY_SECONDS}
        return JSONResponse({"status": status}, code, later)

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def metrics(self, _: Request) -> Response:
        return Response(self._service.metrics.text(), media_type="text/plain; version=0.0.4")

    async def openapi(self, _: Request) -> Response:
        document = openapi(self._operations)
        if root := self._service.options.root_path:
            document = {**document, "servers": [{"url": root}]}
        return JSONResponse(document)

    async def models(self, _: Request) -> Response:
        names = (None, *filter(None, self._service.engine.adapters.names))
        cards = [self._card(name) for name in names]
        ends = {"first_id": cards[0]["id"], "last_id": cards[-1]["id"]}
        pages = {"has_more": False, **ends}  # Anthropic's
        return JSONResponse({"object": "list", "data": cards, **pages})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._service.check_model(name)
        return JSONResponse(self._card(name))

    async def tokenize(self, request: Request) -> Response:
        return await self._post(request, TokenizeRequest, self._tokenize)

    async def detokenize(self, request: Request) -> Response:
        return await self._post(request, DetokenizeRequest, self._detokenize)

    async def _post(
        self, request: Request, kind: type[B], answer: Callable[[B], dict[str, Any]]
    ) -> Response:
        """Read a body and answer it, on a thread."""

        def work(data: bytes) -> dict[str, Any]:
            body = parse_body(kind, data)
            self._service.check_model(body.model)
            return answer(body)

        return await answer_posted(self._service, request, work)

    def _tokenizer(self) -> Tokenizer:
        tokenizer = self._service.engine.tokenizer
        if tokenizer is None:
            raise RequestError("this model has no tokenizer")
        return tokenizer

    def _tokenize(self, body: TokenizeRequest) -> dict[str, Any]:
        engine, tokenizer = self._service.engine, self._tokenizer()
        tool_format = self._service.options.tool_format
        if body.content is not None and body.prompt is None and body.messages is None:
            return self._tokenize_content(body, body.content)
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("prompt: expected one of prompt, messages and content")
        if body.messages is not None:
            messages = spoken_messages(body.messages)
            check_counted("messages", messages, engine)
            next_unit()
            chat, _ = tool_prompt(messages, None, None, engine, tool_format)
            ids = render_ids(
                chat,
                engine,
                add_generation_prompt=body.add_generation_prompt is not False,
                continue_final=bool(body.continue_final_message),
            )
        else:
            check_counted("prompt", body.prompt, engine)
            next_unit()
            ids = tokenizer.encode(
                body.prompt or "",
                add_special_tokens=body.add_special_tokens is not False,
                parse_special=body.parse_special is not False,
            )
        texts = None
        if body.return_token_strs:
            texts = [tokenizer.token_bytes(i).decode("utf-8", "replace") for i in ids]
        return {
            "count": len(ids),
            "max_model_len": engine.backend.context,
            "tokens": ids,
            "token_strs": texts,
        }

    def _tokenize_content(self, body: TokenizeRequest, content: str) -> dict[str, Any]:
        """Answer as llama.cpp's server; with pieces, bytes that are no text are numbers."""
        tokenizer = self._tokenizer()
        check_counted("content", content, self._service.engine)
        next_unit()
        ids = tokenizer.encode(
            content,
            add_special_tokens=bool(body.add_special),
            parse_special=body.parse_special is not False,
        )
        if not body.with_pieces:
            return {"tokens": ids}
        return {"tokens": [{"id": i, "piece": _piece(tokenizer.token_bytes(i))} for i in ids]}

    def _detokenize(self, body: DetokenizeRequest) -> dict[str, Any]:
        # As vLLM and llama.cpp, each by its name: bos and the like are part of the text.
        text = self._tokenizer().decode(body.tokens, skip_special_tokens=False)
        return {"prompt": text, "content": text}

    def _card(self, model: str | None) -> dict[str, Any]:
        """Return what is told of the model, or of an adapter that a request names."""
        service, engine = self._service, self._service.engine
        context, bandwidth = engine.backend.context, service.bandwidth
        base, name = service.options.model_name, service.called(model)
        return {
            "id": name,
            "object": "model",
            # From here to max_tokens, and created_at: Anthropic's.
            "type": "model",
            "display_name": name,
            "lifecycle": "active",
            "max_input_tokens": context,
            "max_tokens": context,
            "created": service.created,
            "created_at": datetime.fromtimestamp(service.created, UTC).isoformat(),
            "owned_by": "monolane",
            "root": base,
            "parent": None if name == base else base,
            "permission": [],
            "max_model_len": context,
            "monolane": {
                "version": __version__,
                "backend": engine.backend.name,
                "dtype": engine.backend.dtype,
                "context": context,
                "max_tokens": context,
                "slots": service.options.policy.slots,
                "policy": str(service.options.policy),
                "chat_template": engine.chat_template.found,
                "sampling": service.defaults.said(),
                "read_bandwidth_gb_s": None if bandwidth is None else round(bandwidth / 1e9, 1),
            },
        }


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
