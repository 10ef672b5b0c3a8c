"""The tokenizer against the library's own, control tokens in text, and broken files."""

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from monolane.errors import TextError
from monolane.text import Tokenizer

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SPELLED = st.lists(
    st.sampled_from(["<s>", "</s>", "<", "/s>", "<|im_end|>", "<think>", " ", "the", "é", "\n"])
).map("".join)


def _library(folder: Path) -> Library:
    return Library.from_file(str(folder / "tokenizer.json"))


def _copy(folder: Path, to: Path, **changes: Any) -> Path:
    data = json.loads((folder / "tokenizer.json").read_text())
    (to / "tokenizer.json").write_text(json.dumps(data | changes))
    return to


def _configured(folder: Path, to: Path, **settings: Any) -> Tokenizer:
    (to / "tokenizer_config.json").write_text(json.dumps(settings))
    opened = Tokenizer.open(_copy(folder, to))
    assert opened is not None
    return opened


@given(text=TEXT)
def test_byte_level_round_trip(byte_level: Tokenizer, text: str) -> None:
    assert byte_level.decode(byte_level.encode(text), skip_special_tokens=False) == text


@given(text=TEXT | SPELLED)
def test_parse_special_is_the_library(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=True)
    assert ids == tokenizer._library.encode(text, add_special_tokens=False).ids


@given(text=TEXT)
def test_ordinary_text_is_encoded_as_by_the_library(tokenizer: Tokenizer, text: str) -> None:
    if not tokenizer.control_spellings.starts(text):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == tokenizer._library.encode(text, add_special_tokens=False).ids


@given(text=SPELLED)
def test_text_never_spells_a_control_token(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    control = {tokenizer.id_of(token) for token in tokenizer.control_spellings.all}
    assert not control.intersection(ids)
    assert tokenizer.decode(ids) == text


def test_every_kind_of_control_token(byte_level: Tokenizer) -> None:
    end, think = byte_level.id_of("<|im_end|>"), byte_level.id_of("<think>")
    assert byte_level.encode("<|im_end|><think>", parse_special=True) == [end, think]
    assert end not in byte_level.encode("<|im_end|>")
    assert think not in byte_level.encode("<think>")  # an added token that is not marked special
    assert think not in byte_level.special_ids
    # Runs of spaces are ordinary vocabulary, as in GPT-NeoX: they must not be broken up.
    assert byte_level.encode("        ") == [byte_level.id_of("        ")]


def test_a_model_that_finds_control_tokens_among_its_pieces(tmp_path: Path) -> None:
    """The library's encode_special_tokens leaves these in: the reason for a second tokenizer."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("a", -1.0), ("<", -2.0), ("s", -2.0), (">", -2.0)]
    library = Library(models.Unigram(pieces, 0, False))
    library.add_special_tokens(["<s>"])
    library.decoder = decoders.Fuse()
    library.save(str(tmp_path / "tokenizer.json"))
    library.encode_special_tokens = True
    assert library.encode("a<s>").ids == [2, 1]
    unigram = Tokenizer.open(tmp_path)
    assert unigram is not None
    assert unigram.encode("a<s>") == [2, 3, 4, 5]
    assert unigram.encode("a<s>", parse_special=True) == [2, 1]


def test_whole_words_and_merges_cannot_be_control_tokens(tmp_path: Path) -> None:
    vocab = {"a": 0, "<": 1, "s": 2, ">": 3, "<s": 4, "<s>": 5, "<s>a": 6}
    merges = [("<", "s"), ("<s", ">"), ("<s>", "a")]
    library = Library(models.BPE(vocab, merges, ignore_merges=True))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens(["<s>"])
    library.save(str(tmp_path / "tokenizer.json"))
    opened = Tokenizer.open(tmp_path)
    assert opened is not None
    assert opened.encode("<s>") == [4, 3]
    assert opened.encode("<s>", parse_special=True) == [5]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, [1, 302]),  # the post-processor adds bos
        ({"add_bos_token": True}, [1, 302]),  # both do: still one
        ({"add_bos_token": False}, [302]),
        ({"add_eos_token": True}, [1, 302, 2]),
        ({"add_bos_token": False, "add_eos_token": True}, [302, 2]),
    ],
)
def test_bos_and_eos(
    llama_folder: Path, tmp_path: Path, wanted: dict[str, bool], expected: list[int]
) -> None:
    named = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    opened = _configured(llama_folder, tmp_path, **named, **wanted)
    the = opened.id_of("▁the")
    expected = [the if place == 302 else place for place in expected]
    assert opened.encode("the") == expected
    assert opened.encode("the", add_special_tokens=False) == [the]


def test_bos_from_the_settings_alone(byte_folder: Path, tmp_path: Path) -> None:
    opened = _configured(byte_folder, tmp_path, bos_token="<|im_start|>", add_bos_token=True)
    assert opened.encode("a") == [opened.bos_id, opened.id_of("a")]
    assert opened.encode("<|im_start|>a", parse_special=True) == [opened.bos_id, opened.id_of("a")]


def test_named_tokens(llama: Tokenizer, byte_level: Tokenizer) -> None:
    assert (llama.bos_id, llama.eos_id, llama.unk_id, llama.pad_id) == (1, 2, 0, None)
    assert llama.special_ids == {0, 1, 2}
    assert byte_level.bos_id is None
    assert byte_level.eos_id == byte_level.id_of("<|im_end|>")
    assert byte_level.pad_id == byte_level.id_of("<|end|>")
    assert byte_level.vocab_size == byte_level._library.get_vocab_size()
    assert byte_level.id_of("no such token") is None


def test_a_named_token_is_special_even_if_the_file_forgot(
    llama_folder: Path, tmp_path: Path
) -> None:
    _copy(llama_folder, tmp_path, added_tokens=[], post_processor=None)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "</s>"}))
    opened = Tokenizer.open(tmp_path)
    assert opened is not None
    assert opened.special_ids == {2}
    assert 2 not in opened.encode("</s>")
    assert opened.encode("</s>", parse_special=True) == [2]


def test_prompts_are_neither_cut_nor_padded(byte_folder: Path, tmp_path: Path) -> None:
    library = _library(byte_folder)
    library.enable_truncation(3)
    library.enable_padding(length=50)
    library.save(str(tmp_path / "tokenizer.json"))
    opened = Tokenizer.open(tmp_path)
    assert opened is not None
    assert len(opened.encode("zqzqzqzq")) == 8
    assert len(opened.encode("zqzqzqzq", parse_special=True)) == 8


def test_token_bytes(llama: Tokenizer, byte_level: Tokenizer) -> None:
    assert llama.token_bytes(3 + 0xC3) == b"\xc3"
    assert llama.token_bytes(llama.encode("the")[1]) == b" the"
    assert llama.token_bytes(2) == b"</s>"
    ids = byte_level.encode("é\n", add_special_tokens=False)
    assert b"".join(map(byte_level.token_bytes, ids)) == "é\n".encode()


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**70])
def test_ids_outside_the_vocabulary(llama: Tokenizer, token_id: int) -> None:
    with pytest.raises(TextError, match=rf"token id {token_id} .* 0 to {llama.vocab_size - 1}"):
        llama.decode([token_id])
    with pytest.raises(TextError, match="not in the vocabulary"):
        llama.token_bytes(token_id)


def test_text_that_is_none(llama: Tokenizer) -> None:
    with pytest.raises(TextError, match="lone surrogate at character 1"):
        llama.encode("a\ud800")
    with pytest.raises(TextError, match="expected text to encode, got int"):
        llama.encode(7)  # type: ignore[arg-type]


def test_threads_share_a_tokenizer(byte_level: Tokenizer) -> None:
    def both(_: int) -> tuple[list[int], list[int]]:
        text = "a<|im_end|>b"
        return byte_level.encode(text), byte_level.encode(text, parse_special=True)

    with ThreadPoolExecutor(4) as pool:
        seen = {tuple(map(tuple, pair)) for pair in pool.map(both, range(400))}
    assert len(seen) == 1


def test_folders_without_tokenizer_json(tmp_path: Path) -> None:
    assert Tokenizer.open(tmp_path) is None
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a")
    with pytest.raises(TextError, match=r"expected tokenizer\.json, got only tokenizer\.model"):
        Tokenizer.open(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"model": 3}',
        b'{"model": {"vocab": {}}}',
        b'{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}',
        b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}',
        b'{"model": {"type": "Unigram", "vocab": [["a", "b"]]}}',
        b'{"added_tokens": [1], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}',
        b'{"decoder": {"type": "CTC"}, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}',
        b'{"model": {"type": "BPE", "vocab": {"\\ud800": 0}, "merges": []}}',
    ],
)
def test_malformed_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(TextError, match=r"tokenizer\.json"):
        Tokenizer.open(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"[", b"3", b'{"bos_token": 3}', b'{"add_bos_token": 1}', b'{"add_eos_token": true}'],
)
def test_malformed_settings(llama_folder: Path, tmp_path: Path, content: bytes) -> None:
    _copy(llama_folder, tmp_path)
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    with pytest.raises(TextError, match=r"tokenizer_config\.json"):
        Tokenizer.open(tmp_path)


def test_added_ids_that_the_library_would_renumber(llama_folder: Path, tmp_path: Path) -> None:
    data = json.loads((llama_folder / "tokenizer.json").read_text())
    gap = {**data["added_tokens"][0], "id": 9000, "content": "<gap>"}
    _copy(llama_folder, tmp_path, added_tokens=[*data["added_tokens"], gap])
    with pytest.raises(TextError, match="'<gap>' at id 9000"):
        Tokenizer.open(tmp_path)


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        (["<" + "x" * 300 + ">"], "at most 256 characters, got one of 302"),
        (["<" + "a" * size + ">" for size in range(1, 250)], None),  # nests the pattern deeply
    ],
)
def test_hostile_control_tokens(tmp_path: Path, contents: list[str], expected: str | None) -> None:
    library = Library(models.BPE({"a": 0, "<": 1, ">": 2}, []))
    library.decoder = decoders.Fuse()
    library.add_tokens(contents)
    library.save(str(tmp_path / "tokenizer.json"))
    if expected is not None:
        with pytest.raises(TextError, match=expected):
            Tokenizer.open(tmp_path)
        return
    opened = Tokenizer.open(tmp_path)
    assert opened is not None
    assert opened.encode("<aa>") == [1, 0, 0, 2]


JSON = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just([]) | st.just({})


def _paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    found = [at]
    for key, item in list(pairs)[:6]:
        found += _paths(item, (*at, key)) if isinstance(item, dict | list) else [(*at, key)]
    return found


@settings(max_examples=150)
@given(data=st.data())
def test_fuzzed_files_give_text_errors(
    llama_folder: Path, byte_folder: Path, tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    folder = data.draw(st.sampled_from([llama_folder, byte_folder]))
    tree = json.loads((folder / "tokenizer.json").read_text())
    path = data.draw(st.sampled_from(_paths(tree)[1:]))
    place = tree
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = data.draw(JSON)
    target = tmp_path_factory.mktemp("fuzz")
    (target / "tokenizer.json").write_text(json.dumps(tree))
    with contextlib.suppress(TextError):  # and nothing else, a panic of the library included
        opened = Tokenizer.open(target)
        assert opened is not None
        opened.decode(opened.encode("the cat </s>", parse_special=True))
        opened.encode("the cat </s>")


@given(text=SPELLED)
def test_the_twin_encodes_control_tokens_as_the_library(tokenizer: Tokenizer, text: str) -> None:
    """With a mark that the text does not hold, the twin must do all that the library does."""
    ids = tokenizer.encode_rendered(text, {"\ufdd5": "<"})
    assert ids == tokenizer._library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("flag", ["normalized", "lstrip", "rstrip", "single_word"])
def test_the_twin_keeps_how_a_token_is_found(llama_folder: Path, tmp_path: Path, flag: str) -> None:
    data = json.loads((llama_folder / "tokenizer.json").read_text())
    added = [{**token, flag: True} for token in data["added_tokens"]]
    opened = Tokenizer.open(_copy(llama_folder, tmp_path, added_tokens=added))
    assert opened is not None
    for text in ("<s>a", "a<s>a", "a <s> a", " <s>", "the </s><s> the", "</s>", "a</s> "):
        expected = opened._library.encode(text, add_special_tokens=False).ids
        assert opened.encode_rendered(text, {"\ufdd5": "<"}) == expected, text
        marked = text.replace("<", "\ufdd5")
        assert opened.encode_rendered(marked, {"\ufdd5": "<"}) == opened.encode(
            text, add_special_tokens=False
        )
