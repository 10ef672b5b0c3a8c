"""What an exchange was: an answer with its times and its count of tokens, or a kind of failure.

Tokens are counted by ``usage.completion_tokens``, never by events: a server that sends what came
since the last event (ours does) would look many times slower than it is. Where a server gives no
usage, llama.cpp's ``timings.predicted_n`` counts, and only then events, which is said.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import h11

from monolane.measure._load_exchange import Exchange
from monolane.measure._load_http import parse_reads

CountedBy = Literal["usage", "timings", "events"]
_KINDS_OF_TEXT = ("content", "reasoning_content", "reasoning", "tool_calls")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no whole answer.

    ``kind``: connect, timeout, too_large, not_http, http_<status>, not_streamed, error_event (after
    the start), broken (no end mark), empty (an end, and no text).
    """

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """One answer as its client saw it; seconds."""

    tokens: int
    counted_by: CountedBy
    prompt_tokens: int | None
    first: float  # from the request to the first text
    whole: float  # from the request to the end mark
    decode: float  # from the first text to the last
    gaps: tuple[float, ...]  # from each event with text to the next
    server_speed: float | None  # tokens/s of decode by the server's own clock, where it tells
    sent_ns: int
    done_ns: int

    @property
    def speed(self) -> float | None:
        """Tokens per second after the first, or None where all came at once."""
        return (self.tokens - 1) / self.decode if self.decode > 0 and self.tokens > 1 else None


def read_json(made: Exchange) -> dict[str, Any] | Failure:
    """Return the JSON object that was answered."""
    response = _response(made)
    if isinstance(response, Failure):
        return response
    status, _, parts = response
    text = b"".join(data for _, data in parts)
    if status != 200:
        return Failure(f"http_{status}", _error_text(text))
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else Failure("not_http", f"no JSON: {text[:100]!r}")


def read_stream(made: Exchange) -> Outcome | Failure:
    """Return what a streamed answer was."""
    response = _response(made)
    if isinstance(response, Failure):
        return response
    status, kind, parts = response
    if status != 200:
        return Failure(f"http_{status}", _error_text(b"".join(data for _, data in parts)))
    if not kind.startswith("text/event-stream"):
        return Failure("not_streamed", f"expected text/event-stream, got {kind!r:.80}")
    return _read_events(made, parts)


def _read_events(made: Exchange, parts: list[tuple[int, bytes]]) -> Outcome | Failure:
    times: list[int] = []  # of events with text
    done_ns = 0
    usage: dict[str, Any] = {}
    timings: dict[str, Any] = {}
    for time_ns, line in _data_lines(parts):
        if line == b"[DONE]":
            done_ns = time_ns
            continue
        try:
            chunk = json.loads(line)
        except ValueError:
            return Failure("broken", f"an event that is no JSON: {line[:100]!r}")
        if not isinstance(chunk, dict):
            return Failure("broken", f"an event that is no object: {line[:100]!r}")
        if chunk.get("error"):
            return Failure("error_event", _error_text(line))
        choices = chunk.get("choices")
        if isinstance(choices, list) and any(map(_has_text, choices)):
            times.append(time_ns)
        usage = _fields(chunk, "usage") or usage
        timings = _fields(chunk, "timings") or timings
    if not done_ns:
        kind, message = made.fault or ("broken", "the answer ended without [DONE]")
        return Failure(kind, f"{message}, after {len(times)} events with text")
    if not times:
        return Failure("empty", "an answer without text")
    tokens, counted_by = _count(usage, timings, len(times))
    speed = timings.get("predicted_per_second")
    return Outcome(
        tokens=tokens,
        counted_by=counted_by,
        prompt_tokens=prompt if isinstance(prompt := usage.get("prompt_tokens"), int) else None,
        first=(times[0] - made.sent_ns) / 1e9,
        whole=(done_ns - made.sent_ns) / 1e9,
        decode=(times[-1] - times[0]) / 1e9,
        gaps=tuple((later - sooner) / 1e9 for sooner, later in itertools.pairwise(times)),
        server_speed=speed if isinstance(speed, int | float) and speed > 0 else None,
        sent_ns=made.sent_ns,
        done_ns=done_ns,
    )


def _count(usage: dict[str, Any], timings: dict[str, Any], events: int) -> tuple[int, CountedBy]:
    if isinstance(count := usage.get("completion_tokens"), int):
        return count, "usage"
    if isinstance(count := timings.get("predicted_n"), int):
        return count, "timings"
    return events, "events"


_Response = tuple[int, str, list[tuple[int, bytes]]]


def _response(made: Exchange) -> _Response | Failure:
    """Return status, content type, and the body's parts with the times at which they came."""
    try:
        parsed = parse_reads(made.reads, ended=made.fault is None)
    except h11.RemoteProtocolError as error:
        begin = made.reads[0][1][:60] if made.reads else b""
        return Failure("not_http", f"{error}; it began with {begin!r}")
    head = parsed.head
    if head is None:
        return Failure(*(made.fault or ("broken", "the connection was closed without an answer")))
    kinds = [value.decode("latin-1") for name, value in head.headers if name == b"content-type"]
    return head.status_code, kinds[0] if kinds else "", parsed.parts


def _data_lines(parts: list[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Yield what stands behind each "data:", with the time at which its line was whole."""
    rest = b""
    for time_ns, data in parts:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield time_ns, line[5:].strip()


def _has_text(choice: object) -> bool:
    if not isinstance(choice, dict):
        return False
    delta = _fields(choice, "delta")
    return bool(choice.get("text")) or any(delta.get(kind) for kind in _KINDS_OF_TEXT)


def _fields(found: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the object of a name; none of its fields where a server has something else there."""
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def _error_text(body: bytes) -> str:
    """Return the message of an error body, whichever of the usual shapes it has."""
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    error = found.get("error", found) if isinstance(found, dict) else None
    if isinstance(error, dict):
        error = error.get("message") or error
    return str(error or body.decode("utf-8", "replace")).strip()[:300]
