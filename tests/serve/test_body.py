"""Large bodies: what is read of them is what JSON means, what is ignored costs nothing."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from monolane.serve._errors import ApiError
from monolane.serve._http import json_texts
from monolane.serve._http.json_body import (
    MAX_DEPTH,
    MAX_IDS,
    MAX_MEMBERS,
    MAX_VALUES,
    parse_body,
    trimmed,
)
from monolane.serve._http.json_texts import values_of
from monolane.serve._openai.body import ChatRequest, CompletionRequest

PAD = " " * 40_000  # makes a body a large one
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(
    data=st.dictionaries(st.sampled_from(["a", "b", 'q"\\', "é"]) | st.text(), values),
    ascii_only=st.booleans(),
    block=st.integers(1, 40),
)
def test_known_members_are_kept_and_all_others_cut_out(
    data: dict[str, Any], ascii_only: bool, block: int
) -> None:
    text = PAD + json.dumps(data, ensure_ascii=ascii_only, indent=block % 3) + PAD
    known = {"a", "b", 'q"\\'}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_texts, "BLOCK", block)
        kept = json.loads(trimmed(text.strip().encode("utf-8", "surrogatepass"), known))
    assert kept == {name: value for name, value in data.items() if name in known}


PIECES = [*'abé中😀"\\/\b\n\0', "\\u", "\ud7ff", "\ue000", "\U0010ffff"]
texts = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
nested = st.recursive(
    texts | st.integers() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=8,
)


@settings(max_examples=120, deadline=None)
@given(data=nested, ascii_only=st.booleans(), block=st.integers(1, 40), cut=st.integers(13, 30))
def test_texts_that_are_decoded_apart_are_those_of_json(
    data: Any, ascii_only: bool, block: int, cut: int
) -> None:
    text = json.dumps(data, ensure_ascii=ascii_only)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_texts, "BLOCK", block)
        patch.setattr(json_texts, "_SLICE", cut)
        assert values_of(text.encode()) == data
        upper = re.sub(r"\\u[0-9a-f]{4}", lambda found: f"\\u{found[0][2:].upper()}", text)
        assert values_of(upper.encode()) == json.loads(upper)


@pytest.mark.parametrize(
    "text", ["\\ud83d", "\\ude00", "\\ude00\\ud83d", "\\x", "\\u12", "\n", b"\xff"]
)
def test_broken_texts_are_refused_wherever_they_are_cut(text: str | bytes) -> None:
    broken = text if isinstance(text, bytes) else text.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_texts, "_SLICE", 13)
        for before in range(14):
            data = b'["' + b"x" * before + broken + b"y" * 30 + b'"]'
            with pytest.raises(ValueError, match=r"line \d column|utf-8"):
                values_of(data)


def test_no_step_of_reading_a_body_is_a_long_one() -> None:
    """What the parser in C gets at a time is bounded, whatever a text is made of."""
    longest = 0

    def counted(part: bytes) -> Any:
        nonlocal longest
        longest = max(longest, len(part))
        return from_json(part)

    pieces = [r"\n", r"\"", r"\u4e2d", r"\ud83d\ude00", "é", "中", "x\\\\", "\\\\"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_texts, "from_json", counted)
        for piece in pieces:
            text = piece * (1_000_000 // len(piece.encode()))
            data = f'{{"messages": [{{"role": "user", "content": "{text}"}}]}}'
            read = parse_body(ChatRequest, data.encode())
            assert read.messages[0]["content"] == json.loads(f'"{text}"')
            parse_body(ChatRequest, f'{{"messages": [{{}}], "{text}": 1}}'.encode())
    assert longest <= json_texts._SLICE + 2


def test_a_large_body_is_read_as_a_small_one() -> None:
    fields = {"prompt": 'a "quoted" \\ text\n', "n": 2, "stop": ["}", '"', "\\"], "grammar": "x"}
    small = CompletionRequest.model_validate(fields)
    large = parse_body(CompletionRequest, json.dumps(fields | {"junk": [{}] * 50_000}).encode())
    assert large == small
    ids = [[7] * 1024] * 256
    assert parse_body(CompletionRequest, json.dumps({"prompt": ids}).encode()).prompts == ids


MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize("pad", ["", PAD])
def test_a_byte_order_mark_is_ignored(pad: str) -> None:
    """RFC 8259, 8.1. It is one at the beginning alone, and of UTF-8 alone."""
    data = (pad + '{"prompt": "a\ufeffé"}').encode()
    assert parse_body(CompletionRequest, MARK + data).prompt == "a\ufeffé"
    broken = (
        *(MARK + MARK + data, data + MARK, MARK, MARK + data.replace(b"\xc3", b"")),
        *(data.decode().encode(coding) for coding in ("utf-16", "utf-16-le", "utf-32")),
    )
    for one in broken:
        with pytest.raises(ApiError, match="JSON object of this route") as caught:
            parse_body(CompletionRequest, one)
        assert caught.value.status == 400


CHAT = b'{"messages": [{"role": "user", "content": "x"}], "junk": '


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[" + b"1," * 40_000 + b"1]", "expected an object"),
        (CHAT + b"[" * 40_000, f"expected values at most {MAX_DEPTH} deep"),
        (CHAT + b'"' + b"x" * 40_000, "expected an end"),
        (CHAT + b"[]} " + PAD.encode() + b"{", "expected nothing behind byte"),
        (b"{" + b":" * 40_000, "expected a comma before byte"),
        (b"{" + b"," * 40_000, "expected a field before byte"),
        (b"{x:1, " + PAD.encode() + b"}", "expected the name of a field before byte"),
        (
            b"{" + b",".join(b'"k%d": 1' % i for i in range(9000)) + b"}",
            f"expected at most {MAX_MEMBERS} fields",
        ),
    ],
)
def test_a_large_body_that_is_none(data: bytes, message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        parse_body(ChatRequest, data)
    assert caught.value.status == 400
    assert "JSON object of this route" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("messages", b'{"messages": [' + b"{}," * 40_000 + b"{}]}"),
        ("logit_bias", b'{"messages": [], "logit_bias": {' + b'"1": 1,' * 40_000 + b"}}"),
    ],
)
def test_a_field_with_too_many_values_is_named(name: str, data: bytes) -> None:
    with pytest.raises(ApiError, match=f"^{name}: expected at most {MAX_VALUES} values") as caught:
        parse_body(ChatRequest, data)
    assert (caught.value.status, caught.value.param) == (400, name)


def test_too_many_ids_and_wrong_ones() -> None:
    with pytest.raises(ApiError, match=f"prompt: expected at most {MAX_IDS} values"):
        parse_body(CompletionRequest, b'{"prompt": [' + b"1," * MAX_IDS + b"1]}")
    # The first fault is told, and no list of all of them is made.
    with pytest.raises(ApiError, match="prompt: expected text, token ids"):
        parse_body(CompletionRequest, b'{"prompt": [' + b"true," * 200_000 + b"1]}")


def test_a_known_member_is_still_checked() -> None:
    data = b'{"prompt": "x", "n": 17, "junk": "' + b"y" * 40_000 + b'"}'
    with pytest.raises(ApiError, match="n: Input should be less than or equal to 16") as caught:
        parse_body(CompletionRequest, data)
    assert caught.value.param == "n"
