"""How a token is drawn: each parameter described once, for all executors and the command line."""

from dataclasses import dataclass
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
        "0: always the most probable token [default: the model's, else 0.7].",
        kind="f32",
        meaning="0: the most probable token",
        short="-t",
    )
    top_k: int = _deferred(
        0,
        "Keep the k most probable tokens; 0: all [default: the model's, else 0].",
        kind="u32",
        meaning="0: all tokens",
        word=int,
    )
    top_p: float = _deferred(
        1.0,
        "Then the shortest front of this probability [default: the model's, else 1].",
        kind="f64",
        meaning="1: all tokens",
    )
    min_p: float = _deferred(
        0.0,
        "Then those this share as probable as the first [default: the model's, else 0.05].",
        kind="f64",
        meaning="0: all tokens",
    )
    frequency_penalty: float = _said(
        0.0, "What each time drawn takes off a token's logit.", kind="f32"
    )
    presence_penalty: float = _said(0.0, "What having been drawn at all takes off it.", kind="f32")
    repetition_penalty: float = _deferred(
        1.0,
        "What tokens of prompt and answer are divided by; 1: nothing "
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
