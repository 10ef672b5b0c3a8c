"""What the rank 0 of another host wishes, checked field by field before anything is made of it.

Whoever has the key may send one, and it may have been changed on the wire. What is allowed is
what ``CpuExecutor`` itself would ask for; a message names the field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from monolane.cpu._executor import find_isa
from monolane.cpu._native import Setting, check_workers
from monolane.errors import BackendError
from monolane.executor_api import Loading, split_address
from monolane.model import ModelConfig, find_lanes

_MOST_RANKS = 1024
_LONGEST_PATIENCE = 86_400.0  # seconds
_MOST_BYTES = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Wish:
    """Which rank to be, beside which others, and how to run the model."""

    rank: int
    addresses: tuple[str, ...]  # of the ranks 1..
    patience: float  # seconds
    setting: Setting

    @staticmethod
    def read(word: Mapping[str, Any], config: ModelConfig, digest: str) -> "Wish":
        """Return what a word wishes of a model; BackendError or RequestError names a wrong field.

        digest   of that model, which the word must have too
        """
        _names("wish", word, ("rank", "addresses", "digest", "patience", "setting"))
        if word["digest"] != digest:
            raise BackendError(
                f"its model is another: expected SHA-256 {str(word['digest'])[:16]!r} of config "
                f"and weights, got {digest[:16]!r}; give both hosts the same files"
            )
        setting = _setting(word["setting"], config)
        addresses = word["addresses"]
        if (
            not isinstance(addresses, list)
            or len(addresses) != setting.ranks - 1
            or not all(isinstance(one, str) for one in addresses)
        ):
            raise _refusal("addresses", f"{setting.ranks - 1} of host:port", addresses)
        for one in addresses:
            split_address(one)
        patience = word["patience"]
        if type(patience) not in (int, float) or not 0 < patience <= _LONGEST_PATIENCE:
            raise _refusal("patience", f"seconds up to {_LONGEST_PATIENCE:g}", patience)
        rank = _whole("rank", word["rank"], 1, setting.ranks - 1)
        return Wish(rank, tuple(addresses), float(patience), setting)


def _setting(told: object, config: ModelConfig) -> Setting:
    own = [x.name for x in fields(Setting)]
    if not isinstance(told, dict):
        raise _refusal("setting", f"the fields {', '.join(own)}", told)
    _names("setting", told, own)
    loading = _loading(told["loading"], config)
    assert isinstance(loading.ranks, int)
    lanes = _whole("setting.lanes", told["lanes"], 1, _MOST_RANKS)
    find_lanes(config, loading.ranks, lanes, "ranks")  # raises where these are none
    if not isinstance(told["isa"], str):
        raise _refusal("setting.isa", "a name", told["isa"])
    # Delays and times are of ranks that share memory.
    for name, wanted in (("link_delay", 0.0), ("timed", False), ("apart", True)):
        if type(told[name]) is not type(wanted) or told[name] != wanted:
            raise _refusal(f"setting.{name}", repr(wanted), told[name])
    return Setting(loading, find_isa(told["isa"]), lanes, apart=True)


def _loading(told: object, config: ModelConfig) -> Loading:
    names = list(Loading().crossing())
    if not isinstance(told, dict):
        raise _refusal("setting.loading", f"the fields {', '.join(names)}", told)
    _names("setting.loading", told, names)
    for name in ("dtype", "cache_dtype"):
        if not isinstance(told[name], str):
            raise _refusal(f"setting.{name}", "a name", told[name])
    _whole("setting.context", told["context"], 1, config.longest_context)
    check_workers(told["workers"], _whole("setting.ranks", told["ranks"], 2, _MOST_RANKS))
    if told["expert_memory"] is not None:
        _whole("setting.expert_memory", told["expert_memory"], 1, _MOST_BYTES)
        if config.experts is None:
            raise _refusal("setting.expert_memory", "none of a model without experts", "some")
    return Loading(**told)  # which knows how many sequences there may be


def _names(what: str, told: Mapping[str, Any], wanted: "list[str] | tuple[str, ...]") -> None:
    if set(told) != set(wanted):
        raise _refusal(what, f"the fields {', '.join(wanted)}", sorted(told))


def _whole(name: str, found: object, least: int, most: int) -> int:
    if type(found) is not int or not least <= found <= most:
        raise _refusal(name, f"{least} to {most}", found)
    return found


def _refusal(name: str, expected: str, found: object) -> BackendError:
    return BackendError(f"{name}: expected {expected}, got {found!r:.200}")
