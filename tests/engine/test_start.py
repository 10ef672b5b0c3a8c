"""What a first token does not load: the time to it begins with the imports."""

import json
import subprocess
import sys

_PROBE = """
import json, sys
from monolane import Engine, SamplingParams
with Engine.load("demo", "cpu") as engine:
    assert engine.generate("def", SamplingParams(max_tokens=1)).token_ids
print(json.dumps(sorted(sys.modules)))
"""
# Jinja: of chats. tempfile, zipfile: of models that are fetched. pydantic and on: of servers.
_OTHERS = {"jinja2", "tempfile", "zipfile", "pydantic", "starlette", "uvicorn", "llguidance"}
_OTHERS |= {"gguf", "huggingface_hub", "rich", "torch", "transformers", "typer"}


def test_a_first_token_loads_nothing_that_others_need() -> None:
    told = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in json.loads(told.stdout)}
    assert {"numpy", "tokenizers"} <= loaded  # it ran
    assert sorted(loaded & _OTHERS) == []
