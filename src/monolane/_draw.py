"""How a token is drawn: each parameter described once, for all executors and the command line."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial

from monolane._options import option

_said = partial(option, commands=("generate", "chat"), word=float)
_deferred = partial(_said, deferred=True)  # where it is left out, the model's files say


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The parameters of one draw; docs/sampling.md defines them for all executors."""

    seed: int = option(
        0, kind="u64", meaning="a draw depends on it, its position and the logits alone"
    )
    temperature: float = _deferred(
        0.0,
        "How much chance there is; 0: always the most probable token "
        "[default: the model's, else 0.7].",
        kind="f32",
        meaning="0: the most probable token",
        short="-t",
    )
    top_k: int = _deferred(
        0,
        "Draw from the k most probable tokens only; 0: from all [default: the model's, else 0].",
        kind="u32",
        meaning="0: all tokens",
        word=int,
    )
    top_p: float = _deferred(
        1.0,
        "Draw from the fewest tokens whose probabilities add up to this; 1: from all "
        "[default: the model's, else 1].",
        kind="f64",
        meaning="1: all tokens",
    )
    min_p: float = _deferred(
        0.0,
        "Leave out tokens less probable than this times the most probable one; 0: none "
        "[default: the model's, else 0.05].",
        kind="f64",
        meaning="0: all tokens",
    )
    frequency_penalty: float = _said(
        0.0, "Taken off a token's logit for each time that the answer has it.", kind="f32"
    )
    presence_penalty: float = _said(
        0.0, "Taken off a token's logit once the answer has it.", kind="f32"
    )
    repetition_penalty: float = _deferred(
        1.0,
        "Divides the logits of tokens that prompt or answer have; 1: none "
        "[default: the model's, else 1].",
        kind="f32",
        meaning="1: none; divides positive logits of all seen",
    )
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, what its logit gains), ids ascending

    @property
    def penalises(self) -> bool:
        """Whether draws depend on the tokens before them otherwise than by the logits."""
        penalties = (self.frequency_penalty, self.presence_penalty, self.repetition_penalty)
        return penalties != (0, 0, 1)

    def without(self, tokens: Collection[int]) -> "Draw":
        """Return the draw that chooses none of these tokens, which other biases do not bring back.

        Where nothing but them may come one of them does, as of tokens with a bias of -inf.
        """
        if not tokens:
            return self
        biases = dict(self.logit_bias) | dict.fromkeys(tokens, -math.inf)
        return replace(self, logit_bias=tuple(sorted(biases.items())))
