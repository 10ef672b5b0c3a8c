"""How much one request may send and ask for, checked before it costs anything."""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from monolane.engine import Engine
from monolane.errors import RequestError
from monolane.serve._errors import TOO_LONG, ApiError, ContextError
from monolane.serve._grammar.structured import EXTRA_FIELDS
from monolane.serve._run.bodies import Bodies, Body
from monolane.serve._run.fair_queue import Sender
from monolane.serve._run.preparers import SHORT, next_unit
from monolane.text import Tokenizer

LARGE_BODY = 1 << 18  # bytes, after which memory is given back
BODY_SECONDS = 30.0  # for a whole body
MAX_CHOICES = 256  # answers of one request
# Tokens of what is only counted: two seconds of work at most. A client counts when it fears that
# its conversation is too long, so the context is no bound there.
MAX_COUNTED = 1 << 19
# Tokens drawn or scored, each alternative counted: what a whole reply may hold, about 100 MB.
MAX_WEIGHT = 1 << 20
# Longer texts are refused before seconds go into encoding them. No normalizer in use makes less
# than half of a text. A vocabulary's token for what it does not know may stand for more.
_SHRINKS = 2
_UNKNOWN_CHARS = 256
# What is longer, in bytes a token of the context or in all, is counted piece by piece first: making
# the ids of megabytes at once would hold the interpreter's lock.
_BYTES_PER_TOKEN = 8
_COUNTED_BYTES = 1 << 18
_PIECE_CHARS = 1 << 15
# Cutting a text makes other tokens at the cut, a few of thousands; twice as many are beyond doubt.
_SURE = 2
_RARE = "\U000f1234\u0e5b"  # of private use, and a Thai mark: in no small vocabulary but as bytes
# In a short body: names of fields for which grammars are made; and letters spelled as numbers,
# which could hide one.
_COSTLY = re.compile(
    rb'"(?:%b|response_format|structured_outputs|format|tools|functions)"|\\u00[2-7]'
    % "|".join(EXTRA_FIELDS).encode()
)


async def disconnected(receive: Receive) -> None:
    """Wait until the client of a request, whose body has been read, has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


def sender_of(scope: Scope) -> Sender:
    """Return who sent a request: by its key, or else by its address; and on which connection."""
    client = scope.get("client")
    address = client[0] if client else ""
    return Sender(scope.get("monolane.owner") or address, client and tuple(client))


async def read_body(request: Request, bodies: Bodies, limit: int) -> Body:
    """Return the body; ApiError 413 past ``limit`` bytes, 408 where it comes too slowly.

    429 where it is one too many.
    """
    # What is left of such a body is never read, so the connection cannot be used again.
    close = {"Connection": "close"}
    too_large = ApiError(
        413,
        f"expected a body of at most {limit} bytes; send less, or start the server with a larger "
        "--max-body",
        headers=close,
    )
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > limit:
        raise too_large
    body, given_up = Body(bodies, sender_of(request.scope)), False
    try:
        async with asyncio.timeout(BODY_SECONDS) as wait:

            def give_up() -> bool:
                nonlocal given_up
                given_up = True
                wait.reschedule(0)
                return True

            body.give_up = give_up
            more = True
            while more:  # Starlette's stream() is a generator around the same
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                part, more = message.get("body", b""), message.get("more_body", False)
                if body.size + len(part) > limit:
                    raise too_large
                body.add(part)
                if given_up:
                    raise TimeoutError
        body.give_up = None
        body.costly = body.size <= SHORT and body.mentions(_COSTLY)
        return body
    except BaseException as error:
        body.free()
        if isinstance(error, TimeoutError) and given_up:
            raise bodies.refused(close) from None
        if isinstance(error, TimeoutError):
            told = f"expected the body within {BODY_SECONDS:.0f} s"
            raise ApiError(408, told, headers=close) from None
        if isinstance(error, ClientDisconnect):
            raise ApiError(400, "the client closed the connection amid its request") from None
        raise


def check_length(name: str, value: Any, engine: Engine) -> None:
    """Raise ContextError for a JSON value whose texts cannot fit into the context.

    Texts of more than 256 KB are encoded in pieces until it is known: not for an event loop.
    """
    context = engine.backend.context
    if (found := _beyond(context, value, engine)) is not None:
        raise ContextError(name, context, *found)


def check_counted(name: str, value: Any, engine: Engine) -> None:
    """Raise ApiError for a JSON value whose texts are too long to be counted, or to fit."""
    limit = max(MAX_COUNTED, engine.backend.context)
    if (found := _beyond(limit, value, engine)) is not None:
        told = f"{name}: expected at most {limit} tokens to count, got {found[0]}"
        raise ApiError(400, told, name, code=TOO_LONG)


def _beyond(limit: int, value: Any, engine: Engine) -> tuple[str, int] | None:
    """Return the size of texts that have more tokens than this, and so many tokens at least."""
    tokenizer = engine.tokenizer
    if tokenizer is None:
        return None
    chars = sum(map(len, _texts(value)))
    most = _chars_per_token(tokenizer)
    if chars > most * limit:
        return f"{chars} characters, which cannot be so few", -(-chars // most)
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in _texts(value))
    if size <= min(_BYTES_PER_TOKEN * limit, _COUNTED_BYTES):
        return None
    tokens = 0
    for text in _texts(value):
        for i in range(0, len(text), _PIECE_CHARS):
            next_unit(_PIECE_CHARS)
            tokens += tokenizer.count(text[i : i + _PIECE_CHARS])
            if tokens > _SURE * limit:
                return f"more than {tokens // _SURE} tokens", tokens // _SURE
    return None


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, list):
            left += one


@lru_cache(maxsize=8)
def _chars_per_token(tokenizer: Tokenizer) -> int:
    """Return the most characters that one token can stand for."""
    # Not up to the highest id, which a file may put anywhere below 2^32.
    pieces = (tokenizer.pieces.get(token) or b"" for token in tokenizer.vocabulary().values())
    longest = _SHRINKS * max(map(len, pieces), default=1)
    unknown = tokenizer.unk_id in tokenizer.encode(_RARE, add_special_tokens=False)
    return max(longest, _UNKNOWN_CHARS) if unknown else longest


def check_prompt(name: str, ids: Sequence[int], engine: Engine) -> None:
    """Raise ContextError for token ids that do not fit into the context."""
    context = engine.backend.context
    if len(ids) > context:
        raise ContextError(name, context, f"{len(ids)} tokens", len(ids))


def token_budget(
    limit: str, wanted: int | None, least: int | None, prompt: int, engine: Engine
) -> int:
    """Return how many tokens may be drawn: what is wanted, cut to what the context still holds.

    ``limit`` is the field that says what is wanted, ``least`` the request's ``min_tokens``,
    ``prompt`` the number of tokens of the prompt.
    RequestError where they do not fit together.
    """
    context = engine.backend.context
    if wanted is not None and not 1 <= wanted <= context:
        raise RequestError(
            f"{limit}: expected 1 to {context}, the context of this model, got {wanted}"
        )
    free = context - prompt + 1
    budget = free if wanted is None else min(wanted, free)
    if least is not None and least > budget:
        raise RequestError(
            f"min_tokens: expected at most {budget}, the tokens that this answer may have, "
            f"got {least}"
        )
    return budget


def check_size(limit: str, choices: int, tokens: int, alternatives: int | None) -> None:
    """Raise RequestError for a request whose whole reply would fill the memory.

    ``limit`` is the field that bounds its tokens.
    """
    if choices > MAX_CHOICES:
        raise RequestError(f"n: expected at most {MAX_CHOICES} answers in all, got {choices}")
    weight = choices * tokens * (1 + (alternatives or 0))
    if weight > MAX_WEIGHT:
        raise RequestError(
            f"{limit}: expected at most {MAX_WEIGHT} tokens and alternatives over all answers, "
            f"got {weight}; ask for fewer answers, tokens or logprobs"
        )
