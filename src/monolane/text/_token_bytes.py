"""The bytes that each token adds to a text, read from the ``decoder`` of tokenizer.json.

The library decodes whole lists only, and turns bytes that are half a character into U+FFFD on the
way, so a stream built on it must decode again and again. Bytes per token make a stream linear, and
make the text of a list equal to the text of its parts. The price is that the decoders are read here
a second time: those of byte-level, byte-fallback and metaspace vocabularies, others are refused.

Two departures from the library, both where it loses text:
- in a run of byte tokens that is no valid UTF-8 the library replaces every byte, also the valid
  ones; here the run is decoded as ``bytes.decode("utf-8", "replace")`` does;
- a byte-level decoder reads ``é`` in an *added* token as the byte 0xE9; here an added token adds
  its own spelling.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from monolane.errors import TextError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
MOST_BYTES = 1 << 16  # of a token; the longest published ones have some hundred
_Step = Callable[[str, bool], str]  # (token, is it the first of the text) -> text


def _byte_of_char() -> dict[str, int]:
    """The byte-level alphabet: printable Latin-1 stands for itself, the rest for U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()


@dataclass(frozen=True)
class DecodeRules:
    """A decoder, as far as it works token by token, and what it takes off the text's beginning."""

    steps: tuple[_Step, ...] = ()
    byte_level: bool = False
    byte_fallback: bool = False
    strip_char: str = ""
    strip_count: int = 0


def read_rules(decoder: Any) -> DecodeRules:
    """Return the rules of a ``decoder`` object; TextError names a decoder that is not supported."""
    if decoder is None:  # the library then joins the tokens by one space
        return DecodeRules((lambda token, _: " " + token,), strip_char=" ", strip_count=1)
    parts = decoder.get("decoders") if _kind(decoder) == "Sequence" else [decoder]
    if not isinstance(parts, list):
        raise TextError("expected a list of decoders in a Sequence decoder")
    kinds = [_kind(part) for part in parts]
    fuse = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
    strip_char, strip_count = _stripped(parts[fuse + 1 :])
    byte_level = kinds[:fuse] == ["ByteLevel"]
    steps = () if byte_level else [_step(p) for p in parts[:fuse] if _kind(p) != "ByteFallback"]
    return DecodeRules(
        steps=tuple(steps),
        byte_level=byte_level,
        byte_fallback="ByteFallback" in kinds[:fuse],
        strip_char=strip_char,
        strip_count=strip_count,
    )


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise TextError(f"expected a decoder with a 'type', got {part!r:.100}")
    return kind


def _stripped(parts: list[Any]) -> tuple[str, int]:
    """What is taken off the beginning of the fused text; only one Strip may follow a Fuse."""
    if not parts:
        return "", 0
    if len(parts) > 1 or _kind(parts[0]) != "Strip" or _field(parts[0], "stop", int):
        raise TextError(
            "expected nothing or one Strip with stop 0 after the decoder Fuse, got "
            f"{parts!r:.200}; text that depends on its end cannot be streamed"
        )
    return _field(parts[0], "content", str), _field(parts[0], "start", int)


def _field(part: Mapping[str, Any], name: str, kind: type) -> Any:
    value = part.get(name)
    if not isinstance(value, kind):
        raise TextError(f"expected {name} of the decoder {_kind(part)} to be {kind.__name__}")
    return value


def _step(part: Mapping[str, Any]) -> _Step:
    """Return what one decoder makes of a token."""
    kind = _kind(part)
    if kind == "Replace":
        pattern = part.get("pattern")
        old = pattern.get("String") if isinstance(pattern, dict) else None
        if not isinstance(old, str):
            raise TextError(
                f"expected a String pattern in the decoder Replace, got {pattern!r:.100}"
            )
        new = _field(part, "content", str)
        return lambda token, _: token.replace(old, new)
    if kind == "Metaspace":
        mark = _field(part, "replacement", str)
        scheme, prefix = part.get("prepend_scheme", "always"), part.get("add_prefix_space")
        lead = " " if scheme == "never" or prefix is False else ""
        return lambda token, first: token.replace(mark, lead if first else " ")
    if kind == "Strip":
        char = _field(part, "content", str)
        start, stop = _field(part, "start", int), _field(part, "stop", int)
        return lambda token, _: _without(token, char, start, stop)
    raise TextError(
        f"the decoder {kind} is not supported here; expected ByteLevel, or a sequence of "
        "Replace, Metaspace, ByteFallback, Strip and Fuse"
    )


def _without(token: str, char: str, start: int, stop: int) -> str:
    if not char:
        return token
    kept = token
    while start > 0 and kept.startswith(char):
        kept, start = kept[len(char) :], start - 1
    while stop > 0 and kept.endswith(char):
        kept, stop = kept[: -len(char)], stop - 1
    return kept


class TokenBytes:
    """The bytes of every token; each is worked out once, when it is first asked for."""

    def __init__(self, tokens: Mapping[int, str], added: frozenset[int], rules: DecodeRules):
        self.rules = rules
        self._tokens = tokens
        self._added = added
        self._known: dict[int, bytes] = {}

    def get(self, token_id: int) -> bytes | None:
        """Return the bytes that the token adds inside a text; None for an id without a token."""
        known = self._known.get(token_id)
        if known is None and token_id in self._tokens:
            known = self._known[token_id] = self._work_out(token_id, first=False)
        return known

    def get_first(self, token_id: int) -> bytes | None:
        """Return the bytes that the token adds when it is the first one of a text."""
        return self._work_out(token_id, first=True) if token_id in self._tokens else None

    def _work_out(self, token_id: int, first: bool) -> bytes:
        token = self._tokens[token_id]
        if self.rules.byte_level:
            return token.encode() if token_id in self._added else _bytes_of(token)
        if self.rules.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        _check_size(token_id, token)
        for step in self.rules.steps:
            token = step(token, first)
            _check_size(token_id, token)
        return token.encode()


def _check_size(token_id: int, token: str) -> None:
    if len(token) > MOST_BYTES:
        raise TextError(
            f"decoder: token id {token_id}: expected at most {MOST_BYTES} characters after each "
            f"step, got {len(token)}"
        )


def _bytes_of(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF_CHAR[char] for char in token])
    except KeyError:  # a token outside the alphabet stands for itself, as in the library
        return token.encode()
