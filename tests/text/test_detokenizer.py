"""Streams of tokens against decoding at once, against the library, and against the work allowed."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models

from monolane.text import Detokenizer, Tokenizer
from monolane.text._token_bytes import TokenBytes, read_rules

IDS = st.lists(st.integers(0, 10_000))
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
CHARS = st.sampled_from(["é", "日", "🙂", "a", " ", "the"])
BYTE_RUNS = st.lists(CHARS | st.sampled_from([b"\xe2", b"\x82", b"\xf0\x9f", b"\xff", b"\xed\xa0"]))


def _stream(tokenizer: Tokenizer, ids: Sequence[int], cuts: int, **options: bool) -> list[str]:
    stream = Detokenizer(tokenizer, **options)
    pieces = [stream.push(ids[at : at + cuts]) for at in range(0, len(ids), cuts)]
    return [*pieces, stream.finish()]


@given(ids=IDS, cuts=st.integers(1, 4), skip=st.booleans())
def test_pieces_add_up_to_decode(
    tokenizer: Tokenizer, ids: list[int], cuts: int, skip: bool
) -> None:
    ids = [token_id % tokenizer.vocab_size for token_id in ids]
    pieces = _stream(tokenizer, ids, cuts, skip_special_tokens=skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


@given(ids=IDS, skip=st.booleans())
def test_byte_level_decodes_as_the_library(
    byte_level: Tokenizer, ids: list[int], skip: bool
) -> None:
    """Any ids: Rust's lossy UTF-8 and Python's agree on what becomes U+FFFD."""
    ids = [token_id % byte_level.vocab_size for token_id in ids]
    expected = byte_level._library.decode(ids, skip_special_tokens=skip)
    assert byte_level.decode(ids, skip_special_tokens=skip) == expected


@given(text=TEXT, special=st.sampled_from([[], [1], [2, 2]]), skip=st.booleans())
def test_byte_fallback_decodes_as_the_library(
    llama: Tokenizer, text: str, special: list[int], skip: bool
) -> None:
    ids = [*special, *llama.encode(text, add_special_tokens=False), *special]
    expected = llama._library.decode(ids, skip_special_tokens=skip)
    assert llama.decode(ids, skip_special_tokens=skip) == expected
    if not special:
        assert llama.decode(ids) == text


@given(parts=BYTE_RUNS)
def test_byte_fallback_replaces_as_python_does(llama: Tokenizer, parts: list[str | bytes]) -> None:
    data = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    first = llama.id_of("a")
    assert first is not None
    ids = [first, *(3 + byte for byte in data)]
    assert llama.decode(ids) == "a" + data.decode("utf-8", "replace")


def test_where_the_library_loses_valid_bytes(llama: Tokenizer) -> None:
    ids = [3 + 0x41, 3 + 0x80]
    assert llama._library.decode(ids) == "\ufffd\ufffd"
    assert llama.decode(ids) == "A\ufffd"


@given(text=TEXT, cuts=st.integers(1, 3))
def test_valid_text_streams_without_replacement(tokenizer: Tokenizer, text: str, cuts: int) -> None:
    pieces = _stream(tokenizer, tokenizer.encode(text, add_special_tokens=False), cuts)
    assert "".join(pieces) == text
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


@given(prompt=IDS, ids=IDS)
def test_generated_text_continues_the_prompt(
    tokenizer: Tokenizer, prompt: list[int], ids: list[int]
) -> None:
    prompt, ids = ([i % tokenizer.vocab_size for i in part] for part in (prompt, ids))
    before = Detokenizer(tokenizer).push(prompt)
    stream = Detokenizer(tokenizer, context=prompt)
    assert before + stream.push(ids) + stream.finish() == tokenizer.decode(prompt + ids)


def test_the_leading_space_of_a_continuation_stays(llama: Tokenizer) -> None:
    the = llama.encode("the", add_special_tokens=False)
    assert Detokenizer(llama).push(the) == "the"
    assert Detokenizer(llama, context=[1]).push(the) == "the"  # bos is no text
    assert Detokenizer(llama, context=the).push(the) == " the"


def test_characters_leave_whole(llama: Tokenizer) -> None:
    stream = Detokenizer(llama)
    assert [stream.push([3 + byte]) for byte in "🙂é".encode()] == ["", "", "", "🙂", "", "é"]
    assert stream.push([3 + 0xF0]) == ""
    assert stream.finish() == "\ufffd"


def test_ids_without_a_token_show(tokenizer: Tokenizer) -> None:
    stream = Detokenizer(tokenizer)
    a = tokenizer.id_of("a")
    assert a is not None
    assert stream.push([a, tokenizer.vocab_size + 5, a]) == "a\ufffda"


def test_special_tokens_can_be_shown(llama: Tokenizer) -> None:
    assert Detokenizer(llama).push([1, 2]) == ""
    assert Detokenizer(llama, skip_special_tokens=False).push([1, 2]) == "<s></s>"
    assert Detokenizer(llama, visible_ids=(2,)).push([1, 2]) == "</s>"


class _Counting:
    """A stand-in for the pieces that counts the tokens asked for and the bytes handed out."""

    def __init__(self, pieces: TokenBytes) -> None:
        self.rules, self._pieces = pieces.rules, pieces
        self.asked = self.bytes = 0

    def get(self, token_id: int) -> bytes | None:
        found = self._pieces.get(token_id)
        self.asked, self.bytes = self.asked + 1, self.bytes + len(found or b"")
        return found

    get_first = get


def test_work_is_linear(llama: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [3 + byte for byte in "日本語🙂".encode() * 500]
    counting = _Counting(llama.pieces)
    monkeypatch.setattr(llama, "pieces", counting)
    stream = Detokenizer(llama)
    for token_id in ids:
        stream.push([token_id])
        held = stream._utf8.getstate()[0]
        assert len(held) <= 3  # no more than an unfinished character is ever decoded again
    assert counting.asked == counting.bytes == len(ids)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.Metaspace(),
        decoders.Metaspace(prepend_scheme="never"),
        decoders.Replace("▁", " "),
        decoders.Fuse(),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        decoders.Sequence([decoders.Strip("▁", 1, 1), decoders.Fuse(), decoders.Strip("a", 2, 0)]),
        decoders.ByteLevel(),
    ],
)
def test_other_decoders_as_the_library(decoder: decoders.Decoder | None) -> None:
    tokens = ["▁a", "▁▁b", "a", "c▁", " d", "<0x41>", "Ġx", "日"]
    library = Library(models.WordLevel({token: at for at, token in enumerate(tokens)}, "a"))
    if decoder is not None:
        library.decoder = decoder
    rules = read_rules(json.loads(library.to_str())["decoder"])

    class Named:
        pieces = TokenBytes(dict(enumerate(tokens)), frozenset(), rules)
        special_ids: frozenset[int] = frozenset()

    for first in range(len(tokens)):
        ids = [first, *range(len(tokens)), first]
        stream = Detokenizer(Named())  # type: ignore[arg-type]
        assert stream.push(ids) + stream.finish() == library.decode(ids)
