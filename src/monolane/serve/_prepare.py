"""From a request's bytes to streams that are ready to run: all that takes time, off the loop.

Parsing megabytes, rendering a template and encoding a long prompt can take seconds each. They
happen on a small pool of threads, with a bound on how many requests may wait for it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monolane.engine import Engine, Stream
from monolane.errors import RequestError
from monolane.serve._constraint import constraint_of
from monolane.serve._delta import TextParser
from monolane.serve._requests import ChatRequest, CompletionRequest
from monolane.serve._sizes import budget as budget_of
from monolane.serve._sizes import check_messages, check_minimum, check_prompt, check_size
from monolane.serve._tools import text_parser, visible_ids
from monolane.serve._tools_prompt import tool_prompt

# Template variables that a request may set: plain ones, and none that changes what is rendered.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_RESERVED = frozenset(
    ("add_generation_prompt", "continue_final", "tools", "documents", "messages", "tokenize")
)


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to be made."""

    index: int
    prompt_ids: tuple[int, ...]
    stream: Stream
    budget: int  # tokens that it may draw
    parser: TextParser | None = None
    echo: str | None = None  # the text of the prompt, if it is to be part of the answer
    guided: bool = False  # by a constraint
    discard: bool = False  # only the prompt is wanted: what is drawn is left out


def prepare_chat(request: ChatRequest, engine: Engine) -> list[Choice]:
    """Return the choices of a chat request; RequestError or TextError if there can be none."""
    request.check_supported()
    ids = engine.prompt_ids(chat_ids(request, engine))
    seed, budget = request.first_seed(), budget_of(request.limit, len(ids), engine)
    check_size(request.choices, budget, request.alternatives)
    check_minimum(request.min_tokens, budget)
    choices, visible = [], visible_ids(request, engine)
    for j in range(request.choices):
        params = request.sampling(
            seed + j, budget, logprobs=request.alternatives, visible_ids=visible
        )
        constraint, parser = constraint_of(request, engine), text_parser(request, engine)
        stream = engine.stream(ids, params, constraint)
        choices.append(Choice(j, ids, stream, budget, parser, guided=constraint is not None))
    return choices


def chat_ids(request: ChatRequest, engine: Engine) -> Sequence[int]:
    """Return the token ids of the rendered messages.

    A last message of the assistant's is continued, unless the request says otherwise.
    """
    messages: Sequence[Mapping[str, Any]] = request.messages
    check_messages(messages, engine)
    last = messages[-1]
    continued = request.continue_final_message
    if continued is None:
        continued = last.get("role") == "assistant" and not request.add_generation_prompt
        if continued and last.get("content") in ("", None) and not last.get("tool_calls"):
            # Nothing to go on from: the turn is the assistant's, which the generation prompt says.
            messages, continued = messages[:-1], False
        continued = continued and not last.get("tool_calls")
    messages, tools = tool_prompt(request, messages, engine)
    return render_ids(
        engine,
        messages,
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final=continued,
        tools=tools,
        variables=_variables(request.chat_template_kwargs or {}),
    )


def render_ids(
    engine: Engine,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    continue_final: bool,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the ids of messages under the folder's template; RequestError without a tokenizer."""
    if engine.tokenizer is None:
        raise RequestError("messages: this model has no tokenizer; use /v1/completions with ids")
    return engine.chat_template.encode(
        engine.tokenizer,
        messages,
        add_generation_prompt=add_generation_prompt,
        continue_final=continue_final,
        tools=tools,
        **(variables or {}),
    )


def prepare_completion(request: CompletionRequest, engine: Engine) -> list[Choice]:
    """Return the choices of a completion request, prompt by prompt; RequestError, TextError."""
    request.check_supported()
    if request.max_tokens == 0 and not request.echo:
        raise RequestError("max_tokens: expected at least 1 where the prompt is not echoed, got 0")
    seed = request.first_seed()
    choices: list[Choice] = []
    for prompt in request.prompts:
        check_prompt(prompt, engine)
        ids = engine.prompt_ids(_prompt_ids(prompt, request, engine))
        # The engine draws at least one token: where only the prompt's scores are wanted, one that
        # is thrown away.
        budget = budget_of(1 if request.max_tokens == 0 else request.max_tokens, len(ids), engine)
        size = budget + len(ids) if request.echo else budget
        check_size(len(request.prompts) * request.choices, size, request.alternatives)
        check_minimum(request.min_tokens, budget)
        echo = _text_of(prompt, engine) if request.echo else None
        scored = request.logprobs if request.echo else None
        for j in range(request.choices):
            params = request.sampling(
                seed + j, budget, logprobs=request.logprobs, prompt_logprobs=scored
            )
            constraint = constraint_of(request, engine)
            choices.append(
                Choice(
                    len(choices),
                    ids,
                    engine.stream(ids, params, constraint),
                    budget,
                    echo=echo,
                    guided=constraint is not None,
                    discard=request.max_tokens == 0,
                )
            )
    return choices


def _prompt_ids(
    prompt: str | list[int], request: CompletionRequest, engine: Engine
) -> str | list[int]:
    """Return a text as ids, in which control tokens may be spelled; anything else as it is.

    Whoever sends a plain prompt has written all of it, a rendered chat or a harness's bos, say.
    In a chat there are others' texts, and those never hold control tokens.
    """
    if isinstance(prompt, str) and engine.tokenizer is not None:
        return engine.tokenizer.encode(prompt, parse_special=request.parse_special is not False)
    return prompt


def _text_of(prompt: str | list[int], engine: Engine) -> str:
    if isinstance(prompt, str):
        return prompt
    return "" if engine.tokenizer is None else engine.tokenizer.decode(prompt)


def _variables(given: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        if name in _RESERVED or not _NAME.fullmatch(name):
            raise RequestError(f"chat_template_kwargs: expected other names than {name!r:.80}")
        if not isinstance(value, str | int | float | bool | None) or len(str(value)) > 1024:
            raise RequestError(
                f"chat_template_kwargs: expected short plain values, got that of {name!r:.80}"
            )
    return dict(given)
