"""What typer refuses, in our words: one line of what was expected, what was got, what to do."""

import os
import re
from typing import Any

import typer

from monolane.cli._grammar import CLICK, path_of, settings_of
from monolane.cli._settings import Settings, key_of, meant, variables_of

# What pydantic's kinds of errors say was expected.
_EXPECTED = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
    "greater_than_equal": "{ge:g} or more",
    "less_than_equal": "{le:g} or less",
}


def told(error: Any) -> str:
    """Return what was wrong with a command line, its variables or its config file."""
    ctx = error.ctx
    name = ctx.command_path if ctx else "monolane"
    see = f"see '{name} --help'"
    said = error.format_message().rstrip(".")
    if isinstance(error, CLICK.NoSuchOption):
        known = [x for p in ctx.command.params for x in (*p.opts, *p.secondary_opts)] if ctx else []
        what = f"expected an option of it, got {error.option_name}; "
        return f"{name}: {what}{meant(error.option_name, known) or see}"
    if isinstance(error, CLICK.MissingParameter):
        return f"{name}: expected {_spelled(error)}, got none; {see}"
    if isinstance(error, typer.BadParameter):
        return f"{name}: {_bad(error, ctx)}"
    if isinstance(error, CLICK.BadOptionUsage):
        takes = "no value, got one" if "not take" in said else "a value behind it, got none"
        return f"{name}: {error.option_name}: expected {takes}; {see}"
    if found := re.search(r"unexpected extra argument\S* \((.*)\)", said):
        has_model = any("--model" in x.opts for x in ctx.command.params)
        way = f"a model is --model {found[1].split()[0]}" if has_model else see
        return f"{name}: expected no such word, got {found[1]!r}; {way}"
    if found := re.match(r"No such command '([^']*)'", said):
        near = meant(found[1], ctx.command.commands)
        return f"{name}: expected a command, got {found[1]!r}; {near or see}"
    if said == "Missing command":
        return f"{name}: expected one of {', '.join(ctx.command.commands)}, got none; {see}"
    return f"{name}: {said}"


def _spelled(error: Any) -> str:
    parameter = error.param
    if parameter is None:
        return str(error.param_hint)
    word = parameter.param_type_name == "argument"
    return str(parameter.name).upper() if word else max(parameter.opts, key=len)


def _bad(error: Any, ctx: Any) -> str:
    """Say what is wrong with a value, and where it stands."""
    message = error.message.rstrip(".")
    if error.param is None or error.param_hint is not None:
        hint = f"{error.param_hint}: " if error.param_hint else ""
        return f"{hint}{message}"
    # Of pydantic, by which typer checks values.
    faults: list[Any] = getattr(error.__cause__, "errors", list)()
    if faults:
        first = faults[0]
        limits = first.get("ctx", {})
        expected = _EXPECTED.get(first["type"], message).format(**limits)
        message = f"expected {expected}, got {first['input']!r:.80}"
    return f"{_place(error.param, ctx)}: {message}"


def _place(parameter: Any, ctx: Any) -> str:
    """Return where a parameter's value stands: an option, a variable or a key of a file."""
    source = ctx.get_parameter_source(parameter.name) if ctx else None
    name = source.name if source else ""
    if name == "ENVIRONMENT":
        return next(x for x in variables_of(path_of(ctx), parameter) if os.environ.get(x))
    if name == "DEFAULT_MAP":
        file = (settings_of(ctx) or Settings.read(None)).path
        return f"{file}: {key_of(parameter)}"
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    return str(max(parameter.opts, key=len))
