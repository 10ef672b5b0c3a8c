"""What pages say of a results file is what the file says, row by row."""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SPOKEN = "2026-11-25-intel-xeon-amx-speculation-synthetic-laneformer-2b-{}.json"
KINDS = {
    "rename": "a rename",
    "parameter": "an added parameter",
    "hints": "type hints",
    "bug": "a planted bug",
    "prose": "prose",
}
LOOP = "2026-11-26-amd-epyc-zen-4-agent-loop.json"
PARTS = ("generation", "prefill", "waiting", "tools", "outside")
LONG = "2026-11-25-intel-xeon-amx-long-context.json"


def read_page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def read_records(name: str) -> list[dict[str, Any]]:
    text = (ROOT / "bench" / "results" / name).read_text(encoding="utf-8")
    records: list[dict[str, Any]] = json.loads(text)["records"]
    return records


def find_row(page: str, begin: str) -> list[str]:
    """The cells behind the first one of the only row that begins so."""
    (row,) = re.findall(rf"(?m)^\| {re.escape(begin)} \| (.*) \|$", page)
    return [cell.strip() for cell in row.split("|")]


def test_speculation_at_the_2b_shape() -> None:
    page = read_page("speculation.md")
    files = [read_records(SPOKEN.format(dtype)) for dtype in ("bf16", "int8")]
    for kind, shown in KINDS.items():
        wanted = []
        for records in files:
            cases = {r["case"]: r for r in records if r.get("kind") == kind}
            plain, drafts = cases["off"], cases["auto"]
            times = drafts["times_plain"]
            wanted += [
                f"{plain['median']:.1f}",
                f"{drafts['median']:.1f} ({drafts['min']:.1f} to {drafts['max']:.1f})",
                f"{times:.2f}" if times < 2 else f"{times:.1f}",
                f"{drafts['accepted_share']:.0%}".replace("%", " %"),
            ]
        assert find_row(page, shown) == wanted
    for dtype, records in zip(("bfloat16", "int8"), files, strict=True):
        costs = {r["width"]: r["cost"] for r in records if "cost" in r}
        wanted = [f"{costs[width]:.2f}" for width in (2, 4, 8, 16, 32)]
        assert find_row(page, f"{dtype}, times plain decoding's token") == wanted


def test_speculation_with_heads() -> None:
    page = read_page("speculation.md")
    for model, shown in (("smollm2", "SmolLM2, {}"), ("demo", "the demo model, stories")):
        records = read_records(f"2026-11-25-intel-xeon-amx-speculation-{model}-heads.json")
        cases = {(r["kind"], r["case"]): r for r in records if "kind" in r}
        for kind in {kind for kind, _ in cases}:
            row = find_row(page, shown.format(KINDS[kind]))
            drafts = [cases[kind, case] for case in ("auto", "suffix", "heads")]
            assert row == [
                f"{cases[kind, 'off']['median']:.1f}",
                *(
                    f"{r['times_plain']:.2f} ({r['accepted_share']:.0%})".replace("%", " %")
                    for r in drafts
                ),
            ]


def test_attention_over_long_contexts() -> None:
    page = read_page("long-context.md")
    found = [r for r in read_records(LONG) if r["name"] == "attention"]
    models = {r["model"] for r in found}
    for model in models:
        for context in (32768, 131072):
            own = {
                r["cache_dtype"]: r for r in found if (r["model"], r["context"]) == (model, context)
            }
            row = find_row(page, f"{model}, {context:,} keys")
            assert row == [
                f"{own[dtype]['mbu']:.0%} ({own[dtype]['gb_per_s']:.1f})".replace("%", " %")
                for dtype in ("bfloat16", "int8", "int4")
            ]


def test_accuracy_of_caches() -> None:
    page = read_page("long-context.md").partition("## Accuracy")[2]
    records = read_records("2026-11-25-intel-xeon-amx-cache-accuracy-smollm2.json")
    for cache_dtype in ("bfloat16", "int8", "int4"):
        (text,) = (
            r for r in records if (r["name"], r["cache_dtype"]) == ("cache_text", cache_dtype)
        )
        shown = [
            f"{text['cache_bytes_per_token']:,}",
            f"{text['bits_per_byte']:.4f}",
            f"+{text['bits_per_byte_more']:.4f}",
            f"{text['perplexity']:.3f}",
            f"{text['logit_rms_error_share']:.2%}".replace("%", " %"),
            f"{text['kl_nats']:.5f}",
            f"{text['top1_agreement']:.2%}".replace("%", " %"),
        ]
        found = [
            f"{r['score']:.0f} % ({r['low']:.0f} to {r['high']:.0f})"
            for r in records
            if r["name"] == "cache_ruler" and r["cache_dtype"] == cache_dtype
        ]
        rows = re.findall(rf"(?m)^\| {cache_dtype} \| (.*) \|$", page)
        assert [row.split(" | ") for row in rows] == [shown, found]


def test_where_an_agents_time_went() -> None:
    page = read_page("evaluation.md")
    records = read_records(LOOP)
    for found in records:
        seconds = [f"{found['parts'][part]:.2f} s" for part in PARTS]
        read = f"{found['prompt_tokens']:,}, {found['cached_tokens']:,}"
        wanted = ["yes" if found["done"] else "no", f"{found['requests']}", *seconds]
        assert find_row(page, f"`{found['edit']}`") == [*wanted, f"{found['tokens']}", read]
    assert {found["bound_by"] for found in records} == {"generation"}
    longest = max(records, key=lambda found: found["seconds"])
    saved = longest["parts"]["generation"] / longest["seconds"]
    assert f"would save {saved:.0%}".replace("%", " %") in page
