"""What the bodies of all APIs have, as OpenAI and vLLM spell it; what we cannot do is refused.

Fields of other servers that are not honoured stand in ``fields``: harmless there, or refused.
"""

import secrets
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from monolane.engine import SamplingDefaults, SamplingParams
from monolane.errors import RequestError
from monolane.serve._grammar.structured import Structured, read_structured
from monolane.serve._http.fields import NEW_SEEDS, check_fields

NO_DEFAULTS = SamplingDefaults()
MAX_N = 16  # answers to one prompt
MAX_PROMPTS = 256  # prompts of one request


def one_of(forms: str) -> WrapValidator:
    """Name all forms of a field where none fits: pydantic would complain about one of them."""

    def check(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError("one_of", "expected {forms}", {"forms": forms}) from None

    return WrapValidator(check)


Probability = Annotated[float, Field(ge=0, le=1)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Count = Annotated[int, Field(ge=0, lt=1 << 31)]
Alternatives = Annotated[int, Field(ge=0, le=20)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Repetition = Annotated[float, Field(ge=0.01, le=100)]
Budget = Annotated[int, Field(ge=-2, lt=1 << 31)]  # below 0, as llama.cpp has it: as many as fit
Stop = Annotated[
    str | Annotated[list[str], Field(max_length=64)],
    one_of("a text or a list of at most 64 texts"),
]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def _is_whole(value: float) -> bool:
    return value.is_integer() and abs(value) < 1 << 53


class Body(BaseModel):
    """Any request: exact types, no NaN, unknown fields kept aside."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    model: str | None = Field(None, max_length=512, description="As in /v1/models; may be left out")

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, given: Any) -> Any:
        """Take 20.0 for 20: JSON has one kind of number, and some writers of it put a point."""
        if not isinstance(given, dict):
            return given
        return {
            key: int(value) if type(value) is float and _is_whole(value) else value
            for key, value in given.items()
        }


class StreamOptions(BaseModel):
    """What a stream has besides text."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = Field(None, description="A last chunk with usage, no choices")
    continuous_usage_stats: bool | None = Field(None, description="usage in every chunk")


class AnswerRequest(Body):
    """What all requests for an answer share."""

    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = 1
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = Field(None, description="-1, 0: all")
    min_p: Probability | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = Field(
        None, description="Equal seeds give equal answers; without one, or with -1, each is new"
    )
    stop: Stop | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None
    ignore_eos: bool | None = False
    min_tokens: Count | None = Field(None, description="Before which no token ends the answer")
    frequency_penalty: Penalty | None = Field(None, description="Over drawn tokens, as OpenAI's")
    presence_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = Field(
        None, description="Over tokens of prompt and answer; 1: none"
    )
    repeat_penalty: Repetition | None = Field(None, description="As repetition_penalty")
    repeat_last_n: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = Field(
        None, description="-1: penalties look at the whole sequence; 0: there are none"
    )
    logit_bias: Annotated[dict[str, float], Field(max_length=1024)] | None = None
    max_tokens: Budget | None = Field(None, description="-1: as many as fit")
    max_completion_tokens: Budget | None = None
    n_predict: Budget | None = Field(
        None, description="As max_tokens, before which it goes; -1: as many as fit"
    )
    n_probs: Alternatives | None = Field(None, description="logprobs with so many alternatives")
    return_progress: bool | None = Field(
        False, description="prompt_progress in a stream, while the prompt is read"
    )
    timings_per_token: bool | None = Field(False, description="timings and phase in every chunk")
    deadline: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Seconds until this request is given up; at most the server's own"
    )
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None

    def biases(self) -> dict[int, float]:
        """Return what each token's logit gains; RequestError for keys that are no ids."""
        return _biases(self.logit_bias or {})

    def check_supported(self) -> None:
        """Raise RequestError for a field that asks for what we cannot do."""
        check_fields(self.model_extra or {})

    @property
    def token_limit(self) -> tuple[str, int | None]:
        """The field that bounds how many tokens may be drawn, and its value; None: all that fit.

        llama.cpp's name comes first, as there: its clients send it beside a default of OpenAI's.
        """
        for name in ("n_predict", "max_completion_tokens", "max_tokens"):
            if (value := getattr(self, name)) is not None:
                return name, None if value < 0 else value
        return "max_tokens", None

    def structured(self) -> Structured | None:
        """Return what the answer must look like; RequestError for values out of bounds."""
        return read_structured(
            self.response_format, self.structured_outputs, self.model_extra or {}
        )

    def repetition(self, default: float | None) -> float:
        """The repetition penalty, by either of its names; RequestError where they disagree."""
        ours, theirs = self.repetition_penalty, self.repeat_penalty
        if ours is not None and theirs is not None and ours != theirs:
            raise RequestError(
                f"repeat_penalty: expected repetition_penalty's {ours} or none, got {theirs}"
            )
        found: float = _first(ours, theirs, default, 1.0)
        return found

    def shared(self, alternatives: int | None, defaults: SamplingDefaults) -> dict[str, Any]:
        """Return the fields of ``Asked``; RequestError for values outside their range.

        ``alternatives``: None, or how many come with each token's log-probability.
        ``defaults``: what the server takes where the request does not say.
        """
        self.check_supported()
        stop, seed = self.stop or (), _first(self.seed, defaults.seed, None)
        penalised = self.repeat_last_n != 0  # else over no token
        repetition = self.repetition(defaults.repetition_penalty)
        sampling = SamplingParams(
            temperature=_first(self.temperature, defaults.temperature, 1.0),
            top_k=max(0, _first(self.top_k, defaults.top_k, 0)),
            top_p=_first(self.top_p, defaults.top_p, 1.0),
            min_p=_first(self.min_p, defaults.min_p, 0.0),
            seed=new_seed() if seed is None or seed in NEW_SEEDS else seed,
            stop=(stop,) if isinstance(stop, str) else tuple(filter(None, stop)),
            stop_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            logprobs=alternatives,
            logit_bias=self.biases(),
            frequency_penalty=(self.frequency_penalty or 0.0) if penalised else 0.0,
            presence_penalty=(self.presence_penalty or 0.0) if penalised else 0.0,
            repetition_penalty=repetition if penalised else 1.0,
        )
        if sampling.draw.penalises and self.repeat_last_n not in (None, -1):
            raise RequestError(
                "repeat_last_n: not supported beside penalties, which look at the whole sequence; "
                f"expected null, -1, or 0 for no penalty, got {self.repeat_last_n}"
            )
        (limit, wanted), most = self.token_limit, defaults.max_tokens
        return {
            "model": self.model,
            "sampling": sampling,
            "max_tokens": most if wanted is None else min(wanted, most or wanted),
            "limit": limit,
            "min_tokens": self.min_tokens or 0,
            "choices": self.n or 1,
            "structured": self.structured(),
            "stream": bool(self.stream),
            "deadline": self.deadline,
        }


def new_seed() -> int:
    """Return the first seed of a request that names none."""
    return secrets.randbits(62)


def _first(*values: Any) -> Any:
    """Return the first value that is there; the last, whatever it is, where none is."""
    return next((value for value in values if value is not None), values[-1])


def _biases(given: dict[str, float]) -> dict[int, float]:
    for key in given:
        if not key.isdecimal() or not key.isascii() or len(key) > 10:
            raise RequestError(f"logit_bias: expected token ids as keys, got {key!r:.80}")
    return {int(key): bias for key, bias in given.items()}
