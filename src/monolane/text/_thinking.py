"""Tells an answer's thinking part from its content, wherever its text is cut into pieces.

A model that was trained to think begins its answer with ``<think>`` and ends that part with
``</think>``. Some templates write the first mark themselves, at the end of the prompt, so that the
answer begins inside; others close it there too, so that there is none. A thinking part stands at
the beginning of an answer: a mark further on is text, for an answer may speak of marks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from monolane.text import _harmony
from monolane.text._template import ChatTemplate
from monolane.text._tokenizer import Tokenizer

_LEAD = 64  # characters of white space that may stand before the first mark
_TAIL = 32  # tokens of a prompt in which a template's own mark stands: the mark and line breaks
# Template variables that switch thinking on and off, where a template has them.
_SWITCHES = ("enable_thinking", "thinking")


@dataclass(frozen=True, slots=True)
class Thinking:
    """The marks around a thinking part; ``opened``: the prompt has written the first itself."""

    begin: str
    end: str
    opened: bool = False
    channels: bool = False  # the first of the channels of an answer: ``_harmony.py``

    @property
    def marks(self) -> tuple[str, ...]:
        """Every mark that tells parts apart; those that are control tokens must be seen."""
        return _harmony.MARKS if self.channels else (self.begin, self.end)

    def split(self) -> "ThinkingSplit | _harmony.ChannelSplit":
        """Return what splits an answer."""
        return _harmony.ChannelSplit() if self.channels else ThinkingSplit(self)


# DeepSeek R1, Qwen3, SmolLM3 and most others; Mistral (Magistral, Ministral); Seed-OSS.
_MARKS = (
    Thinking("<think>", "</think>"),
    Thinking("[THINK]", "[/THINK]"),
    Thinking("<seed:think>", "</seed:think>"),
)

_HARMONY = Thinking(_harmony.BEGIN, _harmony.END, channels=True)  # GPT-OSS


def find_thinking(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    prompt_ids: Sequence[int],
    continued: str | None = None,
) -> Thinking | None:
    """Return how the answer to a rendered chat may think; None: it does not.

    Marks are found in the template, or else in the vocabulary. ``continued`` is the text of the
    last message, if the answer goes on with that one.
    """
    thinking = _marks(template, tokenizer)
    if thinking is None or thinking.channels:
        # A continued message is content, from where it is.
        return None if continued is not None else thinking
    if continued is not None:
        _, begun, rest = continued.partition(thinking.begin)
        return replace(thinking, opened=True) if begun and thinking.end not in rest else None
    tail = tokenizer.decode(prompt_ids[-_TAIL:], skip_special_tokens=False).rstrip()
    if tail.endswith(thinking.end):
        return None
    return replace(thinking, opened=tail.endswith(thinking.begin))


def thinking_switch(template: ChatTemplate) -> str | None:
    """Return the name of the template's variable that switches thinking on and off, or None."""
    return next((name for name in _SWITCHES if name in template.variables), None)


def _marks(template: ChatTemplate, tokenizer: Tokenizer) -> Thinking | None:
    if _HARMONY.begin in template.source:  # its end is a mark of other templates too
        return _HARMONY
    for marks in _MARKS:
        if marks.begin in template.source or marks.end in template.source:
            return marks
    for marks in _MARKS:
        if {marks.begin, marks.end} <= tokenizer.control_spellings.all:
            return marks
    return None


class ThinkingSplit:
    """Splits the text of one answer; for one thread.

    White space around the thinking part is dropped. One that is cut off is thinking to its end;
    without the first mark everything is content, letter for letter.
    """

    def __init__(self, thinking: Thinking) -> None:
        self._marks = thinking
        self.begun = thinking.opened  # there is a thinking part
        self.over = False  # what follows is content
        self._held = ""  # white space, and what may be the beginning of a mark
        self._silent = True  # nothing but white space since the last mark

    def push(self, text: str) -> tuple[str, str]:
        """Return what is certain to be thinking, and what is certain to be content."""
        if self.over:
            return "", self._content(text)
        text, self._held = self._held + text, ""
        if not self.begun:
            lead, begin = text.lstrip(), self._marks.begin
            if len(text) - len(lead) > _LEAD or not begin.startswith(lead[: len(begin)]):
                self.over, self._silent = True, False
                return "", text
            if len(lead) < len(begin):
                self._held = text
                return "", ""
            self.begun, text = True, lead[len(begin) :]
        thought, mark, rest = text.partition(self._marks.end)
        if not mark:
            certain = thought[: len(thought) - _overlap(thought, self._marks.end)].rstrip()
            self._held = thought[len(certain) :]
            return self._thought(certain), ""
        thought = self._thought(thought.rstrip())
        self.over = self._silent = True
        return thought, self._content(rest)

    def finish(self) -> tuple[str, str]:
        """Return what was held back, now that the answer is over."""
        held, self._held = self._held, ""
        if self.over or not self.begun:
            return "", held
        return self._thought(held if held.strip() else ""), ""

    def _thought(self, text: str) -> str:
        if self._silent:
            text = text.lstrip()
        self._silent = self._silent and not text
        return text

    def _content(self, text: str) -> str:
        """Return content without the white space behind a thinking part."""
        return self._thought(text) if self._silent else text


def _overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of the text that begins the mark."""
    sizes = range(min(len(text), len(mark) - 1), 0, -1)
    return next((size for size in sizes if mark.startswith(text[-size:])), 0)
