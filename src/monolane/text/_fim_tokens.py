"""Control tokens of models that fill in the middle: what stands before a gap, behind it, and in it.

They have no names that files agree on, so they are found by the spellings of the families that have
them, which are those that llama.cpp knows; a GGUF file may name them by id.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monolane.text._tokenizer import Tokenizer

_SPELLINGS = {
    "prefix": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>",
               "▁<PRE>", "<|code_prefix|>", "<|prefix|>"),
    "suffix": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>",
               "▁<SUF>", "<|code_suffix|>", "<|suffix|>"),
    "middle": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>",
               "▁<MID>", "<|code_middle|>", "<|middle|>"),
    "repo": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "file": ("<|file_sep|>",),
}  # fmt: skip
_GGUF = {"prefix": "pre", "suffix": "suf", "middle": "mid", "repo": "rep", "file": "sep"}


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """Token ids; those of a repository's name and of a file's are None where there are none."""

    prefix: int
    suffix: int
    middle: int
    repo: int | None = None
    file: int | None = None

    @property
    def ending_ids(self) -> tuple[int, ...]:
        """Those that end an answer: what follows is another file."""
        return tuple(token for token in (self.repo, self.file) if token is not None)


def find_infill(
    tokenizer: Tokenizer | None, metadata: Mapping[str, Any] | None = None
) -> InfillTokens | None:
    """Return a model's tokens, or None where it lacks one of the first three.

    ``metadata`` are those of a GGUF file.
    """
    if tokenizer is None:
        return None
    found = {name: _find(name, tokenizer, metadata or {}) for name in _SPELLINGS}
    prefix, suffix, middle = (found.pop(name) for name in ("prefix", "suffix", "middle"))
    if prefix is None or suffix is None or middle is None:
        return None
    return InfillTokens(prefix, suffix, middle, **found)


def _find(name: str, tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> int | None:
    named = metadata.get(f"tokenizer.ggml.fim_{_GGUF[name]}_token_id")
    if named is not None and 0 <= int(named) < tokenizer.vocab_size:
        return int(named)
    ids = (tokenizer.id_of(spelling) for spelling in _SPELLINGS[name])
    return next((token for token in ids if token is not None), None)
