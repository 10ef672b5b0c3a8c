"""Tells tool calls from the rest of an answer, wherever its text is cut into pieces."""

from collections.abc import Callable
from dataclasses import replace

from monolane.serve._tools.calls import (
    AnswerOverError,
    Calls,
    Delta,
    NotACallError,
    call_id,
    short_id,
)
from monolane.serve._tools.custom import CustomInputs
from monolane.serve._tools.objects import FENCES, Objects, read_fenced
from monolane.serve._tools.reader import read_calls, read_unmarked
from monolane.serve._tools.request import ToolUse
from monolane.serve._tools.scan import Reader


class ToolParser:
    """Reads one answer that may call tools; used by one thread.

    What looked like a call and is none becomes content, letter for letter. White space between text
    and calls stays; that before and behind all text is dropped, once there is a call. What leaves
    of a call is as ``calls.py`` says.

    A call after the begin mark may have any name, which is the client's to refuse. One without the
    mark must have the name of a callable tool. Where the format has a mark, such a call must also
    be whole: in tags, an object with the mark behind it, or objects that are all of the answer.
    Without parallel calls, all but the first are dropped.
    """

    def __init__(self, use: ToolUse, ids: Callable[[], str] | None = None) -> None:
        """``ids`` makes the ids of calls; None: random ones in the family's spelling."""
        form = self._format = use.format
        self._custom = CustomInputs(use.custom)
        schemas = {tool.name: tool.parameters for tool in use.callable}
        self._names = frozenset(schemas)
        ids = ids or (short_id if form.short_ids else call_id)
        self._calls = Calls(many=use.parallel, ids=ids, schemas=schemas)
        # A grammar, where there is one, knows the begin mark alone.
        lenient = not use.guided
        self._text_mark = form.begin + form.text if form.text else ""
        self._marks = tuple(filter(None, form.begins if lenient else (form.begin,)))
        self._leads = form.shape.leads if lenient or not form.begin else ()
        objects = lenient and isinstance(form.shape, Objects)
        self._objects = objects and bool(form.ends)
        self._fences = FENCES if objects and not form.opened else ()  # until there is other text
        self._reader: Reader | None = None
        self._lead = ""  # the mark with which the reader began
        self._raw: list[str] = []  # what it has read since, as long as it may become content
        self._held = ""  # the end of the text, as long as it may be the beginning of a mark
        self._gap = ""  # white space behind all text so far
        self._tried = 0  # characters to come in which no call without a mark begins
        self._fresh = form.bare or form.opened  # nothing but white space so far
        self._fenced = False  # what is tried now began with a fence
        self._said = False  # there was text
        self._content: list[str] = []

    @property
    def called(self) -> bool:
        """Whether there was a tool call."""
        return self._calls.count > 0

    @property
    def broken(self) -> bool:
        """Whether a call was not whole."""
        return self._calls.broken

    def push(self, text: str) -> Delta:
        """Take the next text of the answer."""
        while text:
            text = self._search(text) if self._reader is None else self._read(text)
        return self._take()

    def finish(self) -> Delta:
        """Return what was held back, now that the answer is over."""
        calls = self._calls
        self._end_reader()
        held, reader, self._held, self._reader = self._held, self._reader, "", None
        if calls.tried and not self._said:  # the answer is a call, and nothing else
            calls.end_trial(whole=True)
        elif calls.trial:
            calls.end_trial(whole=False)
            self._say("".join(self._raw))
        elif calls.inside:
            calls.fail()
        # Behind a call, the beginning of one more that was cut off is of no use to anybody: of its
        # mark, or, read already, of the call.
        elif not calls.between:
            self._say(self._lead + "".join(self._raw) if reader is not None else held)
        if not self.called:
            self._content.append(self._gap)
        last = self._take()
        return replace(last, tool_calls=(*last.tool_calls, *self._custom.rest()))

    def _end_reader(self) -> None:
        """Tell the reader that nothing more comes, which may make what it has read a call."""
        if self._reader is None:
            return
        try:
            self._reader.throw(AnswerOverError)
        except StopIteration:
            self._reader = None
            self._calls.end_trial(whole=True)
        except (AnswerOverError, NotACallError):
            pass

    def _take(self) -> Delta:
        content, self._content = "".join(self._content), []
        return self._custom.turned(Delta(content, "", self._calls.take()))

    def _say(self, text: str) -> None:
        """Add to the content, and keep the white space at its end back."""
        said = text.rstrip()
        if said:
            if self.called and not self._said:
                said, self._gap = said.lstrip(), ""
            self._content.append(self._gap + said)
            self._gap = text[len(text.rstrip()) :]
            self._said, self._fresh, self._calls.between = True, False, False
        else:
            self._gap += text

    def _search(self, text: str) -> str:
        """Look for the beginning of calls; return the text after it."""
        text, self._held = self._held + text, ""
        if self._fences:
            start = text.lstrip()
            if not start or any(one.startswith(start) for one in self._fences):
                self._held = text
                return ""
            fence = next(filter(start.startswith, self._fences), "")
            self._fences = ()
            if fence:
                self._say(text[: len(text) - len(start)])
                self._start_fenced(fence)
                return start.removeprefix(fence)
        if self._fresh or self._calls.between:
            stripped = text.lstrip()
            self._skip(len(text) - len(stripped))
            self._say(text[: len(text) - len(stripped)])
            text, form = stripped, self._format
            ends = form.ends if self._calls.between else (form.text,) if form.opened else ()
            for end in ends:
                if text.startswith(end):
                    self._fresh = False
                    self._skip(len(end))
                    return text[len(end) :]
            if not text or any(one.startswith(text) for one in (*ends, *self._marks)):
                self._held = text
                return ""
            if self._fresh and not any(map(text.startswith, self._marks)):
                self._fresh = False
                if form.opened or text[0] in "{[":
                    self._start("", bare=True)
                    return text
        place, mark = self._next_mark(text)
        self._say(text[:place])
        self._skip(place)
        text = text[place:]
        if not mark:
            self._held = text
            return ""
        if mark == self._text_mark or mark in self._marks:
            self._skip(len(mark))
        if mark == self._text_mark:
            return text[len(mark) :]
        if mark in self._marks:
            self._start(mark, bare=False)
            return text[len(mark) :]
        self._start("", bare=True, trial=bool(self._format.begin))
        return text

    def _next_mark(self, text: str) -> tuple[int, str]:
        """Return the first place where calls may begin, and the mark there.

        Without a mark: the place of what may become one.
        """
        found: list[tuple[int, str]] = []
        for mark in self._marks:
            if (place := text.find(mark)) >= 0:
                found.append((place, mark))
        for lead in self._leads:
            if (place := text.find(lead, self._tried)) >= 0:
                found.append((place, lead))
        if self._objects and (place := self._line(text)) >= 0:
            found.append((place, "{"))
        marks = (*self._marks, *self._leads, self._text_mark)
        end = len(text) - max((_overlap(text, mark) for mark in marks if mark), default=0)
        place, mark = min(found, default=(end, ""))
        if end < place:
            return end, ""
        if mark and self._text_mark.startswith(mark):
            rest = text[place:]
            if rest.startswith(self._text_mark):
                return place, self._text_mark
            if self._text_mark.startswith(rest):
                return place, ""
        return place, mark

    def _line(self, text: str) -> int:
        """Return the place of a brace that begins a line, -1 if there is none."""
        place = text.find("{", self._tried)
        while place >= 0:
            before = (self._gap + text[:place]).rstrip(" \t")
            first = not self._said or self._calls.between
            if before.endswith("\n") or (first and not before):
                return place
            place = text.find("{", place + 1)
        return -1

    def _skip(self, size: int) -> None:
        self._tried = max(0, self._tried - size)

    def _start(self, lead: str, *, bare: bool, trial: bool = False) -> None:
        self._fresh = False
        self._lead, self._raw = lead, []
        self._calls.names = self._names if bare else None
        if trial:
            self._calls.try_one()
            self._reader = read_unmarked(self._format, self._calls)
        elif bare and lead == "" and not self._format.begin:
            self._reader = read_unmarked(self._format, self._calls)
        else:
            self._reader = read_calls(self._format, self._calls, lead)
        next(self._reader)

    def _start_fenced(self, fence: str) -> None:
        """Try a call whose first brace, behind a fence, has been read."""
        self._lead, self._raw, self._fenced = "", [fence], True
        self._calls.names = self._names
        self._calls.try_one()
        self._reader = read_fenced(self._calls)
        next(self._reader)

    def _read(self, text: str) -> str:
        """Read calls; return the text after them."""
        reader, calls = self._reader, self._calls
        assert reader is not None
        for place, char in enumerate(text):
            if calls.inside and not calls.trial:  # it is a call: nothing of it will be content
                self._lead = ""
                self._raw.clear()
            else:
                self._raw.append(char)
            try:
                reader.send(char)
            except StopIteration as end:
                self._reader, self._tried = None, 0
                calls.end_trial(whole=True)
                return str(end.value) + text[place + 1 :]
            except NotACallError:
                self._reader = None
                return self._refuse(char) + text[place + 1 :]
        return ""

    def _refuse(self, char: str) -> str:
        """Give up on what was no call; return what is to be searched again."""
        calls, raw = self._calls, "".join(self._raw)
        calls.forget()
        if calls.trial:
            calls.end_trial(whole=False)
            # A trial in each part of it would take its square. Of a fence there is one alone.
            self._tried, self._fenced = 0 if self._fenced else len(raw), False
        elif calls.inside:  # parts of it have left: it stays as it is, unfinished
            calls.fail()
            return char
        if not self._lead:
            self._say(raw[:1])
            self._skip(1)
            return raw[1:]
        self._say(self._lead)
        return raw


def _overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of the text that begins the mark."""
    sizes = range(min(len(text), len(mark) - 1), 0, -1)
    return next((size for size in sizes if mark.startswith(text[-size:])), 0)
