"""A model taken from this disk: out of the Hub's cache, or out of monolane's own."""

import os
import shutil
from pathlib import Path

from monolane.errors import ModelNotFoundError
from monolane.sources._aliases import read_aliases, set_alias
from monolane.sources._gguf_choice import gguf_sets
from monolane.sources._hub_cache import CachedRepo, cached_repo
from monolane.sources._hub_id import parse_hub_id
from monolane.sources._on_disk import HUB, did_you_mean, in_repo, models_on_disk
from monolane.sources._other_programs import KeptModel
from monolane.sources._packaged import DEMO, PACKAGED

_OTHERS = {
    "Ollama": "'ollama rm {name}' removes it",
    "LM Studio": "remove it there, or the folder {path}",
    "llama.cpp": "remove the file {path}",
}


def remove_model(name: str) -> tuple[int, str]:
    """Remove a model by its name; return the bytes that are free now, and what was done.

    An alias goes alone, and its model stays. What other programs keep is theirs to remove, and a
    path is yours: ModelNotFoundError says how. So it does if there is no such model.
    """
    if name in read_aliases():
        model = read_aliases()[name]
        set_alias(name, None)
        return 0, f"{name} is no alias any more; {model}, for which it stood, was left as it is"
    if name == DEMO:
        raise ModelNotFoundError(
            f"{name}: expected a model that was fetched, got the one that is a part of monolane"
        )
    if name in PACKAGED and PACKAGED[name].path.is_file():
        folder = PACKAGED[name].path.parent
        freed = _bytes_of(folder)
        shutil.rmtree(folder)
        return freed, f"removed {folder}"
    hub = parse_hub_id(name)
    if hub is not None:
        repo = cached_repo(hub.repo)
        found = [x for x in in_repo(repo) if x.name == str(hub)]
        if not found and not hub.names_gguf:  # all GGUF files of a repository, or of a revision
            at = f"@{hub.revision}" if hub.revision else ""
            found = [x for x in in_repo(repo) if x.name.endswith(at)]
        if found:
            return _remove_cached(repo, found), f"removed {', '.join(x.name for x in found)}"
    other = next((x for x in models_on_disk() if x.name == name and x.keeper != HUB), None)
    if other is not None:
        how = _OTHERS[other.keeper].format(name=other.name, path=other.path)
        raise ModelNotFoundError(
            f"{name}: expected a model that monolane fetched, got one of {other.keeper}: {how}"
        )
    if Path(name).exists():
        raise ModelNotFoundError(
            f"{name}: expected the name of a model that was fetched, got a path; remove it yourself"
        )
    raise ModelNotFoundError(
        f"{name}: expected a model of 'monolane list', got none of this name{did_you_mean(name)}"
    )


def _remove_cached(repo: CachedRepo, models: list[KeptModel]) -> int:
    """Remove what models have for themselves; the repository with the last of them."""
    before = _bytes_of(repo.folder)
    for model in models:
        for link in _weights(model):
            blob = _target(link)
            link.unlink()
            if blob.parent == repo.blobs and not _is_used(blob, repo):
                blob.unlink(missing_ok=True)
    if all(x.fault for x in in_repo(repo)):
        shutil.rmtree(repo.folder)
        return before
    return before - _bytes_of(repo.folder)


def _weights(model: KeptModel) -> list[Path]:
    if model.fault:
        return []
    if model.path.is_dir():
        return [*model.path.glob("*.safetensors")]
    sizes = {x.name: 0 for x in model.path.parent.glob("*.gguf")}
    (one,) = (x for x in gguf_sets(sizes) if x.first == model.path.name)
    return [model.path.with_name(x) for x in one.files]


def _target(link: Path) -> Path:
    """Return what a link says; a file that is none, as some disks have it, is its own."""
    said = link.readlink() if link.is_symlink() else link.name
    return Path(os.path.normpath(link.parent / said))


def _is_used(blob: Path, repo: CachedRepo) -> bool:
    return any(_target(x) == blob for x in (repo.folder / "snapshots").rglob("*"))


def _bytes_of(folder: Path) -> int:
    """Return the bytes that a folder has for itself: links of it count for nothing."""
    files = (x for x in folder.rglob("*") if x.is_file() and not x.is_symlink())
    return sum(x.stat().st_size for x in files)
