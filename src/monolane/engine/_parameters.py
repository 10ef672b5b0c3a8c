"""How a request draws its tokens, and when it ends."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from monolane.errors import RequestError
from monolane.executor_api import AUTO_DRAFTS, MAX_LOGPROBS, Draw
from monolane.text import Thinking

MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024  # characters of one stop string
MAX_LOGIT_BIASES = 1024
_MOST = (1 << 31) - 1  # what a native core's 32-bit integers hold

# Logits divided by less could be infinite, and all alike.
LEAST_TEMPERATURE = 1e-6

# Who drafts tokens, which the model then draws itself: the text is the same with each.
Speculation = Literal["auto", "off", "suffix", "draft", "heads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request; RequestError on construction if one is outside its range.

    max_tokens    tokens to draw at most; None: until the context is full
    temperature   0 is greedy, as is less than 1e-6; at most 100
    top_k         draw from the k most probable tokens; 0: from all
    top_p         then from the fewest of these whose probabilities add up to this; 1: from all
    min_p         then without those less probable than this times the most probable one; 0: all
    seed          any 64-bit integer; equal seeds give equal texts
    stop          texts that end the answer; they are not part of it
    stop_ids      token ids that end the answer, beside the model's own end of sequence
    ignore_eos    go on past the model's end of sequence
    logprobs      None, or how many alternatives to report with each token's log-probability
    prompt_logprobs   the same of the tokens of the prompt behind its first
    visible_ids   special tokens that the text is to show, as they are spelled
    thinking      marks of the part to be told apart from the text; stop texts count behind it
    frequency_penalty   what each time that a token was drawn takes off its logit, -2 to 2
    presence_penalty    what having been drawn at all takes off it, -2 to 2
    repetition_penalty  what divides a positive logit of a token of prompt or answer, and
                        multiplies a negative one, 0.01 to 100; 1: nothing
    logit_bias    token id -> what its logit gains, -100 to 100, or -inf: never; at most 1,024 ids
    speculation   "auto": tokens are drafted where that is faster, by whoever promises more;
                  "suffix": from what the text repeats alone; "draft" and "heads": by the engine's
                  draft model or heads alone; "off". The answer is the same
    """

    max_tokens: int | None = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop: Sequence[str] = ()
    stop_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    visible_ids: Sequence[int] = ()
    thinking: Thinking | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    speculation: Speculation = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):  # a frequent slip that would stop at each of its letters
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_ids", "visible_ids"):
            value = getattr(self, name)
            if not isinstance(value, Iterable):
                raise RequestError(f"{name}: expected a list, got {value!r:.80}")
            object.__setattr__(self, name, tuple(value))
        if self.max_tokens is not None:
            _check_integer("max_tokens", self.max_tokens, 1, _MOST)
        _check_number("temperature", self.temperature, 0, 100)
        _check_integer("top_k", self.top_k, 0, _MOST)
        _check_number("top_p", self.top_p, 0, 1)
        _check_number("min_p", self.min_p, 0, 1)
        _check_number("frequency_penalty", self.frequency_penalty, -2, 2)
        _check_number("presence_penalty", self.presence_penalty, -2, 2)
        _check_number("repetition_penalty", self.repetition_penalty, 0.01, 100)
        _check_integer("seed", self.seed, -(1 << 63), (1 << 64) - 1)
        for name in ("logprobs", "prompt_logprobs"):
            if (count := getattr(self, name)) is not None:
                _check_integer(name, count, 0, MAX_LOGPROBS)
        self._check_stops()
        self._check_biases()
        check_speculation(self.speculation)

    @property
    def drafts(self) -> int:
        """Tokens to be drafted for a pass, as an ``Advance`` says it."""
        return 0 if self.speculation == "off" else AUTO_DRAFTS

    @property
    def drafter(self) -> str:
        """Who drafts, as an ``Advance`` says it."""
        return "auto" if self.speculation == "off" else self.speculation

    @property
    def draw(self) -> Draw:
        """The part that an executor needs to choose a token; the seed as 64 unsigned bits."""
        values = {x.name: getattr(self, x.name) for x in fields(Draw)}
        values["seed"] &= 0xFFFFFFFFFFFFFFFF
        if self.temperature < LEAST_TEMPERATURE:
            values["temperature"] = 0.0
        values["logit_bias"] = tuple(sorted(self.logit_bias.items()))
        return Draw(**values)

    def _check_biases(self) -> None:
        biases = self.logit_bias
        if not isinstance(biases, Mapping) or len(biases) > MAX_LOGIT_BIASES:
            found = len(biases) if isinstance(biases, Mapping) else type(biases).__name__
            raise RequestError(
                f"logit_bias: expected a mapping of at most {MAX_LOGIT_BIASES} token ids, "
                f"got {found}"
            )
        object.__setattr__(self, "logit_bias", dict(biases))
        for token, bias in biases.items():
            _check_integer("logit_bias", token, 0, _MOST)
            if bias != -math.inf:
                _check_number("logit_bias", bias, -100, 100)

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(
                f"stop: expected at most {MAX_STOP_STRINGS} texts, got {len(self.stop)}"
            )
        for text in self.stop:
            if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_LENGTH:
                raise RequestError(
                    f"stop: expected texts of 1 to {MAX_STOP_LENGTH} characters, got {text!r:.80}"
                )
        for name in ("stop_ids", "visible_ids"):
            for token in getattr(self, name):
                _check_integer(name, token, 0, _MOST)


def check_speculation(name: object) -> None:
    """RequestError for a ``SamplingParams.speculation`` that is none."""
    known = get_args(Speculation)
    if name not in known:
        raise RequestError(f"speculation: expected one of {', '.join(known)}, got {name!r:.80}")


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{name}: expected an integer from {low} to {high}, got {value!r:.80}")


def _check_number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RequestError(f"{name}: expected a number from {low:g} to {high:g}, got {value!r:.80}")
