"""Models that other programs keep on this disk: Ollama, LM Studio, llama.cpp. Read, never changed.

    Ollama      models/manifests/HOST/NAMESPACE/NAME/TAG, JSON whose layer of the type
                application/vnd.ollama.image.model has the digest of models/blobs/sha256-...
    LM Studio   models/ORG/REPO/*.gguf, or a folder in Hub layout (MLX)
    llama.cpp   ORG_REPO_FILE.gguf, and manifest=ORG=REPO=TAG.json, which says where the first _ is

Newer versions of llama.cpp keep them in the Hub's cache. Sources: server/internal/manifest of
github.com/ollama/ollama, common/download.cpp of github.com/ggml-org/llama.cpp, and "Import models"
in LM Studio's documentation.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monolane.sources._gguf_choice import choose_gguf, gguf_sets, name_of
from monolane.sources._hub_cache import gguf_in, is_whole
from monolane.sources._hub_id import LATEST, HubId, parse_hub_id

_REGISTRY, _LIBRARY = "registry.ollama.ai", "library"
_HUBS = ("hf.co", "huggingface.co")
_OLLAMA_NAME = re.compile(r"[\w.-]+(/[\w.-]+){0,3}(:[\w.-]+)?")
_MODEL_LAYER = "application/vnd.ollama.image.model"
_ADAPTER_LAYER = "application/vnd.ollama.image.adapter"
_MOST_JSON = 1 << 20  # bytes of a manifest; they have some hundred


@dataclass(frozen=True, slots=True)
class KeptModel:
    """A model on this disk, and who keeps it there."""

    name: str  # as --model takes it
    path: Path  # a folder, or a GGUF file (of several parts the first)
    size: int  # bytes
    keeper: str  # the program's name
    fault: str = ""  # why it cannot be used, where that is known already


def find_elsewhere(name: str) -> KeptModel | None:
    """Return the model that another program keeps under a name; None if none does."""
    if (hub := parse_hub_id(name)) is not None and not hub.revision:
        for found in (_in_lm_studio(hub), _in_llama_cpp(hub)):
            if found is not None:
                return found
    wanted = _ollama_name(name)
    theirs = {x.name.lower(): x for x in (_ollama() if wanted else ())}
    return theirs.get(wanted) or theirs.get(f"{_HUBS[0]}/{wanted}")


def models_elsewhere() -> Iterator[KeptModel]:
    """Yield the models that other programs keep."""
    yield from _ollama()
    for base in _lm_studio_folders():
        for folder in sorted(base.glob("*/*")):
            if _is_folder(folder):
                yield from _kept(folder, "/".join(folder.parts[-2:]), "LM Studio")
    yield from _llama_cpp()


def _kept(folder: Path, repo: str, keeper: str) -> Iterator[KeptModel]:
    """Yield what a folder holds: its GGUF files, and the folder itself."""
    sets = gguf_in(folder)
    for one in sets:
        yield KeptModel(name_of(one, sets, repo), folder / one.first, one.size, keeper)
    if is_whole(folder):
        size = sum(x.stat().st_size for x in folder.rglob("*.safetensors"))
        yield KeptModel(repo, folder, size, keeper)


def _ollama_folders() -> list[Path]:
    if given := os.environ.get("OLLAMA_MODELS"):
        return [Path(given)]
    # Of this user, and of the service that its installer makes on Linux.
    return [*_below_home(".ollama/models"), Path("/usr/share/ollama/.ollama/models")]


def _ollama() -> Iterator[KeptModel]:
    for base in _ollama_folders():
        try:
            manifests = sorted((base / "manifests").rglob("*"))
        except OSError:  # of another user
            continue
        for path in manifests:
            parts = path.relative_to(base / "manifests").parts
            if len(parts) == 4 and _is_file(path):
                yield from _of_manifest(base, path, *parts)


def _of_manifest(
    base: Path, path: Path, host: str, space: str, name: str, tag: str
) -> Iterator[KeptModel]:
    layers = _read(path).get("layers")
    kinds = {
        layer["mediaType"]: str(layer.get("digest"))
        for layer in layers or ()
        if isinstance(layer, dict) and isinstance(layer.get("mediaType"), str)
    }
    host = _HUBS[0] if host in _HUBS else host
    spelled = f"{'' if host == _REGISTRY else host + '/'}{'' if space == _LIBRARY else space + '/'}"
    fault = ""
    if _ADAPTER_LAYER in kinds:
        fault = (
            "expected a model, got one with a LoRA adapter beside it, which is not read; merge it "
            "into its model with llama.cpp's llama-export-lora"
        )
    elif _MODEL_LAYER not in kinds:
        fault = "expected a layer with a GGUF file, got none: Ollama runs it elsewhere or unpacked"
    blob = base / "blobs" / kinds.get(_MODEL_LAYER, "-").replace(":", "-")
    size = blob.stat().st_size if _is_file(blob) else 0
    if not fault and not _is_file(blob):
        fault = f"expected {blob}, which is not there; 'ollama pull {name}:{tag}' fetches it"
    yield KeptModel(f"{spelled}{name}:{tag}", blob, size, "Ollama", fault)


def _ollama_name(text: str) -> str:
    """Return a name as ``_of_manifest`` spells it, in small letters; "" if it can be none."""
    if not _OLLAMA_NAME.fullmatch(text):
        return ""
    name, _, tag = text.lower().partition(":")
    for prefix in (f"{_REGISTRY}/", f"{_LIBRARY}/"):
        name = name.removeprefix(prefix)
    if name.startswith(f"{_HUBS[1]}/"):
        name = _HUBS[0] + name.removeprefix(_HUBS[1])
    return f"{name}:{tag or LATEST}"


def _lm_studio_folders() -> list[Path]:
    return _below_home(".lmstudio/models", ".cache/lm-studio/models")


def _in_lm_studio(wanted: HubId) -> KeptModel | None:
    for base in _lm_studio_folders():
        folder = base / wanted.repo
        if not _is_folder(folder):
            continue
        if not wanted.names_gguf and is_whole(folder):
            return KeptModel(wanted.repo, folder, 0, "LM Studio")
        sets = [x for x in gguf_in(folder) if not wanted.names_gguf or x.is_meant(wanted)]
        if sets:
            one = choose_gguf(sets, wanted)
            return KeptModel(str(wanted), folder / one.first, one.size, "LM Studio")
    return None


def _llama_cpp_folder() -> Path | None:
    if given := os.environ.get("LLAMA_CACHE"):
        return Path(given)
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "llama.cpp"
    return next(iter(_below_home(".cache/llama.cpp")), None)


def _llama_cpp_files(base: Path, prefix: str) -> dict[str, int]:
    """Return the files of a repository by their names in it, whose / are _ here."""
    return {
        path.name.removeprefix(prefix): path.stat().st_size
        for path in sorted(base.glob("*.gguf"))
        if path.name.startswith(prefix) and _is_file(path)
    }


def _in_llama_cpp(wanted: HubId) -> KeptModel | None:
    base = _llama_cpp_folder()
    if base is None:
        return None
    prefix = f"{wanted.repo.replace('/', '_')}_"
    here = HubId(wanted.repo, tag=wanted.tag, file=wanted.file.replace("/", "_"))
    sets = gguf_sets(_llama_cpp_files(base, prefix))
    sets = [x for x in sets if not here.names_gguf or x.is_meant(here)]
    if not sets:
        return None
    one = choose_gguf(sets, here)
    return KeptModel(str(wanted), base / f"{prefix}{one.first}", one.size, "llama.cpp")


def _llama_cpp() -> Iterator[KeptModel]:
    base = _llama_cpp_folder()
    if base is None:
        return
    repos = sorted({"/".join(x.name.split("=")[1:3]) for x in base.glob("manifest=*=*=*.json")})
    said: set[str] = set()
    for repo in repos:
        prefix = f"{repo.replace('/', '_')}_"
        sets = gguf_sets(_llama_cpp_files(base, prefix))
        for one in sets:
            said.update(f"{prefix}{x}" for x in one.files)
            name = name_of(one, sets, repo)
            yield KeptModel(name, base / f"{prefix}{one.first}", one.size, "llama.cpp")
    for one in gguf_sets(_llama_cpp_files(base, "")):
        if one.first not in said:
            yield KeptModel(str(base / one.first), base / one.first, one.size, "llama.cpp")


def _is_file(path: Path) -> bool:
    with suppress(OSError):  # of another user: it is none to us
        return path.is_file()
    return False


def _is_folder(path: Path) -> bool:
    with suppress(OSError):
        return path.is_dir()
    return False


def _below_home(*names: str) -> list[Path]:
    try:
        return [Path.home() / name for name in names]
    except RuntimeError:  # this user has none
        return []


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_JSON))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
