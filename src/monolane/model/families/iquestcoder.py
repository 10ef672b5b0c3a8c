"""IQuest-Coder: a Llama with defaults of its own."""

from dataclasses import replace

from monolane.model.families._family import with_defaults
from monolane.model.families.llama import LLAMA, render_as

IQUESTCODER = replace(
    LLAMA,
    name="iquestcoder",
    model_types=("iquestcoder",),
    fixed={
        **LLAMA.fixed,
        "clip_qkv": (None, "executors do not clip queries, keys and values"),
        "use_sliding_window": (False, "no layer of this family has a window"),
    },
    render=render_as("IQuestCoder"),
    view=with_defaults(
        {
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
        }
    ),
    gguf=None,  # in GGUF files it calls itself a Llama
)
