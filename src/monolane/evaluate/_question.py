"""What is asked of a model, and what came back: plain, frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Decoding:
    """How answers are drawn; sample i of an item is drawn with seed ``seed`` + i."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """A text to continue (``chat`` False), or what a user asks.

    ``begun``: words with which the answer begins; they are not part of what comes back.
    """

    text: str
    decoding: Decoding
    chat: bool = True
    begun: str = ""
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """``seconds``: of decoding where ``decode`` is set, else of the whole request."""

    text: str
    finish_reason: str
    prompt_tokens: int
    tokens: int
    seconds: float
    decode: bool = True


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with the 95 % interval that its sample leaves; ``count`` items were scored."""

    metric: str
    value: float
    low: float | None
    high: float | None
    count: int
    interval: str = ""
    unit: str = "%"
    published: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
