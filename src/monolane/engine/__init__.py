"""The engine: sessions, slots, sampling parameters, streams, and the contract of a backend."""

from monolane.engine._backend import Advance, Backend, Epoch, TokenEvent, TokenLogprob
from monolane.engine._constraint import Constraint, Guide
from monolane.engine._engine import Engine, Prompt
from monolane.engine._parameters import MAX_LOGIT_BIASES, Draw, SamplingParams
from monolane.engine._registry import BACKEND_NAMES, find_backend
from monolane.engine._result import FinishReason, Generation, Piece, Timings
from monolane.engine._source import DEMO, find_model
from monolane.engine._stream import Stream

__all__ = [
    "BACKEND_NAMES",
    "DEMO",
    "MAX_LOGIT_BIASES",
    "Advance",
    "Backend",
    "Constraint",
    "Draw",
    "Engine",
    "Epoch",
    "FinishReason",
    "Generation",
    "Guide",
    "Piece",
    "Prompt",
    "SamplingParams",
    "Stream",
    "Timings",
    "TokenEvent",
    "TokenLogprob",
    "find_backend",
    "find_model",
]
