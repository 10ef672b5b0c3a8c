"""The engine: sessions, slots, sampling parameters, streams, and the contract of a backend."""

from monolane.engine._backend import Advance, Backend, Epoch, TokenEvent, TokenLogprob
from monolane.engine._engine import Engine, Prompt
from monolane.engine._parameters import Draw, SamplingParams
from monolane.engine._registry import BACKEND_NAMES, find_backend
from monolane.engine._result import FinishReason, Generation, Piece, Timings
from monolane.engine._source import DEMO, find_model
from monolane.engine._stream import Stream

__all__ = [
    "BACKEND_NAMES",
    "DEMO",
    "Advance",
    "Backend",
    "Draw",
    "Engine",
    "Epoch",
    "FinishReason",
    "Generation",
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
