"""Grammars in llguidance's language, compiled within budgets, and kept for the next request.

A grammar is a stranger's program. Sizes are checked before (``_constraint_fields``); the compiler
counts its own steps and gives up (``_limits``), it works without the GIL on the thread that
prepares requests, and what it makes is kept in a cache of bounded length. A mask that takes too
many steps ends its own request.
"""

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from monolane.engine import Engine, Guide
from monolane.errors import RequestError
from monolane.serve._constraint_fields import Wanted, check_schema
from monolane.serve._constraint_tokens import Vocabulary

if TYPE_CHECKING:
    import llguidance

MAX_KEPT = 64  # compiled grammars; most take a few hundred kilobytes
# One line, as json.dumps writes it: what models have seen most, few tokens, and long forced runs.
_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar to be compiled; equal ones are compiled once."""

    text: str  # a Lark grammar in llguidance's dialect, or its JSON form
    where: str  # the field that it comes from, for messages


def grammar_of(want: Wanted) -> Grammar:
    """Return the grammar of a wish; RequestError for a schema that is no JSON."""
    import llguidance

    make = llguidance.LLMatcher
    if want.kind == "json":
        return Grammar(f"start: {json_rule(want)}", want.where)
    if want.kind == "choice":
        options = " | ".join(json.dumps(text, ensure_ascii=False) for text in want.source)
        return Grammar(f"start: {options}", want.where)
    if want.kind == "regex":
        return Grammar(make.grammar_from_regex(want.source), want.where)
    return Grammar(make.grammar_from_lark(want.source), want.where)


def json_rule(want: Wanted) -> str:
    """Return the right side of a Lark rule for a JSON schema."""
    schema = want.source
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{want.where}: expected a JSON schema: {error!s:.200}") from None
        check_schema(schema, want.where)
    options = _JSON if want.whitespace is None else {"whitespace_pattern": want.whitespace}
    return schema_rule(schema, options)


def schema_rule(schema: Any, options: dict[str, Any] = _JSON) -> str:
    """Return the right side of a Lark rule for a checked schema."""
    if schema is True:
        schema = {}
    if schema is False:
        raise RequestError("schema: expected one that some value meets, got false")
    own = schema.get("x-guidance")
    merged = {**options, **own} if isinstance(own, dict) else options
    return f"%json {json.dumps({**schema, 'x-guidance': merged})}"


class Grammars:
    """The compiled grammars of one engine; safe to share between threads."""

    def __init__(self, engine: Engine) -> None:
        """Read the vocabulary, which takes a moment for large ones."""
        import llguidance

        vocabulary = Vocabulary(engine)
        self._tokenizer = llguidance.LLTokenizer(
            vocabulary,  # type: ignore[arg-type]  # whatever has a wrapper's attributes will do
            n_vocab=engine.config.vocab_size,
            eos_token=vocabulary.eos_token_ids,
        )
        self._vocab = engine.config.vocab_size
        self._forces = vocabulary.canonical
        self._kept: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def walk(self, grammar: Grammar) -> "GrammarWalk":
        """Return a constraint at the beginning of a grammar; RequestError says what is wrong."""
        with self._lock:
            found = self._kept.pop(grammar.text, None)
            if found is not None:
                self._kept[grammar.text] = found
                return self._walk(found, grammar)
        compiled = self._compile(grammar)
        with self._lock:
            self._kept[grammar.text] = compiled
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            return self._walk(compiled, grammar)

    def _walk(self, matcher: "llguidance.LLMatcher", grammar: Grammar) -> "GrammarWalk":
        return GrammarWalk(matcher.deep_copy(), grammar.where, self._vocab, self._forces)

    def _compile(self, grammar: Grammar) -> "llguidance.LLMatcher":
        import llguidance

        try:
            matcher = llguidance.LLMatcher(
                self._tokenizer, grammar.text, log_level=0, limits=_limits()
            )
            if not matcher.is_error():
                matcher.compute_bitmask()  # much is checked with the first mask only
        except BaseException as error:  # a panic of the library is no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            _refuse(grammar.where, str(error))
        if matcher.is_error():
            _refuse(grammar.where, matcher.get_error())
        return matcher


class GrammarWalk:
    """The place of one answer in its grammar: the engine's ``Constraint``."""

    def __init__(
        self, matcher: "llguidance.LLMatcher", where: str, vocab: int, forces: bool
    ) -> None:
        self._matcher, self._where, self._forces = matcher, where, forces
        self._words = -(-vocab // 32)

    def step(self, token_id: int | None) -> Guide:
        """Take the token drawn, None at first; say what may follow it."""
        matcher = self._matcher
        if token_id is not None:
            matcher.consume_token(token_id)
        forced = matcher.compute_ff_tokens() if self._forces else []
        # No more than what the grammar takes: how a text is cut is the tokenizer's word alone.
        forced = forced[: matcher.validate_tokens(forced)] if forced else []
        if forced:
            matcher.consume_tokens(forced)
        if matcher.is_stopped():
            self._check()
            return Guide(None, tuple(forced))
        bits = matcher.compute_bitmask()
        self._check()
        return Guide(np.frombuffer(bits, np.uint32)[: self._words], tuple(forced))

    def _check(self) -> None:
        if self._matcher.is_error():
            _refuse(self._where, self._matcher.get_error())


def _limits() -> "llguidance.LLParserLimits":
    """Bound what one grammar may take: tens of milliseconds a step, tens of megabytes."""
    import llguidance

    return llguidance.LLParserLimits(
        initial_lexer_fuel=1_000_000,  # 20 ms
        step_lexer_fuel=200_000,  # 15 ms
        step_max_items=50_000,  # 3 ms
        max_items_in_row=2_000,
        max_lexer_states=20_000,  # 1 to 2 kB each
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def _refuse(where: str, reason: str) -> NoReturn:
    """Raise the RequestError, on one line and without the library's excerpts of its own state."""
    line = " ".join(reason.replace("<non-verbose/>", "").split())
    line = line.replace("NoExtensionBias", "no text meets it")
    raise RequestError(f"{where}: cannot be followed: {line:.400}")
