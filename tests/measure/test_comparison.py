"""What two pages say of other engines is what the results files say that they name."""

import json
import re
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
LINK = re.compile(r"\]\(\.\./bench/results/([\w.-]+-peers\.json)\)")

# What the page leads with: a run of before monolane read GGUF, its formats beside the peer's.
LEADING = "2026-11-21-amd-epyc-peers.json"


def read_records(name: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads((RESULTS / name).read_text("utf-8"))["records"]
    return records


def find_ratios(record: dict[str, Any], peer: str) -> list[float]:
    """The least, the median and the largest ratio of a case's pairs."""
    key = f"ratio_to_{peer}"
    return [record[k] for k in (f"{key}_min", key, f"{key}_max")]


def show(ratios: list[float]) -> list[str]:
    return [f"{x:.2f}" for x in ratios]


def find_text_of(name: str) -> str:
    """What docs/benchmarks.md says between the link to one results file and the next link."""
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    links = list(LINK.finditer(text))
    (at,) = [i for i, link in enumerate(links) if link[1] == name]
    end = links[at + 1].start() if at + 1 < len(links) else len(text)
    return text[links[at].end() : end]


def find_text_before(name: str) -> str:
    """The paragraph whose link names a results file."""
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    (found,) = [part for part in text.split("\n\n") if any(x == name for x in LINK.findall(part))]
    return found


def pairs() -> dict[tuple[str, int], list[float]]:
    cases = [
        r for r in read_records(LEADING) if r["name"] == "decode" and "ratio_to_llama_cpp" in r
    ]
    return {(r["dtype"], r["context"]): find_ratios(r, "llama_cpp") for r in cases}


def assert_pairs_are_told(name: str, records: list[dict[str, Any]]) -> None:
    (runs,) = {r["runs"] for r in records}
    word = {3: "three", 4: "four", 5: "five", 9: "nine"}[runs]
    assert f"{word} pairs a case" in " ".join(find_text_before(name).split()).lower()


def test_every_run_beside_peers_has_its_table() -> None:
    named = LINK.findall((ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8"))
    assert sorted(named) == sorted(path.name for path in RESULTS.glob("*-peers.json"))


def find_peers(record: dict[str, Any]) -> list[str]:
    """The peers of a case, in the order in which they were named to the script."""
    keys = (key.removeprefix("ratio_to_") for key in record if key.startswith("ratio_to_"))
    return [key for key in keys if not key.endswith(("_min", "_max"))]


def test_the_tables_of_one_gguf_file_are_their_results_files() -> None:
    for name in (path.name for path in RESULTS.glob("*-peers.json") if path.name != LEADING):
        mine = [r for r in read_records(name) if find_peers(r)]
        assert_pairs_are_told(name, mine)
        expected = {
            (
                f"decode behind {r['context']:,}"
                if r["name"] == "decode"
                else f"prefill of {r['tokens']:,}",
                r["dtype"],
            ): (f"{r['median']:.1f}", [show(find_ratios(r, peer)) for peer in find_peers(r)])
            for r in mine
        }
        rows = re.findall(
            r"^\| (\w+ (?:behind|of) [\d,]+) \| (\w+) \| ([\d.]+) \|(.*)$", find_text_of(name), re.M
        )
        shown = {
            (case, dtype): (
                speed,
                [
                    [low, mid, high]
                    for mid, low, high in re.findall(r" ([\d.]+) \| ([\d.]+) to ([\d.]+) \|", cells)
                ],
            )
            for case, dtype, speed, cells in rows
        }
        assert shown == expected


def test_the_table_of_pairs_is_the_results_file() -> None:
    text = find_text_of(LEADING)
    assert_pairs_are_told(LEADING, [r for r in read_records(LEADING) if r["name"] == "decode"])
    rows = re.findall(r"^\| (\w+) \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|$", text, re.M)
    shown = {(d, int(c.replace(",", ""))): [low, mid, high] for d, c, mid, low, high in rows}
    assert shown == {case: show(found) for case, found in pairs().items()}
    every = sorted(chain.from_iterable(pairs().values()))
    row = f"| all {len(every)} pairs | | {median(every):.2f} | {every[0]:.2f} to {every[-1]:.2f} |"
    assert row in text


def test_the_page_leads_with_the_median_of_all_pairs() -> None:
    text = " ".join((ROOT / "docs" / "status.md").read_text(encoding="utf-8").split())
    every = sorted(chain.from_iterable(pairs().values()))
    (read,) = [r for r in read_records(LEADING) if r["name"] == "read_bandwidth"]
    assert f"**{median(every):.2f} times** as fast as llama.cpp" in text
    assert f"the median of {len(every)} interleaved pairs" in text
    assert f"gave between {read['min']:.0f} and {read['max']:.0f} GB/s" in text
    assert f"single pairs gave {every[0]:.2f} to {every[-1]:.2f}" in text


def test_the_page_states_the_speeds_of_the_run_that_it_names() -> None:
    text = " ".join((ROOT / "docs" / "status.md").read_text(encoding="utf-8").split())
    (name,) = re.findall(r"\]\(\.\./bench/results/([\w.-]+-synthetic-laneformer-2b\.json)\)", text)
    records = read_records(name)
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
