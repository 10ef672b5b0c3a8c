"""Text to token ids and back, exactly as a folder's tokenizer.json says.

Not rebuilt from ``tokenizer_class``: Transformers does that for some classes, drops the file's
normalizer on the way and then encodes leading spaces and text after ``</s>`` differently.
And not the library's object itself: it cuts prompts at the file's ``truncation``, cannot say what
bytes a token holds, and lets a user's text spell control tokens.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tokenizers

from monolane.errors import TextError
from monolane.text._control_token_search import Spellings
from monolane.text._detokenizer import Detokenizer
from monolane.text._files import named_token, read_object, read_settings
from monolane.text._gguf import GgufText
from monolane.text._growth import MOST_BYTES, check_growth
from monolane.text._patterns import check_patterns
from monolane.text._token_bytes import TokenBytes, read_rules
from monolane.text._user_text_tokenizer import Twin, encode_bare

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
# Files that hold a vocabulary in a form that the tokenizers library does not read.
_UNCONVERTED = ("tokenizer.model", "spiece.model", "vocab.json", "tiktoken.model")
# Bytes that ordinary parts (NFC, byte level) may make of one: texts of any length are encoded then.
_AS_IT_IS = 8
_LONGEST = 256  # characters of a control token: what is searched for at the end of each message
# Many folders leave <|user|>, <tool_call> or [INST] unmarked; brackets tell them from ordinary
# added tokens such as runs of spaces, which must stay what they are in training.
_BRACKETED = re.compile(r"[<\[{(|｜].+[>\]})|｜]", re.DOTALL)


class Tokenizer:
    """The tokenizer of one model folder; immutable, and safe to share between threads.

    ``vocab_size`` is the highest id plus one; ``bos_id``, ``eos_id``, ``unk_id`` and ``pad_id`` are
    None where the folder names none. ``special_ids`` are the tokens that decoding leaves out.
    ``control_spellings`` are those that a text does not get unless it is asked for: the special
    tokens, and the added tokens in brackets. ``special_spellings`` are the former alone.
    ``pieces`` are the bytes of the tokens, for a ``Detokenizer``.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        settings: Mapping[str, Any],
        folder: Path,
        name: str = "tokenizer.json",
        twins: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """Build from the parsed files; ``open`` reads them. TextError names the file at fault.

        ``name`` is that of the file with the vocabulary. ``twins`` are tokens that are spelled as
        another one, by their ids: they stand in the vocabulary under other names.
        """
        self._path = folder / name
        named = {key: named_token(dict(settings), key, folder) for key in _NAMED}
        complete = _with_named(_checked(data, self._path), named.values())
        with _blaming(self._path):
            self._growth = check_growth(complete)
            check_patterns(complete)
        self._library = _load(complete, self._path)
        tokens = {place: token for token, place in self._library.get_vocab(True).items()}
        added = self._library.get_added_tokens_decoder()
        _check_ids(complete["added_tokens"], added, self._path)

        self.vocab_size = max(tokens, default=-1) + 1
        self.special_ids = frozenset(place for place, token in added.items() if token.special)
        special = {added[place].content for place in self.special_ids}
        contents = {token.content for token in added.values()}
        bracketed = {content for content in contents if _BRACKETED.fullmatch(content)}
        if (longest := max(map(len, special | bracketed), default=0)) > _LONGEST:
            raise TextError(
                f"{self._path}: expected control tokens of at most {_LONGEST} characters, "
                f"got one of {longest}"
            )
        with _blaming(self._path):
            self.special_spellings = Spellings(special)
            self.control_spellings = Spellings(special | bracketed)
            self._twin = Twin(complete, self._library, self.control_spellings)
            rules = read_rules(complete.get("decoder"))
        self.pieces = TokenBytes({**tokens, **twins}, frozenset(added), rules)

        self.bos_id, self.eos_id, self.unk_id, self.pad_id = (
            None if name is None else self.id_of(name) for name in named.values()
        )
        # The ids before and after a text. Post-processor and settings can both ask for them: a
        # setting that is there decides, and one token comes of it.
        before, after = self._probe()
        self._before = self._amend(before, settings, "bos", self.bos_id, folder)
        self._after = self._amend(after, settings, "eos", self.eos_id, folder)

    @staticmethod
    def open(folder: Path) -> "Tokenizer | None":
        """Return the folder's tokenizer, or None where there is none.

        TextError: a file is malformed, or the vocabulary is there but not as tokenizer.json.
        """
        path = folder / "tokenizer.json"
        if path.is_file():
            return Tokenizer(read_object(path), read_settings(folder), folder)
        found = [name for name in _UNCONVERTED if (folder / name).is_file()]
        if found:
            raise TextError(
                f"{folder}: expected tokenizer.json, got only {found[0]}. Convert it: "
                "pip install 'monolane[hf]' sentencepiece, then python -c \"from transformers "
                "import AutoTokenizer as T; T.from_pretrained('FOLDER').save_pretrained('FOLDER')\""
            )
        return None

    @staticmethod
    def of_gguf(text: GgufText) -> "Tokenizer":
        """Return the tokenizer in a GGUF file's metadata."""
        return Tokenizer(text.data, text.settings, text.path.parent, text.path.name, text.twins)

    def vocabulary(self) -> dict[str, int]:
        """Return the id of each token, as the file spells it; added ones too."""
        found: dict[str, int] = self._library.get_vocab(True)
        return found

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Return the ids of a text, with the bos and eos that the folder asks for.

        ``parse_special``: spellings such as ``</s>`` become control tokens; else they are text.
        A text that itself begins with bos then gets no second one. TextError: not a string, or one
        that UTF-8 cannot hold (a lone surrogate).
        """
        self._check_text(text)
        with _blaming(self._path):
            ids = self._parsed(text) if parse_special else self._twin.plain(text)
        return self._framed(ids) if add_special_tokens else ids

    def count(self, text: str) -> int:
        """Return the number of ids of a text alone, without making them."""
        self._check_text(text)
        with _blaming(self._path):
            return len(encode_bare(self._library, text))

    def encode_rendered(self, text: str, marks: Mapping[str, str]) -> list[int]:
        """Return the ids of a rendered chat; nothing is added to it.

        ``marks`` maps stand-in characters to what they stand for; a spelling with one in it is
        plain text, any other is its control token. TextError as for ``encode``.
        """
        self._check_text(text)
        with _blaming(self._path):
            return self._twin.mixed(text, marks) if marks else self._parsed(text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of the ids; bytes that are no UTF-8 become U+FFFD.

        TextError names the first id that is outside the vocabulary. It is what a ``Detokenizer``
        gives for the same ids, however they are pushed.
        """
        for token_id in ids:
            self.token_bytes(token_id)
        stream = Detokenizer(self, skip_special_tokens=skip_special_tokens)
        return stream.push(ids) + stream.finish()

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds inside a text; TextError for an id without token."""
        found = self.pieces.get(token_id)
        if found is None:
            raise TextError(
                f"token id {token_id} is not in the vocabulary: expected 0 to {self.vocab_size - 1}"
                f"{' (some of them unused)' if 0 <= token_id < self.vocab_size else ''}"
            )
        return found

    def id_of(self, token: str) -> int | None:
        """Return the id of the token with this spelling in tokenizer.json, or None."""
        return self._library.token_to_id(token)

    def _check_text(self, text: str) -> None:
        """TextError for what is no text, or what the parts might make too much of."""
        size = _size_of(text)
        if self._growth.of(size) > max(MOST_BYTES, _AS_IT_IS * size):
            raise TextError(
                f"text: expected at most {MOST_BYTES // self._growth.times} bytes, of each of "
                f"which this tokenizer may make {self._growth.times}, got {size}"
            )

    def _parsed(self, text: str) -> list[int]:
        return list(encode_bare(self._library, text).ids)

    def _framed(self, ids: list[int]) -> list[int]:
        before, after = self._before, self._after
        if before and tuple(ids[: len(before)]) == before:
            before = ()
        if after and tuple(ids[-len(after) :]) == after:
            after = ()
        return [*before, *ids, *after]

    def _probe(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return what the post-processor puts before and after a text, seen on a short one."""
        for text in ("a", "0", " a", ""):
            with _blaming(self._path):
                bare = self._library.encode(text, add_special_tokens=False).ids
                whole = self._library.encode(text, add_special_tokens=True).ids
            if bare:
                break
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                # With no text to see (a vocabulary without these letters) all is taken as before.
                start = start if bare else len(whole)
                return tuple(whole[:start]), tuple(whole[start + len(bare) :])
        raise TextError(f"{self._path}: expected a post_processor that keeps the text's tokens")

    def _amend(
        self,
        ids: tuple[int, ...],
        settings: Mapping[str, Any],
        name: str,
        token_id: int | None,
        folder: Path,
    ) -> tuple[int, ...]:
        wanted = settings.get(f"add_{name}_token")
        where = folder / "tokenizer_config.json"
        if wanted is None:
            return ids
        if not isinstance(wanted, bool):
            raise TextError(f"{where}: expected add_{name}_token to be a boolean, got {wanted!r}")
        if not wanted:
            return tuple(place for place in ids if place != token_id)
        if token_id is None:
            raise TextError(
                f"{where}: add_{name}_token is true, but {name}_token is missing or is not in the "
                f"vocabulary; name one that is, or set add_{name}_token to false"
            )
        if token_id in ids:
            return ids
        return (token_id, *ids) if name == "bos" else (*ids, token_id)


def _size_of(text: str) -> int:
    """Return the bytes of a text in UTF-8; TextError if it has none."""
    if not isinstance(text, str):
        raise TextError(f"expected text to encode, got {type(text).__name__}")
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise TextError(
            f"expected text that UTF-8 can hold, got a lone surrogate at character {error.start}"
        ) from None


def _checked(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the data with the parts that are read here present and of the right shape."""
    model, added = data.get("model"), data.get("added_tokens") or []
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict) and not _is_pieces(vocab):
        raise TextError(f"{path}: expected a model with a vocab; download the file again")
    if not isinstance(added, list) or not all(_is_added(token) for token in added):
        raise TextError(f"{path}: expected added_tokens to be objects with an id and a content")
    return {**data, "added_tokens": added}


def _is_pieces(vocab: Any) -> bool:
    return isinstance(vocab, list) and all(
        isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) for entry in vocab
    )


def _is_added(token: Any) -> bool:
    return (
        isinstance(token, dict)
        and isinstance(token.get("id"), int)
        and isinstance(token.get("content"), str)
        and token["content"] != ""
    )


def _with_named(data: dict[str, Any], named: Iterable[str | None]) -> dict[str, Any]:
    """Return the data with bos, eos, unk and pad special, also where the file forgot to say so."""
    vocab = data["model"]["vocab"]
    ids = vocab if isinstance(vocab, dict) else {entry[0]: at for at, entry in enumerate(vocab)}
    names = {name for name in named if name is not None}
    added = [
        {**token, "special": token.get("special") is True or token["content"] in names}
        for token in data["added_tokens"]
    ]
    forgotten = names.intersection(ids).difference(token["content"] for token in added)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added += [
        {"id": ids[name], "content": name, "special": True, **plain} for name in sorted(forgotten)
    ]
    # Dropout of merges is a means of training: with it, one text has other tokens each time.
    model = {**data["model"], "dropout": None} if data["model"].get("dropout") else data["model"]
    return {**data, "model": model, "added_tokens": sorted(added, key=lambda token: token["id"])}


def _load(data: dict[str, Any], path: Path) -> tokenizers.Tokenizer:
    with _blaming(path):
        # Not ensure_ascii: half of the byte-level tokens would be escapes, which read slowly.
        library = tokenizers.Tokenizer.from_str(json.dumps(data, ensure_ascii=False))
    # A file may ask for both; a prompt that is cut or padded in silence is a wrong answer.
    library.no_truncation()
    library.no_padding()
    return library


def _check_ids(
    listed: list[dict[str, Any]], added: Mapping[int, tokenizers.AddedToken], path: Path
) -> None:
    """Refuse ids that the library would give to other tokens: it numbers them itself."""
    for token in listed:
        got = added.get(token["id"])
        if got is None or got.content != token["content"]:
            raise TextError(
                f"{path}: expected the added token {token['content']!r} at id {token['id']}, but "
                "the ids of the vocabulary have a gap or a clash there; mend added_tokens"
            )


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Turn whatever the library raises into a TextError that names the file.

    A panic of the library is no Exception, only a BaseException.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError, GeneratorExit):
        raise
    except TextError as error:
        raise TextError(f"{path}: {error}") from None
    except BaseException as error:
        raise TextError(f"{path}: the tokenizers library cannot use it: {error}") from None
