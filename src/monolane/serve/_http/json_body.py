"""A request's JSON, read so that no body holds up the streams of others.

pydantic parses a body in one call, which keeps every other thread waiting: 1.6 s for 7 MB of small
values, also where they stand in a field that nobody reads. So a large body is looked over first, in
short steps. Fields that this server does not have are cut out unread, and a body with more values
than a request can need is refused. What is left is read with its texts apart (``json_texts``).
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from monolane.serve._errors import ApiError, api_error
from monolane.serve._grammar.structured import EXTRA_FIELDS
from monolane.serve._http.body import Body
from monolane.serve._http.fields import REFUSED
from monolane.serve._http.json_texts import Quotes, blocks, values_of

B = TypeVar("B", bound=Body)

# Values, counted by commas and brackets, in a field of a large body: 10 to 20 ms of parsing.
MAX_IDS = 280_000  # token ids; 256 prompts of 1,024 ids fit
MAX_VALUES = 1 << 15  # of any other field
MAX_DEPTH = 200
MAX_MEMBERS = 1000  # of the body itself
_SMALL = 32 << 10  # bytes that are parsed within a few milliseconds, whatever they are
_MAX_NAME = 1 << 10  # bytes of a field's name that is read: no field of ours has a longer one
_COMMA, _COLON = b",:"
_OPENING, _CLOSING = b"{}"  # and "[]", once bit 5 is set
_IDS = ("prompt", "tokens")
_MARK = b"\xef\xbb\xbf"  # of the byte order: RFC 8259, 8.1, lets a reader ignore it


def parse_body(kind: type[B], data: bytes) -> B:
    """Return a body as its type; ApiError 400 for one that is none. To be called on a thread."""
    data = data.removeprefix(_MARK)
    try:
        if len(data) <= _SMALL:
            return kind.model_validate_json(data)
        kept = trimmed(data, {*kind.model_fields, *REFUSED, *EXTRA_FIELDS})
        return kind.model_validate(_values(kept))
    except ValidationError as error:
        # Here, not on the event loop: a list of many faults takes a while to write.
        raise api_error(error) from None


def _values(data: bytes) -> Any:
    try:
        return values_of(data)
    except ValueError as error:
        raise _refused(f"{error!s:.200}") from None


def trimmed(data: bytes, known: Collection[str]) -> bytes:
    """Return a JSON object with its known members alone.

    ApiError 400 for one that is no object, or that has too many or too deeply nested values. What
    is cut out is not checked.
    """
    kept = []
    for name, member in _members(data):
        limit = MAX_IDS if name in _IDS else MAX_VALUES
        if name not in known:
            continue
        if member.values > limit:
            message = f"{name}: expected at most {limit} values, got {member.values}"
            raise ApiError(400, message, name)
        kept.append(data[member.begin : member.end])
    return b"{" + b",".join(kept) + b"}"


@dataclass(frozen=True, slots=True)
class _Member:
    """``"name": value`` at bytes ``begin`` to ``end``; ``values``: commas and brackets in it."""

    begin: int
    end: int
    values: int


def _members(data: bytes) -> Iterator[tuple[str, _Member]]:
    """Yield the members of an object."""
    begin = data.find(b"{") + 1
    if not begin or data[: begin - 1].strip():
        raise _refused("expected an object")
    colon, count_before, members = -1, 0, 0
    for place, count in _marks(data):
        if data[place] == _COLON:
            if colon >= 0:
                raise _refused(f"expected a comma before byte {place}")
            colon = place
            continue
        over = data[place] != _COMMA
        if over and data[place + 1 :].strip():
            raise _refused(f"expected nothing behind byte {place}")
        if over and not members and not data[begin:place].strip():
            return
        members += 1
        if members > MAX_MEMBERS:
            raise _refused(f"expected at most {MAX_MEMBERS} fields")
        if colon < 0:
            raise _refused(f"expected a field before byte {place}")
        try:
            name = (
                json.loads(spelled) if len(spelled := data[begin:colon].strip()) < _MAX_NAME else ""
            )
        except ValueError:
            raise _refused(f"expected the name of a field before byte {colon}") from None
        yield str(name), _Member(begin, place, count - count_before)
        begin, colon, count_before = place + 1, -1, count
        if over:
            return
    raise _refused("expected an end")


def _marks(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the places of an object's own colons, commas and end, and the values up to there."""
    scan = _Scan()
    for start, block in blocks(data):
        places, counts = scan.step(block)
        yield from zip((places + start).tolist(), counts.tolist(), strict=True)


class _Scan:
    """Follows strings and brackets from block to block."""

    def __init__(self) -> None:
        self._quotes = Quotes()
        self._inside = 0  # a string: 1
        self._depth = 0
        self._values = 0

    def step(
        self, block: npt.NDArray[np.uint8]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Return the places of the marks in a block, and how many values came up to each."""
        inside = np.cumsum(self._quotes.step(block), dtype=np.int32) + self._inside
        outside = (inside & 1) == 0
        self._inside = int(inside[-1]) & 1
        folded = block | 0x20
        opening = outside & (folded == _OPENING)
        closing = outside & (folded == _CLOSING)
        depth = np.cumsum(opening.view(np.int8) - closing.view(np.int8), dtype=np.int32)
        depth += self._depth
        self._depth = int(depth[-1])
        if (deepest := int(depth.max())) > MAX_DEPTH:
            raise _refused(f"expected values at most {MAX_DEPTH} deep, got {deepest}")
        commas = outside & (block == _COMMA)
        counts = np.cumsum(commas | opening, dtype=np.int64) + self._values
        self._values = int(counts[-1])
        own = (commas | (outside & (block == _COLON))) & (depth == 1)
        places = np.flatnonzero(own | (closing & (depth <= 0)))
        return places, counts[places]


def _refused(reason: str) -> ApiError:
    return ApiError(400, f"the body is no JSON object of this route: {reason}")
