"""The engine: sessions, slots, sampling parameters, and streams."""

from monolane._loading import Loading
from monolane.engine._constrained_decoding import Constraint
from monolane.engine._defaults import SamplingDefaults
from monolane.engine._draft_model import DraftModel
from monolane.engine._draft_stats import DraftCounts
from monolane.engine._engine import Engine, Prompt
from monolane.engine._files import ModelFiles
from monolane.engine._open_executor import open_executor
from monolane.engine._parameters import SamplingParams, Speculation, check_speculation
from monolane.engine._registry import BACKEND_NAMES, find_backend
from monolane.engine._result import FinishReason, Generation, Piece, Timings
from monolane.engine._stream import Stream
from monolane.executor_api import Guide, RankAddresses, TokenLogprob

__all__ = [
    "BACKEND_NAMES",
    "Constraint",
    "DraftCounts",
    "DraftModel",
    "Engine",
    "FinishReason",
    "Generation",
    "Guide",
    "Loading",
    "ModelFiles",
    "Piece",
    "Prompt",
    "RankAddresses",
    "SamplingDefaults",
    "SamplingParams",
    "Speculation",
    "Stream",
    "Timings",
    "TokenLogprob",
    "check_speculation",
    "find_backend",
    "open_executor",
]
