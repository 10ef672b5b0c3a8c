"""The grammar of an answer that must call tools, or that may give a value or a text instead."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from monolane.errors import RequestError
from monolane.serve._grammar.compiler import (
    MAX_WRITTEN,
    Grammar,
    grammar_of,
    json_rules,
)
from monolane.serve._grammar.structured import Structured
from monolane.serve._tools.format import ToolFormat
from monolane.serve._tools.literal import literal_rule, regex_of
from monolane.serve._tools.request import Tool, ToolUse

MAX_CALLS = 4 * MAX_WRITTEN  # characters of the grammar of all calls: twice those of all tools
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
        return Grammar(strict_grammar(tools), "tools") if tools.guided else None
    if tools.required:
        raise RequestError(f"{wanted.where}: expected none where tool_choice requires a call")
    if wanted.kind != "json":
        raise RequestError(
            f"{wanted.where}: only JSON can stand beside tools; set tool_choice to 'none'"
        )
    return Grammar(calls_grammar(tools, json_rules("answer", wanted)), wanted.where)


def calls_grammar(use: ToolUse, answer: Sequence[str] = ()) -> str:
    """Return the Lark grammar of one or more calls, or of what ``answer`` says: its rules."""
    mark = literal_rule(_mark(use.format), use.marks)
    lines = [
        f"start: {'calls | answer' if answer else 'calls'}",
        f"calls: {mark} {_calls(use)}",
        *_tools(use, use.callable),
        *answer,
    ]
    return _text(lines)


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
    mark = regex_of(form.begin)
    spelled = form.begin not in use.marks  # letter by letter: text must not come to it
    lines = [f"TEXT: /{text}/" + (rf" & ~/(.|\n)*{mark}(.|\n)*/" if spelled else "")]
    if marked and spelled:  # a text may end with a part of the mark: one token for the lexer
        lines += ["start: TEXT | lead rest", f"lead[lazy]: /{text}{mark}/"]
    elif marked:
        lines += [f"start: TEXT | TEXT {literal_rule(form.begin, use.marks)} rest"]
    else:
        lines += ["start: TEXT | rest"]
    return _text([*lines, f"rest: {_calls(use)}", *_tools(use, tools)])


def _text(lines: Iterable[str]) -> str:
    """Return the text of rules; those that several schemas share are told once."""
    return "\n".join(dict.fromkeys(lines))


def _mark(form: ToolFormat) -> str:
    """Return the mark that calls begin with; empty where models leave it out."""
    return form.begin if form.before.startswith(form.begin) else ""


def _calls(use: ToolUse) -> str:
    """Return the right side of a rule for the calls of an answer, behind the mark."""
    form, marks = use.format, use.marks
    before = literal_rule(form.before.removeprefix(_mark(form)), marks)
    further = f"({literal_rule(form.between, marks)} call)*" if use.parallel and form.many else ""
    space = '" "?' if form.spaced else ""
    return f"{space} {before} call {further} {literal_rule(form.after, marks)}".strip()


def _tools(use: ToolUse, tools: Sequence[Tool]) -> list[str]:
    """Return the rules of the calls of each tool."""
    lines = ["call: " + " | ".join(f"call_{i}" for i in range(len(tools)))]
    size = 0
    for i, tool in enumerate(tools):
        call = list(use.format.shape.rules(i, tool.name, tool.parameters, use.marks))
        lines += call
        size += sum(map(len, call))
        if size > MAX_CALLS:
            raise RequestError(
                f"tools: expected at most {MAX_CALLS} characters in the grammar of their calls, "
                "got more; send fewer tools, or schemas with less of contains, dependentRequired "
                "and uniqueItems"
            )
    return lines
