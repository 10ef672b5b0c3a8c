"""The bodies of chat and plain completions and of tokens, as OpenAI and vLLM spell them."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from monolane.engine import SamplingDefaults
from monolane.errors import RequestError
from monolane.serve._http.body import (
    MAX_PROMPTS,
    NO_DEFAULTS,
    Alternatives,
    AnswerRequest,
    Body,
    Budget,
    ReasoningEffort,
    TokenId,
    one_of,
)
from monolane.serve._http.request import ChatAsked, TextAsked

Messages = Annotated[list[dict[str, Any]], Field(min_length=1, max_length=10_000)]
ParseSpecial = Annotated[
    bool | None, Field(description="Control tokens spelled in a text prompt are those tokens")
]
ReturnTokenIds = Annotated[
    bool | None, Field(description="prompt_token_ids, and token_ids of each choice")
]
ToolChoice = Annotated[str | dict[str, Any], one_of("'none', 'auto', 'required' or an object")]
FunctionCall = Annotated[str | dict[str, Any], one_of("'none', 'auto' or an object with a name")]
Prompt = Annotated[
    str
    | Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
    | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
    | Annotated[
        list[Annotated[list[TokenId], Field(fail_fast=True)]],
        Field(min_length=1, max_length=MAX_PROMPTS),
    ],
    one_of(f"text, token ids (integers from 0), or a list of 1 to {MAX_PROMPTS} of either"),
]


def _not_false(value: Any) -> Any:
    """Take false for none, where a number is wanted."""
    return None if value is False else value


def _not_zero(value: Any) -> Any:
    """Take 0 for false."""
    return False if type(value) is int and value == 0 else value


class ChatRequest(AnswerRequest):
    """``POST /v1/chat/completions``."""

    messages: Messages
    return_token_ids: ReturnTokenIds = False
    logprobs: Annotated[bool | None, BeforeValidator(_not_zero)] = False
    top_logprobs: Alternatives | None = None
    functions: Annotated[list[dict[str, Any]], Field(max_length=512)] | None = Field(
        None, description="OpenAI's older form of tools"
    )
    function_call: FunctionCall | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=512)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables of the chat template, such as enable_thinking"
    )
    reasoning_effort: ReasoningEffort | None = Field(
        None, description="How much to think, where the chat template lets one say"
    )

    @property
    def alternatives(self) -> int | None:
        """None, or how many alternatives come with each token's log-probability."""
        if not self.logprobs:
            if self.n_probs:
                return self.n_probs
            if self.top_logprobs:
                raise RequestError("top_logprobs: expected logprobs to be true with it")
            return None
        return self.top_logprobs or 0

    def asked(self, defaults: SamplingDefaults = NO_DEFAULTS) -> ChatAsked:
        """Return what is asked for; RequestError where we cannot do it."""
        return ChatAsked(
            **self.shared(self.alternatives, defaults),
            messages=self.messages,
            tools=self.tools,
            tool_choice=self.tool_choice,
            parallel_tool_calls=self.parallel_tool_calls,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            effort=self.reasoning_effort,
            variables=self.chat_template_kwargs or {},
        )


class CompletionRequest(AnswerRequest):
    """``POST /v1/completions``."""

    prompt: Prompt
    max_tokens: Budget | None = 16
    parse_special: ParseSpecial = True
    echo: bool | None = False
    add_special_tokens: bool | None = Field(True, description="bos and the like around a text")
    logprobs: Annotated[Alternatives | None, BeforeValidator(_not_false)] = None
    return_token_ids: ReturnTokenIds = False

    @property
    def alternatives(self) -> int | None:
        """None, or how many alternatives come with each token's log-probability."""
        return (self.n_probs or None) if self.logprobs is None else self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, one or many."""
        prompt = self.prompt
        if isinstance(prompt, str) or isinstance(prompt[0], int):
            return [prompt]
        return list(prompt)

    def asked(self, defaults: SamplingDefaults = NO_DEFAULTS) -> TextAsked:
        """Return what is asked for; RequestError where we cannot do it."""
        limit, wanted = self.token_limit
        if wanted == 0 and not self.echo:
            raise RequestError(
                f"{limit}: expected at least 1 where the prompt is not echoed, got 0"
            )
        return TextAsked(
            **self.shared(self.alternatives, defaults),
            prompts=self.prompts,
            parse_special=self.parse_special is not False,
            add_special_tokens=self.add_special_tokens is not False,
            echo=bool(self.echo),
        )


class TokenizeRequest(Body):
    """``POST /tokenize``: of a text, or of messages; with ``content`` as llama.cpp has it."""

    prompt: str | None = None
    content: str | None = Field(None, description="A text; tokens are the whole answer then")
    add_special: bool | None = Field(False, description="bos and the like around content")
    with_pieces: bool | None = Field(False, description="Each token of content with its text")
    messages: Messages | None = None
    add_special_tokens: bool | None = True
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    parse_special: ParseSpecial = True
    return_token_strs: bool | None = False


class DetokenizeRequest(Body):
    """``POST /detokenize``."""

    tokens: Annotated[list[TokenId], Field(max_length=1 << 20, fail_fast=True)]
