"""What lm-eval asks: an engine in this process, or a server through lm-eval's own client.

This file imports lm-eval; nothing imports it before ``require_harness`` has found that installed.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, TemplateLM, hash_args
from lm_eval.api.registry import register_model
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from monolane.engine import Engine, SamplingParams
from monolane.errors import RequestError
from monolane.evaluate._journal import Journal
from monolane.evaluate._likelihood import Likelihood
from monolane.evaluate._target import ServerSubject, first_id
from monolane.text import Tokenizer

_ANSWER = 256  # tokens of an answer where a task names no limit: lm-eval's own default
_TOGETHER = 16  # requests that are asked, and kept, at a time
Pair = tuple[tuple[str, str] | None, list[int], list[int]]  # key, context, continuation


@register_model("monolane")
class EngineModel(TemplateLM):  # type: ignore[misc]
    """An engine as lm-eval sees a model, also by ``simple_evaluate(model="monolane", ...)``.

    Texts become tokens as the model's tokenizer says, its bos included.
    """

    def __init__(
        self, engine: Engine | None = None, *, model: str = "demo", batch_size: int = 1, **load: Any
    ) -> None:
        """Take an open engine, or load ``model``; ``batch_size`` is lm-eval's, and changes nothing.

        ``load``: what else ``Engine.load`` takes, such as ``backend`` and ``dtype``.
        """
        super().__init__()
        self._engine = engine or Engine.load(model, **load)
        if self._engine.tokenizer is None:
            raise RequestError(f"{self._engine.folder}: expected a model with a tokenizer")
        self._tokenizer: Tokenizer = self._engine.tokenizer
        self._likelihood = Likelihood(self._engine)

    @property
    def max_length(self) -> int:
        """Tokens that a context may hold."""
        return self._engine.backend.context

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        eos = self._tokenizer.eos_id
        return min(self._engine.eos_ids) if eos is None else eos

    @property
    def prefix_token_id(self) -> int:
        """The token before a text that has no context."""
        return first_id(self._engine, self._tokenizer)

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Return the ids of a text."""
        special = add_special_tokens is not False
        return self._tokenizer.encode(string, add_special_tokens=special, parse_special=True)

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-likelihood of each whole text, in windows of the context."""
        return [self._rolling(*request.args) for request in requests]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the answer to each prompt, which is cut at its front if it is too long."""
        return [self._generate(*request.args) for request in requests]

    def _loglikelihood_tokens(self, requests: list[Pair], **_: Any) -> list[tuple[float, bool]]:
        return [self._score(context, ending) for _key, context, ending in requests]

    def _score(self, context: list[int], ending: list[int]) -> tuple[float, bool]:
        """Return how probable an ending is, in nats, and whether each of its tokens is greedy's."""
        ids = (context + ending)[-(self.max_length + 1) :]
        nats, greedy = self._likelihood(ids, len(ending))
        return sum(nats), greedy

    def _rolling(self, text: str) -> float:
        windows = _windows(self, text, self.max_length)
        return sum(self._score(context, ending)[0] for context, ending in windows)

    def _generate(self, prompt: str, asked: dict[str, Any]) -> str:
        how = normalize_gen_kwargs(asked, _ANSWER)
        most = min(how["max_gen_toks"], self.max_length - 1)
        params = SamplingParams(
            max_tokens=most,
            temperature=how["temperature"],
            top_p=how.get("top_p", 1.0),
            stop=[stop for stop in how["until"] if stop],
        )
        ids = self.tok_encode(prompt)[-(self.max_length - most) :]
        return self._engine.generate(ids, params).text


class ServerModel(LocalCompletionsAPI):  # type: ignore[misc]
    """lm-eval's own client of ``/v1/completions``, with the server's tokenizer for its counts.

    lm-eval would read a tokenizer from a folder or the Hub, which may be another than the
    server's; /tokenize, as vLLM's and monolane's servers have it, is the one that counts.
    """

    def __init__(self, subject: ServerSubject) -> None:
        key = subject.target.key
        super().__init__(
            base_url=f"{subject.target.url}/v1/completions",
            model=subject.name,
            tokenizer_backend=None,
            add_bos_token=True,
            max_length=subject.context or 2048,
            header={"Authorization": f"Bearer {key}"} if key else {},
        )
        self.tokenizer_backend, self.tokenized_requests = "remote", True
        self.tokenizer = self._subject = subject

    @property
    def eot_token_id(self) -> int | None:
        """Not known: no route of such servers tells it."""
        return None

    @property
    def eos_string(self) -> str | None:
        """None: a server ends an answer at its model's end of text by itself."""
        return None

    @property
    def prefix_token_id(self) -> int:
        """The token with which the server's tokenizer begins a text."""
        return self._subject.first_id

    def tok_encode(
        self, string: Any, left_truncate_len: int | None = None, add_special_tokens: bool = True,
        **_: Any,
    ) -> Any:  # fmt: skip
        """Return the ids of a text, or of several."""
        if not isinstance(string, str):
            return [self.tok_encode(each, left_truncate_len, add_special_tokens) for each in string]
        ids = self._subject.token_ids(string, special=add_special_tokens)
        return ids[-left_truncate_len:] if left_truncate_len else ids

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-likelihood of each whole text, in windows of the context."""
        found = []
        for (text,) in (request.args for request in requests):
            windows: list[Pair] = [(None, *w) for w in _windows(self, text, self.max_length - 1)]
            parts = self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm)
            found.append(sum(nats for nats, _ in parts))
        return found


def _windows(
    model: EngineModel | ServerModel, text: str, length: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield contexts and endings of a text; the first context is the prefix token, and no second.

    lm-eval encodes the text with its bos here, and scores that too, where a tokenizer adds one.
    """
    ids = model.tok_encode(text, add_special_tokens=False)
    for window in get_rolling_token_windows(ids, model.prefix_token_id, length, 1):
        yield make_disjoint_window(window)


class KeptModel(LM):  # type: ignore[misc]
    """Asks another model what a journal does not have yet, and keeps it there."""

    def __init__(self, model: LM, journal: Journal, progress: Callable[[int, int], None]) -> None:
        super().__init__()
        self._model, self._journal, self._progress = model, journal, progress

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Return (nats, greedy) of each."""
        return [(nats, greedy) for nats, greedy in self._kept("loglikelihood", requests)]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Return the nats of each text."""
        return self._kept("loglikelihood_rolling", requests)

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Return each answer."""
        return self._kept("generate_until", requests)

    def _kept(self, kind: str, requests: Sequence[Instance]) -> list[Any]:
        names: list[tuple[str, int]] = []
        seen: Counter[str] = Counter()
        for request in requests:
            key = hash_args(kind, request.args)
            names.append((key, seen[key]))  # a sampled answer may be asked for several times
            seen[key] += 1
        missing = [i for i, name in enumerate(names) if self._journal.get(*name) is None]
        done = len(requests) - len(missing)
        self._progress(done, len(requests))
        for begin in range(0, len(missing), _TOGETHER):
            part = missing[begin : begin + _TOGETHER]
            found = getattr(self._model, kind)([requests[i] for i in part], disable_tqdm=True)
            for i, answer in zip(part, found, strict=True):
                self._journal.add(*names[i], found=answer)
            done += len(part)
            self._progress(done, len(requests))
        lines = (self._journal.get(*name) for name in names)
        return [line["found"] for line in lines if line is not None]
