"""Tool calls in the text of an answer."""

from monolane.engine import Engine
from monolane.serve._delta import TextParser
from monolane.serve._requests import ChatRequest
from monolane.serve._tools_format import format_of, mark_ids
from monolane.serve._tools_parser import ToolParser
from monolane.serve._tools_request import tool_use


def text_parser(request: ChatRequest, engine: Engine) -> TextParser | None:
    """Return what reads the text of one choice, or None where all of it is content."""
    use = tool_use(request)
    if use is None:
        return None
    return ToolParser(format_of(engine), use.schemas, many=use.parallel)


def visible_ids(request: ChatRequest, engine: Engine) -> tuple[int, ...]:
    """Return the control tokens that the parser must see, though texts leave them out."""
    if tool_use(request) is None:
        return ()
    return tuple(sorted(mark_ids(format_of(engine), engine).values()))
