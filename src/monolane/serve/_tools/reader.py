"""Reads the calls behind a mark, whatever spelling they are in.

A parser of the whole text, run again with each token, would not do: the result must not depend on
where the text was cut, and arguments leave while they are written.
"""

from monolane.serve._tools.calls import Calls, NotACallError
from monolane.serve._tools.format import ToolFormat
from monolane.serve._tools.keyed import Keyed
from monolane.serve._tools.objects import ByName, read_list, read_objects
from monolane.serve._tools.scan import PYTHON, Reader, Step, literal, space, tag
from monolane.serve._tools.tagged import read_tags

_PYTHONIC = Keyed(PYTHON)


def read_calls(form: ToolFormat, calls: Calls, begun: str) -> Reader:
    """Read what follows the mark ``begun``: a call, several, or a list of them.

    Returns what was read behind them.
    """
    by_name = isinstance(form.shape, ByName)
    char = yield from space()
    if char == "<":
        found = yield from tag()
        if f"<{found}>" not in form.begins:  # behind another mark, or the same once more
            if not form.ends:
                raise NotACallError
            return (yield from read_tags(calls, found, form.ends, form.begins, padded=form.padded))
        char = yield from space()
    if char == "{":
        return (yield from read_objects(calls, by_name))
    if char == "[":
        char = yield from space()
        if char == "{":
            yield from read_list(calls, by_name)
        else:
            yield from _python_list(calls, char)
        return ""
    return (yield from (form.named or form.shape).read(calls, char))


def read_unmarked(form: ToolFormat, calls: Calls) -> Reader:
    """Read a call in tags, or one behind which there is an end as ``form`` has it."""
    char = yield from space()
    if char == "<":
        found = yield from tag()
        return (yield from read_tags(calls, found, form.ends, form.begins, padded=form.padded))
    if char != "{":
        yield from form.shape.read(calls, char)
        rest = yield from space()
    else:
        rest = yield from read_objects(calls, isinstance(form.shape, ByName))
    end = form.ends[0]
    if rest != end[0]:
        raise NotACallError
    yield from literal(end[1:])
    return ""


def _python_list(calls: Calls, char: str) -> Step:
    if char == "]":
        raise NotACallError
    while char != "]":
        yield from _PYTHONIC.read(calls, char)
        char = yield from space()
        if char == ",":
            char = yield from space()
        elif char != "]":
            raise NotACallError
