"""Groups of options: a command's parameter that stands for as many options as it has fields.

A group is a dataclass of this package, whose fields are spelled as typer's parameters, ``Loading``,
or ``Drawn``. Typer sees an option for each field; the command gets the group.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from monolane._draw import Draw
from monolane._loading import Loading
from monolane._options import options_of
from monolane.cli._options import DRAWING, LOADING, KeyFile
from monolane.cli._ranks import find_ranks


@dataclass(frozen=True, slots=True)
class After:
    """Says of a field that its option stands behind another in the help."""

    name: str


class Drawn(dict[str, Any]):
    """The options of ``Draw`` as they were given; None: others say."""


def grouped(
    command: str = "", after: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have typer see an option for each field of the groups that a function takes.

    command   which options of ``Loading`` and ``Draw`` it has: theirs say of which commands
    after     parameter -> the one behind which it stands in the help
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        found: list[inspect.Parameter] = []
        moved: dict[str, str] = {}
        kinds = get_type_hints(function, include_extras=True)
        for name, parameter in inspect.signature(function).parameters.items():
            if _is_group(kinds[name]):
                found += _parameters(kinds[name], command, moved)
            else:
                found.append(_parameter(name, kinds[name], parameter.default))
        found = _in_order(found, moved | dict(after or {}))

        @wraps(function)
        def call(**values: Any) -> None:
            groups = {
                x: _make(kind, command, values) for x, kind in kinds.items() if _is_group(kind)
            }
            plain = {x: values[x] for x in kinds.keys() & values.keys()}
            function(**plain, **groups)

        call.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
        call.__annotations__ = {x.name: x.annotation for x in found}
        return call

    return decorate


def _is_group(kind: Any) -> bool:
    return is_dataclass(kind) or kind is Drawn


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    # By keyword, so that a required one may stand behind others.
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def _parameters(kind: Any, command: str, moved: dict[str, str]) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a group, and note which are ``moved`` behind others."""
    if kind in (Loading, Drawn):
        described = Loading if kind is Loading else Draw
        for name, said in options_of(described).items():
            if said.after and command in said.commands:
                moved[name] = said.after
        yield from _described(described, command)
        return
    hints = get_type_hints(kind, include_extras=True)
    for x in fields(kind):
        hint = hints[x.name]
        if _is_group(hint):
            yield from _parameters(hint, command, moved)
            continue
        for said in get_args(hint):
            if isinstance(said, After):
                moved[x.name] = said.name
        default = inspect.Parameter.empty if x.default is MISSING else x.default
        yield _parameter(x.name, _headed(hint, kind), default)


def _headed(hint: Any, kind: Any) -> Any:
    """Have an option stand below its group's head, the first line of the group's docstring."""
    said = getattr(hint, "__metadata__", ())
    if not any(isinstance(x, OptionInfo) and x.rich_help_panel is None for x in said):
        return hint
    head = (kind.__doc__ or "").partition("\n")[0].rstrip(".")
    return Annotated[hint.__origin__, *(_below(head, x) for x in said)]


def _below(head: str, said: Any) -> Any:
    if not isinstance(said, OptionInfo):
        return said
    said = copy.copy(said)  # several groups may share it
    said.rich_help_panel = head
    return said


def _described(kind: Any, command: str) -> Iterator[inspect.Parameter]:
    defaults: dict[str, Any] = {x.name: x.default for x in fields(kind)}
    for name, said in options_of(kind).items():
        if not said.help or command not in said.commands:
            continue
        default = None if said.deferred else defaults[name]
        if default is not None:
            default = said.word(default)
        word: Any = said.word if default is not None else said.word | None
        if command in said.named:
            word = list[str] | None
        spelled = [f"--{(said.spelled or name).replace('_', '-')}"]
        shown = typer.Option(
            *(*spelled, *([said.short] if said.short else ())),
            min=said.least,
            help=said.help,
            rich_help_panel=LOADING if issubclass(kind, Loading) else DRAWING,
        )
        yield _parameter(name, Annotated[word, shown], default)
        if name == "ranks":
            yield _parameter("key_file", KeyFile, None)


def _in_order(found: list[inspect.Parameter], moved: Mapping[str, str]) -> list[inspect.Parameter]:
    for name, before in moved.items():
        (one,) = (x for x in found if x.name == name)
        found.remove(one)
        found.insert([x.name for x in found].index(before) + 1, one)
    return found


def _make(kind: Any, command: str, values: Mapping[str, Any]) -> Any:
    """Return a group of the values that were given to its options."""
    if kind is Drawn:
        return Drawn({x.name: values[x.name] for x in _described(Draw, command)})
    if kind is Loading:
        asked = {x.name: values[x.name] for x in _described(Loading, command)}
        if "ranks" in asked:
            asked["ranks"] = find_ranks(asked["ranks"], asked.pop("key_file"))
        return Loading(**asked)
    hints = get_type_hints(kind, include_extras=True)
    return kind(
        **{
            name: _make(hint, command, values) if _is_group(hint) else values[name]
            for name, hint in hints.items()
        }
    )
