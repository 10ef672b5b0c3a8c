"""What a request asks for, whichever API it came by.

Each API's body is translated into one of these, and everything behind it (prompt, grammar, choices)
reads nothing else. The bodies cannot serve: they say one thing in many words, and each in its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monolane.engine import Guide, SamplingParams
from monolane.serve._grammar.structured import Structured


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What all requests have.

    model        that was named; None: none was
    sampling     of the first choice, but for max_tokens; each further one has the next seed
    max_tokens   that may be drawn; None: what the context holds
    limit        the field that said so, for errors
    min_tokens   before which no token ends the answer
    choices      answers to each prompt
    structured   what the answer must look like; None: any text
    deadline     seconds until the request is given up, None: the server's own
    aside        does costly steps of its grammar
    """

    model: str | None = None
    sampling: SamplingParams
    max_tokens: int | None = None
    limit: str = "max_tokens"
    min_tokens: int = 0
    choices: int = 1
    structured: Structured | None = None
    stream: bool = False
    deadline: float | None = None
    aside: Callable[[Callable[[], Guide]], Guide] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAsked(Asked):
    """An answer to messages.

    messages, tools        in the spelling of /v1/chat/completions, which chat templates read
    tool_choice, parallel_tool_calls   as there
    add_generation_prompt, continue_final_message   None: by the role of the last message
    effort                 to think with, where the template lets one say; None: its default
    variables              of the chat template
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    effort: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAsked(Asked):
    """Continuations of texts or token ids.

    parse_special       control tokens spelled in a text are those tokens
    add_special_tokens  bos and the like are put around a text
    echo                the prompt is part of the answer
    """

    prompts: Sequence[str | list[int]]
    parse_special: bool = True
    add_special_tokens: bool = True
    echo: bool = False
