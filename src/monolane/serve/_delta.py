"""What the text of an answer adds to its message: content, reasoning, or parts of tool calls."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """Part of a tool call: the first of each call has ``id`` and ``name``."""

    index: int  # of the call within the message
    arguments: str  # JSON, the next part of it
    id: str | None = None
    name: str | None = None


def joined_calls(parts: Iterable[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    """Return the parts with those of one call, which follow each other, made one."""
    joined: list[ToolCallDelta] = []
    for part in parts:
        if joined and joined[-1].index == part.index:
            before = joined[-1]
            joined[-1] = replace(before, arguments=before.arguments + part.arguments)
        else:
            joined.append(part)
    return tuple(joined)


@dataclass(frozen=True, slots=True)
class Delta:
    """What has become certain since the last one."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def __add__(self, other: "Delta") -> "Delta":
        return Delta(
            self.content + other.content,
            self.reasoning + other.reasoning,
            self.tool_calls + other.tool_calls,
        )

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)


class TextParser(Protocol):
    """Reads one answer; used by one thread."""

    @property
    def called(self) -> bool:
        """Whether there was a tool call: then the answer ends with ``tool_calls``."""

    def push(self, text: str) -> Delta:
        """Take the next text of the answer."""

    def finish(self) -> Delta:
        """Return what was held back, now that the answer is over."""
