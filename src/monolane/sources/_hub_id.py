"""The name of a model on the Hub, as people write it, or copy it from a page or another program.

    ORG/REPO                 the repository's folder, or the GGUF file of it that fits best
    ORG/REPO:Q4_K_M          a GGUF file by its type, as llama.cpp and Ollama have it
    ORG/REPO/NAME.gguf       a GGUF file by its path
    ...@REVISION             a branch, a tag or a commit, behind each of these

``hf.co/`` or ``https://huggingface.co/`` may stand before it, and addresses of a file are read.
"""

import re
from dataclasses import dataclass

_PLACES = re.compile(r"(https?://)?(www\.)?(hf\.co|huggingface\.co)/")
_WORD = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(
    rf"(?P<repo>{_WORD}/{_WORD})"
    r"(:(?P<tag>[\w.-]+)|(/(resolve|blob)/(?P<at>[\w.-]+))?/(?P<file>[^@:?]+\.gguf))?"
    r"(\?download=true)?(@(?P<revision>[\w./-]+))?/?"
)
LATEST = "latest"  # Ollama's word for no tag


@dataclass(frozen=True, slots=True)
class HubId:
    """A repository, and what of it; an empty field was not said."""

    repo: str  # "ORG/REPO"
    revision: str = ""
    tag: str = ""
    file: str = ""  # of several parts the first; / between folders

    @property
    def names_gguf(self) -> bool:
        """Whether a GGUF file is meant, and no folder."""
        return bool(self.tag or self.file)

    def __str__(self) -> str:
        which = f":{self.tag}" if self.tag else f"/{self.file}" if self.file else ""
        return f"{self.repo}{which}" + (f"@{self.revision}" if self.revision else "")


def parse_hub_id(text: str) -> HubId | None:
    """Return what a text names on the Hub; None if it can be no such name."""
    found = _NAME.fullmatch(_PLACES.sub("", text, count=1))
    if found is None or ".." in (found["file"] or "").split("/"):
        return None
    tag = "" if (found["tag"] or "").lower() == LATEST else found["tag"] or ""
    revision = found["revision"] or found["at"] or ""
    return HubId(found["repo"], revision, tag, found["file"] or "")
