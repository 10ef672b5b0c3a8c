"""The simulator beside every decode of ours on a CPU in bench/results.

A processor's constants are shares of its read bandwidth, of each weight format where that is known,
and where memory changes its speed, a core's own time for a byte. Each was taken from one run, which
devices.toml names; all others are held to 10 %, but for those that ``reason_against`` leaves out.
The bandwidth is that of the run itself, as measured beside its epochs: memory of a virtual machine
changes by the minute.
"""

import json
import re
import statistics
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest

from monolane.cli._model_config import planned_model
from monolane.measure import SYNTHETIC, synthetic_config
from monolane.model import ModelConfig, Role, find_format, parse_config
from monolane.plan import Place, cpu, pass_cost
from monolane.sim import Forecast, Scenario, find_machine, find_processor, run_scenario

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
CLOSE = 0.10
SAME = 0.01  # a constant has four digits
BESIDE = 1.0  # threads at most beside the measurement's own, of which there is one a core
SMALL = "the model is too small for memory to take its time"
UNBLOCKED = "its codes did not lie in blocks, and were read slower than now"
BLOCKS_CAME = "2026-11-26"  # to Zen 4; no processor but that was measured with them
# Caches that a token's bytes must fill, or weights where they are known, for a share of the
# bandwidth to hold what its phases take besides: 30 layers of SmolLM2 in 4 bits, 3 caches, take a
# sixth of their 4 ms for norms and waits.
BOUND = 4
# Of files that are not bench's own.
WEIGHT_BYTES = {"SmolLM2-135M-Instruct.Q4_1": 98_362_432, "demo": 9_234_312}
PAGE = {  # as docs/simulator.md has them
    "AMD EPYC": "Zen 5",
    "AMD EPYC (Zen 3)": "Zen 3",
    "AMD EPYC (Zen 4)": "Zen 4",
    "Intel(R) Xeon(R) Processor": "Intel Xeon",
    "Intel(R) Xeon(R) Processor (AMX)": "Intel Xeon (AMX)",
}
NAMES = {
    Role.Q: "attn_q",
    Role.K: "attn_k",
    Role.V: "attn_v",
    Role.O: "attn_output",
    Role.GATE: "ffn_gate",
    Role.UP: "ffn_up",
    Role.DOWN: "ffn_down",
}
EXPERTS = {
    Role.EXPERT_GATE: "ffn_gate_exps",
    Role.EXPERT_UP: "ffn_up_exps",
    Role.EXPERT_DOWN: "ffn_down_exps",
}


@dataclass(frozen=True)
class Measured:
    """One decode run; ``version``: it was another version of ours, in turns with this one."""

    file: str
    device: dict[str, Any]
    load: float | None  # threads that wanted a core, the measurement's own included
    record: dict[str, Any]
    version: str = ""

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return float(self.record["other_median" if self.version else "median"])

    @property
    def bandwidth(self) -> float:
        """GB/s while it ran: by its MBU, or the median of what was read beside it."""
        if "mbu" in self.record:
            return float(self.record["gb_per_s"] / self.record["mbu"])
        return float(statistics.median(self.record["read_bandwidth_gb_s"]))

    def scenario(self, machine: str | None = None) -> Scenario:
        """Return it as a question: on its own processor unless another is named."""
        record, workers = self.record, self.record["workers"]
        own = find_processor(str(self.device["name"]), workers)
        types = tuple(record.get("types", {}).items())
        config, dtype, formats = model_of(record["model"], record["dtype"], types)
        return Scenario(
            model=record["model"],
            config=config,
            machine=(own if machine is None else find_machine(machine)).stated(
                bandwidth=self.bandwidth
            ),
            dtype=dtype,
            formats=formats,
            context=record["context"] + record["tokens"] // 2,
        )

    @cached_property
    def forecast(self) -> Forecast:
        """What the simulator says of it."""
        return run_scenario(self.scenario())

    @property
    def calibrates(self) -> bool:
        """Whether the constant that its processor has for it was taken from it."""
        timing = find_processor(str(self.device["name"]), 1).timing
        share = timing.share.get(self.record["dtype"]) or timing.share["other"]
        here = f"{self.file}, {self.record['dtype']} at {self.record['context']}"
        sources = (share.source, timing.worker_us_per_mb.source)
        return not self.version and any(here in source for source in sources)

    @property
    def error(self) -> float:
        """Simulated by measured speed, less one."""
        return self.forecast.speed / self.speed - 1

    def __str__(self) -> str:
        parts = (self.file.removesuffix(".json"), self.record["dtype"], self.record["context"])
        return "-".join(map(str, (*parts, self.version) if self.version else parts))


@cache
def model_of(
    name: str, kind: str, types: tuple[tuple[str, str], ...] = ()
) -> tuple[ModelConfig, str, dict[Place, str] | None]:
    """Return config, dtype and formats of a model of bench: of ours, or a random GGUF file's.

    ``types``: of the file's tensors, where its record has them (bench/_qwen35.py).
    """
    if name.removeprefix("synthetic-") in SYNTHETIC:
        return synthetic_config(name.removeprefix("synthetic-")), kind, None
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        from _gguf import SHAPES, kind_of
        from _qwen35 import header_of
    finally:
        sys.path.remove(str(ROOT / "bench"))

    if types:
        with tempfile.TemporaryDirectory() as folder:
            shape_name = name.partition(f"-{kind}-")[0]
            header = header_of(Path(folder) / "header.gguf", shape_name, kind, dict(types))
            config, formats = planned_model(str(header))
        return config, "auto", formats
    shape = SHAPES[name.partition(f"-{kind}-")[0]]
    fields = {
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.context,
        "torch_dtype": "bfloat16",
    }
    names = NAMES
    if shape.experts:
        fields |= {
            "model_type": "qwen3_moe",
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.chosen,
            "moe_intermediate_size": shape.inner,
            "norm_topk_prob": True,
            "tie_word_embeddings": False,
        }
        names = {role: NAMES[role] for role in (Role.Q, Role.K, Role.V, Role.O)} | EXPERTS
    config = parse_config(fields)
    if kind == "BF16":
        return config, "bfloat16", None

    def format_of(tensor: str, layer: int) -> str:
        stored = str(kind_of(kind, tensor, layer, shape.layers).name).lower()
        return find_format(stored).multiplied.name

    formats: dict[Place, str] = {
        (role, layer): format_of(tensor, layer)
        for role, tensor in names.items()
        for layer in range(shape.layers)
    }
    return config, "auto", formats | {(Role.HEAD, None): format_of("output", -1)}


def reason_against(run: Measured) -> str | None:
    """Return why nothing can be held to a run, by what its own file says; None: it is held."""
    if run.load is None or run.load > run.device["cores"] + BESIDE:
        return "other programs ran"
    if "ranks" in run.record:
        return "several processes share the processor"
    read = run.record.get("bytes_per_token", 1 << 40)
    if min(read, WEIGHT_BYTES.get(run.record["model"], read)) < BOUND * cpu(1).cache_bytes:
        return SMALL
    coded = run.record["dtype"] != "BF16"
    if "Zen 4" in run.device["name"] and coded and run.file < BLOCKS_CAME:
        return UNBLOCKED
    if not find_processor(str(run.device["name"]), 1).timing.processors:
        return "no constants of the processor"
    return None


def _runs() -> list[Measured]:
    found = []
    for path in sorted(RESULTS.glob("[0-9]*.json")):
        document = json.loads(path.read_text())
        device, load = document["device"], document.get("load_average")
        for record in document["records"]:
            ours = record["name"] == "decode" and record["engine"] == "monolane"
            if not ours or not record.get("median"):
                continue
            found.append(Measured(path.name, device, load, record))
            if "other_median" in record:
                found.append(Measured(path.name, device, load, record, record["other"]))
    return found


RUNS = _runs()
TAKEN = [run for run in RUNS if reason_against(run) is None]
CALIBRATING = [run for run in TAKEN if run.calibrates]
# What the simulator misses, and docs/simulator.md says so.
MISSED = [
    run
    for run in TAKEN
    if str(run)
    in (
        "2026-11-26-amd-epyc-zen-4-moe-8b-next-rows-peers-MXFP4_MOE-128",
        "2026-11-29-amd-epyc-zen-3-wheel-versions-int8-128",
        "2026-11-29-amd-epyc-zen-3-wheel-versions-int8-128-wheel",
    )
]
HELD = [run for run in TAKEN if not run.calibrates and run not in MISSED]


def _by_processor(runs: list[Measured]) -> Counter[str]:
    return Counter(str(run.device["name"]) for run in runs)


def test_the_page_says_how_many_runs_are_held() -> None:
    assert _by_processor(CALIBRATING) == {
        "AMD EPYC": 3,
        "AMD EPYC (Zen 3)": 1,
        "AMD EPYC (Zen 4)": 1,
        "Intel(R) Xeon(R) Processor": 3,
        "Intel(R) Xeon(R) Processor (AMX)": 3,
    }
    held, page = _by_processor(HELD), (ROOT / "docs" / "simulator.md").read_text()
    row = r"(?m)^ *\| ([^|]+) \| (\d+) \| (\d+) \| ([+-]\d+) to ([+-]\d+) % \|$"
    rows = re.findall(row, page)
    told = {name: int(count) for name, _, count, _, _ in rows}
    assert told == {PAGE[name]: count for name, count in held.items()}
    for name, _, _, least, most in rows:
        errors = [run.error for run in HELD if PAGE[str(run.device["name"])] == name]
        assert (f"{min(errors):+.0%}", f"{max(errors):+.0%}") == (f"{least}%", f"{most}%")
    reasons = Counter(reason_against(run) for run in RUNS)
    left = {"other programs ran": 13, SMALL: 11, UNBLOCKED: 11}
    assert reasons == {None: len(TAKEN), **left}
    assert f"and {sum(left.values())} are left out" in " ".join(page.split())
    assert f"Of {len(RUNS)} decode runs, {len(CALIBRATING)} calibrate, {len(HELD)} are held" in page


def test_the_page_names_the_runs_that_are_missed() -> None:
    page = " ".join((ROOT / "docs" / "simulator.md").read_text().split())
    missed, *pair = MISSED
    (mixture,) = (run for run in HELD if str(run).endswith("amx-moe-peers-Q4_K_M-4096"))
    assert f"10 %, {len(MISSED)} are missed, and" in page
    assert f"4,096 tokens, simulated {mixture.error:.0%} too fast".replace("%", " %") in page
    assert f"in MXFP4, simulated {missed.error:.0%} too fast".replace("%", " %") in page
    slow = "{:.0f} and {:.0f} % too slow".format(*sorted(-100 * run.error for run in pair))
    assert slow in page
    assert all(abs(run.error) >= CLOSE for run in MISSED), "or it is held"


def test_the_page_says_what_three_runs_of_one_processor_promise() -> None:
    """Each share foretold by the mean of the two others."""
    ours = [run for run in TAKEN if "Zen 3" in run.device["name"] and "mbu" in run.record]
    shares = [run.record["mbu"] for run in ours]
    errors = [(sum(shares) - own) / 2 / own - 1 for own in shares]
    told = "{:+.0%}, {:+.0%} and {:+.0%}".format(*errors).replace("%", "")
    assert f"the errors are {told} %" in (ROOT / "docs" / "simulator.md").read_text()


@pytest.mark.parametrize("run", HELD, ids=str)
def test_a_run_that_no_constant_was_taken_from(run: Measured) -> None:
    assert abs(run.error) < CLOSE, (
        f"{run.error:+.1%}: if the kernels have become faster, take the constant in devices.toml "
        "from the new run, and let the others be held to it"
    )
    low, high = run.forecast.interval
    assert low < run.speed < high


def test_the_page_says_how_much_of_the_bandwidth_a_small_model_reached() -> None:
    """No constant was taken for it: the rule that leaves it out is a rule on its bytes alone."""
    (small,) = (run for run in RUNS if reason_against(run) == SMALL and "mbu" in run.record)
    larger = [run.record["mbu"] for run in TAKEN if run.device["name"] == small.device["name"]]
    page = " ".join((ROOT / "docs" / "simulator.md").read_text().split())
    said = f"({small.record['mbu']:.0%} of the bandwidth; the large ones {min(larger):.0%} or more)"
    assert f"SmolLM2's run on Zen 4 {said}".replace("%", " %") in page


@pytest.mark.parametrize("run", CALIBRATING, ids=str)
def test_a_constant_is_what_its_run_says(run: Measured) -> None:
    assert abs(run.error) < SAME


@pytest.mark.parametrize("run", TAKEN, ids=str)
def test_the_plan_reads_what_the_run_read(run: Measured) -> None:
    if "bytes_per_token" in run.record:
        assert pass_cost(run.forecast.plan).bytes == pytest.approx(
            run.record["bytes_per_token"], rel=SAME
        )


@pytest.mark.parametrize("run", [run for run in TAKEN if not run.version], ids=str)
def test_an_unknown_processor_has_an_interval_that_holds_it(run: Measured) -> None:
    """The bounds of ``cpu`` were taken from Zen 5 and Intel; Zen 3's and Zen 4's came later."""
    low, high = run_scenario(run.scenario(f"cpu:{run.record['workers']}")).interval
    assert low < run.speed < high


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"load": 3.1}, "other programs ran"),
        ({"load": None}, "other programs ran"),
        ({"record": {"ranks": 2}}, "several processes share the processor"),
        *(
            (
                {"record": {"bytes_per_token": size}},
                SMALL,
            )
            for size in (8_568_832, 99_753_984)  # demo, SmolLM2 in Q4_1
        ),
        ({"device": {"name": "AMD EPYC (Zen 2)"}}, "no constants of the processor"),
    ],
)
def test_why_a_run_is_left_out(change: dict[str, Any], reason: str | None) -> None:
    run = CALIBRATING[0]
    merged = {
        name: getattr(run, name) | value if isinstance(value, dict) else value
        for name, value in change.items()
    }
    assert reason_against(replace(run, **merged)) == reason
