"""Published figures of latency-first decoding, recomputed beside what was said.

The arithmetic is a line each: bytes by bandwidth, launches by their time. What it is good for is to
see which published figures follow from the published inputs, and what the others must have assumed.
"""

from dataclasses import dataclass
from typing import Any

from monolane._toml import config, load_table, read_table
from monolane.plan import build, named_config, pass_cost
from monolane.sim._back_solve import back_solve
from monolane.sim._machine import find_machine
from monolane.sim._scenario import CONTEXT, Scenario, run_scenario
from monolane.sim._spelled import spelled

_CLOSE = 0.02  # published figures have two digits: a difference below it is rounding


@config
class Node:
    """Eight GPUs, as Kog describes them."""

    bandwidth_tb_s: float
    ceiling: float
    measured: float


@config
class Claims:
    """The inputs and results of the published arithmetic."""

    dense_gb: float
    utilisation: float
    layers: int
    kernels: tuple[int, ...]
    launch_us: float
    launch_caps: tuple[float, ...]
    agent_tokens: int
    agent_speeds: tuple[float, ...]
    agent_seconds: tuple[float, ...]
    barrier_us: float
    exchange_us: tuple[float, ...]


@config
class Mixture:
    """A mixture of experts, by what one token reads of it."""

    name: str
    active: float
    stated_bits: float
    experts: float
    expert_bits: float
    other_bits: float
    published: dict[str, float]
    source: str

    @property
    def gigabytes(self) -> float:
        """Weights of a token, each in its own format."""
        rest = self.active - self.experts
        return (self.experts * self.expert_bits + rest * self.other_bits) / 8e9

    @property
    def stated_gigabytes(self) -> float:
        """Weights of a token, all in the format that the projection names."""
        return self.active * self.stated_bits / 8e9


@config
class Seeds:
    """The file configs/seeds.toml."""

    nodes: dict[str, Node]
    claims: Claims
    bandwidths: dict[str, float]
    mixtures: tuple[Mixture, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A figure, ours beside the published one, if there is one."""

    what: str
    ours: float
    published: float | None = None
    remark: str = ""

    @property
    def difference(self) -> float | None:
        """Ours by theirs, less one."""
        return None if self.published is None else self.ours / self.published - 1

    def line(self) -> str:
        """Return it as text, with a word on how the two differ."""
        said = "" if self.published is None else spelled(self.published)
        return f"{self.what:58} {spelled(self.ours):>10} {said:>10}  {self.verdict}".rstrip()

    @property
    def verdict(self) -> str:
        """How the two differ, in a line."""
        if self.difference is None:
            return self.remark
        near = abs(self.difference) <= _CLOSE
        word = "agrees" if near else f"{self.difference:+.0%}"
        return f"{word}: {self.remark}" if self.remark else word


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one unit."""

    title: str
    unit: str
    rows: tuple[Row, ...]

    def lines(self) -> list[str]:
        """Return it as text."""
        head = f"{self.unit:58} {'ours':>10} {'published':>10}"
        return [self.title, head, *(row.line() for row in self.rows)]

    def record(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {
            "title": self.title,
            "unit": self.unit,
            "rows": [
                {
                    "what": row.what,
                    "ours": row.ours,
                    "published": row.published,
                    "difference": row.difference,
                    "verdict": row.verdict,
                }
                for row in self.rows
            ],
        }


def seeds_report() -> tuple[Table, ...]:
    """Return every table, from the ceilings to what the simulator says."""
    table, origin = load_table("seeds", "monolane.sim")
    seeds = read_table(Seeds, table, origin)
    return (
        _ceilings(seeds),
        _utilisation(seeds),
        _launches(seeds.claims),
        _budgets(seeds),
        _mixtures(seeds),
        _agents(seeds.claims),
        _simulated(seeds),
    )


def _token_gigabytes() -> float:
    """Return what a token of the real model reads at CONTEXT, in 16 bits."""
    plan = build(
        named_config("laneformer-2b"), find_machine("8xh200").device, "float16", context=CONTEXT
    )
    return pass_cost(plan).bytes / 1e9


def _ceilings(seeds: Seeds) -> Table:
    dense, real = seeds.claims.dense_gb, _token_gigabytes()
    rows = []
    for name, node in seeds.nodes.items():
        speed = node.bandwidth_tb_s * 1e3 / dense
        rows.append(Row(f"{name}, {node.bandwidth_tb_s} TB/s, {dense:g} GB", speed, node.ceiling))
    for name, rate in seeds.bandwidths.items():
        rows.append(Row(f"8 x {rate} TB/s ({name}), {dense:g} GB", 8e3 * rate / dense))
    for name, node in seeds.nodes.items():
        remark = f"{real:.3f} GB: the model has 2.3 B weights, and {CONTEXT:,} tokens have keys"
        speed = node.bandwidth_tb_s * 1e3 / real
        rows.append(Row(f"{name}, the released model", speed, node.ceiling, remark))
    return Table("Ceilings: bandwidth by bytes a token", "tokens/s", tuple(rows))


def _utilisation(seeds: Seeds) -> Table:
    said, dense, real = seeds.claims.utilisation, seeds.claims.dense_gb, _token_gigabytes()
    rows = []
    for name, node in seeds.nodes.items():
        share = node.measured * dense / node.bandwidth_tb_s / 1e3
        remark = "one figure was published for both nodes" if abs(share / said - 1) > _CLOSE else ""
        what = f"{name}: {node.measured:,.0f} tokens/s of {dense:g} GB"
        rows.append(Row(what, 100 * share, 100 * said, remark))
        share = node.measured * real / node.bandwidth_tb_s / 1e3
        rows.append(Row(f"{name}: the same of {real:.3f} GB, the released model", 100 * share))
    return Table("Utilisation that the measured speeds imply", "% of the bandwidth", tuple(rows))


def _launches(claims: Claims) -> Table:
    rows = []
    for kernels, cap in zip(claims.kernels, claims.launch_caps, strict=True):
        spent = claims.layers * kernels * claims.launch_us
        what = (
            f"{claims.layers} layers x {kernels} kernels x {claims.launch_us} us = "
            f"{spelled(spent)} us"
        )
        rows.append(Row(what, 1e6 / spent, cap))
    return Table("Caps by launches alone", "tokens/s", tuple(rows))


def _budgets(seeds: Seeds) -> Table:
    """What a token's time leaves for each wait, once its bytes are streamed."""
    shape = named_config("laneformer-2b")
    waits, exchanges = 5 * shape.num_layers, 2 * shape.num_layers
    rows, claims = [], seeds.claims
    for name, node in seeds.nodes.items():
        left = 1e6 / node.measured - _token_gigabytes() / node.bandwidth_tb_s * 1e3
        what = (
            f"{name}: left by streaming at {node.measured:,.0f} tokens/s, for each of {waits} waits"
        )
        rows.append(Row(what, left / waits, None, f"{left:,.0f} us a token"))
    rows.append(Row(f"{waits} barriers of {claims.barrier_us} us", waits * claims.barrier_us))
    for each in claims.exchange_us:
        what = (
            f"{exchanges} blocking exchanges of {each:g} us ({shape.num_layers} layers, two each)"
        )
        rows.append(Row(what, exchanges * each))
    return Table("Budgets of barriers and exchanges", "us", tuple(rows))


def _mixtures(seeds: Seeds) -> Table:
    rows, share = [], seeds.claims.utilisation
    for mixture in seeds.mixtures:
        for name, node in seeds.nodes.items():
            streamed = node.bandwidth_tb_s * 1e3 * share
            said = mixture.published[name]
            implied = f"published speed implies {streamed / said:.1f} GB a token"
            for gigabytes, how in _readings(mixture):
                what = f"{mixture.name} on {name}: {gigabytes:.2f} GB, {how}"
                rows.append(Row(what, streamed / gigabytes, said, implied))
    return Table(f"Mixtures of experts at {share:.0%} of the bandwidth", "tokens/s", tuple(rows))


def _readings(mixture: Mixture) -> list[tuple[float, str]]:
    """Return the bytes of a token as the projection's words have it, and by the config."""
    plain = (mixture.stated_gigabytes, f"all in {mixture.stated_bits:g} bits")
    if not mixture.experts:
        return [plain]
    parts = f"experts {mixture.expert_bits:g}, rest {mixture.other_bits:g} bits"
    return [plain, (mixture.gigabytes, parts)]


def _agents(claims: Claims) -> Table:
    rows = []
    for speed, said in zip(claims.agent_speeds, claims.agent_seconds, strict=True):
        remark = "said as a bound or 'about'"
        rows.append(
            Row(
                f"{claims.agent_tokens:,} tokens at {speed:,.0f} a second",
                claims.agent_tokens / speed,
                said,
                remark,
            )
        )
    return Table("An agent's output", "seconds", tuple(rows))


def _simulated(seeds: Seeds) -> Table:
    """The published speeds through the simulator, and our own engine where theirs ran."""
    rows = []
    for name, node in seeds.nodes.items():
        machine = find_machine(f"{name}-kog")
        scenario = Scenario(
            model="laneformer-2b",
            config=named_config("laneformer-2b"),
            machine=machine,
            dtype="float16",
        )
        made = run_scenario(scenario)
        chain = back_solve(machine, made.plan, node.measured)
        remark = f"by construction: back-solved, {chain:.2f} us for each of 5 chains a layer"
        rows.append(Row(f"{name}: Kog's engine, simulated", made.speed, node.measured, remark))
    for name in seeds.nodes:
        scenario = Scenario(
            model="laneformer-2b",
            config=named_config("laneformer-2b"),
            machine=find_machine(name),
            dtype="float16",
        )
        made = run_scenario(scenario)
        low, high = made.interval
        largest = ", ".join(one.name for one in made.uncertainties[:3])
        remark = f"predicted, never run: {low:,.0f} to {high:,.0f}; mostly {largest}"
        rows.append(Row(f"{name}: our engine", made.speed, None, remark))
    return Table(f"The simulator at {CONTEXT:,} tokens", "tokens/s", tuple(rows))
