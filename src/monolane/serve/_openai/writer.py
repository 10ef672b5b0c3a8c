"""An answer as server-sent events, from bytes that are made once for each request.

Serialising a whole chunk for every token takes 30 µs a token, which makes streaming the bottleneck
of other servers. Here only the text itself is encoded, once in a few milliseconds, and joined to
bytes that are there already.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from monolane.serve._errors import api_error
from monolane.serve._http.progress import Progress
from monolane.serve._http.writer import Writer, json_bytes
from monolane.serve._openai.reply import Reply
from monolane.serve._run.channel import Update
from monolane.serve._run.choice import Choice
from monolane.serve._tools.calls import Delta

DONE = b"data: [DONE]\n\n"


class EventWriter(Writer):
    """Writes one answer."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        head = reply.head(reply.shape.chunk)
        options = reply.request.stream_options
        self._with_usage = bool(options and options.include_usage)
        self._always_usage = bool(options and options.continuous_usage_stats)
        self.live = bool(reply.request.timings_per_token)
        self.watches = bool(reply.request.return_progress)
        self._progress = Progress()
        opening = json_bytes(head)[:-1]
        self._choice = b"data: " + opening + b',"choices":[{"index":'
        self._empty = b"data: " + opening + b',"choices":[]'
        self._begun: set[int] = set()  # choices that a chunk was sent of
        # The commonest chunk by far, up to its text: its choice's next few tokens.
        self._plain = b',"delta":{"content":'
        whole_chunks = reply.has_logprobs or reply.has_ids or self._always_usage
        self._fast = reply.is_chat and not whole_chunks

    def whole(self) -> bytes:
        """Return the whole reply as JSON."""
        return self._reply.whole()

    def text(self, updates: Iterable[Update]) -> bytes:
        """Return the chunks of what has come; empty where that is no text and no end."""
        return b"".join([self._chunk(part) for update in updates for part in _split(update)])

    def queued(self, index: int, ahead: int) -> bytes:
        """Return the comment that tells a live client how many are before it."""
        return _comment({"phase": "queued", "index": index, "ahead": ahead})

    def progress(self, choice: Choice) -> bytes:
        """Return the chunks that tell a client how much of the prompt is read."""
        head = self._choice + str(choice.index).encode() + b"," + self._reply.shape.silent
        events = [
            head + b',"finish_reason":null}],"prompt_progress":' + json_bytes(report) + b"}\n\n"
            for report in self._progress.new(choice)
        ]
        return b"".join(events)

    def end(self) -> bytes:
        """Return what comes after the last text: an error or usage, and the end mark."""
        failure = self._reply.served.failure
        if failure is not None:
            return self.failed(failure)
        if not self._with_usage:
            return DONE
        return self._empty + b',"usage":' + json_bytes(self._reply.usage()) + b"}\n\n" + DONE

    def failed(self, error: BaseException) -> bytes:
        """Return the events that end a stream which went wrong."""
        return b"data: " + api_error(error).json() + b"\n\n" + DONE

    def _chunk(self, new: Update) -> bytes:
        index, reason = new.choice.index, new.finish_reason
        prefill = b""
        if new.admitted and self.live:
            prompt_n = len(new.choice.prompt_ids)
            prefill = _comment({"phase": "prefill", "index": index, "prompt_n": prompt_n})
        if not new.tokens and new.prompt_logprobs is None and reason is None:
            return prefill
        if self.watches and new.tokens:
            prefill += self.progress(new.choice)
        first = index not in self._begun
        self._begun.add(index)
        delta = Delta.joined(new.deltas)
        if self._fast and not first and not delta.tool_calls and not delta.reasoning:
            if not delta.content and reason is None:
                return prefill  # half a character, or the beginning of a stop text
            body = self._plain + json_bytes(delta.content) + b'},"logprobs":null'
        else:
            body = b"," + json_bytes(self._reply.part(new, first))[1:-1]
        chunk = self._choice + str(index).encode() + body
        reason = self._reply.shape.finish_reason(reason)
        return (
            prefill + chunk + b',"finish_reason":' + json_bytes(reason) + self._end_of(new, first)
        )

    def _end_of(self, new: Update, first: bool) -> bytes:
        """Return the end of a chunk: what follows its only choice."""
        more = dict[str, Any](self._reply.shared_ids(new, first))
        if self._with_usage or self._always_usage:
            more["usage"] = self._reply.usage() if self._always_usage else None
        over = new.finish_reason is not None
        if self.live:
            more["phase"] = "done" if over else "decode"
        if self.live or over:
            more["timings"] = self._reply.timings(new.choice)
        return b"}]" + (b"," + json_bytes(more)[1:-1] if more else b"") + b"}\n\n"


def _split(new: Update) -> tuple[Update, ...]:
    """Take the end of an answer off its last tool call.

    A client that reads of both at once, as the official one does, never learns that the call ended.
    """
    if new.finish_reason is None or not any(delta.tool_calls for delta in new.deltas):
        return (new,)
    return replace(new, finish_reason=None), Update(new.choice, finish_reason=new.finish_reason)


def _comment(value: dict[str, Any]) -> bytes:
    return b": " + json_bytes(value) + b"\n\n"
