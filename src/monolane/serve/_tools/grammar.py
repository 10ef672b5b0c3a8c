"""The grammar of an answer that must call tools, or that may give a value or a text instead."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from monolane.errors import RequestError
from monolane.serve._grammar.compiler import Grammar, grammar_of, json_rule, schema_rule
from monolane.serve._grammar.structured import Structured
from monolane.serve._tools.request import Tool, ToolUse

_ANY = {"type": "object"}  # arguments of a tool that is not strict


def answer_grammar(wanted: Structured | None, tools: ToolUse | None) -> Grammar | None:
    """Return the grammar of an answer: of its text, of its tool calls, or of either.

    None where any text will do; RequestError where the two exclude each other.
    """
    if tools is None:
        return None if wanted is None else grammar_of(wanted)
    if wanted is None:
        if tools.required:
            return Grammar(calls_grammar(tools), "tools")
        strict = any(tool.strict for tool in tools.callable)
        return Grammar(strict_grammar(tools), "tools") if strict else None
    if tools.required:
        raise RequestError(f"{wanted.where}: expected none where tool_choice requires a call")
    if wanted.kind != "json":
        raise RequestError(
            f"{wanted.where}: only JSON can stand beside tools; set tool_choice to 'none'"
        )
    return Grammar(calls_grammar(tools, json_rule(wanted)), wanted.where)


def calls_grammar(use: ToolUse, answer: str | None = None) -> str:
    """Return the Lark grammar of one or more calls, or of the rule ``answer``."""
    begin, rest = _calls(use)
    lines = [
        f"start: {'calls' if answer is None else 'calls | answer'}",
        f"calls: {' '.join(filter(None, (begin, rest)))}",
        *_tools(use.callable, use.format.key),
    ]
    return "\n".join(lines if answer is None else [*lines, f"answer: {answer}"])


def strict_grammar(use: ToolUse) -> str:
    """Return the Lark grammar of any text, and after it calls that meet their schemas, or none.

    Where a call needs no mark, an answer that begins with a brace or a bracket is a call.
    """
    tools = tuple(tool if tool.strict else replace(tool, parameters=_ANY) for tool in use.callable)
    begin, rest = _calls(use)
    text = r"([^\s{\[](.|\n)*)?" if use.format.bare else r"(.|\n)*"
    mark = re.escape(use.format.begin).replace("/", r"\/")
    spelled = use.format.begin not in use.marks  # letter by letter: text must not come to it
    lines = [f"TEXT: /{text}/" + (rf" & ~/(.|\n)*{mark}(.|\n)*/" if spelled else "")]
    if begin and spelled:  # a text may end with a part of the mark: one token for the lexer
        lines += ["start: TEXT | lead rest", f"lead[lazy]: /{text}{mark}/"]
    else:
        lines += [f"start: TEXT | {f'TEXT {begin} rest' if begin else 'rest'}"]
    return "\n".join([*lines, f"rest: {rest}", *_tools(tools, use.format.key)])


def _calls(use: ToolUse) -> tuple[str, str]:
    """Return the mark that calls begin with, "" for none, and what follows it."""
    begin, end = (
        f"<[{use.marks[mark]}]>" if mark in use.marks else json.dumps(mark)
        for mark in (use.format.begin, use.format.end)
    )
    many = use.parallel and use.format.many
    if use.format.listed:
        return begin, '" [" call (", " call)* "]"' if many else '" [" call "]"'
    if not use.format.end:
        return "", "call"  # the family's models write it without its mark
    one = f'"\\n" call "\\n" {end}'
    return begin, f'{one} ("\\n" {begin} {one})*' if many else one


def _tools(tools: Sequence[Tool], key: str) -> list[str]:
    """Return the rules of the calls of each tool; their arguments stand under ``key``."""
    lines = ["call: " + " | ".join(f"call_{i}" for i in range(len(tools)))]
    for i, tool in enumerate(tools):
        head = json.dumps(f'{{"name": {json.dumps(tool.name)}, "{key}": ')
        lines += [f'call_{i}: {head} args_{i} "}}"', f"args_{i}: {schema_rule(tool.parameters)}"]
    return lines
