"""Turns a stream of token ids into text, a certain piece at a time.

Not "decode everything again and cut off what was said before", which most servers began with: that
is quadratic, and wrong where the last character is unfinished. Here every token adds its bytes to
one incremental UTF-8 decoder, so the work is linear and no half character ever leaves.

Generated text continues a prompt. A SentencePiece-style decoder takes the leading space off the
*text*, not off what was generated, so a detokenizer is told the prompt's ids as ``context``:
the pieces are then what the generated ids add to the text of the prompt.
"""

import codecs
from collections.abc import Collection, Sequence
from typing import Protocol

from monolane.text._token_bytes import TokenBytes

_UNKNOWN = "\N{REPLACEMENT CHARACTER}".encode()


class Vocabulary(Protocol):
    """What a detokenizer needs of a ``Tokenizer``, which itself decodes with one."""

    pieces: TokenBytes
    special_ids: frozenset[int]


class Detokenizer:
    """Text of a growing list of token ids; one per stream, for one thread.

    ``context`` are the ids before the first pushed one (empty: the text begins here). Special
    tokens add nothing unless ``skip_special_tokens`` is False or they are in ``visible_ids``. An
    id that the tokenizer has no token for (a model's vocabulary may be padded) adds U+FFFD: it
    shows, and stops nothing.
    """

    def __init__(
        self,
        tokenizer: Vocabulary,
        *,
        context: Sequence[int] = (),
        skip_special_tokens: bool = True,
        visible_ids: Collection[int] = (),
    ) -> None:
        self._pieces = tokenizer.pieces
        skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._skipped = skipped.difference(visible_ids)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = True
        self._to_strip = self._pieces.rules.strip_count
        self.push(context)

    def push(self, ids: Sequence[int]) -> str:
        """Return the text that these ids make certain; it may be empty."""
        data = b"".join([self._bytes_of(token_id) for token_id in ids])
        return self._strip_lead(self._utf8.decode(data))

    def finish(self) -> str:
        """Return what is left: U+FFFD for an unfinished character, else nothing."""
        return self._strip_lead(self._utf8.decode(b"", final=True))

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self._skipped:
            return b""
        pieces = self._pieces
        found = pieces.get_first(token_id) if self._at_start else pieces.get(token_id)
        self._at_start = False
        return _UNKNOWN if found is None else found

    def _strip_lead(self, text: str) -> str:
        while self._to_strip and text:
            if text[0] != self._pieces.rules.strip_char:
                self._to_strip = 0
            else:
                text = text[1:]
                self._to_strip -= 1
        return text
