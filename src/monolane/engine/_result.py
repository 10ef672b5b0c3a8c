"""What a request gives back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from monolane.executor_api import TokenLogprob

# stop: end of sequence, a stop text or a stop id; length: the budget or the context is used up;
# cancelled: the caller closed the stream.
FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of a request went, in seconds."""

    prompt_tokens: int
    generated_tokens: int
    time_to_first_token: float  # from the call to the first drawn token
    decode_seconds: float  # from the first drawn token to the last
    cache_n: int = 0  # tokens of the prompt that were not read again, but taken from kept prefixes
    draft_n: int = 0  # tokens that were drafted, see docs/lossless.md
    draft_n_accepted: int = 0  # and of these, those that the model drew
    # The same two counts by drafter, "suffix" or "draft"; of those that drafted any.
    drafters: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)

    @property
    def tokens_per_second(self) -> float:
        """Decode speed: tokens after the first over the time they took; 0 if there are none."""
        if self.generated_tokens < 2 or self.decode_seconds <= 0:
            return 0.0
        return (self.generated_tokens - 1) / self.decode_seconds


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of an answer: the text that has become certain and the tokens drawn since the last one.

    Text may lag behind its tokens: half a UTF-8 character and the beginning of a stop text wait.
    ``thinking`` comes before all text; there is none unless ``SamplingParams.thinking`` is set.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None  # set on the last piece
    times_ns: tuple[int, ...] = ()  # time.perf_counter_ns() of each token, when it was drawn
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole answer. ``token_ids`` are all drawn tokens, the one that ended it included."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    timings: Timings
    logprobs: tuple[TokenLogprob, ...] = ()  # one per token, if asked for
    prompt_logprobs: tuple[TokenLogprob, ...] = ()  # of prompt_ids[1:], if asked for
    thinking: str = ""  # what came before the text, if it is told apart
