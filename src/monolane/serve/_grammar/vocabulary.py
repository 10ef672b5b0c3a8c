"""A model's vocabulary as llguidance reads it: the bytes of each token, and how text is cut."""

from collections.abc import Sequence

from monolane.engine import Engine
from monolane.errors import RequestError

# What a tokenizer must give back byte by byte, so that a forced text may become its tokens.
_PROBES = ('{"a": "', '", "b": 1', " x", "x\n  y")
# Metaspace vocabularies put a space before a text. After this character they put none.
_PREFIX = "\x02"


class Vocabulary:
    """What ``llguidance.LLTokenizer`` asks of a tokenizer object.

    All control tokens are special here, also those that the folder does not mark so: a JSON string
    may spell ``<tool_call>``, but not with that token.
    """

    is_tokenizer_wrapper = True

    def __init__(self, engine: Engine) -> None:
        """Read the vocabulary; RequestError where the model has no tokenizer."""
        if engine.tokenizer is None:
            raise RequestError(
                "this model has no tokenizer, so its answers cannot be made to follow a grammar"
            )
        self._tokenizer = tokenizer = engine.tokenizer
        self.tokens: Sequence[bytes] = [
            tokenizer.pieces.get(token) or b"" for token in range(engine.config.vocab_size)
        ]
        spelled = map(tokenizer.id_of, tokenizer.control_spellings.all)
        control = tokenizer.special_ids.union(token for token in spelled if token is not None)
        self.special_token_ids: Sequence[int] = sorted(control)
        self.eos_token_ids = sorted(engine.eos_ids) or [tokenizer.eos_id or 0]
        self.eos_token_id = self.eos_token_ids[0]
        self.bos_token_id = tokenizer.bos_id
        self.canonical = all(self._cut(text) is not None for text in _PROBES)

    def __call__(self, text: str | bytes) -> list[int]:
        """Return the ids of a text, never a control token."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._cut(text) or self._encode(text)

    def _cut(self, text: str) -> list[int] | None:
        """Return ids whose bytes are the text's, or None."""
        data = text.encode()
        ids = self._encode(text)
        if self._bytes(ids) == data:
            return ids
        ids = self._encode(_PREFIX + text)
        while ids and self._bytes(ids) != data and len(self._bytes(ids)) > len(data):
            ids = ids[1:]
        return ids if self._bytes(ids) == data else None

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _bytes(self, ids: list[int]) -> bytes:
        return b"".join(self.tokens[token] for token in ids)
