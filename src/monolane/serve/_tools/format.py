"""How a model spells tool calls: one row for each family of spellings, and how a model shows it.

The spelling is the model's, so it cannot be chosen freely: a model that was trained on one writes
another badly. What it was trained on stands in its chat template, or in its vocabulary.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from monolane.engine import Engine
from monolane.errors import RequestError

AUTO = "auto"  # the format that the model shows


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One spelling of the calls of an answer: ``before``, calls with ``between``, ``after``.

    A call is spelled in one of three shapes:

        object   {"name": NAME, KEY: ARGUMENTS}
        named    NAME[ARGS]ARGUMENTS, or with another mark, ``args``
        xml      <function=NAME>, <parameter=KEY>, a value, </parameter>, ..., </function>

    That is what an enforced call and the history look like. Reading is more generous: a call begins
    with ``begin``, ``arguments`` and ``parameters`` mean the same, calls may stand in a list, and
    formats with ``end`` read objects and XML.
    """

    name: str
    begin: str
    end: str = ""
    shape: Literal["object", "named", "xml"] = "object"
    key: str = "arguments"
    before: str = ""
    between: str = ""
    after: str = ""
    shown: tuple[str, ...] = ()  # a template with all of these shows this format
    spaced: bool = False  # an enforced call may have a space behind ``begin``
    bare: bool = False  # an answer may be a call without ``begin``
    named: bool = False  # calls of shape "named" are read
    args: str = "[ARGS]"  # in them between name and arguments
    marks: tuple[str, ...] = ()  # further marks, which may be control tokens
    many: bool = True  # several calls in one answer
    short_ids: bool = False  # templates of this family take ids of nine letters and digits only

    def spell(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Return the text of calls, (name, arguments) each."""
        return self.before + self.between.join(self._call(*call) for call in calls) + self.after

    def _call(self, name: str, arguments: Any) -> str:
        if self.shape == "xml" and isinstance(arguments, Mapping):
            values = "".join(
                f"<parameter={key}>\n{value if isinstance(value, str) else _json(value)}\n"
                "</parameter>\n"
                for key, value in arguments.items()
            )
            return f"<function={name}>\n{values}</function>"
        if self.shape == "named":
            return f"{name}{self.args}{_json(arguments)}"
        return _json({"name": name, self.key: arguments})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


HERMES = ToolFormat(
    "hermes",
    "<tool_call>",
    "</tool_call>",
    before="<tool_call>\n",
    between="\n</tool_call>\n<tool_call>\n",
    after="\n</tool_call>",
    shown=("<tool_call>",),
)
XML = replace(HERMES, name="xml", shape="xml", shown=("<tool_call>", "<function="))
MISTRAL = ToolFormat(
    "mistral",
    "[TOOL_CALLS]",
    before="[TOOL_CALLS][",
    between=", ",
    after="]",
    shown=("[TOOL_CALLS]",),
    spaced=True,
    named=True,
    marks=("[ARGS]", "[CALL_ID]"),
    short_ids=True,
)
MISTRAL_NAMED = replace(
    MISTRAL,
    name="mistral-named",
    shape="named",
    before="[TOOL_CALLS]",
    between="[TOOL_CALLS]",
    after="",
    shown=("[TOOL_CALLS]", "[ARGS]"),
    spaced=False,
)
# GPT-OSS's, behind "<|start|>assistant", with which the prompt ends. A model may write a header
# otherwise: text/_harmony.py brings it into this spelling, and puts that beginning before it.
HARMONY = ToolFormat(
    "harmony",
    "<|start|>assistant to=functions.",
    shape="named",
    before="to=functions.",
    after="<|call|>",
    shown=("<|channel|>analysis<|message|>", "functions."),
    spaced=True,
    named=True,
    args="<|channel|>commentary json<|message|>",
    marks=("<|start|>", "<|channel|>", "<|message|>", "<|call|>"),
    many=False,
)
LLAMA = ToolFormat(
    "llama",
    "<|python_tag|>",
    key="parameters",
    between="; ",
    shown=("<|python_tag|>",),
    bare=True,
    many=False,
)
# SmolLM2 was trained on lists; its template knows no tools, but names the model.
SMOLLM = replace(
    HERMES,
    name="smollm",
    before="<tool_call>[",
    between=", ",
    after="]</tool_call>",
    shown=("named SmolLM, trained by Hugging Face<|im_end|>",),
)
# Where the model shows nothing: what Hermes models write, and plain JSON.
GENERIC = replace(HERMES, name="generic", shown=(), bare=True)
# The first that fits.
FORMATS = (XML, HERMES, MISTRAL_NAMED, MISTRAL, LLAMA, SMOLLM, HARMONY, GENERIC)
# Special tokens that show a format where a template knows tools and spells none of its marks.
_TOKENS = (LLAMA,)


def format_of(engine: Engine, name: str = AUTO) -> ToolFormat:
    """Return the format of this name; "auto": the one that template or vocabulary shows.

    RequestError for a name that is none.
    """
    if name != AUTO:
        return format_named(name)
    source = engine.chat_template.for_tools.source
    for tool_format in FORMATS:
        if tool_format.shown and all(mark in source for mark in tool_format.shown):
            return tool_format
    if engine.tokenizer is not None and "tools" in source:
        for tool_format in _TOKENS:
            if engine.tokenizer.id_of(tool_format.begin) is not None:
                return tool_format
    return GENERIC


def format_named(name: str) -> ToolFormat:
    """Return the format of this name; RequestError names those that there are."""
    for tool_format in FORMATS:
        if tool_format.name == name:
            return tool_format
    names = ", ".join((AUTO, *(tool_format.name for tool_format in FORMATS)))
    raise RequestError(f"tool_format: expected one of {names}, got {name!r:.80}")


def mark_ids(tool_format: ToolFormat, engine: Engine) -> dict[str, int]:
    """Return the format's marks that are control tokens of this vocabulary, and their ids."""
    tokenizer = engine.tokenizer
    if tokenizer is None:
        return {}
    marks = {
        tool_format.begin,
        tool_format.end,
        *tool_format.marks,
    } & tokenizer.control_spellings.all
    found = {mark: tokenizer.id_of(mark) for mark in marks}
    return {mark: token for mark, token in found.items() if token is not None}
