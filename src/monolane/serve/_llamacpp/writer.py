"""Spells an answer as llama.cpp's ``/completion`` does: one object a prompt, or its own events."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from monolane.engine import TokenLogprob
from monolane.serve._errors import api_error
from monolane.serve._http.logprobs import finite, spelled
from monolane.serve._http.progress import Progress
from monolane.serve._http.request import TextAsked
from monolane.serve._http.writer import Writer, json_bytes
from monolane.serve._llamacpp.body import NativeRequest
from monolane.serve._llamacpp.errors import error_json
from monolane.serve._llamacpp.settings import generation_settings, native_timings
from monolane.serve._run.channel import Update
from monolane.serve._run.choice import Choice
from monolane.serve._run.request import ServedRequest
from monolane.serve._run.service import Service
from monolane.serve._tools.calls import Delta
from monolane.text import Tokenizer

Json = dict[str, Any]


@dataclass(slots=True)
class _Sent:
    """What has gone out of a choice."""

    tokens: int = 0
    has_new_line: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    """What one event tells."""

    text: str
    ids: Sequence[int]
    logprobs: Sequence[TokenLogprob] = field(default=())


class NativeWriter(Writer):
    """Writes one answer. There is no ``[DONE]``: the last event of a choice has ``stop`` true."""

    def __init__(
        self, service: Service, body: NativeRequest, asked: TextAsked, served: ServedRequest
    ) -> None:
        self._service, self._body, self._asked, self._served = service, body, asked, served
        self.watches = bool(body.return_progress)
        self._progress = Progress()
        self._sent = defaultdict[int, _Sent](_Sent)

    def whole(self) -> bytes:
        """Return the answer; several in a list."""
        updates = self._served.channel.take()
        found = [json_bytes(self._answer(update)) for update in updates]
        return found[0] if len(found) == 1 else b"[" + b",".join(found) + b"]"

    def text(self, updates: Iterable[Update]) -> bytes:
        """Return the events of what has come."""
        return b"".join([_event(event) for update in updates for event in self._events(update)])

    def progress(self, choice: Choice) -> bytes:
        """Return the events that tell how much of the prompt is read."""
        return b"".join([_event(event) for event in self._reports(choice)])

    def end(self) -> bytes:
        """Return nothing, or an error."""
        failure = self._served.failure
        return b"" if failure is None else self.failed(failure)

    def failed(self, error: BaseException) -> bytes:
        """Return the event that ends a stream which went wrong."""
        return b"data: " + error_json(api_error(error)) + b"\n\n"

    def _answer(self, update: Update) -> Json:
        text = Delta.joined(update.deltas).content
        ids = update.ids if self._body.return_tokens else []
        answer = self._final(update.choice, update.finish_reason, text, ids, "\n" in text)
        if update.logprobs:
            answer["completion_probabilities"] = _probabilities(update.logprobs, self._tokenizer)
        wanted = self._body.response_fields
        return answer if not wanted else dict(_picked(answer, wanted))

    def _events(self, update: Update) -> Iterator[Json]:
        sent = self._sent[update.choice.index]
        if self.watches and update.tokens:
            yield from self._reports(update.choice)
        for part in _parts(update):
            sent.tokens += len(part.ids)
            sent.has_new_line = sent.has_new_line or "\n" in part.text
            yield self._partial(update.choice, part)
        if update.finish_reason is not None:
            yield self._final(update.choice, update.finish_reason, "", [], sent.has_new_line)

    def _reports(self, choice: Choice) -> Iterator[Json]:
        for report in self._progress.new(choice):
            yield self._partial(choice, _Part("", ())) | {"prompt_progress": report}

    def _partial(self, choice: Choice, part: _Part) -> Json:
        event: Json = {
            "index": choice.index,
            "content": part.text,
            "tokens": list(part.ids),
            "stop": False,
            "id_slot": choice.index,
            "tokens_predicted": self._sent[choice.index].tokens,
            "tokens_evaluated": len(choice.prompt_ids),
        }
        if self._body.timings_per_token:
            event["timings"] = self._timings(choice)
        if part.logprobs:
            event["completion_probabilities"] = _probabilities(part.logprobs, self._tokenizer)
        return event

    def _final(
        self, choice: Choice, reason: str | None, text: str, ids: list[int], has_new_line: bool
    ) -> Json:
        prompt, asked, tokenizer = choice.prompt_ids, self._asked, self._tokenizer
        word = None if choice.discard else choice.stream.stop_text
        full = len(prompt) + choice.drawn > self._service.engine.backend.context
        shown = "" if tokenizer is None else tokenizer.decode(prompt, skip_special_tokens=False)
        return {
            "index": choice.index,
            "content": text,
            "tokens": ids,
            "id_slot": choice.index,
            "stop": True,
            "model": self._service.called(asked.model),
            "tokens_predicted": 0 if choice.discard else choice.drawn,
            "tokens_evaluated": len(prompt),
            "generation_settings": generation_settings(
                choice.stream.params, self._service.engine, asked.max_tokens
            ),
            "prompt": shown,
            "has_new_line": has_new_line,
            "truncated": reason == "length" and full,
            "stop_type": "limit" if reason == "length" else "eos" if word is None else "word",
            "stopping_word": word or "",
            "tokens_cached": len(prompt) + choice.drawn - 1,
            "timings": self._timings(choice),
        }

    def _timings(self, choice: Choice) -> Json:
        return native_timings(self._service.timings(choice))

    @property
    def _tokenizer(self) -> Tokenizer | None:
        return self._service.engine.tokenizer


def _parts(update: Update) -> list[_Part]:
    """Return the events of an update: one, or with log-probabilities one for each token.

    Several tokens may have come at once. Their text is told with the last of them.
    """
    text = Delta.joined(update.deltas).content
    if not update.tokens:
        return [_Part(text, ())] if text else []
    if not update.logprobs:
        return [_Part(text, update.ids)]
    parts = [_Part("", [one.token_id], [one]) for one in update.logprobs]
    return [*parts[:-1], _Part(text, parts[-1].ids, parts[-1].logprobs)]


def _probabilities(
    logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer | None
) -> list[dict[str, Any]]:
    return [
        _described(one.token_id, one.logprob, tokenizer)
        | {"top_logprobs": [_described(*pair, tokenizer) for pair in one.top]}
        for one in logprobs
    ]


def _described(token_id: int, logprob: float, tokenizer: Tokenizer | None) -> Json:
    text, data = spelled(token_id, tokenizer)
    return {
        "id": token_id,
        "token": text,
        "bytes": list(data or b""),
        "logprob": finite(logprob),
    }


def _picked(answer: Json, wanted: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the wanted fields that there are; of "a/b" the last name's, under the whole path."""
    for path in wanted:
        value: Any = answer
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            yield path, value


def _event(value: Json) -> bytes:
    return b"data: " + json_bytes(value) + b"\n\n"
