"""One request of an agent to its model, as a proxy saw it: when, how long what took, how much."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """Times in seconds; ``begin`` and ``end`` count from the start of the run.

    waiting     in the server's queue, on the way, and what nothing else names
    prefill     until the first token
    generation  from the first token on
    split       whose word that is: "server" (timings in the reply), "stream" (first and last
                chunk; waiting is in prefill), or "none": all of it counts as generation
    cached      tokens of the prompt that the server did not read again
    """

    begin: float
    end: float
    status: int
    waiting: float
    prefill: float
    generation: float
    split: str
    prompt_tokens: int | None
    cached: int | None
    tokens: int | None


def read_call(begin: float, end: float, status: int, body: bytes, events: Sequence[float]) -> Call:
    """Read a reply: one JSON object, or a stream whose chunks of answer came at ``events``."""
    found = [_parsed(line) for line in body.split(b"\n") if line.startswith(b"data:")]
    replies = [reply for reply in found or [_parsed(body)] if reply]
    usage, timings = _told(replies, "usage"), _told(replies, "timings")
    whole = end - begin
    waiting, prefill, generation, split = 0.0, 0.0, whole, "none"
    if "predicted_ms" in timings and "prompt_ms" in timings:
        prefill, generation = timings["prompt_ms"] / 1e3, timings["predicted_ms"] / 1e3
        waiting, split = max(0.0, whole - prefill - generation), "server"
    elif events:
        prefill, generation, split = events[0] - begin, end - events[0], "stream"
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    # Anthropic's input_tokens are those that were neither in the cache nor put there.
    beside = [usage.get(f"cache_{kind}_input_tokens") for kind in ("read", "creation")]
    given = usage.get("input_tokens")
    return Call(
        begin,
        end,
        status,
        waiting,
        prefill,
        generation,
        split,
        _first(
            usage.get("prompt_tokens"),
            None if given is None else given + sum(count or 0 for count in beside),
            timings.get("prompt_n"),
        ),
        _first(
            details.get("cached_tokens"),
            beside[0],
            timings.get("cache_n"),
        ),
        _first(
            usage.get("completion_tokens"), usage.get("output_tokens"), timings.get("predicted_n")
        ),
    )


def is_answer(line: bytes) -> bool:
    """Tell whether a line of a stream holds some of an answer: text, thought or a call."""
    if not line.startswith(b"data:"):
        return False
    event = _parsed(line)
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("text") or any(value for key, value in delta.items() if key != "role"):
            return True
    return str(event.get("type", "")).endswith((".delta", "_delta"))


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line.removeprefix(b"data:"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _told(replies: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return the object of this name, later values over earlier ones; {} where there is none.

    An event may have it within its response. Anthropic's first event has the tokens of the prompt,
    its last those of the answer.
    """
    found: dict[str, Any] = {}
    for reply in replies:
        for place in (reply, reply.get("response"), reply.get("message")):
            if isinstance(place, dict) and isinstance(place.get(name), dict):
                found |= {key: value for key, value in place[name].items() if value is not None}
    return found


def _first(*values: Any) -> int | None:
    return next((int(value) for value in values if value is not None), None)
