"""The tokenizer in a GGUF file's metadata, put into the words of tokenizer.json.

So there is one tokenizer in this package, and what it promises (a stranger's text spells no control
token, streams equal their whole) holds for GGUF files too. What fields mean is llama.cpp's reading
(src/llama-vocab.cpp): models "gpt2" (byte-level BPE), "llama" (SentencePiece's BPE, where the
score of a piece says when it is merged) and "gemma4" (the same pieces with a list of merges).
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from monolane.errors import TextError
from monolane.text._pre_tokenizers import PRE_TOKENIZERS

log = logging.getLogger("monolane.text")

_PREFIX = "tokenizer.ggml."
# Types of tokens (``TokenType`` of the ``gguf`` package).
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
# Models of tokenizers that llama.cpp has besides.
_OTHERS = "expected 'gpt2' (byte-level BPE), 'llama' or 'gemma4' (SentencePiece BPE)"
_REFUSED = {
    "t5": "SentencePiece's unigram, of encoders and of T5; no decoder that is read here has it. Of "
    "another model, take its folder from the Hub: a tokenizer.json with a Unigram model is read",
    "bert": "WordPiece, of encoders, which generate no text",
}
_ENDS = ("bos", "eos")
_NAMED = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
# Ids that llama.cpp takes where a file of that model names none.
_DEFAULT_IDS = {"llama": {"bos": 1, "eos": 2, "unk": 0}, "gpt2": {}, "gemma4": {}}
# Tokens that end an answer, whatever ids the metadata name: older files name one of several. Some
# files do not mark them as control tokens; llama.cpp takes them for such by their spelling.
_ENDINGS = (
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
    "<|end_of_text|>", "<EOT>", "<｜end▁of▁sentence｜>", "<|return|>", "<|call|>", "<turn|>",
    "<|tool_response>",
)  # fmt: skip
# Those that are only if the file marks them: in Gemma </s> is a tag of HTML.
_MARKED_ENDINGS = ("</s>", "<eos>")
# Where these are, the format is harmony, and <|end|> ends a message of several in an answer.
_HARMONY_ENDINGS = {"<|return|>", "<|call|>"}
_SPACE = "▁"
_LINES = {"type": "Split", "pattern": {"Regex": r"[^\n]+|\n+"}, "behavior": "Isolated"} | {
    "invert": False
}
_TEMPLATE = "tokenizer.chat_template"  # and, behind a point, the names of further ones
# Characters of a token: the longest published ones are runs of some hundred spaces or dashes. Every
# way to cut one in two is looked at, so this bounds what a few long ones cost.
_LONGEST = 1024
# Characters of all merges that the tokens of SentencePiece's BPE have: of Gemma's 262,144 some 8
# million.
_MOST_MERGED = 1 << 26


class GgufText:
    """What the metadata say of text: tokenizer, chat template, and the tokens that end an answer.

    ``data`` and ``settings`` are what tokenizer.json and tokenizer_config.json would hold;
    ``ending_ids`` are the ids of control tokens that are known to end a turn or a text,
    ``suppressed_ids`` those of tokens that are never drawn. ``twins`` are the spellings of tokens
    that another one has, by their ids.
    TextError names the field at fault.
    """

    def __init__(
        self, metadata: Mapping[str, Any], path: Path, most_tokens: int | None = None
    ) -> None:
        """Read the metadata; ``most_tokens`` is the number of rows of the embedding, if known."""
        self._metadata, self.path = metadata, path
        self._most_tokens = most_tokens
        self.twins: dict[int, str] = {}
        self.kind = self._get("model", str)
        if self.kind not in _DEFAULT_IDS:
            why = f": {_REFUSED[self.kind]}" if self.kind in _REFUSED else ""
            raise self._fault("model", f"{_OTHERS}, got {self.kind!r:.80}{why}")
        self._tokens = self._read_tokens()
        self._vocab = {token: place for place, token in enumerate(self._tokens)}
        self._types = self._numbers("token_type", "iu", _NORMAL)
        self.ending_ids = self._find_endings()
        self.suppressed_ids = self._find_suppressed()
        make = self._byte_level if self.kind == "gpt2" else self._sentence_piece
        self.data: dict[str, Any] = {**make(), "added_tokens": self._added()}
        self.settings = self._read_settings()

    @staticmethod
    def open(
        metadata: Mapping[str, Any], path: Path, most_tokens: int | None = None
    ) -> "GgufText | None":
        """Return what the metadata say, or None if they hold no tokenizer; see ``__init__``."""
        kind = metadata.get(f"{_PREFIX}model", "none")
        if isinstance(kind, str) and kind in ("none", "no_vocab"):
            return None
        return GgufText(metadata, path, most_tokens)

    def _find_endings(self) -> tuple[int, ...]:
        """Return the ids of tokens that end an answer, which become control tokens."""
        named = [self._vocab[token] for token in _ENDINGS if token in self._vocab]
        for place in named:
            self._types[place] = _CONTROL
        marked = [self._vocab[token] for token in _MARKED_ENDINGS if token in self._vocab]
        found = {*named, *(place for place in marked if self._types[place] in (_CONTROL, _UNKNOWN))}
        if self._vocab.keys() >= _HARMONY_ENDINGS:
            found.discard(self._vocab.get("<|end|>", -1))
        return tuple(sorted(found))

    def _find_suppressed(self) -> tuple[int, ...]:
        """Return the ids that are listed; as llama.cpp has it, those of no token say nothing."""
        value = self._metadata.get(f"{_PREFIX}suppress_tokens")
        if value is None:
            return ()
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            raise self._fault("suppress_tokens", f"expected token ids, got {value!r:.80}")
        return tuple(sorted({i for i in value.tolist() if 0 <= i < len(self._tokens)}))

    def _fault(self, name: str, message: str) -> TextError:
        return TextError(f"{self.path}: {_PREFIX}{name}: {message}")

    def _get(self, name: str, kind: type, default: Any = None) -> Any:
        value = self._metadata.get(f"{_PREFIX}{name}", default)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            got = "nothing" if value is None else f"{value!r:.80}"
            raise self._fault(name, f"expected {kind.__name__}, got {got}")
        return value

    def _texts(self, name: str, most: int | None) -> list[str]:
        """Return a list, which must have no more than ``most`` texts: they are counted first."""
        value = self._metadata.get(f"{_PREFIX}{name}")
        if not isinstance(value, Sequence) or isinstance(value, str):
            got = "nothing" if value is None else f"{value!r:.80}"
            raise self._fault(name, f"expected a list of texts, got {got}")
        if most is not None and len(value) > most:
            raise self._fault(
                name, f"expected at most {most} texts, as the model has use for, got {len(value)}"
            )
        return list(value)

    def _numbers(self, name: str, kinds: str, default: float) -> list[Any]:
        """Return one number for each token; ``kinds`` are NumPy's letters of types."""
        value = self._metadata.get(f"{_PREFIX}{name}")
        if value is None:
            return [default] * len(self._tokens)
        right = isinstance(value, np.ndarray) and value.dtype.kind in kinds
        if not right or len(value) != len(self._tokens):
            raise self._fault(
                name, f"expected {len(self._tokens)} numbers, one a token, got {value!r:.80}"
            )
        numbers: list[Any] = value.tolist()
        return numbers

    def _read_tokens(self) -> list[str]:
        listed = enumerate(self._texts("tokens", self._most_tokens))
        # An empty token would be lost: it gets llama.cpp's name for it.
        tokens = [token or f"[EMPTY_{place}]" for place, token in listed]
        if not tokens:
            raise self._fault("tokens", "expected at least one token, got none")
        if len(set(tokens)) < len(tokens):
            self._part_twins(tokens)
        if (longest := max(map(len, tokens))) > _LONGEST:
            raise self._fault(
                "tokens", f"expected tokens of at most {_LONGEST} characters, got one of {longest}"
            )
        return tokens

    def _part_twins(self, tokens: list[str]) -> None:
        """Give tokens that are spelled as an earlier one names that no text can spell."""
        seen: set[str] = set()
        for place, token in enumerate(tokens):
            if token in seen:
                self.twins[place] = token
                tokens[place] = f"\ufdd0{place}\ufdd1"  # noncharacters
            seen.add(token)
        place, token = next(iter(self.twins.items()))
        log.warning(
            "%s: %stokens: %d are spelled as another, such as %r, id %d; a text becomes the first",
            *(self.path, _PREFIX, len(self.twins), token[:80], place),
        )

    def _byte_level(self) -> dict[str, Any]:
        name = self._get("pre", str, "")
        if not name:
            log.warning(
                "%s: %spre is missing, as in files of before May 2024: texts are cut as by "
                "'default', which may not be how this model was trained; take a newer file",
                self.path,
                _PREFIX,
            )
        cut = PRE_TOKENIZERS.get(name or "default")
        if cut is None:
            known = ", ".join(sorted(PRE_TOKENIZERS))
            raise self._fault("pre", f"expected one of {known}, got {name!r:.80}")
        model = {
            "type": "BPE",
            "vocab": self._vocab,
            "merges": self._merges(),
            "ignore_merges": cut.ignore_merges,
        }
        splits = [
            {"type": "Split", "pattern": {"Regex": x}, "behavior": "Isolated", "invert": False}
            for x in cut.patterns
        ]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        return {
            "model": model,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [*splits, {**byte_level, "use_regex": False}],
            },
            "decoder": {**byte_level, "use_regex": False},
        }

    def _merges(self) -> list[str]:
        """Return the merges as they are, "left right": the library checks them against tokens."""
        # Each makes a token of two, so there are no more than ways to cut all of them in two.
        merges = self._texts("merges", sum(map(len, self._tokens)) - len(self._tokens))
        wrong = next((i for i, merge in enumerate(merges) if merge.count(" ") != 1), None)
        if wrong is not None:
            raise self._fault(
                "merges",
                f"item {wrong}: expected two tokens and a space, got {merges[wrong]!r:.80}",
            )
        return merges

    def _sentence_piece(self) -> dict[str, Any]:
        scored = self.kind == "llama"
        prefix = self._get("add_space_prefix", bool, scored)
        to_mark = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
        to_space = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
        unk = self._id("unk")
        return {
            "model": {
                "type": "BPE",
                "vocab": self._vocab,
                "merges": self._scored_merges() if scored else self._merges(),
                "unk_token": None if unk is None else self._tokens[unk],
                "fuse_unk": True,
                "byte_fallback": _BYTE in self._types,
            },
            "normalizer": {
                "type": "Sequence",
                "normalizers": [{"type": "Prepend", "prepend": _SPACE}] * prefix + [to_mark],
            },
            # llama.cpp merges nothing across the end of a line.
            "pre_tokenizer": None if scored else {"type": "Sequence", "pretokenizers": [_LINES]},
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    to_space,
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    *[{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * prefix,
                ],
            },
        }

    def _scored_merges(self) -> list[list[str]]:
        """Return every pair of pieces that makes a piece, best score first, as SentencePiece has.

        Of two pairs with one score, SentencePiece takes that which stands first in the text; here
        it is that whose piece has the lower id.
        """
        scores = self._numbers("scores", "iuf", 0.0)
        found: list[tuple[float, int, str, str]] = []
        room = _MOST_MERGED
        # Pieces of these types are never made by merging.
        apart = (_CONTROL, _UNKNOWN, _BYTE)
        vocab = {t: i for i, t in enumerate(self._tokens) if self._types[i] not in apart}
        own = {token: token for token in vocab}  # a merge holds the tokens, and no copies
        for token, place in vocab.items():
            for cut in range(1, len(token)):
                left, right = own.get(token[:cut]), own.get(token[cut:])
                if left is not None and right is not None:
                    room -= len(token)
                    found.append((-scores[place], place, left, right))
            if room < 0:
                raise self._fault(
                    "tokens",
                    f"expected tokens made of {_MOST_MERGED} characters of others, got more",
                )
        found.sort(key=lambda entry: entry[:2])
        return [[left, right] for _, _, left, right in found]

    def _added(self) -> list[dict[str, Any]]:
        """Return the tokens that are found before anything is merged; control tokens as special."""
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        return [
            {"id": i, "content": self._tokens[i], "special": kind != _USER_DEFINED, **plain}
            for i, kind in enumerate(self._types)
            if kind in (_CONTROL, _USER_DEFINED, _UNKNOWN)
        ]

    def _id(self, name: str) -> int | None:
        key = f"{_NAMED[name]}_token_id"
        usual = _DEFAULT_IDS[self.kind].get(name)
        value = self._metadata.get(_PREFIX + key, usual)
        if value is None:
            return None
        if type(value) is not int:
            raise self._fault(key, f"expected an id below {len(self._tokens)}, got {value!r:.80}")
        if self._has(value):
            return value
        if usual is not None and not self._has(usual):
            usual = None
        if name != "pad":  # nothing is ever padded here, and files name a token that is none
            log.warning(
                "%s: %s%s: expected an id below %d, got %d: %s is taken, as llama.cpp does",
                *(self.path, _PREFIX, key, len(self._tokens), value),
                "none" if usual is None else usual,
            )
        return usual

    def _has(self, place: int) -> bool:
        return 0 <= place < len(self._tokens)

    def _read_settings(self) -> dict[str, Any]:
        ids = {name: self._id(name) for name in _NAMED}
        settings: dict[str, Any] = {
            f"{name}_token": self._tokens[place]
            for name, place in ids.items()
            # A named token is cut out of texts before anything is merged. Files name an ordinary
            # one ("!") for what is never used, which llama.cpp leaves what it is.
            if place is not None and (name in _ENDS or self._types[place] != _NORMAL)
        }
        pre = PRE_TOKENIZERS.get(self._get("pre", str, ""))
        bos = self.kind != "gpt2" or (pre is not None and pre.add_bos)
        for name, usual in (("bos", bos and ids["bos"] is not None), ("eos", False)):
            wanted = self._get(f"add_{name}_token", bool, usual)
            wanted = wanted or (name == "bos" and self.kind == "gemma4")  # as llama.cpp has it
            settings[f"add_{name}_token"] = wanted
            if wanted and ids[name] is None:
                raise self._fault(f"add_{name}_token", f"expected {name}_token_id with it")
        settings["chat_template"] = self._read_templates()
        return settings

    def _read_templates(self) -> str | list[dict[str, str]] | None:
        """Return the chat template, or several with their names, as tokenizer_config.json has."""
        found: dict[str, str] = {}
        for key, value in self._metadata.items():
            plain, _, name = key.partition(_TEMPLATE)
            if plain or (name and name[0] != "."):
                continue
            if not isinstance(value, str):
                raise TextError(f"{self.path}: {key}: expected a text, got {value!r:.80}")
            found[name[1:] or "default"] = value
        if "default" not in found:
            return None
        if len(found) == 1:
            return found["default"]
        return [{"name": name, "template": template} for name, template in found.items()]
