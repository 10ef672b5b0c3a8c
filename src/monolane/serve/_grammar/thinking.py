"""Puts a thinking part before a grammar: the model thinks as it likes, then the grammar begins.

Not a constraint that waits for the mark's token: a mark may be spelled letter by letter, and the
token that ends it may have the first letters of the answer in it. Within the grammar, the lexer
cuts such a token. And the end of sequence is not allowed before the answer is whole.
"""

import json
import re

from monolane.serve._grammar.compiler import Grammar
from monolane.text import Thinking, Tokenizer

_SPACE = r"/[ \t\r\n]{1,4}/"  # between the mark and the answer


def after_thinking(grammar: Grammar, thinking: Thinking, tokenizer: Tokenizer) -> Grammar:
    """Return the grammar of an answer that may think, and must where the prompt has begun to."""
    end = _token(thinking.end, tokenizer)
    if end is None:
        mark = re.sub(r"[/\[\]|]", r"\\\g<0>", thinking.end)
        lines = [rf"thought[lazy]: /(.|\n)*{mark}/"]
    else:
        lines = [f"thought: TEXT {end}", r"TEXT: /(.|\n)*/"]
    part = "thought" if thinking.opened else f"({_spelled(thinking.begin, tokenizer)} thought)?"
    parts = [] if thinking.closed else [part, "SPACE?"]
    if thinking.answer is not None and thinking.answer[0]:
        parts.append(f"({_spelled(thinking.answer[0], tokenizer)} SPACE?)?")
    head = [f"start: {' '.join(parts)} @answer", f"SPACE: {_SPACE}"]
    return _with_head(grammar, "\n".join(head if thinking.closed else [*head, *lines]))


def in_channels(grammar: Grammar, tokenizer: Tokenizer, *, calls: bool) -> Grammar:
    """Return the grammar of an answer in channels: an analysis or none, and then the last message.

    ``calls``: the grammar is that of calls, which have their own header; else of the final text.
    """
    names = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>")
    channel, message, end, start = (_token(x, tokenizer) or json.dumps(x) for x in names)
    thought = f'{channel} "analysis" {message} TEXT {end} {start} "assistant"'
    last = "@answer" if calls else f'{channel} "final" {message} @answer'
    return _with_head(grammar, f"start: ({thought})? {last}\nTEXT: /(.|\\n)*/")


def _with_head(grammar: Grammar, head: str) -> Grammar:
    text = grammar.text
    rest = json.loads(text)["grammars"] if text.startswith("{") else [{"lark_grammar": text}]
    grammars = [{"lark_grammar": head}, {**rest[0], "name": "answer"}, *rest[1:]]
    return Grammar(json.dumps({"grammars": grammars}), grammar.where)


def _spelled(mark: str, tokenizer: Tokenizer) -> str:
    """Return the rule of a mark, which may begin with a control token."""
    first = tokenizer.control_spellings.first(mark)
    if first is None or not mark.startswith(first):
        return json.dumps(mark)
    rest = mark.removeprefix(first)
    return f"{_token(first, tokenizer)} {json.dumps(rest) if rest else ''}"


def _token(mark: str, tokenizer: Tokenizer) -> str | None:
    """Return the rule of a mark that is a control token, else None."""
    token = tokenizer.id_of(mark) if mark in tokenizer.control_spellings.all else None
    return None if token is None else f"<[{token}]>"
