"""What a first token does not load, and a command: the time to it begins with the imports."""

import json
import subprocess
import sys
from pathlib import Path

import monolane

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


_COMMAND = """
import json, sys
from monolane.cli import main
sys.argv = ["monolane", "generate", "def", "-m", "demo", "-n", "1", "--backend", "cpu"]
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)))
"""


def modules(program: str) -> set[str]:
    """What a program has imported, which it prints as its last line."""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return set(json.loads(told.stdout.splitlines()[-1]))


def test_a_command_loads_no_other_command() -> None:
    found = {x for x in modules(_COMMAND) if x.startswith("monolane.cli._")}
    files = {path.stem for path in (Path(monolane.__file__).parent / "cli").glob("_*.py")}
    assert len(files) > 25
    # Of these, what generate is made of.
    parts = {"_app", "_generate", "_options", "_answer", "_defaults", "_ranks", "_report"}
    parts |= {
        "_streams",
        "_groups",
        "_terminal",
        "_grammar",
        "_names",
        "_once",
        "_settings",
    }  # faults, options and the terminal of every command
    assert {x.removeprefix("monolane.cli.") for x in found} == parts


def test_a_first_token_loads_nothing_that_others_need() -> None:
    loaded = {name.partition(".")[0] for name in modules(_PROBE)}
    assert {"numpy", "tokenizers"} <= loaded  # it ran
    assert sorted(loaded & _OTHERS) == []
