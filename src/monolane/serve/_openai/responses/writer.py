"""Spells an answer as a response: one object, or the events that build it up."""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from monolane.engine import SamplingParams
from monolane.serve._errors import api_error
from monolane.serve._http.progress import Progress
from monolane.serve._http.writer import Writer, count_tokens, json_bytes
from monolane.serve._openai.logprobs import chat_logprobs
from monolane.serve._openai.responses.body import THOUGHTS, ResponsesRequest
from monolane.serve._openai.responses.input_items import with_ids
from monolane.serve._openai.responses.output import Output
from monolane.serve._openai.responses.store import Stored
from monolane.serve._openai.responses.tools import OfferedTools
from monolane.serve._run.channel import Update
from monolane.serve._run.choice import Choice
from monolane.serve._run.request import ServedRequest
from monolane.serve._run.service import Service
from monolane.serve._tools.calls import Delta

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """A request that was read: its body, sampling and tools, and the conversation up to it."""

    body: ResponsesRequest
    sampling: SamplingParams
    tools: OfferedTools
    items: tuple[Json, ...]
    size: int  # bytes of the conversation


class ResponsesWriter(Writer):
    """Writes one response; ``keep`` gets it at its end, where it is to be stored."""

    def __init__(
        self, service: Service, turn: Turn, served: ServedRequest, keep: Callable[[Stored], None]
    ) -> None:
        self._turn, self._served, self._keep = turn, served, keep
        self._tokenizer = service.engine.tokenizer
        self._output = Output(turn.tools, THOUGHTS in (turn.body.include or ()))
        self._id = f"resp_{secrets.token_hex(16)}"
        self._head = self._head_of(service.called(turn.body.model))
        self._number = 0
        self._timed = bool(turn.body.timings_per_token)
        self.watches = bool(turn.body.return_progress)
        self._progress = Progress()
        self._timings = service.timings
        self._reason: str | None = None  # why the answer ended

    def whole(self) -> bytes:
        """Return the response."""
        for update in self._served.channel.take():
            for _ in self._events(update):
                pass
        for _ in self._closing():
            pass
        return self._finished()

    def begin(self) -> bytes:
        """Return the events that come before any token."""
        response = self._response("in_progress")
        kinds = ("response.created", "response.in_progress")
        return b"".join([self._event({"type": kind, "response": response}) for kind in kinds])

    def text(self, updates: Iterable[Update]) -> bytes:
        """Return the events of what has come."""
        return b"".join([self._told(update) for update in updates])

    def progress(self, choice: Choice) -> bytes:
        """Return the events that tell how much of the prompt is read."""
        head = {"type": "response.in_progress", "response": self._response("in_progress")}
        reports = self._progress.new(choice)
        return b"".join([self._event({**head, "prompt_progress": one}) for one in reports])

    def _told(self, update: Update) -> bytes:
        head = self.progress(update.choice) if self.watches and update.tokens else b""
        timed = {"timings": self._timings(update.choice)} if self._timed else {}
        return head + b"".join([self._event({**e, **timed}) for e in self._events(update)])

    def end(self) -> bytes:
        """Return the events behind the last text."""
        if self._served.failure is not None:
            return self.failed(self._served.failure)
        events = [self._event(event) for event in self._closing()]
        response = self._finished()
        kind = "response.incomplete" if self._reason == "length" else "response.completed"
        number = str(self._number).encode()
        head = f'event: {kind}\ndata: {{"type":"{kind}","response":'.encode()
        timings = b',"timings":' + json_bytes(self._timings(self._served.choices[0]))
        timed = timings if self._timed else b""
        tail = b',"sequence_number":' + number + b"}\n\n"
        return b"".join([*events, head, response, timed, tail])

    def failed(self, error: BaseException) -> bytes:
        """Return the event that ends a stream which went wrong."""
        told = api_error(error)
        code = "rate_limit_exceeded" if told.status == 429 else "server_error"
        response = self._response("failed", error={"code": code, "message": str(told)})
        return self._event({"type": "response.failed", "response": response})

    def _events(self, update: Update) -> Iterator[Json]:
        self._reason = update.finish_reason or self._reason
        logprobs = chat_logprobs(update.logprobs, self._tokenizer)["content"]
        for one in logprobs:
            one["bytes"] = one["bytes"] or []
        deltas = update.deltas
        if not any(delta.tool_calls for delta in deltas):
            deltas = [Delta.joined(deltas)]
        for delta in deltas:
            yield from self._output.add(delta, logprobs)
            if delta.content:
                logprobs = []

    def _closing(self) -> Iterator[Json]:
        if not self._output.items:  # an answer without a word is a message, too
            yield from self._output.begin("message", role="assistant")
        yield from self._output.close("incomplete" if self._reason == "length" else "completed")

    def _finished(self) -> bytes:
        """Return the whole response as JSON, and keep it if it is to be stored."""
        over = self._reason != "length"
        details = None if over else {"reason": "max_output_tokens"}
        response = json_bytes(
            self._response(
                "completed" if over else "incomplete",
                output=self._output.items,
                incomplete_details=details,
                completed_at=int(time.time()) if over else None,
                usage=self._usage(),
            )
        )
        if self._turn.body.store is not False:
            given = with_ids(self._turn.items)
            items = (*given, *self._output.items)
            size = self._turn.size + len(response)
            self._keep(Stored(self._id, response, items, size, len(given)))
        return response

    def _response(self, status: str, **more: Any) -> Json:
        return {**self._head, "status": status, **more}

    def _head_of(self, model: str) -> Json:
        body = self._turn.body
        chosen = self._turn.sampling
        text: Json = {"format": (body.text and body.text.format) or {"type": "text"}}
        if body.text and body.text.verbosity:
            text["verbosity"] = body.text.verbosity
        reasoning = body.reasoning
        return {
            "id": self._id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "completed_at": None,
            "background": False,
            "error": None,
            "frequency_penalty": chosen.frequency_penalty,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "metadata": body.metadata or {},
            "model": model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "presence_penalty": chosen.presence_penalty,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": reasoning and reasoning.effort, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",  # whatever was asked for: there is no other
            "store": body.store is not False,
            "temperature": chosen.temperature,
            "text": text,
            "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
            "tools": list(self._turn.tools.given),
            "top_logprobs": body.top_logprobs or 0,
            "top_p": chosen.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def _usage(self) -> Json:
        count = count_tokens(self._served, 1)
        return {
            "input_tokens": count.prompt,
            "input_tokens_details": {"cached_tokens": count.cached, "cache_write_tokens": 0},
            "output_tokens": count.drawn,
            "output_tokens_details": {"reasoning_tokens": count.thought},
            "total_tokens": count.prompt + count.drawn,
        }

    def _event(self, event: Json) -> bytes:
        event = {**event, "sequence_number": self._number}
        self._number += 1
        return f"event: {event['type']}\ndata: ".encode() + json_bytes(event) + b"\n\n"
