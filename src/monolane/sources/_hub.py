"""A model of the Hub: found in the Hub's cache, or fetched into it."""

import glob
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from monolane import _env
from monolane._progress import still
from monolane.errors import ModelNotFoundError
from monolane.model import LICENCE_FILES
from monolane.sources._gguf_choice import GgufSet, choose_gguf, gguf_sets, told_sets
from monolane.sources._hub_cache import CachedRepo, cached_repo, gguf_in, is_whole
from monolane.sources._hub_download import LargeFile, check_room, fetch_large
from monolane.sources._hub_id import HubId
from monolane.sources._proxy import proxy_told

_TEXTS = ["README.md", *LICENCE_FILES]
# What a model folder is made of; never a pickle, never code.
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", *_TEXTS]
# The same weights once more, as other programs read them: gpt-oss and Mistral have them.
_COPIES = ["original/*", "metal/*", "consolidated*.safetensors"]


@dataclass(frozen=True, slots=True)
class _Listing:
    """What a repository has at a revision."""

    commit: str
    sizes: Mapping[str, int]  # of its files, in bytes
    hashes: Mapping[str, str]  # SHA-256 of those in Git LFS

    def matching(self, patterns: list[str]) -> dict[str, int]:
        """Return the files that a fetch by patterns brings."""
        from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

        found = filter_repo_objects(self.sizes, allow_patterns=patterns, ignore_patterns=_COPIES)
        return {name: self.sizes[name] for name in found}


def cached_model(wanted: HubId, with_code: bool = False) -> Path | None:
    """Return where the Hub's cache has a model, whole; None if it does not.

    Of several GGUF files, none of which is named, that is the best that fits the free memory.
    """
    found = cached_repo(wanted.repo).snapshot(wanted.revision)
    if found is None:
        return None
    if not wanted.names_gguf and is_whole(found):
        return found if not with_code or any(found.glob("*.py")) else None
    sets = gguf_in(found)
    if wanted.names_gguf:  # the Hub may have it
        sets = [x for x in sets if x.is_meant(wanted)]
    return found / choose_gguf(sets, wanted).first if sets else None


def was_fetched_whole(found: Path) -> bool:
    """Tell whether, beside the weights, every file was fetched that there is and that we read.

    Transformers puts into the same cache what it reads itself, file by file: a model without its
    tokenizer, say. It never reads README.md, which a fetch of ours brings. A GGUF file has all.
    """
    return found.is_file() or all(
        (found / name).is_file() for name in ("README.md", "tokenizer.json")
    )


def fetch_from_hub(wanted: HubId, with_code: bool = False) -> Path:
    """Fetch a model into the Hub's cache and return where it is.

    A repository that has weights as safetensors and a config.json is fetched as a folder, unless a
    GGUF file is named; any other gives a GGUF file. What was broken off goes on. ModelNotFoundError
    if the Hub does not give it, has no such file, or the disk has no room for it.
    """
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    # Its client's own errors are no OSError: of a network that is down, of a proxy.
    own = [x for x in HfHubHTTPError.__bases__ if issubclass(x, Exception)]
    faults: tuple[type[Exception], ...] = (*own, HFValidationError, OSError)
    if _env.OFFLINE.get():  # the Hub's library looks at HF_HUB_OFFLINE itself
        raise ModelNotFoundError(
            f"{wanted}: not a folder here, not whole in the Hub's cache, and {_env.OFFLINE.name} "
            "forbids downloads; unset it, or pass a folder"
        )
    if not _env.HUB_OFFLINE.get():
        sys.stderr.write(f"monolane: fetching {wanted.repo} from the Hub\n")
    try:
        listing = _list(wanted)
        one = _wanted_gguf(listing, wanted)
        if one is None:
            return _fetch(wanted, listing, [*_PATTERNS, "*.py"] if with_code else _PATTERNS)
        return _fetch(wanted, listing, [*map(glob.escape, one.files), *_TEXTS]) / one.first
    except ModelNotFoundError:  # an OSError too
        raise
    except faults as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelNotFoundError(
            f"{wanted}: not a folder here, not in the Hub's cache, and the Hub did not give it: "
            f"{reason}. Check the name and the network, or pass a folder." + proxy_told(ENDPOINT)
        ) from error


def _list(wanted: HubId) -> _Listing:
    from huggingface_hub import HfApi

    info = HfApi().model_info(wanted.repo, revision=wanted.revision or None, files_metadata=True)
    files = info.siblings or []
    return _Listing(
        info.sha or "",
        {x.rfilename: x.size or 0 for x in files},
        {x.rfilename: x.lfs.sha256 for x in files if x.lfs is not None},
    )


def _wanted_gguf(listing: _Listing, wanted: HubId) -> GgufSet | None:
    """Return the GGUF file that is meant; None if a folder is."""
    sets = gguf_sets(listing.sizes)
    has_folder = "config.json" in listing.sizes and any(
        "/" not in name and name.endswith(".safetensors") for name in listing.sizes
    )
    if not wanted.names_gguf and (has_folder or not sets):
        return None
    if not sets:
        raise ModelNotFoundError(
            f"{wanted}: expected a repository with GGUF files, got none that is whole; "
            + (f"{wanted.repo} names its folder" if has_folder else "name another repository")
        )
    one = choose_gguf(sets, wanted)
    if not wanted.names_gguf:
        sys.stderr.write(
            f"monolane: {one.first} ({one.size / 1e9:,.1f} GB) is the best that fits the memory "
            f"that is free, of {told_sets(sets)}\n"
        )
    return one


def _fetch(wanted: HubId, listing: _Listing, patterns: list[str]) -> Path:
    """Fetch the files of some patterns; return the folder of the snapshot."""
    from huggingface_hub import hf_hub_url, snapshot_download
    from huggingface_hub.constants import MAX_HTTP_DOWNLOAD_SIZE

    repo = cached_repo(wanted.repo)
    files = listing.matching(patterns)
    # What is larger comes by another protocol, which the Hub's library speaks.
    large = [
        LargeFile(
            name, hf_hub_url(wanted.repo, name, revision=listing.commit), size, listing.hashes[name]
        )
        for name, size in files.items()
        if name in listing.hashes and size <= MAX_HTTP_DOWNLOAD_SIZE
    ]
    fetch_large(large, repo.blobs, str(wanted))
    if not _has_all(repo, listing, files):
        rest = sum(size for name, size in files.items() if name not in {x.name for x in large})
        check_room(rest, repo.blobs, str(wanted))
    with nullcontext() if sys.stderr.isatty() else still(f"fetching {wanted.repo}"):
        folder = snapshot_download(
            wanted.repo,
            revision=wanted.revision or None,
            allow_patterns=patterns,
            ignore_patterns=_COPIES,
        )
    return Path(folder)


def _has_all(repo: CachedRepo, listing: _Listing, files: Mapping[str, int]) -> bool:
    found = repo.folder / "snapshots" / listing.commit
    return all((found / name).is_file() for name in files)
