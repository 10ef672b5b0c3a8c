"""Tells tool calls from the rest of an answer, wherever its text is cut into pieces."""

from collections.abc import Callable
from dataclasses import replace

from monolane.serve._tools.calls import Calls, Delta, NotACallError, call_id, short_id
from monolane.serve._tools.custom import CustomInputs
from monolane.serve._tools.reader import Reader, read_calls
from monolane.serve._tools.request import ToolUse


class ToolParser:
    """Reads one answer that may call tools; used by one thread.

    What looked like a call and is none becomes content, letter for letter. White space around calls
    is dropped. Arguments pass as they are written: they are valid JSON where the model wrote such,
    and an answer that is cut off leaves them unfinished rather than seemingly whole.

    A call after the begin mark may have any name, which is the client's to refuse. One without the
    mark must have the name of a callable tool, or a JSON answer with a "name" would be taken for a
    call. Without parallel calls, all but the first are dropped.
    """

    def __init__(self, use: ToolUse, ids: Callable[[], str] | None = None) -> None:
        """``ids`` makes the ids of calls; None: random ones in the family's spelling."""
        self._format = use.format
        self._custom = CustomInputs(use.custom)
        schemas = {tool.name: tool.parameters for tool in use.callable}
        self._names = frozenset(schemas)
        ids = ids or (short_id if use.format.short_ids else call_id)
        self._calls = Calls(many=use.parallel, ids=ids, schemas=schemas)
        self._reader: Reader | None = None
        self._lead = ""  # what the reader began with: white space and the mark
        self._raw: list[str] = []  # what it has read since, as long as it may become content
        self._held = ""  # the end of the text, as long as it may be the beginning of a mark
        self._fresh = use.format.bare  # nothing but white space so far
        self._content: list[str] = []

    @property
    def called(self) -> bool:
        """Whether there was a tool call."""
        return self._calls.count > 0

    def push(self, text: str) -> Delta:
        """Take the next text of the answer."""
        while text:
            text = self._search(text) if self._reader is None else self._read(text)
        return self._take()

    def finish(self) -> Delta:
        """Return what was held back, now that the answer is over."""
        held = self._held
        if self._reader is not None and not self.called:
            held = "".join((self._lead, *self._raw))
        # After calls, the beginning of one more that was cut off is of no use to anybody: of its
        # mark, or, read already, of the call.
        if not self._calls.between:
            self._content.append(held.rstrip() if self.called else held)
        self._reader, self._held = None, ""
        last = self._take()
        return replace(last, tool_calls=(*last.tool_calls, *self._custom.rest()))

    def _take(self) -> Delta:
        content, self._content = "".join(self._content), []
        return self._custom.turned(Delta(content, "", self._calls.take()))

    def _search(self, text: str) -> str:
        """Look for the beginning of calls; return the text after it."""
        text, self._held = self._held + text, ""
        begin = self._format.begin
        if self._fresh or self._calls.between:
            stripped = text.lstrip()
            if self._calls.between:  # white space after a call
                text = stripped
            if not stripped or (len(stripped) < len(begin) and begin.startswith(stripped)):
                self._held = text
                return ""
            if self._fresh and stripped[0] in "{[" and not stripped.startswith(begin):
                self._start(text[: len(text) - len(stripped)], bare=True)
                return stripped
            self._calls.between = self._fresh = False
        place = text.find(begin)
        end = place if place >= 0 else len(text) - _overlap(text, begin)
        certain = text[:end].rstrip()
        self._content.append(certain)
        if place < 0:
            self._held = text[len(certain) :]
            return ""
        self._start(text[len(certain) : place + len(begin)], bare=False)
        return text[place + len(begin) :]

    def _start(self, lead: str, *, bare: bool) -> None:
        self._fresh = False
        self._lead, self._raw = lead, []
        self._calls.names = self._names if bare else None
        self._reader = read_calls(self._format, self._calls)
        next(self._reader)

    def _read(self, text: str) -> str:
        """Read calls; return the text after them."""
        reader, calls = self._reader, self._calls
        assert reader is not None
        for place, char in enumerate(text):
            if calls.inside:  # it is a call: nothing of it will be content
                self._lead = ""
                self._raw.clear()
            else:
                self._raw.append(char)
            try:
                reader.send(char)
            except StopIteration as end:
                self._reader = None
                return str(end.value) + text[place + 1 :]
            except NotACallError:
                self._reader = None
                return self._refuse(char) + text[place + 1 :]
        return ""

    def _refuse(self, char: str) -> str:
        """Give up on what was no call; return what is to be searched again."""
        calls = self._calls
        if calls.inside:  # parts of it have left: it stays as it is, unfinished
            calls.inside, calls.between = False, True
            return char
        self._content.append(self._lead)
        return "".join(self._raw)


def _overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of the text that begins the mark."""
    sizes = range(min(len(text), len(mark) - 1), 0, -1)
    return next((size for size in sizes if mark.startswith(text[-size:])), 0)
