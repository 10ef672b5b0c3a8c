"""Options that are described once, each as a field of a frozen dataclass: ``Draw`` and ``Loading``.

A field's metadata are an ``Option``. Command lines, checks, refusals, what crosses to other
processes and to native code, and the tables of the pages are made of it. A leaf that imports no
package: whoever asks for help waits for nothing else.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from monolane.errors import BackendError, MonolaneError, RequestError

P = ParamSpec("P")
T = TypeVar("T")
Asked = TypeVar("Asked")

# Commands that load a model to answer by it.
COMMANDS = ("generate", "chat", "serve", "eval", "bench")
BACKENDS = ("cuda", "cpu", "reference")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What is said of an option.

    meaning   of the field, for who reads a generated header; not said: ``help``
    kind      the number type as which it crosses to native code, see _structs.py; "": it does not
    help      of the command line's option; "": there is none
    word      what the command line reads it as
    after     the option behind which it stands there, if not where it stands in the class
    spelled   what the command line calls it, if not as the field is named
    short     the option's one letter, such as "-t"
    deferred  the command line has no default of its own: others say what is left out
    commands  those which have it
    least     a whole number must be no less; None: it is no number, or checked elsewhere
    most      and no more
    expected  how a message describes these
    told      executors are told of it; else the engine alone heeds it
    ranks     plain, and the same in all ranks of a model: it crosses to their processes
    refused   backend -> why it does not honour the option, "" where a plain sentence does; may name
              {backend}, {value} and {of}, all options
    alone     why several ranks do not honour it; "": they do
    named     commands in which it may be given several times, each time with a name: NAME=VALUE
    auto      what backend "auto" does where this is given: it "chooses" one that honours it, it
              "falls" back to the processor, it "refuses" where there is a GPU, or "opens" a GPU
              all the same, which then refuses it
    error     which error a refusal is
    page      of docs/, where more is said
    """

    meaning: str = ""
    kind: str = ""
    help: str = ""
    after: str = ""
    word: type[str] | type[int] | type[float] | type[Path] = str
    spelled: str = ""
    short: str = ""
    deferred: bool = False
    commands: tuple[str, ...] = COMMANDS
    least: int | None = None
    most: int | None = None
    expected: str = ""
    told: bool = True
    ranks: bool = False
    refused: Mapping[str, str] | None = None
    alone: str = ""
    named: tuple[str, ...] = ()
    auto: str = "chooses"
    error: type[MonolaneError] = RequestError
    page: str = ""

    @property
    def honoured_by(self) -> tuple[str, ...]:
        """The backends that honour it."""
        return tuple(name for name in BACKENDS if name not in (self.refused or {}))

    def check(self, name: str, value: object) -> None:
        """RequestError for a number that is out of range."""
        if not self.expected:
            return
        low, high = self.least, self.most
        fits = type(value) is int and (low is None or value >= low)
        if not fits or (high is not None and value > high):  # type: ignore[operator]
            raise RequestError(f"{self._shown(name)}: expected {self.expected}, got {value!r}")

    def _shown(self, name: str) -> str:
        return f"{name} (--{self.spelled})" if self.spelled else name

    def refusal(self, name: str, backend: str, of: object) -> MonolaneError:
        """Return the error for a backend that does not honour it."""
        said = self.refused or {}
        why = said.get(backend, next(iter(said.values()), "")) or (
            f"expected backend {' or '.join(self.honoured_by)}, got {{backend!r}}; use that, or "
            f"leave {name} out"
        )
        wrong = BackendError if (backend, self.auto) == ("auto", "refuses") else self.error
        value = getattr(of, name)
        return wrong(f"{self._shown(name)}: {why.format(backend=backend, value=value, of=of)}")


def option(default: object, help: str = "", **said: Any) -> Any:  # noqa: A002  as typer's
    """Return a field that is an option."""
    return field(default=default, metadata={"option": Option(help=help, **said)})


def options_of(described: Any) -> dict[str, Option]:
    """Return the options of a dataclass, by name, in the order of its fields."""
    return {x.name: x.metadata["option"] for x in fields(described) if "option" in x.metadata}


def numbers_of(described: Any) -> tuple[tuple[str, str, str], ...]:
    """Return the options that cross to native code: name, number type and meaning."""
    return tuple(
        (name, x.kind, x.meaning or x.help) for name, x in options_of(described).items() if x.kind
    )


def taken_apart(
    described: Callable[P, Asked],
) -> Callable[[Callable[[type[T], Asked], T]], Callable[Concatenate[type[T], P], T]]:
    """Have a constructor that takes a dataclass take its fields, with their names and types."""

    def decorate(made: Callable[[type[T], Asked], T]) -> Callable[Concatenate[type[T], P], T]:
        @functools.wraps(made)
        def call(cls: type[T], /, *args: P.args, **kwargs: P.kwargs) -> T:
            return made(cls, described(*args, **kwargs))

        of = inspect.Parameter("cls", inspect.Parameter.POSITIONAL_ONLY)
        parameters = inspect.signature(described).parameters.values()
        call.__signature__ = inspect.Signature([of, *parameters])  # type: ignore[attr-defined]
        return call

    return decorate
