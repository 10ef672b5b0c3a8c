"""Tokenizers from a GGUF file's metadata: small vocabularies made here, and wrong metadata.

tests/text/test_gguf_vocabularies.py holds the large published ones against their expected ids.
"""

import json
import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from monolane.errors import TextError
from monolane.text import ChatTemplate, GgufText, Tokenizer
from monolane.text._pre_tokenizers import PRE_TOKENIZERS

PATH = Path("x.gguf")
TEXTS = [
    "Hello world, it's 2024 and don't WE'LL know 1234567 ways?",
    "Kimi读K2和DeepSeek的GGUF文件, 東京's ŽIVOT's e\u0301té",
    "  two  spaces\t\ttabs\n\n\nlines \r\n end ",
    "def f(x):\n    return x[0] + 3.14e-5  # ünïcödé ½ ² 你好 12 🙂\n",
    "!!!... ``code`` $x^2 | y$ <b>",
    "",
    " ",
    "\n",
]
ISOLATED = {"behavior": "isolated", "invert": False}
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
RAW_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def split(pattern: str) -> pre_tokenizers.Split:
    return pre_tokenizers.Split(Regex(pattern), **ISOLATED)


# As the published tokenizer.json of a model of each name has it.
PUBLISHED: dict[str, pre_tokenizers.PreTokenizer] = {
    "gpt-2": BYTES,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES]),
    "falcon": pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation("contiguous"), BYTES, split("[0-9][0-9][0-9]")]
    ),
    "llama-bpe": pre_tokenizers.Sequence(
        [
            split(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            RAW_BYTES,
        ]
    ),
    "qwen2": pre_tokenizers.Sequence(
        [
            split(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            RAW_BYTES,
        ]
    ),
    "glm4": pre_tokenizers.Sequence(
        [
            split(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            RAW_BYTES,
        ]
    ),
    "seed-coder": pre_tokenizers.Sequence(
        [
            split(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}"
                r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            RAW_BYTES,
        ]
    ),
    "exaone-moe": pre_tokenizers.Sequence(
        [
            split(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
                r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
            ),
            RAW_BYTES,
        ]
    ),
    "minimax-m2": pre_tokenizers.Sequence(
        [
            split(
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*"
                r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
                r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
                r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
                r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            RAW_BYTES,
        ]
    ),
    "kimi-k2": pre_tokenizers.Sequence(  # whose file is tokenization_kimi.py
        [
            split(
                r"[\p{Han}]+"
                r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
                r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
                r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
                r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
                r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            RAW_BYTES,
        ]
    ),
}


def trained(pre_tokenizer: pre_tokenizers.PreTokenizer, **model: Any) -> Library:
    """A byte-level BPE of 400 tokens, trained on this file."""
    library = Library(models.BPE(**model))
    library.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    digits = ["123", "456", "12", "34", "1234567", "2024"] * 400  # tokens of several digits
    library.train_from_iterator([Path(__file__).read_text(), *TEXTS * 9, *digits], trainer)
    return library


def byte_level(library: Library | None = None, pre: str | None = "gpt-2") -> dict[str, Any]:
    """The metadata that llama.cpp's converter writes of it, with four tokens more."""
    library = library or trained(BYTES)
    model = json.loads(library.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    more = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "Zürich!"]
    ids = {name: len(tokens) + i for i, name in enumerate(more)}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens + more,
        "tokenizer.ggml.token_type": np.array([1] * len(tokens) + [3, 3, 3, 4], np.int32),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": ids["<|im_start|>"],
        "tokenizer.ggml.eos_token_id": ids["<|im_end|>"],
    } | ({} if pre is None else {"tokenizer.ggml.pre": pre})


def open_text(metadata: dict[str, Any]) -> GgufText:
    text = GgufText.open(metadata, PATH)
    assert text is not None
    return text


@pytest.mark.parametrize("pre", PUBLISHED)
def test_byte_level_ids_are_those_of_the_published_cut(pre: str) -> None:
    # Trained without a cut, so that every cut shows: there are tokens across all of them.
    library = trained(RAW_BYTES, ignore_merges=PRE_TOKENIZERS[pre].ignore_merges)
    library.pre_tokenizer = PUBLISHED[pre]
    ours = Tokenizer.of_gguf(open_text(byte_level(library, pre)))
    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == library.encode(text).ids, text
        assert ours.decode(ids) == text


@pytest.mark.parametrize(("pre", "whole"), [("llama-bpe", True), ("qwen2", False)])
def test_a_piece_that_is_a_token_needs_no_merges_where_the_cut_says_so(
    pre: str, whole: bool
) -> None:
    raw = byte_level(pre=pre)
    place = len(raw["tokenizer.ggml.tokens"])
    raw["tokenizer.ggml.tokens"] += ["qzjxv"]  # which no merge makes
    raw["tokenizer.ggml.token_type"] = np.append(raw["tokenizer.ggml.token_type"], 1)
    ids = Tokenizer.of_gguf(open_text(raw)).encode("qzjxv", add_special_tokens=False)
    assert (ids == [place]) is whole
    assert len(ids) == (1 if whole else 5)


def test_control_tokens_come_from_no_text_and_others_from_any() -> None:
    tokenizer = Tokenizer.of_gguf(open_text(byte_level()))
    start, city = (tokenizer.id_of(x) for x in ("<|im_start|>", "Zürich!"))
    text = "<|im_start|>in Zürich!"
    plain = tokenizer.encode(text, add_special_tokens=False)
    assert start not in plain
    assert city in plain
    assert tokenizer.decode(plain) == text
    parsed = tokenizer.encode(text, add_special_tokens=False, parse_special=True)
    assert parsed[0] == start
    assert tokenizer.decode(parsed) == "in Zürich!"
    assert tokenizer.special_spellings.all == {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}


@pytest.mark.parametrize(
    ("pre", "changes", "frame"),
    [
        ("gpt-2", {}, (0, 0)),
        ("llama-bpe", {}, (1, 0)),
        ("llama-bpe", {"add_bos_token": False}, (0, 0)),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, (1, 1)),
    ],
)
def test_what_a_text_begins_and_ends_with(
    pre: str, changes: dict[str, bool], frame: tuple[int, int]
) -> None:
    said = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    tokenizer = Tokenizer.of_gguf(open_text(byte_level(pre=pre) | said))
    bare = tokenizer.encode("Hello", add_special_tokens=False)
    begin, end = [tokenizer.bos_id] * frame[0], [tokenizer.eos_id] * frame[1]
    assert tokenizer.encode("Hello") == [*begin, *bare, *end]


def test_the_chat_template_is_the_metadatas() -> None:
    turn = "{{ m.role }}: {{ m.content }}{{ eos_token }}"
    source = "{{ bos_token }}{% for m in messages %}" + turn + "{% endfor %}"
    text = open_text(byte_level() | {"tokenizer.chat_template": source})
    rendered = ChatTemplate.of_gguf(text).render([{"role": "user", "content": "Hi"}])
    assert rendered == "<|im_start|>user: Hi<|im_end|>"
    default = ChatTemplate.of_gguf(open_text(byte_level()))
    assert default.source == ChatTemplate().source
    with pytest.raises(TextError, match=r"x.gguf: tokenizer.chat_template, line 1: no valid Jinja"):
        ChatTemplate.of_gguf(open_text(byte_level() | {"tokenizer.chat_template": "{% if"}))


def test_tokens_that_end_an_answer_are_known_by_name() -> None:
    raw = byte_level()
    text = open_text(raw)
    tokens = raw["tokenizer.ggml.tokens"]
    assert [tokens[i] for i in text.ending_ids] == ["<|im_end|>", "<|endoftext|>"]


@pytest.mark.parametrize("kind", [1, 4])
def test_tokens_that_end_an_answer_are_control_tokens_whatever_their_type(kind: int) -> None:
    raw = byte_level()
    raw["tokenizer.ggml.eos_token_id"] = len(raw["tokenizer.ggml.tokens"]) - 2  # <|endoftext|>
    types = np.full(len(raw["tokenizer.ggml.tokens"]), kind, np.int32)
    text = open_text(raw | {"tokenizer.ggml.token_type": types})
    assert text.ending_ids == open_text(raw).ending_ids
    tokenizer = Tokenizer.of_gguf(text)
    assert tokenizer.special_spellings.all >= {"<|im_end|>", "<|endoftext|>"}
    end = tokenizer.id_of("<|im_end|>")
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False, parse_special=True) == [end]
    assert end not in tokenizer.encode("<|im_end|>", add_special_tokens=False)
    assert tokenizer.decode([end]) == ""


def test_a_tag_of_html_is_text_unless_the_file_says_otherwise() -> None:
    raw = sentence_piece()
    assert open_text(raw).ending_ids == (2,)
    for kind in (1, 4):
        types = raw["tokenizer.ggml.token_type"].copy()
        types[2] = kind
        assert open_text(raw | {"tokenizer.ggml.token_type": types}).ending_ids == ()


def test_harmonys_messages_end_without_the_answer() -> None:
    names = ["<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>"]
    raw = byte_level()
    places = len(raw["tokenizer.ggml.tokens"])
    raw["tokenizer.ggml.tokens"] += [*names, "<|call|>"]
    types = raw["tokenizer.ggml.token_type"]
    raw["tokenizer.ggml.token_type"] = np.append(types, [3] * 7).astype(np.int32)
    tokens = raw["tokenizer.ggml.tokens"]
    ends = [tokens[i] for i in open_text(raw).ending_ids]
    assert ends == ["<|im_end|>", "<|endoftext|>", "<|return|>", "<|call|>"]
    # Without both, as in Phi-3, <|end|> ends a turn.
    raw["tokenizer.ggml.tokens"] = [*tokens[:-1], "<|other|>"]
    assert places + 4 in open_text(raw).ending_ids


@pytest.mark.parametrize("pad", [-1, 279, (1 << 32) - 1])
def test_a_padding_token_that_is_none_is_left_out(pad: int) -> None:
    tokenizer = Tokenizer.of_gguf(open_text(sentence_piece(padding_token_id=pad)))
    assert tokenizer.pad_id is None


@pytest.mark.parametrize("name", ["padding", "unknown"])
def test_an_ordinary_token_stays_one_whatever_it_is_named(name: str) -> None:
    plain = byte_level()
    tokens = plain["tokenizer.ggml.tokens"]
    text = max((one for one in tokens if one.isascii() and one.isalpha()), key=len)
    named = plain | {f"tokenizer.ggml.{name}_token_id": tokens.index(text[0])}
    found = Tokenizer.of_gguf(open_text(named)).encode(text, add_special_tokens=False)
    assert found == Tokenizer.of_gguf(open_text(plain)).encode(text, add_special_tokens=False)
    assert len(found) == 1


@pytest.mark.parametrize("place", [-1, 9999, (1 << 32) - 1])
def test_an_id_that_is_none_is_warned_of(place: int, caplog: pytest.LogCaptureFixture) -> None:
    """As in llama.cpp, which takes its default then."""
    tokenizer = Tokenizer.of_gguf(open_text(sentence_piece(eos_token_id=place)))
    assert tokenizer.eos_id == 2
    assert f"eos_token_id: expected an id below 279, got {place}: 2 is taken" in caplog.text
    raw = byte_level() | {"tokenizer.ggml.bos_token_id": place}
    assert Tokenizer.of_gguf(open_text(raw)).bos_id is None


def test_a_spelling_twice_is_two_tokens(caplog: pytest.LogCaptureFixture) -> None:
    """Each is decoded; a text becomes the first."""
    raw = byte_level()
    plain = Tokenizer.of_gguf(open_text(raw)).encode("Hello", add_special_tokens=False)
    tokens = [*raw["tokenizer.ggml.tokens"], "H", "\u0120x"]
    tokens[-1] = tokens[plain[0]]
    kinds = np.append(raw["tokenizer.ggml.token_type"], [1, 1]).astype(np.int32)
    more = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    tokenizer = Tokenizer.of_gguf(open_text(raw | more))
    assert tokenizer.encode("Hello", add_special_tokens=False) == plain
    assert tokenizer.decode([len(tokens) - 1, len(tokens) - 2]) == tokens[plain[0]] + "H"
    assert "spelled as another" in caplog.text


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("wanted", [False, True])
def test_a_chat_begins_with_the_bos_that_the_file_asks_for(own: bool, wanted: bool) -> None:
    source = "{{ bos_token }}" * own + "{% for m in messages %}{{ m.content }}{% endfor %}"
    raw = byte_level() | {
        "tokenizer.chat_template": source,
        "tokenizer.ggml.add_bos_token": wanted,
    }
    text = open_text(raw)
    tokenizer = Tokenizer.of_gguf(text)
    ids = ChatTemplate.of_gguf(text).encode(tokenizer, [{"role": "user", "content": "Hi"}])
    assert ids.count(tokenizer.bos_id or -1) == int(own or wanted)
    assert (ids[0] == tokenizer.bos_id) == (own or wanted)


def test_a_file_may_have_a_template_for_tools() -> None:
    raw = byte_level() | {
        "tokenizer.chat_template": "plain",
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.chat_templates": ["tool_use"],
    }
    template = ChatTemplate.of_gguf(open_text(raw))
    assert (template.source, template.for_tools.source) == ("plain", "tools")


def test_a_file_without_a_tokenizer_has_none() -> None:
    assert GgufText.open({}, PATH) is None
    assert GgufText.open({"tokenizer.ggml.model": "no_vocab"}, PATH) is None


def test_a_missing_cut_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Tokenizer.of_gguf(open_text(byte_level(pre=None)))
    assert "tokenizer.ggml.pre is missing" in caplog.text


PIECES = {
    "<unk>": 0.0, "<s>": 0.0, "</s>": 0.0, **{f"<0x{i:02X}>": 0.0 for i in range(256)},
    "▁": -1.0, "a": -2.0, "b": -3.0, "c": -4.0, "h": -5.0, "e": -6.0, "l": -7.0, "o": -8.0,
    "ab": -20.0, "bc": -10.0, "abc": -30.0, "▁a": -15.0, "▁ab": -40.0, "he": -11.0, "ll": -12.0,
    "hell": -13.0, "hello": -14.0, "▁hello": -9.0, "▁▁": -50.0, "é": -16.0,
}  # fmt: skip


def sentence_piece(**changes: Any) -> dict[str, Any]:
    types = [2, 3, 3, *[6] * 256, *[1] * (len(PIECES) - 259)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(PIECES),
        "tokenizer.ggml.scores": np.array(list(PIECES.values()), np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
    } | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def merged(text: str, prefix: bool = True) -> list[int]:
    """SentencePiece's BPE as its paper has it: of all neighbours that make a piece, the best."""
    ids = {piece: place for place, piece in enumerate(PIECES)}
    symbols = list((" " * (prefix and text != "") + text).replace(" ", "▁"))
    while True:
        scored = [
            (PIECES[a + b], -i)
            for i, (a, b) in enumerate(pairwise(symbols))
            if a + b in PIECES and not (a + b).startswith("<0x")
        ]
        if not scored:
            break
        i = -max(scored)[1]
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    found: list[int] = []
    for symbol in symbols:
        known = symbol in ids
        found += [ids[symbol]] if known else [ids[f"<0x{b:02X}>"] for b in symbol.encode()]
    return found


@pytest.mark.parametrize("prefix", [True, False])
def test_sentence_piece_ids_are_merged_by_score(prefix: bool) -> None:
    tokenizer = Tokenizer.of_gguf(open_text(sentence_piece(add_space_prefix=prefix)))
    rng = np.random.default_rng(0)
    texts = ["hello abc", "abcab", "  a", "é☃", "hell", "", " ", "a<s>b", "hellohello  hello"]
    texts += ["".join(rng.choice(list("abchelo éx "), size=24)) for _ in range(50)]
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == merged(text, prefix), text
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("a") == [1, *merged("a", prefix)]  # llama.cpp adds bos unless told not


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            {"tokenizer.ggml.model": "t5"},
            "x.gguf: tokenizer.ggml.model: expected 'gpt2' .* got 't5': .* take its folder",
        ),
        ({"tokenizer.ggml.model": 7}, "tokenizer.ggml.model: expected str, got 7"),
        ({"tokenizer.ggml.model": "gpt2"}, "tokens: expected a list of texts, got nothing"),
        (sentence_piece(tokens=[]), "tokens: expected at least one token, got none"),
        (
            sentence_piece(scores=np.ones(3, np.float32)),
            "scores: expected 279 numbers, one a token",
        ),
        (sentence_piece(token_type=np.ones(279, np.float32)), "token_type: expected 279 numbers"),
        (sentence_piece(bos_token_id="1"), "bos_token_id: expected an id below 279, got '1'"),
        (sentence_piece(add_space_prefix=1), "add_space_prefix: expected bool, got 1"),
        (sentence_piece(add_bos_token="yes"), "add_bos_token: expected bool, got 'yes'"),
        (byte_level() | {"tokenizer.ggml.pre": "new"}, "pre: expected one of .*, got 'new'"),
        (
            byte_level() | {"tokenizer.ggml.merges": ["ab"]},
            "merges: item 0: expected two tokens and",
        ),
        (
            byte_level() | {"tokenizer.ggml.merges": ["a 漢"]},
            "x.gguf: the tokenizers library cannot",
        ),
        (
            {k: v for k, v in byte_level().items() if "eos" not in k}
            | {"tokenizer.ggml.add_eos_token": True},
            "add_eos_token: expected eos_token_id with it",
        ),
        (byte_level() | {"tokenizer.chat_template": 7}, "chat_template: expected a text, got 7"),
    ],
)
def test_what_is_missing_or_wrong_is_named(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(TextError, match=message):
        Tokenizer.of_gguf(open_text(raw))


def test_an_empty_token_keeps_its_place() -> None:
    raw = byte_level()
    tokens = [*raw["tokenizer.ggml.tokens"], ""]
    types = np.append(raw["tokenizer.ggml.token_type"], 1).astype(np.int32)
    raw |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    tokenizer = Tokenizer.of_gguf(open_text(raw))
    assert tokenizer.vocab_size == len(tokens)
    assert tokenizer.id_of(f"[EMPTY_{len(tokens) - 1}]") == len(tokens) - 1
