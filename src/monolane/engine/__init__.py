"""The engine: sessions, slots, sampling parameters, and streams."""

from monolane.engine._constrained_decoding import Constraint
from monolane.engine._defaults import SamplingDefaults
from monolane.engine._draft_model import DraftModel
from monolane.engine._draft_stats import DraftCounts
from monolane.engine._engine import Engine, Prompt
from monolane.engine._files import ModelFiles
from monolane.engine._parameters import (
    MAX_LOGIT_BIASES,
    SamplingParams,
    Speculation,
    check_speculation,
)
from monolane.engine._proxy import proxy_told
from monolane.engine._registry import (
    BACKEND_NAMES,
    check_draft,
    find_backend,
    with_draft,
    with_expert_memory,
)
from monolane.engine._result import FinishReason, Generation, Piece, Timings
from monolane.engine._source import DEMO, fetch_model, find_model
from monolane.engine._stream import Stream
from monolane.engine._unpack import unpack_gguf
from monolane.epoch import Guide, RankAddresses, TokenLogprob

__all__ = [
    "BACKEND_NAMES",
    "DEMO",
    "MAX_LOGIT_BIASES",
    "Constraint",
    "DraftCounts",
    "DraftModel",
    "Engine",
    "FinishReason",
    "Generation",
    "Guide",
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
    "check_draft",
    "check_speculation",
    "fetch_model",
    "find_backend",
    "find_model",
    "proxy_told",
    "unpack_gguf",
    "with_draft",
    "with_expert_memory",
]
