"""What is known of a device's timing: constants with an interval and a source each.

Read from configs/devices.toml, whose rows are data and not code, so that a measurement changes one
line, and so that a person with another machine can hand in a file of their own.
"""

import json
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from monolane._toml import config, load_table, read_file, read_table
from monolane.errors import RequestError
from monolane.plan import PhaseKind
from monolane.sim._rates import Rates

Level = Literal["low", "value", "high"]
LEVELS: tuple[Level, ...] = get_args(Level)
Basis = Literal["measured", "datasheet", "published", "estimated", "machine code", "back-solved"]
Positive = Annotated[float, Field(ge=0)]
OTHER = "other"  # of the formats or kinds of phase that a table does not name

# Constants that vary together, since one cause moves them: all chains by how loaded L2 is.
NAMES = (
    "bandwidth_gb_s",
    "share",
    "worker_us_per_mb",
    "ring_kb",
    "catch_up",
    "group_sync_us",
    "all_sync_us",
    "chain_us",
    "link_us",
    "link_gb_s",
    "skew_us",
    "launch_us",
)


@config
class Constant:
    """A number, between what bounds we would still believe it, and why."""

    value: Positive
    low: Positive
    high: Positive
    basis: Basis
    source: str

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(
                f"expected low <= value <= high, got {self.low:g}, {self.value:g}, {self.high:g}"
            )

    def at(self, level: Level) -> float:
        """Return the value, or one of its bounds."""
        return {"low": self.low, "value": self.value, "high": self.high}[level]


_NOTHING = Constant(value=0, low=0, high=0, basis="estimated", source="none is known")


@config
class Timing:
    """The constants of one device; the names say their units."""

    bandwidth_gb_s: Constant
    share: dict[str, Constant]  # of the bandwidth, by weight format
    ring_kb: Constant  # of one worker
    catch_up: Constant
    group_sync_us: Constant
    all_sync_us: Constant
    link_us: Constant
    link_gb_s: Constant
    skew_us: Constant
    launch_us: Constant
    chain_us: dict[str, Constant]  # by kind of phase
    executed: bool  # whether a decode of ours has ever run on such a device
    worker_us_per_mb: Constant = _NOTHING  # of one worker, for 1e6 bytes; memory does not hide it
    processors: tuple[str, ...] = ()  # the names under which results know it

    def __post_init__(self) -> None:
        if OTHER not in self.share:
            raise ValueError(
                f"share: expected one for {OTHER!r} formats too, got {list(self.share)}"
            )

    def rates(self, dtype: str, levels: dict[str, Level] | None = None) -> Rates:
        """Return the numbers for weights of a format; ``levels`` names constants at a bound."""

        def at(name: str, constant: Constant) -> float:
            return constant.at((levels or {}).get(name, "value"))

        share = self.share.get(dtype) or self.share[OTHER]
        return Rates(
            bandwidth=at("bandwidth_gb_s", self.bandwidth_gb_s) * 1e9 * at("share", share),
            handling=at("worker_us_per_mb", self.worker_us_per_mb) / 1e12,
            ring=at("ring_kb", self.ring_kb) * 1024,
            catch_up=at("catch_up", self.catch_up),
            group_sync=at("group_sync_us", self.group_sync_us) / 1e6,
            all_sync=at("all_sync_us", self.all_sync_us) / 1e6,
            link_latency=at("link_us", self.link_us) / 1e6,
            link_bandwidth=at("link_gb_s", self.link_gb_s) * 1e9,
            skew=at("skew_us", self.skew_us) / 1e6,
            chain={kind: at("chain_us", self._chain(kind)) / 1e6 for kind in PhaseKind},
            launch=at("launch_us", self.launch_us) / 1e6,
        )

    def _chain(self, kind: PhaseKind) -> Constant:
        return self.chain_us.get(kind.name) or self.chain_us.get(OTHER) or _NOTHING

    def stated(self, name: str, value: float) -> "Timing":
        """Return it with one constant that the caller states, hence without an interval."""
        if not 0 <= value < float("inf"):
            raise RequestError(f"{name}: expected a finite number of zero or more, got {value:g}")
        said = Constant(value=value, low=value, high=value, basis="measured", source="stated")
        changes: dict[str, Any] = {name: said}
        return replace(self, **changes)


@cache
def timings() -> dict[str, Timing]:
    """Return the shipped devices by name."""
    table, origin = load_table("devices", "monolane.sim")
    return {name: read_table(Timing, _whole(table, name), f"{origin}: [{name}]") for name in table}


@cache
def latencies() -> dict[str, Constant]:
    """Return what instructions take whose time varies, by name; cycles."""
    table, origin = load_table("latencies", "monolane.sim")
    return {name: read_table(Constant, row, f"{origin}: {name}") for name, row in table.items()}


def _whole(table: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a table's constants, those of the one that it is like included."""
    own = dict(table[name])
    like = own.pop("like", None)
    code = own.pop("machine_code", None)
    if code is not None:
        own["chain_us"] = own.get("chain_us", {}) | _chains(code["arch"], code["clock_ghz"])
    return own if like is None else _whole(table, like) | own


def _chains(arch: str, clock_ghz: float) -> dict[str, Any]:
    """Return the chains of the kernel compiled for an architecture, as rows of a table.

    bench/gpu/monokernel/chains.py writes the file that they are in.
    """
    text, _ = read_file("chains", "monolane.sim", suffix=".json")
    kernel = json.loads(text)[arch]
    rows = {}
    for kind, chain in kernel["chains"].items():
        us = {level: chain["cycles"][level] / clock_ghz / 1e3 for level in LEVELS}
        source = (
            f"chains.json, {arch}, {kernel['compiler']}: {chain['instructions']} instructions, "
            f"{chain['stalls']} cycles by their control codes, the rest by latencies.toml"
        )
        rows[kind] = us | {"basis": "machine code", "source": source}
    return rows
