"""How much the parts of a tokenizer.json make of a text, worked out before any of them is built.

Each part is small and harmless, and so is what it adds to a text; a chain of them multiplies. Eight
that put 64 characters in the place of each make 2^48 of one, and the library then aborts the
process: nothing can catch that. So each part has a bound on the bytes it makes of n, a n + b, and
those of a chain follow from these.

Bounds of Unicode's forms, in UTF-8: https://unicode.org/faq/normalization.html (3 for NFC and NFD,
11 for the others). What a part may be: https://docs.rs/tokenizers.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from monolane.errors import TextError

# Parts of a chain. Published tokenizers have at most ten.
MOST_PARTS = 64
# Bytes that one may become. Published: 6 (NFC, byte level) to 726 (ALBERT's, by these bounds).
MOST_TIMES = 4096
# Bytes that are added to a text, whatever its length; published ones add a few.
MOST_MORE = 1 << 16
# Bytes that a text may become: the library needs some twenty for each.
MOST_BYTES = 1 << 26
# Tokens that a post-processor may put around a text.
MOST_AROUND = 1024
# Characters of a word that WordPiece looks at: its steps are the cube. Published: 100.
MOST_OF_WORD = 1000
# Bytes that a decoder may make of one of a token.
MOST_DECODED = 16


@dataclass(frozen=True, slots=True)
class Growth:
    """At most ``times`` n + ``more`` bytes come of n."""

    times: int = 1
    more: int = 0

    def then(self, other: "Growth") -> "Growth":
        """Return the bound of this, and of another behind it."""
        return Growth(self.times * other.times, self.more * other.times + other.more)

    def of(self, size: int) -> int:
        """Return the bound for so many bytes."""
        return self.times * size + self.more


def check_growth(data: Mapping[str, Any]) -> Growth:
    """Return what the parts make of a text before it is cut into tokens; TextError if too much.

    Decoder and post-processor are checked as well. What is no part at all is left to the library,
    which says so.
    """
    grown = Growth()
    for place, kind, rule in (
        ("normalizer", "normalizers", _NORMALIZERS),
        ("pre_tokenizer", "pretokenizers", _PRE_TOKENIZERS),
    ):
        for part in parts_of(data.get(place), kind, place):
            grown = grown.then(rule.get(str(part.get("type")), _unchanged)(part))
            _check(grown.times <= MOST_TIMES, place, f"{MOST_TIMES} bytes of one", grown.times)
            _check(grown.more <= MOST_MORE, place, f"{MOST_MORE} bytes more", grown.more)
    model = data.get("model")
    if isinstance(model, dict):  # these go on each character of a word
        affixes = ("continuing_subword_prefix", "end_of_word_suffix")
        size = sum(_size(model.get(affix)) for affix in affixes)
        _check(size <= MOST_TIMES, "model", f"affixes of {MOST_TIMES} bytes", size)
        grown = grown.then(Growth(1 + size))
        longest = model.get("max_input_chars_per_word", 0)
        if isinstance(longest, int) and longest > MOST_OF_WORD:
            raise TextError(
                f"model: max_input_chars_per_word: expected at most {MOST_OF_WORD}, got {longest}"
            )
    decoded = Growth()
    for part in parts_of(data.get("decoder"), "decoders", "decoder"):
        decoded = decoded.then(_DECODERS.get(str(part.get("type")), _unchanged)(part))
        _check(decoded.times <= MOST_DECODED, "decoder", f"{MOST_DECODED} of one", decoded.times)
        _check(decoded.more <= MOST_MORE, "decoder", f"{MOST_MORE} bytes more", decoded.more)
    around = Growth()
    for part in parts_of(data.get("post_processor"), "processors", "post_processor"):
        around = around.then(_around(part))
        most = max(around.times, around.more)
        _check(most <= MOST_AROUND, "post_processor", f"{MOST_AROUND} tokens around a text", most)
    return grown


def _check(holds: bool, place: str, expected: str, got: int) -> None:
    if not holds:
        raise TextError(
            f"{place}: expected parts that make at most {expected}, got parts that make up to {got}"
        )


def parts_of(value: Any, kind: str, place: str) -> list[Mapping[str, Any]]:
    """Return the parts of a chain, one after the other, also of chains within it."""
    found: list[Mapping[str, Any]] = []
    open_parts = [value]
    while open_parts:
        part = open_parts.pop()
        if not isinstance(part, dict):
            continue
        inner = part.get(kind) if part.get("type") == "Sequence" else None
        if isinstance(inner, list):
            open_parts += reversed(inner)
        else:
            found.append(part)
        _check(
            len(found) + len(open_parts) <= MOST_PARTS,
            place,
            f"{MOST_PARTS} steps",
            len(found) + len(open_parts),
        )
    return found


def _size(value: Any) -> int:
    return len(value.encode("utf-8", "replace")) if isinstance(value, str) else 0


def _unchanged(part: Mapping[str, Any]) -> Growth:
    return Growth()


def _times(times: int) -> Callable[[Mapping[str, Any]], Growth]:
    return lambda part: Growth(times)


def _replace(part: Mapping[str, Any]) -> Growth:
    """A text in the place of others: of a fixed one, or of whatever matches, empty matches too."""
    new, pattern = _size(part.get("content")), part.get("pattern")
    old = _size(pattern.get("String")) if isinstance(pattern, dict) else 0
    # Without characters of its own, a match may be before each byte and behind the last.
    return Growth(1 + new, new) if old == 0 else Growth(max(1, -(-new // old)))


def _prepend(part: Mapping[str, Any]) -> Growth:
    return Growth(1, _size(part.get("prepend")))


def _precompiled(part: Mapping[str, Any]) -> Growth:
    """SentencePiece's table: 4 bytes of length, a trie, then the texts that stand for others."""
    said = part.get("precompiled_charsmap")
    try:
        table = base64.b64decode(said) if isinstance(said, str) else b""
    except (binascii.Error, ValueError):
        return Growth()  # the library refuses it
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return Growth(max(1, *map(len, texts.split(b"\0"))) if texts else 1)


def _metaspace(part: Mapping[str, Any]) -> Growth:
    mark = max(1, _size(part.get("replacement")))
    return Growth(mark, mark)


def _fixed_length(part: Mapping[str, Any]) -> Growth:
    length = part.get("length", 1)
    if not isinstance(length, int) or length < 1:  # the library would panic, and print where
        raise TextError(f"FixedLength: expected a length of at least 1, got {length!r:.80}")
    return Growth()


def _byte_level(part: Mapping[str, Any]) -> Growth:
    return Growth(2, 2)  # each byte becomes a character of at most two; a space may go before


def _around(part: Mapping[str, Any]) -> Growth:
    """Tokens that a template puts around the tokens of a text, and how often it has these."""
    if part.get("type") != "TemplateProcessing":
        return Growth(1, 2)  # Bert's, Roberta's: one before, one behind
    known = part.get("special_tokens")
    texts = special = 0
    for piece in _list(part.get("single")):
        token = piece.get("SpecialToken") if isinstance(piece, dict) else None
        if not isinstance(token, dict):
            texts += 1
            continue
        about = known.get(str(token.get("id"))) if isinstance(known, dict) else None
        if not isinstance(about, dict):  # the library would panic, and print where
            raise TextError(
                f"post_processor: expected {token.get('id')!r:.80} among its special_tokens"
            )
        special += max(1, len(_list(about.get("ids"))))
    return Growth(max(1, texts), special)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


_Rules = Mapping[str, Callable[[Mapping[str, Any]], Growth]]
_NORMALIZERS: _Rules = {
    "NFC": _times(3),
    "NFD": _times(3),
    "NFKC": _times(11),
    "NFKD": _times(11),
    "Lowercase": _times(2),  # of two bytes, some become three
    "BertNormalizer": _times(3 * 3 * 2),  # spaces around Chinese, NFD, lower case
    "ByteLevel": _byte_level,
    "Prepend": _prepend,
    "Replace": _replace,
    "Precompiled": _precompiled,
}
_PRE_TOKENIZERS: _Rules = {
    "ByteLevel": _byte_level,
    "FixedLength": _fixed_length,
    "Metaspace": _metaspace,
}
_DECODERS: _Rules = {"Replace": _replace, "ByteLevel": _unchanged}
