"""The help of each command shows what its source says: no name cut, no word dropped."""

import re
import shlex
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from monolane.cli import app, main
from monolane.cli._examples import EXAMPLES
from monolane.serve._tools.formats import FORMATS

ROOT: Any = typer.main.get_command(app)  # of click's types, which typer may bring itself


def commands(path: tuple[str, ...], command: Any) -> Iterator[tuple[str, ...]]:
    if path not in (("bench",), ("eval",), ("plan",)):  # whose help is that of their first command
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


@pytest.mark.parametrize("path", [(), ("data",), ("tune",)], ids=" ".join)
def test_lists_of_commands_have_whole_summaries(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    listed = shown(path, capsys).split("exit.\n")[1]
    assert "..." not in listed
    for name, command in find(path).commands.items():
        if not command.hidden:
            assert f"  {name}  " in listed, name


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]], ids=repr)
def test_a_list_of_commands_reads_no_options(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take as long to read as all files to import; the list is that of the whole."""
    made = []
    whole = typer.main.get_command
    monkeypatch.setattr(typer.main, "get_command", lambda x: made.append(whole(x)) or made[-1])
    monkeypatch.setattr(sys, "argv", ["monolane", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == (0 if words else 2)
    told = "".join(capsys.readouterr())
    assert told == shown((), capsys).rstrip("\n") + "\n"
    assert not any(command.params for command in made[0].commands.values())


@pytest.mark.parametrize("group", ["bench", "eval", "plan"])
def test_help_of_a_command_that_stands_for_its_group_ends_with_the_others(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    last = " ".join(shown((group,), capsys).split("docs/settings.md.")[-1].split())
    others = list(find((group,)).commands)[1:]
    assert others
    for name in others:
        assert f"'monolane {group} {name}'" in last


def test_every_format_of_tool_calls_is_named() -> None:
    named = next(p.help for p in find(("serve",)).params if p.name == "tool_format")
    for tool_format in FORMATS:
        assert re.search(rf"(, |or ){tool_format.name}\b", named), tool_format.name


LEAVES = [path for path in commands((), ROOT) if not getattr(find(path), "commands", {})]


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_has_examples_that_it_takes(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is read by the command line, all but run; nothing of it is out of date."""
    if find(path).hidden:
        return
    first = path[:1] if path[-1] in ("model", "tasks", "show") and path[0] != "data" else path
    ran: list[str] = []
    monkeypatch.setattr(type(find(path)), "invoke", lambda _, ctx: ran.append(ctx.command_path))
    text = shown(path, capsys).split("Examples:\n")[1]
    for line in EXAMPLES[first]:
        assert f"  {line}\n" in text
        words = shlex.split(line.split("monolane ", 1)[1])
        ROOT.main(words, prog_name="monolane", standalone_mode=False)
        assert ran.pop() == f"monolane {' '.join(path)}"
        assert capsys.readouterr().err == ""  # nothing that goes away
