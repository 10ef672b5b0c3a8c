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
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import TemplateError, Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from monolane.text._template_limits import PATH, Budget, LimitError, current

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
# Filters that take a text for a list of its characters, or make a list of its words.
_LISTED = """
batch groupby list map max min reject rejectattr select selectattr slice sort title unique wordcount
"""
_LISTING = frozenset(_LISTED.split())
# Those with the name of an attribute, and its place behind the value.
_PATHS = {"groupby": 0, "join": 1, "max": 1, "min": 1, "rejectattr": 0, "selectattr": 0, "sort": 2}
_PATHS |= {"map": 99, "sum": 0, "unique": 1}  # map takes it by name alone
_GUARDED = frozenset(
    [*_LISTING, *_PATHS, "format", "indent", "replace", "round", "tojson", "trim", "truncate"]
)
_MOST_WORDS = 20_000  # of a template; the longest in use, of 17,000 characters, has 1,600
_COUNTING = frozenset(["int", "sum"])  # those that make integers


class RefusedError(TemplateError):
    """The template itself refuses the messages: it called ``raise_exception``."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Compiles chat templates as Transformers does: same options, filters and globals."""

    intercepted_binops = frozenset(["+", "-", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants would be computed at compile time, without a budget
            finalize=_written,
            extensions=[loopcontrols, _Generation, _Short],
        )
        self.filters["tojson"] = _tojson
        self.filters = {name: _counted(name, self.filters[name]) for name in _FILTERS.split()}
        tests: dict[str, Any] = dict(self.tests)
        self.tests = {name: _tested(name, test) for name, test in tests.items()}
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
        budget, texts, chars = current(), [], 0
        for value in values:  # a list may be spelled many times
            texts.append(_text(value))
            chars += len(texts[-1])
            budget.allow(chars)
        return self.weighed("".join(texts))  # type: ignore[no-any-return]

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
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, range):
            budget.count(result.start, result.stop)
        budget.weigh(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Check the operators that can make large values, and weigh what they make."""
        budget = current()
        if operator == "%":
            budget.fill(left, right if isinstance(right, tuple) else (right,))
        elif operator == "*":
            budget.multiply(left, right)
        elif operator == "**":
            budget.power(left, right)
        elif operator in "+-":
            budget.add(left, right)
        result = self.binop_table[operator](left, right)
        budget.weigh(result)
        return result

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


class _Short(Extension):
    """Bounds a template by its words, before they become nodes: each costs some 60 us and 3 KB."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Pass the words of a template on, and refuse it once they are too many."""
        for count, token in enumerate(stream):
            if count >= _MOST_WORDS:
                raise LimitError(f"it has more than {_MOST_WORDS} words and signs of Jinja")
            yield token


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

    def __repr__(self) -> str:
        # Not what it holds, which may have grown since a list of it was weighed.
        return "<Namespace>"

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold the name {name!r}")


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the filter, counted, with its guard before it and its result weighed."""
    lead = 1 if getattr(function, "jinja_pass_arg", None) else 0
    if name not in _GUARDED:

        @wraps(function)
        def harmless(*args: Any, **kwargs: Any) -> Any:
            budget = current()
            budget.step()
            result = function(*args, **kwargs)
            if name in _COUNTING:
                budget.count(result)
            budget.weigh(result)
            return result

        return harmless

    @wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.step()
        value = _guard_filter(budget, name, args[lead], args[lead + 1 :], kwargs)
        result = function(*args[:lead], value, *args[lead + 1 :], **kwargs)
        if name in _COUNTING:
            budget.count(result)
        budget.weigh(result)
        return result

    return counted


def _guard_filter(
    budget: Budget, name: str, value: Any, args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Check a filter and return what it is to be applied to."""

    def given(key: str, place: int, default: Any = None) -> Any:
        return named.get(key, args[place] if len(args) > place else default)

    if name in ("batch", "slice", "indent", "round", "truncate", "tojson"):
        budget.narrow(*args, *named.values())
    if name in ("format", "replace", "title", "trim", "wordcount"):
        value = value if isinstance(value, str | Undefined) else str(value)  # as they would
    if name in _LISTING and isinstance(value, str):
        budget.allow_elements(len(value))
    if name in _PATHS:
        path = str(given("attribute", _PATHS[name], ""))
        if path.count(".") + path.count(",") > PATH:
            raise LimitError(f"it asks for attributes of attributes, more than {PATH} times")
    if name == "indent":
        widths = (*args, *named.values())
        width = max((len(w) if isinstance(w, str) else int(w) for w in widths), default=4)
        budget.split(str(value), None, lines=True)
        budget.pad(str(value), str(value).count("\n") + 1, width)
    elif name == "replace":
        budget.replace(value, given("old", 0, ""), given("new", 1, ""))
    elif name == "format":
        budget.fill(value, (*args, *named.values()))
    elif name == "join" and not isinstance(value, Undefined):
        return budget.join(given("d", 0, ""), value)
    elif name == "sum" and isinstance(given("start", 1), list | tuple | dict):
        raise SecurityError("sum of containers is not allowed; use a loop")
    elif name == "round" and not isinstance(value, int | float | Undefined):
        raise SecurityError(f"round: expected a number, got a {type(value).__name__}")
    elif name == "trim":
        budget.search(value, given("chars", 0))
    elif name == "tojson":
        _guard_json(budget, value, given("indent", 1), given("separators", 2))
    return value


def _guard_json(budget: Budget, value: Any, indent: Any, separators: Any) -> None:
    if indent is None and separators is None:
        return
    width = len(indent) if isinstance(indent, str) else int(indent or 0)
    between = sum(len(str(each)) for each in separators) if separators is not None else 0
    budget.indent(value, width, between)


def _tested(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a test, counted if it may be applied to each of many values by one filter.

    ``%`` of a text would fill it in; the commonest tests, of a type, cost too little to be counted.
    """
    if name in ("divisibleby", "even", "odd"):

        @wraps(function)
        def of_numbers(value: Any, *args: Any) -> Any:
            if not isinstance(value, int | float):
                raise SecurityError(f"{name}: expected a number, got a {type(value).__name__}")
            return function(value, *args)

        return of_numbers
    if name not in ("in", "eq", "equalto", "==", "ne", "!=", "lt", "le", "gt", "ge"):
        return function

    @wraps(function)
    def counted(*args: Any) -> Any:
        current().scan(args[-1])
        return function(*args)

    return counted


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
    elif name in ("split", "rsplit", "splitlines"):
        separator = next((value for value in given if isinstance(value, str)), None)
        budget.split(text, separator, lines=name == "splitlines")
    if name in ("rfind", "rindex", "rpartition", "rsplit", "strip", "lstrip", "rstrip"):
        for value in given:
            budget.search(text, value)
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
    return datetime.now().strftime(_text(form)[:100])


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
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return _call("weighed", [node], node)
        if isinstance(node, nodes.Const) and isinstance(node.value, int):
            Budget.count(node.value)
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
