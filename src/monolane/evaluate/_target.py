"""Who is evaluated: an engine in this process, or a server that speaks OpenAI's API."""

import hashlib
import http.client
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from monolane.engine import Engine, ModelFiles, SamplingParams
from monolane.errors import BackendError, RequestError
from monolane.evaluate._likelihood import Likelihood
from monolane.evaluate._question import Answer, Decoding, Question
from monolane.measure import Failure, LoadTarget, ask_models
from monolane.sources import find_model
from monolane.text import Tokenizer

_TRIES = 3
_BLOCK = 1 << 20
_TEXT_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    "generation_config.json",
)


class Subject(ABC):
    """Answers questions, one at a time; ``name`` is the model's, ``chat``: it has a template.

    ``about`` is what the report and the journals say of it: what changes answers, and no more.
    """

    name: str
    chat: bool
    about: dict[str, Any]
    context: int | None  # tokens of prompt and answer; None: not known

    @abstractmethod
    def ask(self, question: Question, sample: int = 0) -> Answer:
        """Answer; RequestError if the prompt does not fit, BackendError if the server fails."""

    @abstractmethod
    def count(self, question: Question) -> int:
        """Return the tokens of a prompt, template included."""


class ScoringSubject(Subject):
    """One that also says how probable given tokens are.

    ``first_id``: the token before a text that has no context, bos or else the end of a text.
    """

    @property
    @abstractmethod
    def first_id(self) -> int:
        """The token before a text that has no context; RequestError where none is known."""

    @abstractmethod
    def token_ids(self, text: str, special: bool = True) -> list[int]:
        """Return the ids of a text; ``special``: with what the tokenizer puts around it."""

    @abstractmethod
    def score(self, ids: Sequence[int], count: int) -> tuple[list[float], bool]:
        """Return the log-probabilities (nats) of the last ``count`` ids, all but the first at most,
        and whether each is the most probable token of its place.
        """


class EngineSubject(ScoringSubject):
    """An engine in this process; ``engine`` is open while it is."""

    def __init__(self, engine: Engine, name: str, chat: bool | None = None) -> None:
        if engine.tokenizer is None:
            raise RequestError(f"{engine.folder}: expected a model with a tokenizer, found none")
        self.engine, self.name = engine, name
        self._tokenizer: Tokenizer = engine.tokenizer
        self._likelihood = Likelihood(engine)
        has_template = engine.chat_template.found
        self.chat = has_template if chat is None else chat
        self.context = engine.backend.context
        self.about = {
            "model": name,
            "sha256": hash_model(engine.folder),
            "text_sha256": hash_text_files(engine),
            "family": engine.config.family,
            "backend": engine.backend.name,
            "dtype": engine.backend.dtype,
            "context": engine.backend.context,
            "chat": self.chat,
        }
        cache_dtype = engine.backend.executor.cache_dtype
        if cache_dtype != "auto":  # without it journals from before there was a choice go on
            self.about["cache_dtype"] = cache_dtype

    def ask(self, question: Question, sample: int = 0) -> Answer:
        """Answer; RequestError if the prompt does not fit."""
        drawn = question.decoding
        params = SamplingParams(
            max_tokens=drawn.max_tokens,
            temperature=drawn.temperature,
            top_p=drawn.top_p,
            seed=drawn.seed + sample,
            stop=question.stop,
        )
        result = self.engine.generate(self._ids(question), params)
        timings = result.timings
        return Answer(
            result.text,
            result.finish_reason,
            timings.prompt_tokens,
            timings.generated_tokens,
            timings.decode_seconds,
        )

    def count(self, question: Question) -> int:
        """Return the tokens of a prompt, template included."""
        return len(self._ids(question))

    @property
    def first_id(self) -> int:
        """The token before a text that has no context."""
        return first_id(self.engine, self._tokenizer)

    def token_ids(self, text: str, special: bool = True) -> list[int]:
        """Return the ids of a text; ``special``: with what the tokenizer puts around it."""
        return self._tokenizer.encode(text, add_special_tokens=special)

    def score(self, ids: Sequence[int], count: int) -> tuple[list[float], bool]:
        """Return the log-probabilities of the last ids, and whether each is greedy's."""
        return self._likelihood(ids, count)

    def _ids(self, question: Question) -> list[int]:
        if not question.chat:
            return self._tokenizer.encode(question.text + question.begun)
        messages = _messages(question)
        template = self.engine.chat_template
        if not question.begun:
            return template.encode(self._tokenizer, messages)
        return template.encode(
            self._tokenizer, messages, add_generation_prompt=False, continue_final=True
        )


class ServerSubject(ScoringSubject):
    """A model behind a base URL, with or without /v1 at its end; ``target`` is where."""

    def __init__(
        self,
        url: str,
        model: str | None = None,
        key: str = "",
        chat: bool | None = None,
        seconds: float = 600.0,
    ) -> None:
        self.target = LoadTarget.parse(url, key)
        found = ask_models(self.target)
        if isinstance(found, Failure):
            raise BackendError(
                f"{self.target.url}/v1/models: {found.message} ({found.kind}); expected an "
                "OpenAI-compatible server that is ready there"
            )
        cards = [card for card in found.get("data") or () if isinstance(card, dict)]
        names = [str(card.get("id")) for card in cards]
        if model is None and not names:
            raise RequestError(f"{self.target.url} names no model: name one with --model")
        if model is not None and names and model not in names:
            raise RequestError(f"--model: expected one of {', '.join(names)}, got {model!r}")
        self.name = model or names[0]
        card = next((card for card in cards if card.get("id") == self.name), {})
        length = card.get("max_model_len")
        self.context = length if isinstance(length, int) else None
        self.chat = True if chat is None else chat
        self._seconds = seconds
        self.about = {
            "model": self.name,
            "server": self.target.url,
            "owned_by": card.get("owned_by"),
            "chat": self.chat,
        }

    def ask(self, question: Question, sample: int = 0) -> Answer:
        """Answer; BackendError if the server fails three times, or refuses."""
        drawn = question.decoding
        body: dict[str, Any] = {
            "model": self.name,
            "max_tokens": drawn.max_tokens,
            "temperature": drawn.temperature,
            "top_p": drawn.top_p,
            "seed": drawn.seed + sample,
        }
        if question.stop:
            body["stop"] = list(question.stop)
        if question.chat:
            body["messages"] = _messages(question)
            route = "/v1/chat/completions"
        else:
            body["prompt"] = question.text + question.begun
            route = "/v1/completions"
        begin = time.perf_counter()
        found = self._post(route, body)
        seconds = time.perf_counter() - begin
        return _read_answer(found, question.chat, seconds, route)

    def chat_with_tools(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        choice: str,
        drawn: Decoding,
    ) -> dict[str, Any]:
        """Return the message that answers a chat, in which the model may call tools.

        choice: "auto", or "required": it has to.
        """
        route = "/v1/chat/completions"
        body = {
            "model": self.name,
            "messages": messages,
            "tools": tools,
            "tool_choice": choice,
            "max_tokens": drawn.max_tokens,
            "temperature": drawn.temperature,
            "top_p": drawn.top_p,
            "seed": drawn.seed,
        }
        found = self._post(route, body)
        try:
            return dict(found["choices"][0]["message"])
        except (KeyError, IndexError, TypeError, ValueError):
            raise BackendError(f"{route}: expected a message, got {found!r:.200}") from None

    def count(self, question: Question) -> int:
        """Return the tokens of a prompt by /tokenize, as vLLM's and monolane's servers have it.

        RequestError where there is none.
        """
        body: dict[str, Any] = {"model": self.name}
        if question.chat:
            open_end = bool(question.begun)
            body["messages"] = _messages(question)
            body |= {"add_generation_prompt": not open_end, "continue_final_message": open_end}
        else:
            body["prompt"] = question.text + question.begun
        try:
            return int(self._post("/tokenize", body)["count"])
        except (BackendError, KeyError, TypeError, ValueError) as error:
            raise RequestError(
                f"{self.target.url}/tokenize: expected a count of tokens, as vLLM's and "
                f"monolane's servers give it ({error}); prompts of a given length need it"
            ) from None

    def token_ids(self, text: str, special: bool = True) -> list[int]:
        """Return the ids of a text; ``special``: with what the tokenizer puts around it."""
        body = {"model": self.name, "prompt": text, "add_special_tokens": special}
        try:
            return [int(each) for each in self._post("/tokenize", body)["tokens"]]
        except (BackendError, KeyError, TypeError, ValueError) as error:
            raise RequestError(
                f"{self.target.url}/tokenize: expected tokens, as vLLM's and monolane's servers "
                f"give them ({error}); log-likelihoods need them"
            ) from None

    @cached_property
    def first_id(self) -> int:
        """The token with which the server's tokenizer begins a text."""
        if first := self.token_ids(""):
            return first[0]
        raise RequestError(
            f"{self.target.url}: expected a tokenizer that begins a text with a token of its own, "
            "which texts without context need; evaluate the model with --model"
        )

    def score(self, ids: Sequence[int], count: int) -> tuple[list[float], bool]:
        """Return what ``echo`` gives of the last ids; BackendError if it gives nothing."""
        body = {"model": self.name, "prompt": list(ids), "max_tokens": 1, "temperature": 0}
        found = self._post("/v1/completions", body | {"echo": True, "logprobs": 1})
        try:
            told = found["choices"][0]["logprobs"]
            each = [float(n) for n in told["token_logprobs"][: len(ids)][-count:]]
            tops = told["top_logprobs"][: len(ids)][-count:]
            greedy = all(n == max(top.values()) for n, top in zip(each, tops, strict=True))
        except (KeyError, IndexError, TypeError, ValueError):
            raise BackendError(
                f"{self.target.url}/v1/completions: expected log-probabilities of the prompt, "
                f"which echo and logprobs ask for, got {found!r:.200}"
            ) from None
        return each, greedy

    def _post(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        for attempt in range(_TRIES):
            try:
                status, text = self._exchange(route, body)
            except (OSError, http.client.HTTPException) as error:
                status, text = 0, str(error).encode()
            if status == 200 and (found := _read_object(text)) is not None:
                return found
            if 400 <= status < 500 and status != 429:
                break
            if attempt + 1 < _TRIES:
                time.sleep(1.0 + attempt)
        shown = text.decode("utf-8", "replace")[:300]
        what = "HTTP 200, expected a JSON object, got" if status == 200 else f"HTTP {status}"
        raise BackendError(f"{self.target.url}{route}: {what}: {shown}")

    def _exchange(self, route: str, body: dict[str, Any]) -> tuple[int, bytes]:
        target = self.target
        secure = target.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(target.host, target.port, timeout=self._seconds)
        headers = {"Content-Type": "application/json"}
        if target.key:
            headers["Authorization"] = f"Bearer {target.key}"
        try:
            connection.request("POST", target.path + route, json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def _messages(question: Question) -> list[dict[str, str]]:
    """Return a chat, its last message the begun answer if there is one: to be gone on with."""
    messages = [{"role": "user", "content": question.text}]
    if question.begun:
        messages.append({"role": "assistant", "content": question.begun})
    return messages


def _read_answer(found: dict[str, Any], chat: bool, seconds: float, route: str) -> Answer:
    try:
        choice = found["choices"][0]
        text = choice["message"]["content"] if chat else choice["text"]
        if isinstance(text, list):  # parts, as some servers answer a chat
            text = "".join(part["text"] for part in text if part["type"] == "text")
        reason = str(choice.get("finish_reason"))
        text = _checked(text or "")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise BackendError(f"{route}: expected a choice with text, got {found!r:.200}") from None
    usage, decode = found.get("usage"), _number(found.get("timings"), "predicted_ms")
    return Answer(
        text,
        reason,
        int(_number(usage, "prompt_tokens") or 0),
        int(_number(usage, "completion_tokens") or 0),
        seconds if decode is None else decode / 1e3,
        decode is not None,
    )


def _checked(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(type(text).__name__)
    return text


def _number(told: Any, name: str) -> float | None:
    """Return a number that a server may tell beside its answer; None where it does not."""
    value = told.get(name) if isinstance(told, dict) else None
    return value if isinstance(value, int | float) else None


def _read_object(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object that a reply is; None where it is something else, such as a page."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def first_id(engine: Engine, tokenizer: Tokenizer) -> int:
    """Return bos, or where a model has none the token that ends a text."""
    if tokenizer.bos_id is not None:
        return tokenizer.bos_id
    return min(engine.eos_ids) if tokenizer.eos_id is None else tokenizer.eos_id


def hash_model(path: Path) -> str:
    """Return the SHA-256 over a model's config and weight files, in the order of their names."""
    whole = hashlib.sha256()
    for file in sorted(ModelFiles.open(path).weight_files()):
        whole.update(file.name.encode())
        with file.open("rb") as opened:
            while block := opened.read(_BLOCK):
                whole.update(block)
    return whole.hexdigest()


def hash_text_files(engine: Engine) -> str:
    """Return the SHA-256 over what makes tokens of a chat, and says where an answer ends."""
    whole = hashlib.sha256(engine.chat_template.source.encode())
    for name in _TEXT_FILES:
        if (file := engine.folder / name).is_file():  # a .gguf file holds them itself
            whole.update(name.encode() + file.read_bytes())
    return whole.hexdigest()


@contextmanager
def open_engine(model: str, chat: bool | None = None, **options: Any) -> Iterator[EngineSubject]:
    """Load a model and yield it as a subject."""
    with Engine.load(find_model(model), **options) as engine:
        yield EngineSubject(engine, model, chat)


def describe_question(question: Question) -> dict[str, Any]:
    """Return the settings of a question that its journal has to share."""
    return {"chat": question.chat, "stop": list(question.stop), **asdict(question.decoding)}
