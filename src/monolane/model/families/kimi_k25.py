"""Kimi-K2.5 and later: a Kimi-K2 with a vision tower, which is not read."""

from monolane.model.families._nested import with_tower
from monolane.model.families.deepseek import DEEPSEEK_V3

KIMI_K25 = with_tower(
    DEEPSEEK_V3,
    "kimi_k25",
    "KimiK25ForConditionalGeneration",
    ("", "language_model."),
    # The last one is how Transformers 5.24 writes a norm of the one before.
    ("vision_tower.", "mm_projector.", "model.mm_projector."),
)
