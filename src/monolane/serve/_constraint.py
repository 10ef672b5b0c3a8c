"""What an answer must look like, from the fields of a request."""

import threading
from weakref import WeakKeyDictionary

from monolane.engine import Constraint, Engine
from monolane.errors import RequestError
from monolane.serve._constraint_fields import wanted
from monolane.serve._constraint_grammar import Grammar, Grammars, grammar_of, json_rule
from monolane.serve._constraint_length import AtLeast
from monolane.serve._requests import AnswerRequest, ChatRequest
from monolane.serve._tools_format import format_of, mark_ids
from monolane.serve._tools_grammar import calls_grammar, strict_grammar
from monolane.serve._tools_request import ToolUse, tool_use

_grammars: WeakKeyDictionary[Engine, Grammars] = WeakKeyDictionary()
_lock = threading.Lock()


def constraint_of(request: AnswerRequest, engine: Engine) -> Constraint | None:
    """Return the constraint of one choice; RequestError if it cannot be made.

    It may take as long as compiling a grammar does, so it is not for the event loop.
    """
    grammar = requested_grammar(request, engine)
    walk = None if grammar is None else grammars_of(engine).walk(grammar)
    if not request.min_tokens:
        return walk
    return AtLeast(request.min_tokens, _ends(request, engine), engine.config.vocab_size, walk)


def _ends(request: AnswerRequest, engine: Engine) -> frozenset[int]:
    """Return the tokens that end an answer."""
    return frozenset(request.stop_token_ids or ()) | (
        frozenset() if request.ignore_eos else engine.eos_ids
    )


def requested_grammar(request: AnswerRequest, engine: Engine) -> Grammar | None:
    """Return the grammar of the answer: of its text, of its tool calls, or of either."""
    want = wanted(request)
    use = tool_use(request) if isinstance(request, ChatRequest) else None
    if use is not None and use.required:
        if want is not None:
            raise RequestError(f"{want.where}: expected none where tool_choice requires a call")
        return Grammar(_calls(use, engine), "tools")
    if want is None:
        return Grammar(_strict_calls(use, engine), "tools") if use and use.strict else None
    if use is None:
        return grammar_of(want)
    if want.kind != "json":
        raise RequestError(
            f"{want.where}: only JSON can stand beside tools; set tool_choice to 'none'"
        )
    return Grammar(_calls(use, engine, json_rule(want)), want.where)


def _calls(use: ToolUse, engine: Engine, answer: str | None = None) -> str:
    tool_format = format_of(engine)
    return calls_grammar(use, tool_format, mark_ids(tool_format, engine), answer)


def _strict_calls(use: ToolUse, engine: Engine) -> str:
    tool_format = format_of(engine)
    return strict_grammar(use, tool_format, mark_ids(tool_format, engine))


def grammars_of(engine: Engine) -> Grammars:
    """Return the engine's compiled grammars; the first call reads the vocabulary."""
    with _lock:
        if engine not in _grammars:
            _grammars[engine] = Grammars(engine)
        return _grammars[engine]
