"""An answer as server-sent events, from bytes that are made once for each request.

Re-serialising a whole chunk for every token is what makes streaming the bottleneck elsewhere
(30 µs a token): here only the text itself is encoded, once in a few milliseconds, and everything
around it is joined as it is.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from monolane.serve._errors import api_error
from monolane.serve._gather import Gathered
from monolane.serve._reply import Reply, json_bytes

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


class EventWriter:
    """Writes one answer."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        head = reply.head(reply.shape.chunk)
        options = reply.request.stream_options
        self._with_usage = bool(options and options.include_usage)
        self._always_usage = bool(options and options.continuous_usage_stats)
        self._live = bool(reply.request.timings_per_token)
        opening = json_bytes(head)[:-1]
        self._choice = b"data: " + opening + b',"choices":[{"index":'
        self._empty = b"data: " + opening + b',"choices":[]'
        self._said: set[int] = set()  # choices that something has been said of
        # The commonest chunk by far, up to its text: its choice's next few tokens.
        self._plain = b',"delta":{"content":'
        self._fast = reply.is_chat and not reply.logprobs and not self._always_usage

    def text(self, got: Iterable[Gathered]) -> bytes:
        """Return the chunks of what has come; empty where that is no text and no end."""
        return b"".join([self._chunk(part) for one in got for part in _parted(one)])

    def queued(self, index: int, ahead: int) -> bytes:
        """Return the comment that tells a live client how many are before it."""
        return _comment({"phase": "queued", "index": index, "ahead": ahead})

    def end(self) -> bytes:
        """Return what comes behind the last text: an error or usage, and the end mark."""
        failure = self._reply.run.failure
        if failure is not None:
            return failed(failure)
        if not self._with_usage:
            return DONE
        return self._empty + b',"usage":' + json_bytes(self._reply.usage()) + b"}\n\n" + DONE

    def _chunk(self, got: Gathered) -> bytes:
        index = got.choice.index
        prefill = b""
        if got.admitted and self._live:
            told = {"phase": "prefill", "index": index, "prompt_n": len(got.choice.prompt_ids)}
            prefill = _comment(told)
        if not got.tokens and got.scored is None and got.finish_reason is None:
            return prefill
        first = index not in self._said
        self._said.add(index)
        if self._fast and not first and not got.tool_calls and not any(got.reasoning):
            text = "".join(got.content)
            if not text and got.finish_reason is None:
                return prefill  # half a character, or the beginning of a stop text
            body = self._plain + json_bytes(text) + b'},"logprobs":null'
        else:
            part = self._reply.shape.part(got, first)
            body = b"," + json_bytes(part)[1:-1]
        reason = json_bytes(got.finish_reason)
        chunk = self._choice + str(index).encode() + body + b',"finish_reason":' + reason + b"}]"
        return prefill + chunk + self._more(got) + b"}\n\n"

    def _more(self, got: Gathered) -> bytes:
        more: dict[str, Any] = {}
        if self._always_usage:
            more["usage"] = self._reply.usage()
        elif self._with_usage:
            more["usage"] = None
        over = got.finish_reason is not None
        if self._live:
            more["phase"] = "done" if over else "decode"
        if self._live or over:
            more["timings"] = self._reply.timings(got.choice.index)
        return b"," + json_bytes(more)[1:-1] if more else b""


def _parted(got: Gathered) -> tuple[Gathered, ...]:
    """Take the end of an answer off its last tool call: a client that reads of both at once, as
    the official one does, never learns that the call is over.
    """
    if not got.tool_calls or got.finish_reason is None:
        return (got,)
    return replace(got, finish_reason=None), Gathered(got.choice, finish_reason=got.finish_reason)


def failed(error: BaseException) -> bytes:
    """Return the events that end a stream which went wrong."""
    return b"data: " + api_error(error).json() + b"\n\n" + DONE


def _comment(told: dict[str, Any]) -> bytes:
    return b": " + json_bytes(told) + b"\n\n"
