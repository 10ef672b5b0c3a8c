"""The bodies of ``POST /v1/messages`` and ``/v1/messages/count_tokens``."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from monolane.serve._grammar.structured import Structured, read_structured
from monolane.serve._http.body import AnswerRequest, ReasoningEffort

Json = dict[str, Any]
Blocks = Annotated[list[Json], Field(max_length=10_000)]


class ThinkingOptions(BaseModel):
    """Whether to think; how long is the model's own affair, so ``budget_tokens`` bounds nothing."""

    model_config = ConfigDict(strict=True)

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None


class OutputOptions(BaseModel):
    """What the answer is like."""

    model_config = ConfigDict(strict=True)

    effort: ReasoningEffort | None = None
    format: Json | None = None


class MessagesRequest(AnswerRequest):
    """``POST /v1/messages``."""

    messages: Annotated[list[Json], Field(min_length=1, max_length=10_000)]
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)]
    system: str | Blocks | None = None
    stop_sequences: Annotated[list[str], Field(max_length=64)] | None = None
    tools: Annotated[list[Json], Field(max_length=512)] | None = None
    tool_choice: Json | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputOptions | None = None
    # What cannot be done is refused by its type.
    n: Literal[1] | None = None
    return_progress: Literal[False] | None = None
    return_token_ids: Literal[False] | None = None
    container: None = None
    mcp_servers: Annotated[list[Json], Field(max_length=0)] | None = None

    def structured(self) -> Structured | None:
        """Return what the answer must look like; RequestError for values out of bounds."""
        given = self.output_config and self.output_config.format
        if not given:
            return super().structured()
        if given.get("type") == "json_schema":  # nothing stands around the schema here
            given = {"type": "json_schema", "json_schema": given}
        extra = self.model_extra or {}
        return read_structured(given, self.structured_outputs, extra, "output_config.format")


class CountRequest(MessagesRequest):
    """``POST /v1/messages/count_tokens``."""

    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] = 1
