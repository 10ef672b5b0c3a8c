"""The Jinja environment that a model's chat template runs in: no Python, no files, bounded work.

Jinja's immutable sandbox keeps a template from Python's internals, but not from looping for ever or
from doubling a string forty times. So the template's syntax tree is rewritten before it is
compiled: each loop turn and macro counts a step, each container and concatenation is checked
against the budget. One C call on values within the budget is not bounded; it takes a fraction of a
second.

The alternatives: another process can be killed, but costs a start per request. Tracing each Python
line costs ten times as much. minijinja, an engine in Rust that counts its instructions, does not
bound memory, and other texts come of some templates: docs/security.md has the figures.
"""

import json
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import TemplateError, Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from monolane.text._budget import Budget, current

# Filters, and methods of text. Reviewed: none writes files, reads the clock or draws random
# numbers, and those that can make much of little have a guard.
_FILTERS = """
abs batch capitalize count d default dictsort e escape first float format groupby indent int items
join last length list lower map max min reject rejectattr replace reverse round safe select
selectattr slice sort string sum title tojson trim truncate unique upper wordcount
"""
_METHODS = """
capitalize casefold center count endswith expandtabs find format format_map index isalnum isalpha
isascii isdecimal isdigit islower isnumeric isspace istitle isupper join ljust lower lstrip
partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split
splitlines startswith strip swapcase title upper zfill
"""
_GLOBALS = ("cycler", "joiner", "range")


class RefusedError(TemplateError):
    """The template itself refuses the messages: it called ``raise_exception``."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Compiles chat templates as Transformers does: same options, filters and globals."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants would be computed at compile time, without a budget
            finalize=_written,
            extensions=[loopcontrols, _Generation],
        )
        self.filters["tojson"] = _tojson
        self.filters = {name: _counted(name, self.filters[name]) for name in _FILTERS.split()}
        self._methods = frozenset(_METHODS.split())
        kept = {name: self.globals[name] for name in _GLOBALS}
        self.globals.clear()
        self.globals.update(
            kept,
            dict=_new_dict,
            namespace=_Namespace,
            raise_exception=_refuse,
            strftime_now=_strftime_now,
        )

    # Called by the code of the rewritten template; ``call`` below has counted the step.

    def turn(self) -> None:
        """Begin a turn of a loop or a run of a macro."""

    def wrote(self, chars: int) -> str:
        """Count characters of the template's own text; nothing is added to them."""
        current().step(chars)
        return ""

    def weighed(self, value: Any) -> Any:
        """Return a value that the template made, if it is within the budget."""
        current().weigh(value)
        return value

    def joined(self, *values: Any) -> str:
        """Return the values of ``a ~ b ~ c`` as one text."""
        return "".join(current().join("", [_text(value) for value in values]))

    # What the sandbox of Jinja asks.

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow the reviewed methods of text, none of numbers and bytes, else as Jinja does."""
        if isinstance(obj, str):
            return attr in self._methods
        if isinstance(obj, int | float | bytes | bytearray):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call with the guard that the callee has, and count it."""
        budget = current()
        budget.step()
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            # Jinja adds _loop_vars and _block_vars, and takes them off again.
            given = [value for key, value in kwargs.items() if key[:1] != "_"]
            args = _guard_method(budget, obj.__name__, owner, args, given)
        return self.weighed(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Check the four operators that can make large values, then apply them."""
        budget = current()
        if operator == "%":
            budget.fill(left, right if isinstance(right, tuple) else (right,))
        elif operator == "*":
            budget.multiply(left, right)
        elif operator == "**":
            budget.power(left, right)
        elif operator == "+":
            budget.add(left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the sandboxed ``str.format``, checked for width."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            current().fill(value.__self__, (*args, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return checked

    def _generate(
        self, source: nodes.Template, name: Any, filename: Any, defer_init: bool = False
    ) -> str:
        _Meter().visit(source)
        return super()._generate(source, name, filename, defer_init)


class _Generation(Extension):
    """``{% generation %}`` marks what an assistant said, for training; the text is the same."""

    tags = {"generation"}  # noqa: RUF012  # Jinja reads it as a plain attribute

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


class _Namespace(Namespace):
    """Jinja's namespace without names that mean something to Python."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        values = dict(*args, **kwargs)
        for name in values:
            _check_public(name)
        super().__init__(values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold the name {name!r}")


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the filter, counted, with its guard before it and its result weighed."""
    lead = 1 if getattr(function, "jinja_pass_arg", None) else 0

    @wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.step()
        given = (*args[lead + 1 :], *kwargs.values())
        value = _guard_filter(budget, name, args[lead], given)
        result = function(*args[:lead], value, *args[lead + 1 :], **kwargs)
        budget.weigh(result)
        return result

    return counted


def _guard_filter(budget: Budget, name: str, value: Any, given: tuple[Any, ...]) -> Any:
    """Check a filter and return what it is to be applied to."""
    if name in ("batch", "slice", "indent", "round", "truncate", "tojson"):
        budget.narrow(*given)
    if name == "indent":
        width = max((len(w) if isinstance(w, str) else int(w) for w in given), default=4)
        budget.pad(str(value), str(value).count("\n") + 1, width)
    elif name == "replace" and len(given) >= 2:
        budget.replace(str(value), given[0], given[1])
    elif name == "format":
        budget.fill(value, given)
    elif name == "join" and not isinstance(value, Undefined):
        return budget.join(given[0] if given else "", value)
    elif name == "sum" and any(isinstance(start, list | tuple | dict) for start in given):
        raise SecurityError("sum of containers is not allowed; use a loop")
    return value


def _guard_method(
    budget: Budget, name: str, text: str, args: tuple[Any, ...], named: list[Any]
) -> tuple[Any, ...]:
    """Check a method of a text and return the arguments that it is to be called with."""
    given = (*args, *named)
    if name in ("center", "expandtabs", "ljust", "rjust", "zfill"):
        budget.narrow(*given)
        width = max((value for value in given if isinstance(value, int)), default=8)
        budget.pad(text, text.count("\t") + 1, width)
    elif name == "join" and len(args) == 1:
        return (budget.join(text, args[0]),)
    elif name == "replace" and len(given) >= 2:
        budget.replace(text, given[0], given[1])
    return args


@pass_context
def _written(context: Context, value: Any) -> str:
    """Count what ``{{ ... }}`` writes. It takes the context so that nothing is folded early."""
    text = _text(value)
    current().step(len(text))
    return text


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, unlike Jinja's own filter: templates feed models, not browsers."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _refuse(message: Any) -> NoReturn:
    raise RefusedError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(str(form)[:100])


_REPEATED = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block, nodes.AssignBlock)


class _Meter(NodeTransformer):
    """Adds calls of ``turn``, ``wrote``, ``joined`` and ``weighed``, methods of the sandbox.

    Jinja lets a sandbox intercept calls and operators, but neither loops nor ``~`` nor the making
    of lists.
    """

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        """Return the node, rewritten from its leaves up."""
        self.generic_visit(node)
        if isinstance(node, nodes.Concat):
            return _call("joined", node.nodes, node)
        if isinstance(node, nodes.List | nodes.Dict):
            return _call("weighed", [node], node)
        if isinstance(node, nodes.Tuple) and node.ctx == "load":
            return _call("weighed", [node], node)
        if isinstance(node, _REPEATED):
            node.body.insert(0, nodes.ExprStmt(_call("turn", [], node), lineno=node.lineno))
            if isinstance(node, nodes.For) and node.test is not None:
                node.test = nodes.And(nodes.Not(_call("turn", [], node)), node.test)
        elif isinstance(node, nodes.Output):
            parts = [part for part in node.nodes if isinstance(part, nodes.TemplateData)]
            if chars := sum(len(part.data) for part in parts):
                node.nodes.insert(0, _call("wrote", [nodes.Const(chars)], node))
        return node


def _call(name: str, args: list[nodes.Expr], at: nodes.Node) -> nodes.Call:
    method = nodes.EnvironmentAttribute(name, lineno=at.lineno)
    return nodes.Call(method, args, [], None, None, lineno=at.lineno)
