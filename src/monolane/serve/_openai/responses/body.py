"""The body of ``POST /v1/responses``."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from monolane.serve._grammar.structured import Structured, read_structured
from monolane.serve._http.body import AnswerRequest, Budget, ReasoningEffort
from monolane.serve._openai.body import ToolChoice

Json = dict[str, Any]
Input = str | Annotated[list[Json], Field(min_length=1, max_length=10_000)]
LOGPROBS = "message.output_text.logprobs"
THOUGHTS = "reasoning.encrypted_content"


class TextOptions(BaseModel):
    """What the text of the answer is like."""

    model_config = ConfigDict(strict=True)

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(BaseModel):
    """How to think; a ``summary`` of it is never made, for the thoughts themselves are told."""

    model_config = ConfigDict(strict=True)

    effort: ReasoningEffort | None = None
    summary: str | None = None


class ResponsesRequest(AnswerRequest):
    """``POST /v1/responses``."""

    input: Input
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=128)] | None = Field(
        None, description="Go on from a stored response"
    )
    store: bool | None = Field(True, description="Keep the response for a while")
    max_output_tokens: Budget | None = None
    tools: Annotated[list[Json], Field(max_length=512)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: Annotated[list[str], Field(max_length=64)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=64)] | None = None
    chat_template_kwargs: Json | None = None
    prompt_cache_key: str | None = Field(None, description="Told again, and nothing else")
    safety_identifier: str | None = Field(None, description="Told again, and nothing else")
    # What cannot be done is refused by its type.
    n: Literal[1] | None = None
    return_token_ids: Literal[False] | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    conversation: None = None
    prompt: None = None

    @property
    def alternatives(self) -> int | None:
        """None, or how many alternatives come with each token's log-probability."""
        wanted = self.top_logprobs is not None or LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if wanted else None

    @property
    def token_limit(self) -> tuple[str, int | None]:
        """The field that bounds how many tokens may be drawn, and its value; None: all that fit."""
        given = self.max_output_tokens
        if given is None:
            return super().token_limit
        return "max_output_tokens", None if given < 0 else given

    def structured(self) -> Structured | None:
        """Return what the answer must look like; RequestError for values out of bounds."""
        given = self.text and self.text.format
        if not given:
            return super().structured()
        if given.get("type") == "json_schema":  # nothing stands around name and schema here
            given = {"type": "json_schema", "json_schema": given}
        extra = self.model_extra or {}
        return read_structured(given, self.structured_outputs, extra, "text.format")

    def items(self) -> Sequence[Json]:
        """Return the input as items."""
        if isinstance(self.input, str):
            return [{"type": "message", "role": "user", "content": self.input}]
        return self.input
