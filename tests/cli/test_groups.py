"""Groups of options: what typer is shown, and what a command gets."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from monolane._loading import OPTIONS, Loading
from monolane._options import option, options_of
from monolane.cli import _groups, app
from monolane.cli._groups import After, Drawn, grouped

MOST_PARAMETERS = 10


def commands(group: typer.Typer, path: str = "") -> Iterator[tuple[str, Callable[..., None]]]:
    for each in group.registered_commands:
        assert each.callback is not None
        yield path + (each.name or each.callback.__name__), each.callback
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from commands(inner.typer_instance, f"{path}{inner.name} ")


COMMANDS = dict(commands(app))


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_takes_more_than_ten_parameters(name: str) -> None:
    written = inspect.getfullargspec(inspect.unwrap(COMMANDS[name]))
    assert len(written.args) + len(written.kwonlyargs) <= MOST_PARAMETERS


def names(said: Any) -> set[str]:
    """The commands that have an option, as ``COMMANDS`` spells them."""
    spelled = {"bench": "bench model", "eval": "eval tasks"}
    return {spelled.get(name, name) for name in said.commands} if said.help else set()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_the_options_that_say_so(name: str) -> None:
    shown = set(inspect.signature(COMMANDS[name]).parameters)
    own = {"bench model": {"dtype", "context"}, "trace": {"context"}}.get(name, set())
    if Loading in inspect.get_annotations(inspect.unwrap(COMMANDS[name])).values():
        wanted = {option for option, said in OPTIONS.items() if name in names(said)}
        assert shown & set(OPTIONS) - {"model"} - own == wanted


def run(command: Callable[..., None], *words: str) -> int:
    made = typer.Typer()
    made.command()(command)
    return CliRunner().invoke(made, words).exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A group in a group."""

    depth: int = 1
    place: Annotated[str, typer.Option("--at"), After("before")] = "here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """A group."""

    needed: Annotated[Path, typer.Option()]
    inner: Inner


def test_a_group_is_filled_from_its_options() -> None:
    got: dict[str, Any] = {}

    @grouped(after={"needed": "place"})
    def command(*, before: int = 0, group: Outer, after: bool = False) -> None:
        got.update(before=before, group=group, after=after)

    assert list(inspect.signature(command).parameters) == [
        *("before", "place", "needed", "depth", "after")
    ]
    assert run(command, "--needed", "x", "--at", "there", "--depth", "3", "--after") == 0
    assert got["group"] == Outer(needed=Path("x"), inner=Inner(depth=3, place="there"))
    assert (got["before"], got["after"]) == (0, True)
    assert run(command) == 2


def test_loading_and_drawing_come_from_their_descriptions() -> None:
    got: dict[str, Any] = {}

    @grouped("generate")
    def command(*, loading: Loading, drawn: Drawn) -> None:
        got.update(loading=loading, drawn=drawn)

    words = ("--threads", "3", "--ranks", "2", "-t", "0.5", "--presence-penalty", "1")
    assert run(command, *words, "--prefix-file", "kept") == 0
    assert got["loading"] == Loading(workers=3, ranks=2, prefix_file=Path("kept"))
    given = {name: value for name, value in got["drawn"].items() if value is not None}
    assert given == {"temperature": 0.5, "presence_penalty": 1.0, "frequency_penalty": 0.0}
    assert run(command, "--threads", "0") == 2


def test_a_new_option_of_loading_is_one_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What CONTRIBUTING.md promises: a field is enough."""

    @dataclass(frozen=True, slots=True)
    class Wider(Loading):
        spin: int = option(3, "Turns of a wait.", word=int, least=1)

    got: list[Any] = []
    monkeypatch.setattr(_groups, "Loading", Wider)

    @grouped("serve")
    def command(*, loading: Wider) -> None:
        got.append(loading)

    assert run(command, "--spin", "5", "--dtype", "int8") == 0
    assert got == [Wider(dtype="int8", spin=5)]
    assert run(command, "--spin", "0") == 2
    assert set(options_of(Wider)) == {*OPTIONS, "spin"}
