"""Grammars in llguidance's language, compiled within limits and kept for the next request.

A grammar is a stranger's program. Its size is checked before (``structured``). The compiler counts
its own steps and gives up (``_LIMITS``); it runs without the GIL, on the threads that prepare
requests. The cache of what it made has a bounded length. A mask that takes too many steps ends its
own request.
"""

import contextlib
import json
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import llguidance

from monolane.engine import Engine
from monolane.errors import RequestError
from monolane.serve._grammar.constraint import GrammarWalk, refuse
from monolane.serve._grammar.gbnf_lark import lark_of
from monolane.serve._grammar.key_order import ordered_rules, shared_name
from monolane.serve._grammar.schema_rewrite import check_written, rewritten
from monolane.serve._grammar.structured import MAX_SOURCE, Structured
from monolane.serve._grammar.vocabulary import Vocabulary

MAX_GBNF = 1 << 14  # characters: its reader is Python's, 0.3 s for so many
MAX_WRITTEN = 2 * MAX_SOURCE  # characters of a schema of which ``rewritten`` has copied parts
MAX_KEPT = 64  # compiled grammars; most take a few hundred kilobytes
_GBNF = re.compile(r"^[ \t]*[\w-]+\s*::=", re.MULTILINE)  # a rule
# One line, as json.dumps writes it: what models have seen most, few tokens, and long forced runs.
_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# What one grammar may take: tens of milliseconds a step, tens of megabytes.
_LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=1_000_000,  # 20 ms
    step_lexer_fuel=200_000,  # 15 ms
    step_max_items=50_000,  # 3 ms
    max_items_in_row=5_000,  # an object of MAX_PROPERTIES that may all be left out has 4,007
    max_lexer_states=20_000,  # 1 to 2 kB each
    max_grammar_size=200_000,
    verbose_errors=False,
)


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar to be compiled; equal ones are compiled once."""

    text: str  # a Lark grammar in llguidance's dialect, or its JSON form
    where: str  # the field that it comes from, for messages


def grammar_of(wanted: Structured) -> Grammar:
    """Return the grammar of such an answer; RequestError for a schema that no value meets."""
    if wanted.kind == "json":
        text = "\n".join(json_rules("start", wanted))
    elif wanted.kind == "choice":
        texts = (json.dumps(text, ensure_ascii=False) for text in wanted.source)
        text = f"start: {' | '.join(texts)}"
    elif wanted.kind == "regex":
        text = llguidance.LLMatcher.grammar_from_regex(wanted.source)
    else:
        text = llguidance.LLMatcher.grammar_from_lark(_lark(wanted))
    return Grammar(text, wanted.where)


def _lark(wanted: Structured) -> str:
    """Return a grammar in Lark; one in GBNF, llama.cpp's language, is translated."""
    source: str = wanted.source
    if not _GBNF.search(source):
        return source
    if len(source) > MAX_GBNF:
        raise RequestError(
            f"{wanted.where}: expected at most {MAX_GBNF} characters in GBNF, got {len(source)}; "
            "write it in Lark"
        )
    try:
        return lark_of(source)
    except ValueError as error:
        refuse(wanted.where, str(error))


def json_rules(name: str, wanted: Structured) -> list[str]:
    """Return the Lark rules of this name for kind "json"."""
    options = _JSON if wanted.whitespace is None else {"whitespace_pattern": wanted.whitespace}
    return schema_rules(name, wanted.source, options)


def schema_rules(name: str, schema: Any, options: dict[str, Any] = _JSON) -> list[str]:
    """Return Lark rules for a checked schema, of which the first has this name."""
    if schema is True:
        schema = {}
    if schema is False:
        raise RequestError("schema: expected one that some value meets, got false")
    with contextlib.suppress(TypeError, AttributeError):  # malformed: the compiler names the fault
        schema = rewritten(schema)
    check_written(schema, MAX_WRITTEN)
    own = schema.get("x-guidance")
    if isinstance(own, dict):
        options = {**options, **own}
    elif (found := ordered_rules(name, schema, options)) is not None:
        return found
    return [f"{name}: %json {json.dumps({**schema, 'x-guidance': options})}"]


def shared_rules(schema: Any) -> tuple[str, list[str]]:
    """Return the name of the rule for a schema, and the lines that define it."""
    name = shared_name(json.dumps(schema))
    return name, schema_rules(name, schema)


class Compiler:
    """Compiles grammars for one engine and keeps them; safe to share between threads."""

    def __init__(self, engine: Engine) -> None:
        """Read the vocabulary, which takes a moment for large ones."""
        vocabulary = Vocabulary(engine)
        self._tokenizer = llguidance.LLTokenizer(
            vocabulary,  # type: ignore[arg-type]  # any object with a wrapper's attributes will do
            n_vocab=engine.config.vocab_size,
            eos_token=vocabulary.eos_token_ids,
        )
        self._vocab = engine.config.vocab_size
        self._forces = vocabulary.canonical
        self._kept: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def walk(self, grammar: Grammar) -> GrammarWalk:
        """Return a constraint at the beginning of a grammar; RequestError says what is wrong."""
        with self._lock:
            matcher = self._kept.get(grammar.text)
        if matcher is None:
            matcher = self._compile(grammar)
        with self._lock:
            self._kept[grammar.text] = matcher
            self._kept.move_to_end(grammar.text)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            return GrammarWalk(matcher.deep_copy(), grammar.where, self._vocab, self._forces)

    def _compile(self, grammar: Grammar) -> llguidance.LLMatcher:
        try:
            matcher = llguidance.LLMatcher(
                self._tokenizer, grammar.text, log_level=0, limits=_LIMITS
            )
            if not matcher.is_error():
                matcher.compute_bitmask()  # much is checked with the first mask only
        except BaseException as error:  # a panic of the library is no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            refuse(grammar.where, str(error))
        if matcher.is_error():
            refuse(grammar.where, matcher.get_error())
        return matcher


_compilers: WeakKeyDictionary[Engine, Compiler] = WeakKeyDictionary()
_lock = threading.Lock()  # of the line above


def compiler_of(engine: Engine) -> Compiler:
    """Return the engine's compiler; the first call reads the vocabulary."""
    with _lock:
        if engine not in _compilers:
            _compilers[engine] = Compiler(engine)
        return _compilers[engine]
