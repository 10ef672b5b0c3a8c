"""The bodies of llama.cpp's own routes that answer: ``/completion`` and ``/infill``."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from monolane.engine import Engine, SamplingDefaults
from monolane.errors import RequestError
from monolane.serve._http.body import MAX_PROMPTS, AnswerRequest, Budget, Count, TokenId
from monolane.serve._http.fields import check_fields
from monolane.serve._http.limits import check_length
from monolane.serve._http.request import TextAsked
from monolane.serve._llamacpp.infill import Extra, infill_ids


class PromptObject(BaseModel):
    """A prompt as an object; with pictures or sounds beside it, it is refused."""

    model_config = ConfigDict(strict=True, extra="forbid")

    prompt_string: str


Ids = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Piece = str | TokenId
NativePrompt = (
    str
    | PromptObject
    | Ids
    | Annotated[
        list[Piece | PromptObject | Annotated[list[Piece], Field(min_length=1)]],
        Field(min_length=1, max_length=1 << 17),
    ]
)
Bias = float | bool  # false: never
NativeBiases = (
    Annotated[dict[str, Bias], Field(max_length=1024)]
    | Annotated[
        list[Annotated[list[str | float | bool], Field(min_length=2, max_length=2)]],
        Field(max_length=1024),
    ]
)


class NativeRequest(AnswerRequest):
    """What ``/completion`` and ``/infill`` share."""

    logit_bias: NativeBiases | None = Field(  # type: ignore[assignment]
        None, description="Pairs of a token id or a text, whose tokens are meant, and a bias"
    )
    return_tokens: bool | None = Field(False, description="tokens of a whole answer")
    response_fields: Annotated[list[str], Field(max_length=64)] | None = Field(
        None, description="Which fields a whole answer has, as a/b where they are nested"
    )

    @property
    def alternatives(self) -> int | None:
        """None, or how many alternatives come with each token's log-probability."""
        return self.n_probs or None

    def biases(self) -> dict[int, float]:
        """Return none: texts among them need a tokenizer, see ``native``."""
        return {}

    def native(
        self,
        prompts: Sequence[list[int]],
        engine: Engine,
        defaults: SamplingDefaults,
        ends: Sequence[int] = (),
    ) -> TextAsked:
        """Return what is asked for; ``ends``: further ids that end the answer."""
        shared = self.shared(self.alternatives, defaults)
        sampling = shared.pop("sampling")
        sampling = replace(
            sampling,
            logit_bias=dict(_biases(self.logit_bias, engine)),
            stop_ids=(*sampling.stop_ids, *ends),
        )
        return TextAsked(**shared, sampling=sampling, prompts=prompts)


class NativeCompletion(NativeRequest):
    """``POST /completion``."""

    prompt: NativePrompt

    def asked(self, engine: Engine, defaults: SamplingDefaults) -> TextAsked:
        """Return what is asked for; RequestError where we cannot do it."""
        return self.native(list(_prompts(self.prompt, engine)), engine, defaults)


# Of editors: llama.cpp's way to fill in, without its own sampler here, and none, only to read.
_EDITORS: tuple[list[str], ...] = (["top_k", "top_p", "infill"], [])


class InfillRequest(NativeRequest):
    """``POST /infill``."""

    input_prefix: str = Field(description="What stands before the gap")
    input_suffix: str = Field(description="What stands behind it")
    input_extra: Annotated[list[Extra], Field(max_length=1000)] | None = Field(
        None, description="Other files"
    )
    prompt: str | None = Field(None, description="What the gap begins with")
    # llama.vim sends these with every request. They only say when to stop early.
    n_indent: Count | None = Field(None, description="Changes nothing here")
    t_max_predict_ms: Budget | None = Field(None, description="Changes nothing here")
    samplers: list[str] | None = Field(None, description="llama.vim's, or those of /props")

    def check_supported(self) -> None:
        """Raise RequestError for a field that asks for what we cannot do."""
        super().check_supported()
        if self.samplers not in _EDITORS:
            check_fields({"samplers": self.samplers})

    def asked(self, engine: Engine, defaults: SamplingDefaults) -> TextAsked:
        """Return what is asked for; RequestError where we cannot do it."""
        if engine.infill is None:
            raise RequestError(
                "input_prefix: this model has no tokens to fill in the middle with; use one that "
                "was trained to, such as Qwen2.5-Coder, StarCoder2 or DeepSeek-Coder"
            )
        ids = infill_ids(
            engine,
            (self.input_prefix, self.input_suffix, self.prompt or ""),
            self.input_extra or (),
            self.token_limit[1],
        )
        return self.native([ids], engine, defaults, engine.infill.ending_ids)


def _prompts(prompt: Any, engine: Engine) -> Iterator[list[int]]:
    """Yield the ids of each prompt: a list with a number in it is one prompt."""
    single = not isinstance(prompt, list) or any(isinstance(part, int) for part in prompt)
    given = [prompt] if single else prompt
    if len(given) > MAX_PROMPTS:
        raise RequestError(f"prompt: expected at most {MAX_PROMPTS} prompts, got {len(given)}")
    for one in given:
        yield _ids(one if isinstance(one, list) else [one], engine)


def _ids(pieces: Sequence[Any], engine: Engine) -> list[int]:
    """Return the ids of one prompt; bos and the like come only before a text that begins it."""
    ids: list[int] = []
    texts = [piece for piece in pieces if not isinstance(piece, int)]
    texts = [x.prompt_string if isinstance(x, PromptObject) else x for x in texts]
    check_length("prompt", texts, engine)
    for i, piece in enumerate(pieces):
        if isinstance(piece, int):
            ids.append(piece)
            continue
        text = piece.prompt_string if isinstance(piece, PromptObject) else piece
        if engine.tokenizer is None:
            raise RequestError("prompt: this model has no tokenizer; send token ids")
        ids += engine.tokenizer.encode(text, add_special_tokens=i == 0, parse_special=True)
    return ids


def _biases(
    given: Mapping[str, Any] | Sequence[Sequence[Any]] | None, engine: Engine
) -> Iterator[tuple[int, float]]:
    """Yield token ids and what their logits gain; a text stands for each of its tokens."""
    pairs = given.items() if isinstance(given, Mapping) else given or ()
    for key, value in pairs:
        if isinstance(value, str) or value is True:
            raise RequestError(f"logit_bias: expected a number or false, got {value!r:.80}")
        bias = -math.inf if value is False else float(value)
        if isinstance(key, str) and not (key.isascii() and key.isdecimal()):
            if engine.tokenizer is None:
                raise RequestError("logit_bias: this model has no tokenizer; name token ids")
            check_length("logit_bias", key, engine)
            for token in engine.tokenizer.encode(key, add_special_tokens=False):
                yield token, bias
        elif isinstance(key, bool) or (isinstance(key, float) and not key.is_integer()):
            raise RequestError(f"logit_bias: expected token ids or texts, got {key!r:.80}")
        elif len(str(key)) <= 12:
            yield int(key), bias
        else:
            raise RequestError(f"logit_bias: expected token ids or texts, got {key!r:.80}")
