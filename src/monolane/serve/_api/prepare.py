"""From a parsed request to choices that are ready to run: all that takes time, on a thread.

Rendering a template, encoding a long prompt and compiling a grammar can take a second each. Each
step is done once for a request; only what belongs to one answer is made for each choice.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monolane.engine import Engine
from monolane.errors import RequestError
from monolane.serve._api.legacy import modern
from monolane.serve._api.limits import (
    check_length,
    check_prompt,
    check_size,
    text_size,
    token_budget,
)
from monolane.serve._api.wire import AnswerRequest, ChatRequest, CompletionRequest
from monolane.serve._grammar.compiler import Grammar, compiler_of
from monolane.serve._grammar.constraint import AtLeast, GrammarWalk
from monolane.serve._grammar.thinking import after_thinking
from monolane.serve._run.choice import Choice
from monolane.serve._tools.format import AUTO
from monolane.serve._tools.grammar import answer_grammar
from monolane.serve._tools.parser import ToolParser
from monolane.serve._tools.prompt import content_text, template_for, tool_prompt
from monolane.serve._tools.request import ToolUse, read_tools
from monolane.text import ChatTemplate, Thinking, find_thinking, thinking_switch

# Template variables that a request may set: plain ones, and none that changes what is rendered.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_RESERVED = frozenset(
    ("add_generation_prompt", "continue_final", "tools", "documents", "messages", "tokenize")
)


def prepare_chat(request: ChatRequest, engine: Engine, tool_format: str = AUTO) -> list[Choice]:
    """Return the choices of a chat request; RequestError or TextError if there can be none.

    ``tool_format`` is the server's ``--tool-format``.
    """
    request.check_supported()
    request = modern(request)
    check_length("messages", text_size(request.messages), engine)
    tools = read_tools(
        request.tools, request.tool_choice, request.parallel_tool_calls, engine, tool_format
    )
    rendered, thinking = chat_prompt(request, tools, engine, tool_format)
    ids = engine.prompt_ids(rendered)
    check_prompt("messages", ids, engine)
    budget = token_budget(request.wanted_tokens, request.min_tokens, len(ids), engine)
    check_size(request.choices, budget, request.alternatives)
    grammar = answer_grammar(request.structured(), tools)
    if grammar is not None and thinking is not None and engine.tokenizer is not None:
        grammar = after_thinking(grammar, thinking, engine.tokenizer)
    # Texts leave control tokens out, but the parser must see those that mark a call.
    visible = tuple(sorted(tools.marks.values())) if tools else ()
    seed = request.first_seed()
    choices = []
    for j in range(request.choices):
        params = request.sampling(
            seed + j,
            budget,
            logprobs=request.alternatives,
            visible_ids=visible,
            thinking=thinking,
        )
        constraint = constraint_of(request, grammar, engine)
        stream = engine.stream(ids, params, constraint)
        parser = ToolParser(tools) if tools else None
        guided, forced = constraint is not None, forced_by(constraint, request.alternatives)
        choices.append(Choice(j, ids, stream, budget, parser, guided=guided, forced=forced))
    return choices


def prepare_completion(request: CompletionRequest, engine: Engine) -> list[Choice]:
    """Return the choices of a completion request, prompt by prompt; RequestError, TextError."""
    request.check_supported()
    tokens = request.wanted_tokens
    if tokens == 0 and not request.echo:
        raise RequestError("max_tokens: expected at least 1 where the prompt is not echoed, got 0")
    # The engine draws at least one token. Where only the prompt's scores are wanted, it is dropped.
    discard = tokens == 0
    grammar = answer_grammar(request.structured(), None)
    seed = request.first_seed()
    choices: list[Choice] = []
    for prompt in request.prompts:
        if isinstance(prompt, str):
            check_length("prompt", len(prompt), engine)
        ids = engine.prompt_ids(_prompt_ids(prompt, request, engine))
        check_prompt("prompt", ids, engine)
        wanted = 1 if discard else tokens
        budget = token_budget(wanted, request.min_tokens, len(ids), engine)
        size = budget + len(ids) if request.echo else budget
        check_size(len(request.prompts) * request.choices, size, request.alternatives)
        echo = _text_of(prompt, engine) if request.echo else None
        scored = request.alternatives if request.echo else None
        for j in range(request.choices):
            params = request.sampling(
                seed + j, budget, logprobs=request.alternatives, prompt_logprobs=scored
            )
            constraint = constraint_of(request, grammar, engine)
            stream = engine.stream(ids, params, constraint)
            choices.append(
                Choice(
                    len(choices),
                    ids,
                    stream,
                    budget,
                    echo=echo,
                    guided=constraint is not None,
                    discard=discard,
                    forced=forced_by(constraint, request.alternatives),
                )
            )
    return choices


def forced_by(
    constraint: GrammarWalk | AtLeast | None, alternatives: int | None
) -> Callable[[], int]:
    """Return a count of the tokens that cost no draw; with log-probabilities each one does."""
    if constraint is None or alternatives is not None:
        return lambda: 0
    return lambda: constraint.forced


def constraint_of(
    request: AnswerRequest, grammar: Grammar | None, engine: Engine
) -> GrammarWalk | AtLeast | None:
    """Return the constraint of one choice; RequestError for a grammar that cannot be compiled."""
    walk = None if grammar is None else compiler_of(engine).walk(grammar)
    if not request.min_tokens:
        return walk
    ends = frozenset(request.stop_token_ids or ())
    if not request.ignore_eos:
        ends |= engine.eos_ids
    return AtLeast(request.min_tokens, ends, engine.config.vocab_size, walk)


def chat_prompt(
    request: ChatRequest, tools: ToolUse | None, engine: Engine, tool_format: str = AUTO
) -> tuple[list[int], Thinking | None]:
    """Return the token ids of the rendered messages, and how the answer to them may think.

    A last message of the assistant's is continued, unless the request says otherwise.
    """
    messages: Sequence[Mapping[str, Any]] = request.messages
    last = messages[-1]
    continued = request.continue_final_message
    if continued is None:
        continued = last.get("role") == "assistant" and not request.add_generation_prompt
        if continued and last.get("content") in ("", None) and not last.get("tool_calls"):
            # There is nothing to continue. The generation prompt begins the assistant's turn.
            messages, continued = messages[:-1], False
        continued = continued and not last.get("tool_calls")
    shown, template_tools = tool_prompt(messages, request.tools, tools, engine, tool_format)
    template = template_for(tools, engine)
    effort = _effort(request.reasoning_effort, template)
    ids = render_ids(
        shown,
        engine,
        template,
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final=continued,
        tools=template_tools,
        **effort | _variables(request.chat_template_kwargs or {}),
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


def _prompt_ids(
    prompt: str | list[int], request: CompletionRequest, engine: Engine
) -> str | list[int]:
    """Return a text as ids, in which control tokens may be spelled; anything else as it is.

    The sender of a plain prompt wrote all of it: a rendered chat, say, or a harness's bos. A chat
    has texts of others in it, and those never hold control tokens.
    """
    if isinstance(prompt, str) and engine.tokenizer is not None:
        return engine.tokenizer.encode(
            prompt,
            add_special_tokens=request.add_special_tokens is not False,
            parse_special=request.parse_special is not False,
        )
    return prompt


def _text_of(prompt: str | list[int], engine: Engine) -> str:
    if isinstance(prompt, str):
        return prompt
    return "" if engine.tokenizer is None else engine.tokenizer.decode(prompt)


def _effort(effort: str | None, template: ChatTemplate) -> dict[str, Any]:
    """Return the variable of a template that ``reasoning_effort`` sets."""
    if effort is None:
        return {}
    if "reasoning_effort" in template.variables:
        return {"reasoning_effort": effort}
    if (switch := thinking_switch(template)) is not None:
        return {switch: effort != "none"}
    if effort == "none":
        return {}
    raise RequestError(
        "reasoning_effort: expected none or null, since this model's chat template has no such "
        f"setting, got {effort!r}"
    )


def _variables(given: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        if name in _RESERVED or not _NAME.fullmatch(name):
            raise RequestError(f"chat_template_kwargs: expected other names than {name!r:.80}")
        if not isinstance(value, str | int | float | bool | None) or len(str(value)) > 1024:
            raise RequestError(
                f"chat_template_kwargs: expected short plain values, got that of {name!r:.80}"
            )
    return dict(given)
