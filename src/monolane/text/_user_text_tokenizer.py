"""A second tokenizer in which no text can spell a control token.

The library's own switch, ``encode_special_tokens``, is not enough: it is state that threads share,
it leaves alone added tokens that are not marked special, and a Unigram or ``ignore_merges`` model
still finds ``</s>`` among its ordinary pieces. So in a second tokenizer each control token has
another name, drawn at random for this process. Every spelling is then plain text, and all else
(normalizer, prefixes, merges) is exactly as in the file.

The two share one model, which is what takes time and memory to build: the names are added tokens
beside it, whose ids are put back. The model's own vocabulary still holds the control tokens; if
one of them ever comes out of a text, or merges have to do with them, the second tokenizer is built
from a tokenizer.json in which they are renamed.

The names serve a second purpose: text in which *we* write them gets the control tokens, in one
pass of the library. So a rendered chat keeps its template's tokens and none of its users'.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from monolane.text._control_token_search import Spellings

# Characters from which a text goes to the library as a batch of one: then it lets other threads of
# Python run meanwhile, which ``encode`` does not in the second that a megabyte takes. A short text
# is not worth the library's own threads.
_LONG = 20_000


def encode_bare(
    tokenizer: tokenizers.Tokenizer, text: str, *, offsets: bool = False
) -> tokenizers.Encoding:
    """Return the encoding of a text, nothing added before or behind it; offsets if asked for."""
    if len(text) < _LONG:
        return tokenizer.encode(text, add_special_tokens=False)
    encode = tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast
    return encode([text], add_special_tokens=False)[0]


class Twin:
    """The renamed tokenizer beside the ``original``; ``control`` are the spellings renamed."""

    def __init__(
        self, data: Mapping[str, Any], original: tokenizers.Tokenizer, control: Spellings
    ) -> None:
        """Build from the parsed tokenizer.json, which is left as it was."""
        # Noncharacters around 128 random bits: no normalizer changes them, nobody can write them.
        salt = secrets.token_hex(16)
        self._names = {
            spelling: f"\ufdd0{salt}x{place}x\ufdd1"
            for place, spelling in enumerate(sorted(control.all))
        }
        self._data = data
        self._original = original
        self._spelling_of = {original.token_to_id(spelling): spelling for spelling in control.all}
        self._renamed: tokenizers.Tokenizer | None = None
        self._light, self._ids = _with_names(original, self._names)
        if _merges_make(data["model"], self._names):
            self._renamed = _load_renamed(data, self._names)

    def plain(self, text: str) -> list[int]:
        """Encode the text; whatever it spells, no control token comes out."""
        if self._renamed is None:
            ids = encode_bare(self._light, text).ids
            if self._spelling_of.keys().isdisjoint(ids):
                return [self._ids.get(place, place) for place in ids]
            self._renamed = _load_renamed(self._data, self._names)
        return list(encode_bare(self._renamed, text).ids)

    def mixed(self, text: str, marks: Mapping[str, str]) -> list[int]:
        """Encode the text with the control tokens that it spells without the help of a mark.

        A mark is a character that stands for another one; it is put back after the spellings
        that count have been named.
        """
        named = self._named(text)
        return self.plain(named.translate({ord(mark): char for mark, char in marks.items()}))

    def _named(self, text: str) -> str:
        """Return the text with names for the control tokens that the original finds in it.

        The original is asked, rather than the text searched: whether a spelling counts also
        depends on its neighbours and on the normalizer.
        """
        seen = encode_bare(self._original, text, offsets=True)
        parts, end = [], 0
        for token_id, (start, stop) in zip(seen.ids, seen.offsets, strict=True):
            spelling = self._spelling_of.get(token_id)
            place = -1 if spelling is None else text.find(spelling, start, stop)
            if spelling is not None and place >= end:
                parts += [text[end:place], self._names[spelling]]
                end = place + len(spelling)
        return "".join((*parts, text[end:]))


def _with_names(
    original: tokenizers.Tokenizer, names: Mapping[str, str]
) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
    """Return a tokenizer on the same model in which added tokens have these names.

    And the ids of added tokens in it, where they are others than the original's: -> the original's.
    """
    light = tokenizers.Tokenizer(original.model)
    for part in ("normalizer", "pre_tokenizer"):
        if (value := getattr(original, part)) is not None:
            setattr(light, part, value)
    tokens = sorted(original.get_added_tokens_decoder().items())
    named = [names.get(token.content, token.content) for _, token in tokens]
    light.add_tokens(
        [
            tokenizers.AddedToken(
                name,
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
                special=token.special,
            )
            for name, (_, token) in zip(named, tokens, strict=True)
        ]
    )
    ids: dict[int, int] = {}
    for name, (place, _) in zip(named, tokens, strict=True):
        new = light.token_to_id(name)
        assert new is not None  # just added
        ids[new] = place
    return light, ids


def _merges_make(model: Mapping[str, Any], names: Mapping[str, str]) -> bool:
    """Whether merging, which begins with characters, may give a control token and go on from it."""
    merges = model.get("merges") or ()
    if not merges:
        return False
    wanted = {f"{name[:i]} {name[i:]}" for name in names for i in range(1, len(name))}
    return any(len(name) == 1 for name in names) or any(
        (merge if isinstance(merge, str) else " ".join(merge)) in wanted for merge in merges
    )


def _load_renamed(data: Mapping[str, Any], names: Mapping[str, str]) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer.from_str(json.dumps(_renamed(data, names), ensure_ascii=False))
    library.no_truncation()
    library.no_padding()
    return library


def _renamed(data: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    added = [
        {**token, "content": names.get(token["content"], token["content"])}
        for token in data["added_tokens"]
    ]
    # The post-processor names tokens that are gone, and we never ask for what it adds.
    return {
        **data,
        "added_tokens": added,
        "post_processor": None,
        "model": _renamed_model(data["model"], names),
    }


def _renamed_model(model: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    new = dict(model)
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        new["vocab"] = {names.get(piece, piece): place for piece, place in vocab.items()}
    else:  # Unigram: [piece, score] in the order of the ids
        new["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    if model.get("unk_token") in names:
        new["unk_token"] = names[model["unk_token"]]
    if model.get("merges"):
        new["merges"] = [merge for merge in model["merges"] if not _makes(merge, names)]
    return new


def _makes(merge: str | Sequence[str], names: Mapping[str, str]) -> bool:
    """Whether the merge takes or gives a control token, which the new vocabulary lacks."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in names or right in names or left + right in names
