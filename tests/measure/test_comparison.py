"""What README and docs/benchmarks.md say of llama.cpp is what the newest results file says."""

import json
import re
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
KEYS = ("ratio_to_llama_cpp_min", "ratio_to_llama_cpp", "ratio_to_llama_cpp_max")


def newest() -> list[dict[str, Any]]:
    path = max((ROOT / "bench" / "results").glob("*-peers.json"))
    records: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["records"]
    return records


def pairs() -> dict[tuple[str, int], list[float]]:
    """The ratios of all pairs, ascending, of each case: of three, least, median and largest."""
    cases = [r for r in newest() if r["name"] == "decode" and KEYS[0] in r]
    assert all(r["runs"] == 3 for r in cases), "the page says three pairs a case"
    return {(r["dtype"], r["context"]): [r[key] for key in KEYS] for r in cases}


def test_the_table_of_pairs_is_the_results_file() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|$", text, re.M)
    shown = {(d, int(c.replace(",", ""))): [low, mid, high] for d, c, mid, low, high in rows}
    assert shown == {case: [f"{x:.2f}" for x in found] for case, found in pairs().items()}
    every = sorted(chain.from_iterable(pairs().values()))
    row = f"| all {len(every)} pairs | | {median(every):.2f} | {every[0]:.2f} to {every[-1]:.2f} |"
    assert row in text


def test_the_readme_leads_with_the_median_of_all_pairs() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    every = sorted(chain.from_iterable(pairs().values()))
    (read,) = [r for r in newest() if r["name"] == "read_bandwidth"]
    assert f"**{median(every):.2f} times** as fast as llama.cpp" in text
    assert f"the median of {len(every)} interleaved pairs" in text
    assert f"gave between {read['min']:.0f} and {read['max']:.0f} GB/s" in text
    assert f"single pairs gave {every[0]:.2f} to {every[-1]:.2f}" in text


def test_the_readme_states_the_speeds_of_the_newest_bench() -> None:
    found = (ROOT / "bench" / "results").glob("*-synthetic-laneformer-2b.json")
    path = max(path for path in found if "-serving-" not in path.name)
    records = json.loads(path.read_text(encoding="utf-8"))["records"]
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    decode = [r for r in records if r["name"] == "decode"]
    shares = sorted({f"{r['mbu']:.0%}".rstrip("%") for r in decode})
    assert f"{' or '.join(shares)} % of the memory's bandwidth" in text
    speeds = {r["dtype"]: f"{r['median']:.1f}" for r in decode if r["context"] == 128}
    assert (
        "{bfloat16} tokens/s in bfloat16, {int8} in int8 and {int4} in int4".format(**speeds)
        in text
    )
    (read,) = [r for r in records if r["name"] == "read_bandwidth"]
    assert f"At {read['median']:.1f} GB/s" in text
