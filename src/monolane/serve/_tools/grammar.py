"""The grammar of an answer that must call tools, or that may give a value or a text instead."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from monolane.errors import RequestError
from monolane.serve._grammar.compiler import (
    MAX_WRITTEN,
    Grammar,
    grammar_of,
    json_rule,
    schema_rule,
)
from monolane.serve._grammar.structured import Structured
from monolane.serve._tools.format import ToolFormat
from monolane.serve._tools.request import Tool, ToolUse

MAX_CALLS = 4 * MAX_WRITTEN  # characters of the grammar of all calls: twice those of all tools
_ANY = {"type": "object"}  # arguments of a tool that is not strict
_ID = "/[a-zA-Z0-9]{9}/"  # of a call, where the model writes one itself
# Keywords of a schema that do not narrow a text, so that it may stand in XML without quotes.
_NOTES = frozenset(("type", "description", "title", "default", "examples"))
_PLAIN_TYPES = frozenset(("integer", "number", "boolean", "object", "array"))


def answer_grammar(wanted: Structured | None, tools: ToolUse | None) -> Grammar | None:
    """Return the grammar of an answer: of its text, of its tool calls, or of either.

    None where any text will do; RequestError where the two exclude each other.
    """
    if tools is None:
        return None if wanted is None else grammar_of(wanted)
    if wanted is None:
        if tools.required:
            return Grammar(calls_grammar(tools), "tools")
        # Nothing but a grammar keeps a model from a tool that it was shown and may not call.
        held = len(tools.callable) < len(tools.tools) or any(t.strict for t in tools.callable)
        return Grammar(strict_grammar(tools), "tools") if held else None
    if tools.required:
        raise RequestError(f"{wanted.where}: expected none where tool_choice requires a call")
    if wanted.kind != "json":
        raise RequestError(
            f"{wanted.where}: only JSON can stand beside tools; set tool_choice to 'none'"
        )
    return Grammar(calls_grammar(tools, json_rule(wanted)), wanted.where)


def calls_grammar(use: ToolUse, answer: str | None = None) -> str:
    """Return the Lark grammar of one or more calls, or of the rule ``answer``."""
    mark = _literal(_mark(use.format), use.marks)
    lines = [
        f"start: {'calls' if answer is None else 'calls | answer'}",
        f"calls: {mark} {_calls(use)}",
        *_tools(use, use.callable),
    ]
    return "\n".join(lines if answer is None else [*lines, f"answer: {answer}"])


def strict_grammar(use: ToolUse) -> str:
    """Return the Lark grammar of any text, and after it calls that meet their schemas, or none.

    Where a call needs no mark, an answer that begins with a brace or a bracket is a call.
    RequestError for a format whose calls are messages of their own.
    """
    tools = tuple(tool if tool.strict else replace(tool, parameters=_ANY) for tool in use.callable)
    form = use.format
    marked = bool(_mark(form))
    if not marked and not form.bare:
        raise RequestError(
            f"tools: calls of the format {form.name} are messages of their own, so no grammar can "
            "hold text and calls together; leave out strict and allowed_tools, or require a call"
        )
    text = r"([^\s{\[](.|\n)*)?" if form.bare else r"(.|\n)*"
    mark = re.escape(form.begin).replace("/", r"\/")
    spelled = form.begin not in use.marks  # letter by letter: text must not come to it
    lines = [f"TEXT: /{text}/" + (rf" & ~/(.|\n)*{mark}(.|\n)*/" if spelled else "")]
    if marked and spelled:  # a text may end with a part of the mark: one token for the lexer
        lines += ["start: TEXT | lead rest", f"lead[lazy]: /{text}{mark}/"]
    elif marked:
        lines += [f"start: TEXT | TEXT {_literal(form.begin, use.marks)} rest"]
    else:
        lines += ["start: TEXT | rest"]
    return "\n".join([*lines, f"rest: {_calls(use)}", *_tools(use, tools)])


def _mark(form: ToolFormat) -> str:
    """Return the mark that calls begin with; empty where models leave it out."""
    return form.begin if form.before.startswith(form.begin) else ""


def _calls(use: ToolUse) -> str:
    """Return the right side of a rule for the calls of an answer, behind the mark."""
    form, marks = use.format, use.marks
    before = _literal(form.before.removeprefix(_mark(form)), marks)
    further = f"({_literal(form.between, marks)} call)*" if use.parallel and form.many else ""
    space = '" "?' if form.spaced else ""
    return f"{space} {before} call {further} {_literal(form.after, marks)}".strip()


def _literal(text: str, marks: Mapping[str, int]) -> str:
    """Return the rule of a fixed text, in which marks that are control tokens are those tokens."""
    cuts = "|".join(map(re.escape, marks)) or "(?!)"
    parts = filter(None, re.split(f"({cuts})", text))
    return " ".join(f"<[{marks[part]}]>" if part in marks else json.dumps(part) for part in parts)


def _tools(use: ToolUse, tools: Sequence[Tool]) -> list[str]:
    """Return the rules of the calls of each tool."""
    lines = ["call: " + " | ".join(f"call_{i}" for i in range(len(tools)))]
    if use.format.shape == "xml":
        # To the first end tag, wherever a token cuts it.
        lines += ['text_value: lines "\\n"', r"lines[lazy]: /\n(.|\n)*<\/parameter>/"]
    size = 0
    for i, tool in enumerate(tools):
        lines += (call := list(_call(i, tool, use)))
        size += sum(map(len, call))
        if size > MAX_CALLS:
            raise RequestError(
                f"tools: expected at most {MAX_CALLS} characters in the grammar of their calls, "
                "got more; send fewer tools, or schemas with less of contains, dependentRequired "
                "and uniqueItems"
            )
    return lines


def _call(i: int, tool: Tool, use: ToolUse) -> Iterator[str]:
    """Yield the rules of one tool's call."""
    if use.format.shape == "xml" and _fits_xml(tool.parameters):
        yield from _xml_call(i, tool)
        return
    if use.format.shape == "named":
        own_id = f"(<[{use.marks['[CALL_ID]']}]> {_ID})?" if "[CALL_ID]" in use.marks else ""
        mark = _literal(use.format.args, use.marks)
        yield f"call_{i}: {json.dumps(tool.name)} {own_id} {mark} args_{i}"
    else:
        head = json.dumps(f'{{"name": {json.dumps(tool.name)}, "{use.format.key}": ')
        yield f'call_{i}: {head} args_{i} "}}"'
    yield f"args_{i}: {schema_rule(tool.parameters)}"


def _fits_xml(schema: Any) -> bool:
    """Tell whether arguments of this schema can be written in XML, value by value.

    A value stands there as plain text, so it must be clear from its schema whether it is a text,
    and a text must not be narrowed but by a list of the allowed ones.
    """
    known = {"type", "properties", "required", "additionalProperties", "description", "title"}
    if not isinstance(schema, Mapping) or not known.issuperset(schema):
        return False
    properties, required = schema.get("properties", {}), schema.get("required") or []
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return False  # no schema: the compiler says so
    return isinstance(properties, Mapping) and all(
        re.fullmatch(r"[\w.-]+", key) and _kind(properties[key]) for key in properties
    )


def _kind(schema: Any) -> str | None:
    """Return how a value is written in XML: as "json", "text" or one of "texts"; None: unclear."""
    if not isinstance(schema, Mapping):
        return None
    kind, allowed = schema.get("type"), schema.get("enum")
    if isinstance(kind, str) and kind in _PLAIN_TYPES:  # a list of types may allow a text, too
        return "json"
    if allowed is None:
        return "text" if kind == "string" and _NOTES.issuperset(schema) else None
    if not _NOTES.issuperset(schema.keys() - {"enum"}) or not isinstance(allowed, list):
        return None
    if all(isinstance(value, str) and value.strip() for value in allowed):
        return "texts"
    return None if any(isinstance(value, str) for value in allowed) else "json"


def _xml_call(i: int, tool: Tool) -> Iterator[str]:
    """Yield the rules of one tool's call in XML."""
    schema = tool.parameters
    required, names = schema.get("required") or (), []
    for j, (key, value) in enumerate(schema.get("properties", {}).items()):
        name = f"value_{i}_{j}"
        names.append(name if key in required else f"{name}?")
        yield f"{name}: {json.dumps(f'<parameter={key}>')} {_xml_value(value)}"
    if not names and schema.get("additionalProperties") is not False:
        names = [f"any_{i}*"]
        yield rf'any_{i}: "<parameter=" /[\w.-]+/ ">" {_xml_value({"type": "string"})}'
    head = json.dumps(f"<function={tool.name}>\n")
    yield f'call_{i}: {" ".join((head, *names))} "</function>"'


def _xml_value(schema: Mapping[str, Any]) -> str:
    """Return the rule of a value, to the line break behind its tag."""
    kind = _kind(schema)
    if kind == "text":
        return "text_value"
    if kind == "json":
        value = schema_rule(schema)
    else:
        value = f"({' | '.join(json.dumps(text, ensure_ascii=False) for text in schema['enum'])})"
    return f'"\\n" {value} "\\n</parameter>\\n"'
