"""Tells the channels of an answer in OpenAI's harmony format apart, wherever its text is cut.

Such an answer is a row of messages. Each has a header, which names a channel, and where a tool is
called its name:

    <|channel|>analysis<|message|>...<|end|>
    <|start|>assistant<|channel|>final<|message|>...
    <|start|>assistant to=functions.NAME<|channel|>commentary json<|message|>{...}<|call|>

The analysis is thinking, all else is content. A call stays in it, with its header in one spelling,
the third above, ``<|start|>`` on, for whoever reads calls. Unlike a thinking part
(``_thinking.py``), analysis may come again behind a message to the user.

Format: github.com/openai/harmony, docs/format.md.
"""

import re

BEGIN, END = "<|channel|>analysis<|message|>", "<|end|>"
MARKS = ("<|start|>", "<|channel|>", "<|message|>", END, "<|call|>", "<|return|>", "<|constrain|>")
_CALL, _ARGUMENTS = "<|start|>assistant to=", "<|channel|>commentary json<|message|>"
_MESSAGE = "<|message|>"
_HEADERS = ("<|channel|>", "<|start|>", " to=")  # what a header begins with
_ENDS = (END, "<|call|>", "<|return|>", "<|start|>")  # of a message
_LONGEST = 300  # characters of a header
_RECIPIENT, _CHANNEL = re.compile(r"to=([^\s<]+)"), re.compile(r"<\|channel\|>\s*(\w+)")


class ChannelSplit:
    """Splits the text of one answer; for one thread. What has no header is content."""

    def __init__(self) -> None:
        self.begun = False  # there is an analysis
        self.over = False  # what follows is content, as far as is known
        self._held = ""
        self._in_header = True
        self._thinks = False  # this message is an analysis

    def push(self, text: str) -> tuple[str, str]:
        """Return what is certain to be thinking, and what is certain to be content."""
        thought: list[str] = []
        content: list[str] = []
        text, self._held = self._held + text, ""
        while text:
            if self._in_header:
                text = self._header(text, content)
                continue
            # One that is not found, at -1, is at the end of the text.
            place, mark = min((text.find(end) % (len(text) + 1), end) for end in _ENDS)
            certain = place if place < len(text) else len(text) - _overlap(text)
            (thought if self._thinks else content).append(text[:certain])
            if place == len(text):
                self._held = text[certain:]
                break
            self._in_header = True
            text = text[place:] if mark == "<|start|>" else text[place + len(mark) :]
        return "".join(thought), "".join(content)

    def finish(self) -> tuple[str, str]:
        """Return what was held back, now that the answer is over; of a header nothing."""
        held, self._held = self._held, ""
        if self._in_header and any(mark in held for mark in MARKS):
            return "", ""
        return (held, "") if self._thinks and not self._in_header else ("", held)

    def _header(self, text: str, content: list[str]) -> str:
        """Read a header; return what is to be read next, nothing while it is not whole."""
        header, found, rest = text.partition(_MESSAGE)
        is_one = any(text.startswith(x[: len(text)]) for x in _HEADERS)
        if not is_one or len(header) > _LONGEST:
            self._enter(thinks=False)
            return text
        if not found:
            self._held = text
            return ""
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        if recipient is not None:
            content.append(_CALL + recipient[1] + _ARGUMENTS)
        thinks = recipient is None and channel is not None and channel[1] == "analysis"
        self._enter(thinks=thinks)
        return rest

    def _enter(self, *, thinks: bool) -> None:
        self._in_header, self._thinks, self.over = False, thinks, not thinks
        self.begun = self.begun or thinks


def _overlap(text: str) -> int:
    """Return the length of the longest end of the text that may begin the end of a message."""
    sizes = range(min(len(text), max(map(len, _ENDS)) - 1), 0, -1)
    return next((n for n in sizes if any(end.startswith(text[-n:]) for end in _ENDS)), 0)
