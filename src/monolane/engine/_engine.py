"""The engine: a model, a backend and a tokenizer behind one small public surface."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from monolane._loading import Loading
from monolane._naming import naming
from monolane._options import taken_apart
from monolane.engine._adapters import Adapters
from monolane.engine._answer_history import EarlierAnswers
from monolane.engine._chunked_prefill import Feed, feed_in_parts
from monolane.engine._constrained_decoding import Constraint
from monolane.engine._files import ModelFiles
from monolane.engine._memory import check_cache
from monolane.engine._no_executor import NoExecutor
from monolane.engine._open_executor import find_context, open_executor
from monolane.engine._parameters import SamplingParams
from monolane.engine._prefix_file import check_writable
from monolane.engine._prefixes import Budget, Prefixes, prefix_budget
from monolane.engine._registry import find_backend
from monolane.engine._result import Generation
from monolane.engine._shared_executor import SharedExecutor
from monolane.engine._slots import SlotPool
from monolane.engine._stream import Job, Stream
from monolane.errors import BackendError, EngineClosedError, RequestError
from monolane.executor_api import Executor
from monolane.sources import find_model
from monolane.text import ChatTemplate, Tokenizer, stand_in

# Who drafts beside what the text repeats, if ``load`` is given it.
_DRAFTERS = {"draft": "a draft model", "heads": "heads"}

# Text, token ids, or chat messages such as {"role": "user", "content": "..."}.
Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


class Engine:
    """A loaded model that answers prompts; also a context manager. Make one with ``Engine.load``.

    Safe to share between threads: a call waits while all sequences are in use.
    """

    def __init__(
        self,
        files: ModelFiles,
        executor: Executor,
        tokenizer: Tokenizer | None,
        load_seconds: float,
        prefix_cache: Budget = "auto",
        prefix_file: str | Path | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        self.adapters = adapters or Adapters()
        self.folder = files.path
        self.config = files.config
        self.tokenizer = tokenizer
        self.backend = SharedExecutor(executor)
        self.load_seconds = load_seconds
        self.eos_ids = files.eos_ids(tokenizer)
        self.defaults = files.sampling_defaults()  # for callers that ask nobody how to draw
        self._suppressed = files.suppressed_ids()
        self.infill = files.infill_tokens(tokenizer)
        self._files = files
        self._chat_template: ChatTemplate | None = None
        self._slots = SlotPool(executor.slots)
        self.prefixes = Prefixes(self.backend, prefix_budget(prefix_cache, executor))
        self._earlier = EarlierAnswers()
        self._prefix_file = None if prefix_file is None else Path(prefix_file)
        if self._prefix_file is not None:
            if not executor.keeps_bytes:
                raise BackendError(
                    "prefix_file: expected one rank, got several, of which each keeps its own "
                    "lanes' part of a prefix in its memory; leave prefix_file out, or use one rank"
                )
            self.prefixes.load(self._prefix_file, files)
        self._closed = False

    @classmethod
    @taken_apart(Loading)
    def load(cls, asked: Loading) -> "Engine":
        """Load a model: ``Engine.load(model, backend, dtype, context, max_sequences, ...)``.

        Its parameters are the fields of ``Loading``, which docs/loading.md lists: which backends
        honour each, and where more is said of it.

        What sequences take at most is logged before any of it is taken, and refused where it is not
        free.

        Raises ModelNotFoundError, ConfigError, CheckpointError, TextError, BackendError or
        RequestError; each message says what was expected, what was found and what to do. A rank
        that dies later ends what runs with RankError; the next request starts the ranks again.
        """
        return cls.open(asked)

    @classmethod
    def open(cls, asked: Loading) -> "Engine":
        """Load a model as ``load`` does."""
        begin = time.perf_counter()
        if asked.prefix_file is not None:
            check_writable(Path(asked.prefix_file))
        make = find_backend(asked.backend, asked)
        path = find_model(asked.model)
        with naming(path):
            files = ModelFiles.open(path)
            find_context(asked.context, files.config)  # before weights are read
            adapters = None if asked.lora is None else Adapters.open(asked.lora, files)
            asked = replace(asked, lora=adapters)
            weights = files.weights()
            tokenizer = files.tokenizer()
            executor = open_executor(make, asked, files, weights, tokenizer)
            try:
                check_cache(executor)
                files.check_unchanged()  # what was checked is what was read
                took = time.perf_counter() - begin
                kept = asked.prefix_cache, asked.prefix_file
                return cls(files, executor, tokenizer, took, *kept, adapters)
            except BaseException:
                executor.close()  # who keeps the error keeps it, too, and its ranks would run on
                raise

    @classmethod
    def for_reading(cls, model: str | Path, context: int, adapters: Sequence[str] = ()) -> "Engine":
        """Open a model without its weights: to make token ids of prompts, and nothing else.

        ``context`` is what an engine that answers was loaded with, ``adapters`` the names of what
        it was given.
        """
        path = find_model(str(model))
        with naming(path):
            files = ModelFiles.open(path)
            named = Adapters(names=tuple(adapters))
            return cls(files, NoExecutor(context), files.tokenizer(), 0.0, "off", adapters=named)

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        constraint: Constraint | None = None,
        *,
        namespace: str = "",
        lora: str = "",
    ) -> Generation:
        """Answer a prompt and return the whole answer; RequestError if the prompt does not fit."""
        return self.stream(prompt, params, constraint, namespace=namespace, lora=lora).result()

    def chat(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None
    ) -> Generation:
        """Answer a conversation, ``[{"role": "user", "content": "..."}, ...]``."""
        if not _is_chat(messages):
            raise RequestError(
                'messages: expected a list such as [{"role": "user", "content": "..."}], got '
                f"{type(messages).__name__}; a text alone is for generate"
            )
        return self.generate(messages, params)

    def generate_all(
        self, prompts: Sequence[Prompt], params: SamplingParams | None = None
    ) -> list[Generation]:
        """Answer several prompts, as many at once as ``max_sequences`` says; return all answers.

        Each is what ``generate`` gives for it. The first that fails ends the others.
        """
        if isinstance(prompts, str | bytes):
            raise RequestError("prompts: expected a list of prompts, got one; it is for generate")
        streams: list[Stream] = []
        with ThreadPoolExecutor(self.backend.executor.slots) as threads:
            try:
                streams += (self.stream(prompt, params) for prompt in prompts)
                return list(threads.map(Stream.result, streams))
            except BaseException:
                for stream in streams:
                    stream.cancel()
                raise

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        constraint: Constraint | None = None,
        *,
        namespace: str = "",
        lora: str = "",
    ) -> Stream:
        """Answer a prompt piece by piece; the prompt is checked before this returns.

        ``constraint``: what the answer must look like; for this answer alone.
        ``lora``: the name of the adapter that answers, of those that the engine was loaded with.
        ``namespace``: requests of another one share no prefixes and no drafts with this, so that
        nobody learns from the time that an answer takes what others have asked.
        """
        if not isinstance(params, SamplingParams | None):
            raise RequestError(
                f"params: expected SamplingParams, got {type(params).__name__}; write "
                "SamplingParams(max_tokens=64, temperature=0.7)"
            )
        params = params or SamplingParams()
        prompt_ids = self.prompt_ids(prompt)
        free = self.backend.context - len(prompt_ids) + 1  # the last token drawn is never fed
        if free < 1:
            raise RequestError(
                f"prompt: expected at most {self.backend.context} tokens, the context of this "
                f"engine, got {len(prompt_ids)}; shorten it or load with a larger context"
            )
        if params.stop and self.tokenizer is None:
            raise RequestError(
                f"stop: {self.folder} has no tokenizer, so its answers have no text; use stop_ids"
            )
        self._check_biases(params)
        name = params.speculation
        if name in _DRAFTERS and name != self.backend.executor.drafter:
            raise RequestError(
                f"speculation: {name!r} needs {_DRAFTERS[name]}, which this engine was loaded "
                f"without; load it with {name}=..., or use 'auto'"
            )
        adapter = self.adapters.number(lora)
        budget = min(free, params.max_tokens or free)
        eos = frozenset() if params.ignore_eos else self.eos_ids
        stop_ids = eos | frozenset(params.stop_ids)
        vocab = self.config.vocab_size
        ends = self._message_ends()
        job = Job(
            prompt_ids,
            params,
            budget,
            stop_ids,
            vocab,
            constraint,
            namespace,
            ends,
            adapter,
            self._suppressed,
        )
        return Stream(
            self.backend,
            self._slots,
            self.prefixes,
            self._earlier,
            self.tokenizer,
            job,
            self._files.check_unchanged,
            self.adapters.kept_under,
        )

    def logits(self, token_ids: Sequence[int], *, lora: str = "") -> npt.NDArray[np.float32]:
        """Return the logits after each token of a sequence: float32 [len(token_ids), vocab]."""
        found = self._in_a_slot(self.backend.logits, token_ids, lora)
        assert found is not None  # nobody cancels it
        return found

    def hidden(
        self,
        token_ids: Sequence[int],
        cancelled: Callable[[], bool] = lambda: False,
        *,
        lora: str = "",
    ) -> npt.NDArray[np.float32]:
        """Return what the head reads of each token, normed: float32 [len(token_ids), hidden].

        Of several lanes it is their mean. Ends early, with fewer rows, once ``cancelled``, also
        while it waits for a sequence. BackendError where the backend has none: "cuda".
        """
        backend = self.backend

        def feed(slot: int, ids: Sequence[int]) -> npt.NDArray[np.float32]:
            parts = feed_in_parts(backend, backend.hidden, slot, ids, cancelled)
            return np.concatenate([nothing, *parts])

        nothing = np.empty((0, self.config.hidden_size), np.float32)
        found = self._in_a_slot(feed, token_ids, lora, cancelled)
        return nothing if found is None else found

    def _in_a_slot(
        self,
        feed: Feed,
        given: Sequence[int],
        lora: str,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> npt.NDArray[np.float32] | None:
        """Feed a sequence to an empty slot; None if ``cancelled`` before there is one."""
        self._check_open()
        ids = self._check_ids(given)
        if len(ids) > self.backend.context:
            raise RequestError(
                f"token ids: expected at most {self.backend.context}, the context of this engine, "
                f"got {len(ids)}"
            )
        adapter = self.adapters.number(lora)
        slot = self._slots.take(cancelled)
        if slot is None:
            return None
        try:
            self._files.check_unchanged()
            self.backend.empty(slot, adapter)
            found = feed(slot, ids)
            self._files.check_unchanged()
            return found
        finally:
            self._slots.give(slot)

    def prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the token ids that a prompt stands for; RequestError or TextError if none."""
        self._check_open()
        if isinstance(prompt, str):
            ids = self._need_tokenizer("text").encode(prompt)
        elif not isinstance(prompt, Sequence | np.ndarray) or isinstance(prompt, bytes | bytearray):
            raise RequestError(
                f"prompt: expected text, token ids or messages, got {type(prompt).__name__}"
            )
        elif _is_chat(prompt):
            tokenizer = self._need_tokenizer("chat messages")
            ids = self.chat_template.encode(tokenizer, prompt)
        else:
            return self._check_ids(prompt)
        return self._check_ids(ids)

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's chat template, or the default one; read when first used."""
        if self._chat_template is None:
            with naming(self.folder):
                found = self._files.chat_template()
                # The released convention is Laneformer's.
                if found.is_default and self.config.family != "laneformer":
                    found = stand_in(self.tokenizer, self.folder, self.config.family)
                self._chat_template = found
        return self._chat_template

    def _message_ends(self) -> frozenset[int]:
        """Return the tokens that end messages of a prompt, as far as a template was read by now."""
        template = self._chat_template
        if template is None or self.tokenizer is None:
            return self.eos_ids
        return self.eos_ids | template.message_ends(self.tokenizer)

    def close(self) -> None:
        """Give back memory and threads. Harmless when called twice."""
        if not self._closed:
            self._closed = True
            if self._prefix_file is not None and self.prefixes.tree.budget:
                self.prefixes.save(self._prefix_file, self._files)
            self.backend.close()

    def __repr__(self) -> str:
        backend = self.backend
        return (
            f"<Engine {str(self.folder)!r}: {backend.name}, {backend.dtype}, context "
            f"{backend.context}{', closed' if self._closed else ''}>"
        )

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _need_tokenizer(self, what: str) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(
                f"prompt: {self.folder} has no tokenizer, so {what} cannot become tokens; "
                "pass token ids"
            )
        return self.tokenizer

    def _check_ids(self, token_ids: Any) -> tuple[int, ...]:
        vocab = self.config.vocab_size
        ids = tuple(int(i) if isinstance(i, np.integer) else i for i in token_ids)
        if not ids:
            raise RequestError("prompt: expected at least one token, got none")
        for token in ids:
            if type(token) is not int or not 0 <= token < vocab:
                raise RequestError(
                    f"token ids: expected integers from 0 to {vocab - 1}, got {token!r:.80}"
                )
        return ids

    def _check_biases(self, params: SamplingParams) -> None:
        wrong = max(params.logit_bias, default=0)
        if wrong >= self.config.vocab_size:
            raise RequestError(
                f"logit_bias: expected token ids from 0 to {self.config.vocab_size - 1}, "
                f"got {wrong}"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosedError("this engine is closed; load another")


def _is_chat(prompt: Prompt) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    return len(prompt) > 0 and isinstance(prompt[0], Mapping)
