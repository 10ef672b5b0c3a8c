"""What a request's channel gave, choice by choice: a few milliseconds of it, or all."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from monolane.engine import TokenLogprob
from monolane.serve._channel import Admitted, Event, Scored
from monolane.serve._delta import Delta, ToolCallDelta, joined_calls
from monolane.serve._prepare import Choice


@dataclass(slots=True)
class Gathered:
    """Of one choice."""

    choice: Choice
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    scored: tuple[TokenLogprob, ...] | None = None  # of the prompt, once it has been read
    admitted: bool = False
    tokens: int = 0
    finish_reason: str | None = None

    @property
    def delta(self) -> Delta:
        """The text and tool calls, joined."""
        return Delta("".join(self.content), "".join(self.reasoning), joined_calls(self.tool_calls))


def gather(events: Iterable[Event], choices: Sequence[Choice]) -> list[Gathered]:
    """Return what there is of each choice that has something, in the order of the choices."""
    found: dict[int, Gathered] = {}
    for event in events:
        one = found.get(event.index)
        if one is None:
            one = found[event.index] = Gathered(choices[event.index])
        if isinstance(event, Admitted):
            one.admitted = True
        elif isinstance(event, Scored):
            one.scored = event.logprobs
        else:
            if event.finish_reason is not None:
                one.finish_reason = "tool_calls" if event.called else event.finish_reason
            if one.choice.discard:
                one.finish_reason = one.finish_reason and "length"
                continue
            one.content.append(event.delta.content)
            one.reasoning.append(event.delta.reasoning)
            one.tool_calls += event.delta.tool_calls
            one.logprobs += event.logprobs
            one.tokens += len(event.token_ids)
    return [found[index] for index in sorted(found)]
