"""bench/agent_loop.py: what the agent is given, and the form that answers are held to."""

import importlib
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("agent_loop")


def answer(command: str) -> str:
    return f"THOUGHT: I change it, and look.\n\n```mswea_bash_command\n{command}\n```"


@pytest.mark.parametrize(
    ("command", "fits"),
    [
        ("cat settings.py", True),
        ("sed -i 's/PORT = 8000/PORT = 9000/' settings.py && ./check", True),
        ("sed -i 's/a/b/' settings.py", False),
        ("sed -i 's/a/b/e; s/x/y/' settings.py && ./check", False),
        ("sed -i 's/a/b'; rm -r /; echo '/' settings.py && ./check", False),
        ("cat /etc/passwd", False),
    ],
)
def test_nothing_but_a_look_and_an_edit_can_be_asked_for(
    script: Any, command: str, fits: bool
) -> None:
    """A small model's commands are run on this machine."""
    assert bool(re.fullmatch(script.FORM, answer(command))) is fits


def test_the_agents_example_is_of_that_form(script: Any) -> None:
    example = script.SYSTEM.partition("such as\n\n")[2]
    assert re.fullmatch(script.FORM, example)


@pytest.mark.parametrize("name", ["port", "flag", "name"])
def test_an_edit_ends_the_run_when_it_is_the_one_asked_for(
    script: Any, name: str, tmp_path: Path
) -> None:
    edit = script.EDITS[name]
    script.prepare(edit, tmp_path)
    pairs = {"port": ("8000", "9000"), "flag": ("True", "False"), "name": ("server", "worker")}
    for pattern, text, done in (("NAME", "NAMES", False), (*pairs[name], True)):
        (tmp_path / script.FILE).write_text(edit.before)
        command = f"sed -i {shlex.quote(f's/{pattern}/{text}/')} {script.FILE} && ./check"
        said = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        assert said.startswith(script.DONE) is done


def test_the_agents_configuration(script: Any, tmp_path: Path) -> None:
    found = json.loads(script.config(tmp_path, "m", 3))
    assert found["agent"]["step_limit"] == 3
    assert found["environment"]["cwd"] == str(tmp_path)
    model = found["model"]
    assert model["model_name"] == "openai/m"
    assert model["model_kwargs"]["extra_body"] == {"structured_outputs": {"regex": script.FORM}}
