"""Qwen3-VL: the text is a Qwen3's; the vision tower is not read.

Rotary positions have three numbers (``mrope_section``), which are one and the same in text. GGUF
files of the text are read as those of a Qwen3.
"""

from dataclasses import replace

from monolane.model.families._nested import with_tower
from monolane.model.families._rotary import read_rotary
from monolane.model.families.llama import render_as
from monolane.model.families.qwen3 import QWEN3

_THETA, _HEAD_DIM = 5e5, 128  # what Transformers takes where the fields are not there

_TEXT = replace(
    QWEN3,
    fields={
        **QWEN3.fields,
        "head_dim": lambda f: f.size("head_dim", _HEAD_DIM),
        "rotary": lambda f: read_rotary(f, "half", _THETA),
    },
    render=render_as("Qwen3VL", "qwen3_vl_text"),
)
QWEN3_VL = with_tower(
    _TEXT,
    "qwen3_vl",
    "Qwen3VLForConditionalGeneration",
    ("model.", "model.language_model."),
    ("model.visual.",),
)
