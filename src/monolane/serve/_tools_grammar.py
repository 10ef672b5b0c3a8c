"""The grammar of an answer that must call tools, or that may give a value or a text instead."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from monolane.serve._constraint_grammar import schema_rule
from monolane.serve._tools_format import ToolFormat
from monolane.serve._tools_request import Tool, ToolUse

_ANY = {"type": "object"}  # arguments of a tool that is not strict, beside one that is


def calls_grammar(
    use: ToolUse, tool_format: ToolFormat, marks: dict[str, int], answer: str | None = None
) -> str:
    """Return the Lark grammar of one or more calls, or of the rule ``answer``.

    ``marks``: spellings that are control tokens of the vocabulary, with their ids.
    """
    begin, rest = _calls(use, tool_format, marks)
    lines = [
        f"start: {'calls' if answer is None else 'calls | answer'}",
        f"calls: {' '.join(filter(None, (begin, rest)))}",
        *_tools(use.callable, tool_format),
    ]
    return "\n".join(lines if answer is None else [*lines, f"answer: {answer}"])


def strict_grammar(use: ToolUse, tool_format: ToolFormat, marks: dict[str, int]) -> str:
    """Return the Lark grammar of any text, behind which calls may stand that meet their schemas.

    Where a call needs no mark, what begins with a brace or a bracket is one.
    """
    tools = tuple(tool if tool.strict else replace(tool, parameters=_ANY) for tool in use.callable)
    begin, rest = _calls(use, tool_format, marks)
    text = r"([^\s{\[](.|\n)*)?" if tool_format.bare else r"(.|\n)*"
    mark = re.escape(tool_format.begin).replace("/", r"\/")
    spelled = tool_format.begin not in marks  # letter by letter: text must not come to it
    lines = [f"TEXT: /{text}/" + (rf" & ~/(.|\n)*{mark}(.|\n)*/" if spelled else "")]
    if begin and spelled:  # a text may end with a part of the mark: one piece for the lexer
        lines += ["start: TEXT | lead rest", f"lead[lazy]: /{text}{mark}/"]
    else:
        lines += [f"start: TEXT | {f'TEXT {begin} rest' if begin else 'rest'}"]
    return "\n".join([*lines, f"rest: {rest}", *_tools(tools, tool_format)])


def _calls(use: ToolUse, tool_format: ToolFormat, marks: dict[str, int]) -> tuple[str, str]:
    """Return the mark that calls begin with, "" for none, and what stands behind it."""
    begin, end = (_mark(mark, marks) for mark in (tool_format.begin, tool_format.end))
    many = use.parallel and tool_format.many
    if tool_format.listed:
        return begin, '" [" call (", " call)* "]"' if many else '" [" call "]"'
    if not tool_format.end:
        return "", "call"  # the family's models write it without its mark
    one = f'"\\n" call "\\n" {end}'
    return begin, f'{one} ("\\n" {begin} {one})*' if many else one


def _tools(tools: Sequence[Tool], tool_format: ToolFormat) -> list[str]:
    """Return the rules of the calls of each tool."""
    lines = ["call: " + " | ".join(f"call_{i}" for i in range(len(tools)))]
    for i, tool in enumerate(tools):
        lines += [_call(i, tool, tool_format), f"args_{i}: {schema_rule(tool.parameters)}"]
    return lines


def _call(index: int, tool: Tool, tool_format: ToolFormat) -> str:
    head = f'{{"name": {json.dumps(tool.name)}, "{tool_format.key}": '
    return f'call_{index}: {json.dumps(head)} args_{index} "}}"'


def _mark(mark: str, marks: dict[str, int]) -> str:
    return f"<[{marks[mark]}]>" if mark in marks else json.dumps(mark)
