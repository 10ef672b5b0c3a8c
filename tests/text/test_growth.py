"""Parts of a tokenizer that make much of little are refused before any of them is built."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from monolane.errors import TextError
from monolane.text import Tokenizer
from monolane.text._growth import MOST_BYTES, check_growth
from monolane.text._token_bytes import MOST_BYTES as MOST_OF_TOKEN
from monolane.text._token_bytes import TokenBytes, read_rules

DEMO = Path(__file__).parents[2] / "src" / "monolane" / "demo" / "tokenizer.json"
DATA: dict[str, Any] = json.loads(DEMO.read_text(encoding="utf-8"))


def replace(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(kind: str, parts: list[Any]) -> dict[str, Any]:
    return {"type": "Sequence", kind: parts}


def precompiled(*texts: bytes) -> dict[str, Any]:
    trie = bytes(8)
    table = len(trie).to_bytes(4, "little") + trie + b"\0".join(texts)
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def template(single: list[Any], ids: list[int]) -> dict[str, Any]:
    special = {"<s>": {"id": "<s>", "ids": ids, "tokens": ["<s>"] * len(ids)}}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": single,
        "special_tokens": special,
    }


TEXT, BOS = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 0}}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GROWING: dict[str, dict[str, Any]] = {
    "characters": {"normalizer": sequence("normalizers", [replace("x" * 64, Regex=".")] * 8)},
    "a text": {"normalizer": sequence("normalizers", [replace("aa", String="a")] * 13)},
    "nothing": {"normalizer": sequence("normalizers", [replace("z", String="")] * 13)},
    "nested": {
        "normalizer": sequence(
            "normalizers",
            [sequence("normalizers", [replace("aaaa", String="a")] * 4) for _ in range(2)],
        )
    },
    "forms": {"normalizer": sequence("normalizers", [{"type": "NFKD"}] * 4)},
    "a table": {"normalizer": sequence("normalizers", [precompiled(b"x" * 70)] * 2)},
    "a prefix": {
        "normalizer": sequence("normalizers", [{"type": "Prepend", "prepend": "x" * 3000}] * 30)
    },
    "bytes": {"pre_tokenizer": sequence("pretokenizers", [BYTES] * 13)},
    "both": {
        "normalizer": replace("x" * 99, String="a"),
        "pre_tokenizer": sequence("pretokenizers", [BYTES] * 6),
    },
    "many steps": {"normalizer": sequence("normalizers", [{"type": "Lowercase"}] * 65)},
    "an affix": {"model": {**DATA["model"], "continuing_subword_prefix": "x" * 5000}},
    "a decoder": {"decoder": sequence("decoders", [replace("zz", String="")] * 40)},
    "a word": {"model": {**DATA["model"], "max_input_chars_per_word": 1 << 62}},
    "nothing at a time": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "tokens": {"post_processor": template([BOS, TEXT], [1] * 2000)},
    "texts": {"post_processor": template([TEXT] * 2000, [1])},
    "templates": {
        "post_processor": sequence("processors", [template([TEXT, TEXT], [1])] * 11),
    },
}


@pytest.mark.parametrize("case", GROWING)
def test_what_grows_is_refused_before_it_is_built(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monolane.text._tokenizer._load", lambda data, path: pytest.fail("built"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(DATA | GROWING[case]), encoding="utf-8")
    with pytest.raises(TextError, match=r"tokenizer\.json: .*expected"):
        Tokenizer.open(tmp_path)


def test_what_published_tokenizers_have_is_let_through() -> None:
    marked = [{"type": "Prepend", "prepend": "▁"}, replace("▁", String=" ")]
    decoder = [replace(" ", String="▁"), {"type": "ByteFallback"}, {"type": "Fuse"}]
    llama = {
        "normalizer": sequence("normalizers", marked),
        "decoder": sequence("decoders", decoder),
        "post_processor": template([BOS, TEXT], [1]),
    }
    assert check_growth(llama).times == 3
    qwen = {"normalizer": {"type": "NFC"}, "pre_tokenizer": sequence("pretokenizers", [BYTES])}
    assert check_growth(qwen).times == 6
    albert = [
        *(replace('"', String=x) for x in ("``", "''")),
        *({"type": x} for x in ("NFKD", "StripAccents", "Lowercase")),
        precompiled(b" ", b"x" * 33),
    ]
    marks = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
    found = check_growth({"normalizer": sequence("normalizers", albert), "pre_tokenizer": marks})
    assert found.times == 11 * 2 * 33 * 3


def test_a_long_text_is_refused_where_it_may_become_too_long(tmp_path: Path) -> None:
    grown = {"normalizer": replace("x" * 1023, Regex="~")}
    (tmp_path / "tokenizer.json").write_text(json.dumps(DATA | grown), encoding="utf-8")
    tokenizer = Tokenizer.open(tmp_path)
    assert tokenizer is not None
    assert tokenizer.encode("short")
    longer = "a" * (MOST_BYTES // 1024 // 2 + 1)
    with pytest.raises(TextError, match="text: expected at most"):
        tokenizer.count(longer)


def bytes_of(decoders: list[Any], token: str) -> bytes | None:
    rules = read_rules(sequence("decoders", decoders))
    return TokenBytes({0: token}, frozenset(), rules).get(0)


def test_stripping_ends_with_the_token() -> None:
    strip = {"type": "Strip", "content": "▁", "start": 1 << 40, "stop": 1 << 40}
    assert bytes_of([strip], "▁▁a▁") == b"a"
    assert bytes_of([{**strip, "content": ""}], "a") == b"a"
    assert bytes_of([{**strip, "start": 1, "stop": 0}], "▁▁a▁") == "▁a▁".encode()


def test_a_token_is_measured_after_each_step() -> None:
    grow = replace("aa", String="a")
    assert bytes_of([grow] * 4, "a") == b"a" * 16
    with pytest.raises(TextError, match="after each step"):
        bytes_of([grow], "a" * MOST_OF_TOKEN)
