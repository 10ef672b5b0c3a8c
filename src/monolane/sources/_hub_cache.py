"""What the Hub's cache holds of a repository: snapshots, whole or broken off.

    models--ORG--REPO/refs/main              the commit that a branch was at
    models--ORG--REPO/snapshots/COMMIT/...   the files of a commit, links into blobs
    models--ORG--REPO/blobs/HASH             their bytes

Source: "Understand caching" in the documentation of github.com/huggingface/huggingface_hub.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from monolane.errors import CheckpointError
from monolane.model import find_shards, find_weights
from monolane.sources._gguf_choice import GgufSet, gguf_sets

_PREFIX = "models--"
_MAIN = "main"


@dataclass(frozen=True, slots=True)
class CachedRepo:
    """The folder of a repository in the cache; it need not be there."""

    repo: str  # "ORG/REPO"
    folder: Path

    @property
    def blobs(self) -> Path:
        """Where the bytes of its files lie."""
        return self.folder / "blobs"

    def snapshot(self, revision: str) -> Path | None:
        """Return the folder of a revision; "" is the main branch; None if there is none."""
        snapshots = self.folder / "snapshots"
        ref = self.folder / "refs" / (revision or _MAIN)
        commit = ref.read_text(encoding="ascii").strip() if ref.is_file() else revision
        found = snapshots / commit
        return found if commit and found.is_dir() else None

    def snapshots(self) -> Iterator[tuple[str, Path]]:
        """Yield each snapshot with the revision that it goes by: "" is the main branch."""
        main = self.snapshot("")
        for found in sorted((self.folder / "snapshots").glob("*")):
            if found.is_dir():
                yield "" if found == main else found.name, found


def cached_repo(repo: str) -> CachedRepo:
    """Return where a repository is in the cache, or would be."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return CachedRepo(repo, Path(HF_HUB_CACHE) / f"{_PREFIX}{repo.replace('/', '--')}")


def cached_repos() -> Iterator[CachedRepo]:
    """Yield the repositories of models that are in the cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    for folder in sorted(Path(HF_HUB_CACHE).glob(f"{_PREFIX}*--*")):
        owner, _, name = folder.name.removeprefix(_PREFIX).partition("--")
        if folder.is_dir():
            yield CachedRepo(f"{owner}/{name}", folder)


def gguf_in(folder: Path) -> list[GgufSet]:
    """Return the models in GGUF below a folder, whole ones alone."""
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in folder.rglob("*")
        if path.suffix.lower() == ".gguf" and path.is_file()
    }
    return gguf_sets(files)


def is_whole(folder: Path) -> bool:
    """Tell a folder that has all of its weights from one whose download was broken off.

    One with an index that cannot be read counts as whole: who opens it says what is wrong with it.
    """
    found = find_weights(folder)
    if found is None or not (folder / "config.json").is_file():
        return False
    try:
        shards = find_shards(found) if found.suffix == ".json" else frozenset()
    except CheckpointError:
        return True
    return all((folder / shard).is_file() for shard in shards)
