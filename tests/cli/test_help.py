"""The help of each command shows what its source says: no name cut, no word dropped."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from monolane.cli import app
from monolane.serve._tools.formats import FORMATS

ROOT: Any = typer.main.get_command(app)  # of click's types, which typer may bring itself


def commands(path: tuple[str, ...], command: Any) -> Iterator[tuple[str, ...]]:
    if path not in (("bench",), ("eval",)):  # whose help is that of their first command
        yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands((*path, name), inner)


def find(path: tuple[str, ...]) -> Any:
    command = ROOT
    for name in path:
        command = command.commands[name]
    return command


def letters(text: str) -> str:
    return "".join(text.split())  # lines are broken at blanks, and at hyphens


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def shown(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    ROOT.main([*path, "--help"], prog_name="monolane", standalone_mode=False)
    return capsys.readouterr().out


@pytest.mark.parametrize("path", list(commands((), ROOT)), ids=" ".join)
def test_nothing_is_cut_or_dropped(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    command, text = find(path), letters(shown(path, capsys))
    for paragraph in (command.help or "").split("\n\n"):
        assert letters(paragraph) in text
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        assert letters(getattr(parameter, "help", None) or "") in text
        for name in parameter.opts:
            assert name in text


@pytest.mark.parametrize("path", [(), ("plan",), ("data",), ("tune",)], ids=" ".join)
def test_lists_of_commands_have_whole_summaries(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "..." not in shown(path, capsys).split("Commands:")[1]


@pytest.mark.parametrize("group", ["bench", "eval"])
def test_help_of_a_command_that_stands_for_its_group_ends_with_the_others(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    last = " ".join(shown((group,), capsys).split("\n\n")[-1].split())
    others = list(find((group,)).commands)[1:]
    assert others
    for name in others:
        assert f"'monolane {group} {name}'" in last


def test_every_format_of_tool_calls_is_named() -> None:
    named = next(p.help for p in find(("serve",)).params if p.name == "tool_format")
    for tool_format in FORMATS:
        assert re.search(rf"(, |or ){tool_format.name}\b", named), tool_format.name
