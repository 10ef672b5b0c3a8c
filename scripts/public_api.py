"""Write tests/public_api.txt: what others' programs may rely on, a name a line.

    python scripts/public_api.py

It holds the Python names of ``monolane`` with their parameters, the commands with their options,
and the server's routes. A line that goes away or changes breaks somebody's program, so this script
asks for a line in CHANGELOG.md first; tests/test_public_api.py compares the file with the code.
"""

import hashlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import typer
from starlette.routing import Route

import monolane
from monolane.cli import app
from monolane.serve import ServerOptions, Service, build_app

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "tests" / "public_api.txt"


def python_names() -> Iterator[str]:
    """Yield each public class with its parameters, and each of its members."""
    for name in sorted(set(monolane.__all__) - {"__version__"}):
        kind = getattr(monolane, name)
        yield f"python {name}{_parameters(kind)}"
        for member in sorted(dir(kind)):
            value = inspect.getattr_static(kind, member)
            if member.startswith("_"):
                continue
            function = getattr(value, "__func__", value)
            shown = _parameters(function) if inspect.isfunction(function) else ""
            yield f"python {name}.{member}{shown}"


def _parameters(what: object) -> str:
    """Return names and defaults; types are told differently by different Pythons."""
    signature = inspect.signature(what)  # type: ignore[arg-type]
    bare = [x.replace(annotation=x.empty) for x in signature.parameters.values()]
    # A default that is a function shows where it lies in memory.
    return re.sub(r"<function .*? at 0x[0-9a-f]+>", "...", str(inspect.Signature(bare)))


def commands() -> Iterator[str]:
    """Yield each command, and each of its arguments and options."""
    yield from _of_command("monolane", typer.main.get_command(app))


def _of_command(name: str, command: object) -> Iterator[str]:
    if getattr(command, "hidden", False):
        return
    yield f"command {name}"
    for parameter in getattr(command, "params", ()):
        if getattr(parameter, "hidden", False):
            continue
        names = [*parameter.opts, *parameter.secondary_opts]
        yield f"command {name} {'/'.join(sorted(names))}"
    for sub, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _of_command(f"{name} {sub}", inner)


def routes() -> Iterator[str]:
    """Yield each path of the server with its methods, but for the page's files."""

    def load() -> monolane.Engine:
        raise AssertionError("routes are there before a model is")

    router = build_app(Service(load, ServerOptions(model_name="any")))._app  # type: ignore[attr-defined]
    found = {
        f"route {method} {route.path}"
        for route in router.routes
        if isinstance(route, Route) and route.include_in_schema
        for method in (route.methods or set()) - {"HEAD"}
    }
    yield from sorted(found)


def changelog_mark() -> str:
    """Return what tells whether the newest part of CHANGELOG.md has changed."""
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    return hashlib.sha256(newest.encode()).hexdigest()[:12]


def lines() -> list[str]:
    """Return what the file holds, but for its first line."""
    return [*python_names(), *commands(), *routes()]


def main() -> int:
    """Write the file, unless the public API has changed and CHANGELOG.md has not."""
    mark, now = f"changelog {changelog_mark()}", lines()
    if PAGE.exists():
        before = PAGE.read_text().splitlines()
        gone = [line for line in before[1:] if line not in now]
        if gone and before[0] == mark:
            print("CHANGELOG.md: expected a line on what goes away or changes:", file=sys.stderr)
            print(*gone, sep="\n", file=sys.stderr)
            return 1
    PAGE.write_text("\n".join([mark, *now]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
