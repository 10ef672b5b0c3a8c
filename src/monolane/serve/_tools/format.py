"""How a model spells a tool call: one row for each family of spellings, found by its template."""

from dataclasses import dataclass

from monolane.engine import Engine


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One spelling: ``begin`` call ``end``.

    A call is ``{"name": ..., "arguments": ...}``. In every family ``parameters`` is read as
    ``arguments``, and calls may stand in a list. ``bare``: an answer may be a call without
    ``begin``.
    """

    name: str
    begin: str
    end: str = ""
    key: str = "arguments"  # as this family's models write it
    listed: bool = False  # calls stand in one list
    bare: bool = False
    named: bool = False  # also: begin, the name, [ARGS], the arguments
    many: bool = True  # several calls in one answer
    short_ids: bool = False  # templates of this family take ids of nine letters and digits only


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>")
LLAMA = ToolFormat("llama", "<|python_tag|>", key="parameters", bare=True, many=False)
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", listed=True, named=True, short_ids=True)
# Where the folder says nothing: what Hermes models write, and plain JSON.
GENERIC = ToolFormat("generic", "<tool_call>", "</tool_call>", bare=True)
FORMATS = (HERMES, LLAMA, MISTRAL, GENERIC)


def format_of(engine: Engine) -> ToolFormat:
    """Return the format that the folder's chat template shows, else the generic one."""
    source = engine.chat_template.source
    if HERMES.begin in source:
        return HERMES
    if MISTRAL.begin in source:
        return MISTRAL
    tagged = engine.tokenizer is not None and engine.tokenizer.id_of(LLAMA.begin) is not None
    if LLAMA.begin in source or (tagged and "tools" in source):
        return LLAMA
    return GENERIC


def mark_ids(tool_format: ToolFormat, engine: Engine) -> dict[str, int]:
    """Return the format's marks that are control tokens of this vocabulary, and their ids."""
    tokenizer = engine.tokenizer
    if tokenizer is None:
        return {}
    further = ("[ARGS]", "[CALL_ID]") if tool_format.named else ()
    marks = {tool_format.begin, tool_format.end, *further} & tokenizer.control_spellings.all
    found = {mark: tokenizer.id_of(mark) for mark in marks}
    return {mark: token for mark, token in found.items() if token is not None}
