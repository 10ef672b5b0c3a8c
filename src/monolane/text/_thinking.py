"""Tells an answer's thinking part from its content, wherever its text is cut into pieces.

A model that was trained to think begins its answer with ``<think>`` and ends that part with
``</think>``. Some templates write the first mark themselves, at the end of the prompt, so that the
answer begins inside; others close it there too, so that there is none. A thinking part stands at
the beginning of an answer: a mark further on is text, for an answer may speak of marks. The last
mark alone says that there is no such part. Some models put marks around what follows, too.
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
    """The marks around a thinking part, and around the answer behind it, where it has any.

    ``opened``: the prompt has written the first itself; ``closed``: the second, too.
    """

    begin: str
    end: str
    opened: bool = False
    channels: bool = False  # the first of the channels of an answer: ``_harmony.py``
    answer: tuple[str, str] | None = None
    closed: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """Every mark that tells parts apart; what they have of control tokens must be seen."""
        return _harmony.MARKS if self.channels else (self.begin, self.end, *(self.answer or ()))

    def split(self) -> "ThinkingSplit | _harmony.ChannelSplit":
        """Return what splits an answer."""
        return _harmony.ChannelSplit() if self.channels else ThinkingSplit(self)


_MARKS = (
    Thinking("<think>", "</think>"),  # DeepSeek R1, Qwen3, SmolLM3 and most others
    Thinking("[THINK]", "[/THINK]"),  # Mistral (Magistral, Ministral)
    Thinking("<seed:think>", "</seed:think>"),
    Thinking("<mm:think>", "</mm:think>"),  # MiniMax-M3
    Thinking("<think:opensource>", "</think:opensource>"),  # Hunyuan 3
    Thinking("<|channel>thought", "<channel|>"),  # Gemma 4
    Thinking("<|START_THINKING|>", "<|END_THINKING|>"),  # Command
    Thinking("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    Thinking("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),  # Apriel
)
# Marks around the answer, by what a template has in it where a model was trained to write them.
_ANSWERS = {
    "<response></response>": ("<response>", "</response>"),  # Granite; alone it is a tool's result
    "</answer>": ("<answer>", "</answer>"),  # Hunyuan
    "<|START_RESPONSE|>": ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),  # Command R7B and A
    "<|START_TEXT|>": ("<|START_TEXT|>", "<|END_TEXT|>"),  # newer ones of Cohere
    "[BEGIN FINAL RESPONSE]": ("", "[END FINAL RESPONSE]"),  # Apriel
}

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
        return replace(thinking, closed=True) if thinking.answer else None
    return replace(thinking, opened=tail.endswith(thinking.begin))


def thinking_switch(template: ChatTemplate) -> str | None:
    """Return the name of the template's variable that switches thinking on and off, or None."""
    return next((name for name in _SWITCHES if name in template.variables), None)


def _marks(template: ChatTemplate, tokenizer: Tokenizer) -> Thinking | None:
    source, spelled = template.source, tokenizer.control_spellings.all
    if _HARMONY.begin in source:  # its end is a mark of other templates too
        return _HARMONY
    found = next((one for one in _MARKS if one.begin in source or one.end in source), None)
    found = found or next((one for one in _MARKS if {one.begin, one.end} <= spelled), None)
    if found is None:
        return None
    return replace(found, answer=next((_ANSWERS[x] for x in _ANSWERS if x in source), None))


class ThinkingSplit:
    """Splits the text of one answer; for one thread.

    White space around the thinking part is dropped. One that is cut off is thinking to its end;
    without the first mark everything is content, letter for letter.
    """

    def __init__(self, thinking: Thinking) -> None:
        self._thoughts = _Part(thinking.begin, thinking.end, begun=thinking.opened, may_end=True)
        self._answer = None if thinking.answer is None else _Part(*thinking.answer)
        # Where no thinking part is before it, "<answer>" is what somebody asked for.
        self._tokens = thinking.answer is not None and thinking.answer[0].startswith("<|")
        self.over = thinking.closed  # what follows is content
        self._silent = self.over  # nothing but white space since the last mark

    @property
    def begun(self) -> bool:
        """Whether there is a thinking part."""
        return self._thoughts.begun

    def push(self, text: str) -> tuple[str, str]:
        """Return what is certain to be thinking, and what is certain to be content."""
        if self.over:
            return "", self._content(text)
        thought, rest = self._thoughts.push(text)
        if rest is None:
            return thought, ""
        self.over, self._silent = True, self._thoughts.marked
        if not self._silent and not self._tokens:
            self._answer = None
        return thought, self._content(rest)

    def finish(self) -> tuple[str, str]:
        """Return what was held back, now that the answer is over."""
        if not self.over:
            held = self._thoughts.finish()
            return (held, "") if self.begun else ("", held)
        held = "" if self._answer is None else self._answer.finish()
        return "", held.lstrip() if self._silent else held

    def _content(self, text: str) -> str:
        """Return content without its marks, and without the white space behind each."""
        before = ""
        if self._answer is not None:
            before, rest = self._answer.push(text)
            if rest is None:
                return before
            text, self._answer = rest, None
        if self._silent:
            text = text.lstrip()
            self._silent = not text
        return before + text


class _Part:
    """What stands between two marks at the beginning of a text, and no white space around it.

    ``begun``: the first mark is written; ``may_end``: the second may stand there in its place.
    """

    def __init__(self, begin: str, end: str, *, begun: bool = False, may_end: bool = False) -> None:
        self._leads, self._end = (begin, end) if may_end else (begin,), end
        self.begun = begun
        self.marked = begun  # there was a mark
        self._held = ""  # white space, and what may be the beginning of a mark
        self._silent = True  # nothing but white space since the first mark

    def push(self, text: str) -> tuple[str, str | None]:
        """Return what is certain to be in the part, and what is behind it; None: it goes on."""
        text, self._held = self._held + text, ""
        if not self.begun:
            lead = text.lstrip()
            may = any(mark.startswith(lead[: len(mark)]) for mark in self._leads)
            if len(text) - len(lead) > _LEAD or not may:
                return "", text
            mark = next((mark for mark in self._leads if lead.startswith(mark)), None)
            if mark is None:
                self._held = text
                return "", None
            self.begun, self.marked, text = mark == self._leads[0], True, lead[len(mark) :]
            if not self.begun:
                return "", text
        inside, mark, rest = text.partition(self._end)
        if mark:
            return self._said(inside.rstrip()), rest
        certain = inside[: len(inside) - _overlap(inside, self._end)].rstrip()
        self._held = inside[len(certain) :]
        return self._said(certain), None

    def finish(self) -> str:
        """Return what was held back, now that the text is over."""
        held, self._held = self._held, ""
        return held if not self.begun else self._said(held if held.strip() else "")

    def _said(self, text: str) -> str:
        if self._silent:
            text = text.lstrip()
        self._silent = self._silent and not text
        return text


def _overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of the text that begins the mark."""
    sizes = range(min(len(text), len(mark) - 1), 0, -1)
    return next((size for size in sizes if mark.startswith(text[-size:])), 0)
