"""From a parsed request to choices that are ready to run: all that takes time, on a thread.

Rendering a template, encoding a long prompt and compiling a grammar can take a second each. Each
step is done once for a request; only what belongs to one answer is made for each choice.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from monolane.engine import Engine, SamplingParams
from monolane.errors import RequestError
from monolane.serve._grammar.compiler import Grammar, compiler_of
from monolane.serve._grammar.constraint import AtLeast, GrammarWalk
from monolane.serve._grammar.structured import Structured
from monolane.serve._grammar.thinking import after_thinking, in_channels
from monolane.serve._http.limits import (
    check_counted,
    check_length,
    check_prompt,
    check_size,
    token_budget,
)
from monolane.serve._http.request import Asked, ChatAsked, TextAsked
from monolane.serve._run.choice import Choice
from monolane.serve._run.preparers import LONG, next_unit
from monolane.serve._tools.formats import AUTO
from monolane.serve._tools.grammar import answer_grammar
from monolane.serve._tools.parser import ToolParser
from monolane.serve._tools.prompt import content_text, template_for, tool_prompt
from monolane.serve._tools.request import ToolUse, read_tools
from monolane.text import (
    ChatTemplate,
    Thinking,
    find_thinking,
    spoken_messages,
    thinking_switch,
)

# Template variables that a request may set: plain ones, and none that changes what is rendered.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_RESERVED = frozenset(
    (
        *("add_generation_prompt", "continue_final", "tools", "documents", "messages", "tokenize"),
        *("self", "tokenizer", "template", "engine"),  # ours, on the way to the template
    )
)


def prepare(asked: Asked, engine: Engine, tool_format: str = AUTO) -> list[Choice]:
    """Return the choices of a request; RequestError or TextError if there can be none.

    ``tool_format`` is the server's ``--tool-format``.
    """
    if isinstance(asked, ChatAsked):
        return prepare_chat(asked, engine, tool_format)
    assert isinstance(asked, TextAsked)
    return prepare_completion(asked, engine)


def prepare_chat(asked: ChatAsked, engine: Engine, tool_format: str = AUTO) -> list[Choice]:
    """Return the choices of an answer to messages; as ``prepare``."""
    tools, ids, thinking = read_chat(asked, engine, tool_format)
    budget = token_budget(asked.limit, asked.max_tokens, asked.min_tokens, len(ids), engine)
    check_size(asked.limit, asked.choices, budget, asked.sampling.logprobs)
    _begin_grammar(asked.structured, tools)
    grammar = answer_grammar(asked.structured, tools)
    if grammar is not None and thinking is not None and engine.tokenizer is not None:
        if not thinking.channels:
            grammar = after_thinking(grammar, thinking, engine.tokenizer)
        elif tools is None or (tools.required and asked.structured is None):
            grammar = in_channels(grammar, engine.tokenizer, calls=tools is not None)
        else:
            raise RequestError(
                f"{grammar.where}: this model answers in channels, where a grammar holds either "
                "the text or a call: expected tool_choice 'required' or 'none', or tools that are "
                "not strict and no response_format"
            )
    # Texts leave control tokens out, but the parser must see those that mark a call.
    visible = tuple(sorted(tools.marks.values())) if tools else ()
    choices = []
    for j in range(asked.choices):
        params = _params(asked, j, budget, visible_ids=visible, thinking=thinking)
        constraint = constraint_of(asked, grammar, engine)
        stream = engine.stream(ids, params, constraint, lora=engine.adapters.named(asked.model))
        parser = ToolParser(tools) if tools else None
        guided, forced = constraint is not None, forced_by(constraint, asked.sampling.logprobs)
        choices.append(Choice(j, ids, stream, budget, parser, guided=guided, forced=forced))
    return choices


def read_chat(
    asked: ChatAsked, engine: Engine, tool_format: str = AUTO, *, bounded: bool = True
) -> tuple[ToolUse | None, tuple[int, ...], Thinking | None]:
    """Return the tools, the ids of the prompt, and how the answer may think; as ``prepare``.

    ``bounded``: the prompt must fit into the context; False where it is only counted.
    """
    asked = replace(asked, messages=spoken_messages(asked.messages))
    (check_length if bounded else check_counted)("messages", asked.messages, engine)
    tools = read_tools(
        asked.tools, asked.tool_choice, asked.parallel_tool_calls, engine, tool_format
    )
    next_unit()
    rendered, thinking = chat_prompt(asked, tools, engine, tool_format)
    ids = engine.prompt_ids(rendered)
    if bounded:
        check_prompt("messages", ids, engine)
    return tools, ids, thinking


def prepare_completion(asked: TextAsked, engine: Engine) -> list[Choice]:
    """Return the choices of continued texts, prompt by prompt; as ``prepare``."""
    # The engine draws at least one token. Where only the prompt is wanted, it is dropped.
    discard = asked.max_tokens == 0
    _begin_grammar(asked.structured, None)
    grammar = answer_grammar(asked.structured, None)
    alternatives, lora = asked.sampling.logprobs, engine.adapters.named(asked.model)
    choices: list[Choice] = []
    for prompt in asked.prompts:
        if isinstance(prompt, str):
            check_length("prompt", prompt, engine)
        next_unit(len(prompt))
        ids = engine.prompt_ids(_prompt_ids(prompt, asked, engine))
        check_prompt("prompt", ids, engine)
        wanted = 1 if discard else asked.max_tokens
        budget = token_budget(asked.limit, wanted, asked.min_tokens, len(ids), engine)
        size = budget + len(ids) if asked.echo else budget
        check_size(asked.limit, len(asked.prompts) * asked.choices, size, alternatives)
        echo = _text_of(prompt, engine) if asked.echo else None
        scored = alternatives if asked.echo else None
        for j in range(asked.choices):
            params = _params(asked, j, budget, prompt_logprobs=scored)
            constraint = constraint_of(asked, grammar, engine)
            stream = engine.stream(ids, params, constraint, lora=lora)
            choices.append(
                Choice(
                    len(choices),
                    ids,
                    stream,
                    budget,
                    echo=echo,
                    guided=constraint is not None,
                    discard=discard,
                    forced=forced_by(constraint, asked.sampling.logprobs),
                )
            )
    return choices


def _begin_grammar(structured: Structured | None, tools: ToolUse | None) -> None:
    """Begin the unit that makes a grammar, where there is one: of few bytes, but much work."""
    if structured is not None or tools is not None:
        next_unit(LONG)


def _params(asked: Asked, j: int, budget: int, **more: Any) -> SamplingParams:
    """Return the engine's parameters of choice ``j`` of a prompt."""
    seed = (asked.sampling.seed + j) % (1 << 64)
    return replace(asked.sampling, seed=seed, max_tokens=budget, **more)


def forced_by(
    constraint: GrammarWalk | AtLeast | None, alternatives: int | None
) -> Callable[[], int]:
    """Return a count of the tokens that cost no draw; with log-probabilities each one does."""
    if constraint is None or alternatives is not None:
        return lambda: 0
    return lambda: constraint.forced


def constraint_of(
    asked: Asked, grammar: Grammar | None, engine: Engine
) -> GrammarWalk | AtLeast | None:
    """Return the constraint of one choice; RequestError for a grammar that cannot be compiled."""
    walk = None if grammar is None else compiler_of(engine).walk(grammar)
    if walk is not None and asked.aside is not None:
        walk.aside = asked.aside
    if not asked.min_tokens:
        return walk
    ends = frozenset(asked.sampling.stop_ids)
    if not asked.sampling.ignore_eos:
        ends |= engine.eos_ids
    return AtLeast(asked.min_tokens, ends, engine.config.vocab_size, walk)


def chat_prompt(
    asked: ChatAsked, tools: ToolUse | None, engine: Engine, tool_format: str = AUTO
) -> tuple[list[int], Thinking | None]:
    """Return the token ids of the rendered messages, and how the answer to them may think.

    A last message of the assistant's is continued, unless the request says otherwise.
    """
    messages = asked.messages
    last = messages[-1]
    continued = asked.continue_final_message
    if continued is None:
        continued = last.get("role") == "assistant" and not asked.add_generation_prompt
        if continued and last.get("content") in ("", None) and not last.get("tool_calls"):
            # There is nothing to continue. The generation prompt begins the assistant's turn.
            messages, continued = messages[:-1], False
        continued = continued and not last.get("tool_calls")
    shown, template_tools = tool_prompt(messages, asked.tools, tools, engine, tool_format)
    template = template_for(tools, engine)
    effort = _effort(asked.effort, template)
    ids = render_ids(
        shown,
        engine,
        template,
        add_generation_prompt=asked.add_generation_prompt is not False,
        continue_final=continued,
        tools=template_tools,
        **effort | _variables(asked.variables),
    )
    assert engine.tokenizer is not None  # messages were rendered
    text = content_text(shown[-1]) if continued else None
    return ids, find_thinking(template, engine.tokenizer, ids, text)


def render_ids(
    messages: Sequence[Mapping[str, Any]],
    engine: Engine,
    template: ChatTemplate | None = None,
    **options: Any,
) -> list[int]:
    """Return the ids of messages under the folder's template; RequestError without a tokenizer.

    ``template`` is to be used in place of the folder's first.
    ``options`` are those of ``ChatTemplate.encode``.
    """
    if engine.tokenizer is None:
        raise RequestError("messages: this model has no tokenizer; use /v1/completions with ids")
    return (template or engine.chat_template).encode(engine.tokenizer, messages, **options)


def _prompt_ids(prompt: str | list[int], asked: TextAsked, engine: Engine) -> str | list[int]:
    """Return a text as ids, in which control tokens may be spelled; anything else as it is.

    The sender of a plain prompt wrote all of it: a rendered chat, say, or a harness's bos. A chat
    has texts of others in it, and those never hold control tokens.
    """
    if isinstance(prompt, str) and engine.tokenizer is not None:
        return engine.tokenizer.encode(
            prompt,
            add_special_tokens=asked.add_special_tokens,
            parse_special=asked.parse_special,
        )
    return prompt


def _text_of(prompt: str | list[int], engine: Engine) -> str:
    if isinstance(prompt, str):
        return prompt
    return "" if engine.tokenizer is None else engine.tokenizer.decode(prompt)


def _effort(effort: str | None, template: ChatTemplate) -> dict[str, Any]:
    """Return the variable of a template that a wish for effort sets.

    A model that cannot be told thinks as it does: agents ask every model for some effort.
    """
    if effort is None:
        return {}
    if "reasoning_effort" in template.variables:
        return {"reasoning_effort": effort}
    switch = thinking_switch(template)
    return {} if switch is None else {switch: effort != "none"}


def _variables(given: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        if name in _RESERVED or not _NAME.fullmatch(name):
            raise RequestError(f"chat_template_kwargs: expected other names than {name!r:.80}")
        if not isinstance(value, str | int | float | bool | None) or len(str(value)) > 1024:
            raise RequestError(
                f"chat_template_kwargs: expected short plain values, got that of {name!r:.80}"
            )
    return dict(given)
