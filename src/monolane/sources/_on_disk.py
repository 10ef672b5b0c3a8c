"""Every model that is on this disk, whoever keeps it, by the name that --model takes."""

from collections.abc import Iterator

from monolane.sources._aliases import read_aliases
from monolane.sources._gguf_choice import name_of
from monolane.sources._hub_cache import CachedRepo, cached_repos, gguf_in, is_whole
from monolane.sources._other_programs import KeptModel, models_elsewhere
from monolane.sources._packaged import DEMO, PACKAGED, demo_folder

MONOLANE, HUB = "monolane", "Hub"  # who keeps a model


def models_on_disk() -> Iterator[KeptModel]:
    """Yield the models that are here: the demo, packaged ones, the Hub's cache, other programs'.

    No file of a model is opened; one whose download was broken off has a fault.
    """
    demo = demo_folder()
    size = sum(x.stat().st_size for x in demo.glob("*.safetensors"))
    yield KeptModel(DEMO, demo, size, MONOLANE)
    for model in PACKAGED.values():
        if model.path.is_file():
            yield KeptModel(model.name, model.path, model.path.stat().st_size, MONOLANE)
    for repo in cached_repos():
        yield from in_repo(repo)
    yield from models_elsewhere()


def in_repo(repo: CachedRepo) -> Iterator[KeptModel]:
    """Yield the models of one repository in the Hub's cache."""
    nothing = True
    for revision, folder in repo.snapshots():
        at = f"@{revision}" if revision else ""
        sets = gguf_in(folder)
        for one in sets:
            name = name_of(one, sets, repo.repo) + at
            yield KeptModel(name, folder / one.first, one.size, HUB)
        if is_whole(folder):
            weights = sum(x.stat().st_size for x in folder.glob("*.safetensors"))
            yield KeptModel(repo.repo + at, folder, weights, HUB)
        nothing = nothing and not sets and not is_whole(folder)
    parts = [*repo.blobs.glob("*.part"), *repo.blobs.glob("*.incomplete")]
    if parts and nothing:
        come = sum(x.stat().st_size for x in parts)
        fault = f"not whole yet: 'monolane pull {repo.repo}' goes on, 'monolane rm' throws it away"
        yield KeptModel(repo.repo, repo.folder, come, HUB, fault)


def did_you_mean(name: str) -> str:
    """Return a sentence of names that are much like one, ". " before it; "" if there is none."""
    found = _similar(name)
    return f". Did you mean {' or '.join(found)}?" if found else ""


def _similar(name: str) -> list[str]:
    """Return names of models that are here, or can be had, and are spelled much like one."""
    import difflib  # only here: of names that are not found

    known = {DEMO, *PACKAGED, *read_aliases(), *(x.name for x in models_on_disk())}
    folded = {x.lower(): x for x in sorted(known - {name})}
    lower = name.lower()
    close = difflib.get_close_matches(lower, folded, 3, 0.6)
    # What is typed without its owner or its tag is less alike than it reads.
    begun = [x for x in folded if lower in (x.partition(":")[0], x.rpartition("/")[2])]
    return [folded[x] for x in dict.fromkeys([*begun, *close])][:3]
