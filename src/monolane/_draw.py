"""How a token is drawn: each parameter described once, for all executors and the command line."""

from dataclasses import dataclass, field

from monolane._options import option

_TERMINALS = ("generate", "chat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The parameters of one draw; docs/sampling.md defines them for all executors."""

    seed: int = field(
        default=0,
        metadata=option(
            kind="u64", meaning="a draw depends on it, its position and the logits alone"
        ),
    )
    temperature: float = field(
        default=0.0,
        metadata=option(
            kind="f32",
            meaning="0: the most probable token",
            word=float,
            short="-t",
            deferred=True,
            help="0: always the most probable token [default: the model's, else 0.7].",
            commands=_TERMINALS,
        ),
    )
    top_k: int = field(
        default=0,
        metadata=option(
            kind="u32",
            meaning="0: all tokens",
            word=int,
            deferred=True,
            help="Keep the k most probable tokens; 0: all [default: the model's, else 0].",
            commands=_TERMINALS,
        ),
    )
    top_p: float = field(
        default=1.0,
        metadata=option(
            kind="f64",
            meaning="1: all tokens",
            word=float,
            deferred=True,
            help="Then the shortest front of this probability [default: the model's, else 1].",
            commands=_TERMINALS,
        ),
    )
    min_p: float = field(
        default=0.0,
        metadata=option(
            kind="f64",
            meaning="0: all tokens",
            word=float,
            deferred=True,
            help="Then those this share as probable as the first "
            "[default: the model's, else 0.05].",
            commands=_TERMINALS,
        ),
    )
    frequency_penalty: float = field(
        default=0.0,
        metadata=option(
            kind="f32",
            meaning="what each time drawn takes off a token's logit",
            word=float,
            help="What each time drawn takes off a token's logit.",
            commands=_TERMINALS,
        ),
    )
    presence_penalty: float = field(
        default=0.0,
        metadata=option(
            kind="f32",
            meaning="what having been drawn at all takes off",
            word=float,
            help="What having been drawn at all takes off it.",
            commands=_TERMINALS,
        ),
    )
    repetition_penalty: float = field(
        default=1.0,
        metadata=option(
            kind="f32",
            meaning="1: none; divides positive logits of all seen",
            word=float,
            deferred=True,
            help="What tokens of prompt and answer are divided by; 1: nothing "
            "[default: the model's, else 1].",
            commands=_TERMINALS,
        ),
    )
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, what its logit gains), ids ascending

    @property
    def penalises(self) -> bool:
        """Whether draws depend on the tokens before them otherwise than by the logits."""
        penalties = (self.frequency_penalty, self.presence_penalty, self.repetition_penalty)
        return penalties != (0, 0, 1)
