"""mini-swe-agent: its agent's model, through LiteLLM; a text query."""

import os
from contextlib import suppress

import litellm

os.environ["MSWEA_COST_TRACKING"] = "ignore_errors"
from minisweagent.exceptions import FormatError
from minisweagent.models import get_model

litellm.suppress_debug_info = True
model = get_model(
    f"openai/{os.environ['MODEL']}",
    {
        "model_class": "litellm_textbased",
        "model_kwargs": {
            "api_base": os.environ["OPENAI_BASE_URL"],
            "api_key": "none",
            "max_tokens": 40,
        },
    },
)
with suppress(FormatError):  # the answer came, and has no command in it
    model.query([{"role": "user", "content": "Say hello."}])
print("text")
