"""Makes bench/results/README.md of the results files beside it, and the docs' table of formats.

    python bench/table.py            writes them
    python bench/table.py --check    exit code 1 if they are not what the files say

README and docs quote only from that table, so that every figure has a file, a commit and a command.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from _formats_table import format_table

from monolane.measure import validate_document

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
MARKS = ("<!-- formats -->\n", "<!-- /formats -->\n")  # around the newest table of formats there
TOP = """\
# Results

Made by `python bench/table.py` from the JSON files in this folder: do not edit.

Figures are medians of interleaved runs, with the least and the largest in brackets. GB/s is bytes
per token times tokens per second; MBU is its share of the read bandwidth measured in the same run.
A ratio to llama.cpp is the median of the ratios of pairs of runs, one right after the other.
[docs/benchmarks.md](../../docs/benchmarks.md) describes how figures are taken.
"""
NO_GPU = """\
## Not measured yet

No GPU has been at hand, so these figures are missing, and no page may state one:

- `bench/gpu/probes`: the speed of an H200's memory, barriers and stamped words;
- `bench/gpu/monokernel`: the monokernel's correctness on hardware (goldens, the full 2B shape, bits
  of all widths and of two runs, compute-sanitizer, 100,000 tokens without a pause), its read
  bandwidth, decode at 128, 1,024 and 4,096 tokens in bfloat16 and float8, time to the first token
  of 128, 1,024 and 4,096, widths 1 to 64, microseconds by phase, loading and packing, and its
  baselines (`monolane.hf` eager and compiled, packed PyTorch in a CUDA graph);
- `monolane serve` and training on a GPU.

[docs/log/monokernel.md](../../docs/log/monokernel.md) has what we expect of them.
"""
HEAD = (
    "| what | engine | model | dtype | tokens | figure | GB/s | MBU |",
    "|---|---|---|---|---|---|---|---|",
)

Record = Mapping[str, Any]
# Who a ratio is to, by its key; the "other" version is named in its record.
PEERS = {"llama_cpp": "llama.cpp", "ik_llama_cpp": "ik_llama.cpp", "other": "other"}
_STEADY = 1.25  # largest by least read bandwidth, up to which speeds of one run compare


def render(folder: Path) -> str:
    """Return the whole README of a folder of results, newest first."""
    documents = sorted(_read(folder), key=lambda item: (item[1]["date"], item[0]), reverse=True)
    if not documents:
        return TOP + "\nNo measurement is here yet.\n"
    devices = {document["device"]["name"] for _, document in documents}
    missing = [] if any("NVIDIA" in name for name in devices) else [NO_GPU]
    sections = (_section(name, document) for name, document in documents)
    return "\n".join([TOP, *missing, *sections])


def _read(folder: Path) -> Iterable[tuple[str, Record]]:
    for path in folder.glob("*.json"):
        if path.name == "gpu-ledger.json":  # what is done and pending, not what was measured
            continue
        document = json.loads(path.read_text(encoding="utf-8"))
        try:
            validate_document(document)
        except ValueError as error:
            raise SystemExit(f"table: {path}: {error}") from error
        yield path.name, document


def _section(name: str, document: Record) -> str:
    device = document["device"]
    machine = [f"{device['name']}", f"{device['cores']} cores", f"{device['memory_gb']} GB"]
    if device["read_bandwidth_gb_s"] is not None:
        machine.append(f"reads {device['read_bandwidth_gb_s']} GB/s")
    lines = [
        f"## {document['date']}, {', '.join(machine)}",
        "",
        f"[{name}]({name}) · commit `{document['commit'][:12]}` · `{document['command']}`",
        "",
        *_drift(document["records"]),
        *(format_table(document["records"]) if _is_of_formats(document) else _rows(document)),
    ]
    return "\n".join(lines) + "\n"


def _is_of_formats(document: Record) -> bool:
    """Whether bench/formats.py wrote it."""
    return any("oracle" in record for record in document["records"])


def _rows(document: Record) -> list[str]:
    return [*HEAD, *(_row(record) for record in document["records"])]


def render_page(text: str, folder: Path) -> str:
    """Return a page with the newest table of formats of a folder of results between its marks."""
    found = [item for item in _read(folder) if _is_of_formats(item[1])]
    if not found:
        return text
    name, document = max(found, key=lambda item: (item[1]["date"], item[0]))
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    table = "\n".join(format_table(document["records"]))
    source = f"[Results](../bench/results/{name}), {document['device']['name']}."
    return f"{before}{MARKS[0]}{table}\n\n{source}\n{MARKS[1]}{after}"


def _drift(records: Iterable[Record]) -> list[str]:
    """Return a warning where the memory's speed changed so much that speeds cannot be compared."""
    for record in records:
        if record["name"] == "read_bandwidth" and record.get("runs", 0) > 1:
            low, high = record["min"], record["max"]
            if high > _STEADY * low:
                gave = f"The memory gave {low:.4g} to {high:.4g} GB/s while this ran"
                return [f"{gave}: compare ratios and MBU, not speeds.", ""]
    return []


def _row(record: Record) -> str:
    rate, share = record.get("gb_per_s"), record.get("mbu")
    cells = [
        _name(record),
        record.get("engine", ""),
        record.get("model", ""),
        record.get("dtype", ""),
        _tokens(record),
        _figure(record),
        "" if rate is None else f"{rate:.1f}",
        "" if share is None else f"{share:.0%}",
    ]
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _name(record: Record) -> str:
    """Return what was measured; of a load, also how heavy it was."""
    if record["name"] == "mixed_load":
        return f"mixed_load {record['policy']}, {record['clients']} clients"
    if record["name"] == "crowded_decode":
        workers, cores = record["workers"], record["cores"]
        return f"{workers} workers on {cores} cores beside {record['programs']} other programs"
    if record["name"] == "expert_memory_decode":
        part = "all experts" if record["part"] == "all" else f"{record['part']} % of experts"
        return f"decode, {part} in memory"
    if record["name"] == "evaluation":
        return f"{record['task']}: {record['metric']}" if "metric" in record else record["task"]
    if record["name"] == "everyday":
        loops, own = len(record["loops"]), len(record["loops_of_its_own"])
        return (
            f"everyday questions, {record['draw']}, {record['way']}: {loops} of "
            f"{record['questions']} loop, {own} of them not in float32; "
            f"{len(record['loops_of_float32_alone'])} in float32 alone"
        )
    if record["name"] in ("canonical", "harness_parity"):
        return f"{record['name']}: {record['task']}"
    if record["name"] == "client":
        return f"client: {record['client']} {record.get('version', '')}".rstrip()
    if record["name"] == "agent_loop":
        return f"agent_loop, edit {record['edit']}"
    if "cache_dtype" in record:
        task = f", {record['task']} at {record['length']:,}" if "task" in record else ""
        return f"{record['name']}{task}, keys and values in {record['cache_dtype']}"
    if record["name"] == "sampling_decode":
        version = f", {record['label']}" if record["label"] else ""
        return f"{record['name']}, {record['draw']}{version}"
    if record["name"] != "serve" or "clients" not in record:
        return str(record["name"])
    clients, rate = record["clients"], record["rate"]
    load = f"{rate:g} requests/s" if clients is None else f"{clients} clients"
    return f"serve {record['label']}, {load}"


def _tokens(record: Record) -> str:
    """Return where a record stands: behind a context, or the length of a prompt."""
    if record.get("context"):
        return f"at {record['context']:,}"
    return f"{record['tokens']:,}" if "tokens" in record else ""


def _figure(record: Record) -> str:
    if record["name"] == "client":
        found = {"": record.get("works"), "but: ": record.get("error")}
        return "; ".join(f"{word}{text}" for word, text in found.items() if text)
    if record["name"] == "agent_loop":
        done = "done" if record["done"] else "not done"
        parts = ", ".join(f"{part} {value:.2f} s" for part, value in record["parts"].items())
        return f"{done}; **{record['requests']}** requests, **{record['seconds']:.2f}** s: {parts}"
    for outcome in ("error", "not_measured"):
        if outcome in record:
            return f"{outcome.replace('_', ' ')}: {record[outcome]}"
    if record.get("median") is not None:
        bounds = [record[key] for key in ("min", "max") if record.get(key) is not None]
        inside = f" ({bounds[0]:,.4g} to {bounds[1]:,.4g})" if len(bounds) == 2 else ""
        figure = f"**{record['median']:,.4g}** {record.get('unit', '')}{inside}".rstrip()
        return figure + _ratio(record)
    if "peak_bytes" in record:
        return (
            f"peak {record['peak_bytes'] / 1e9:.2f} GB; "
            f"{record['overhead_bytes'] / 1e6:,.0f} MB beyond weights and keys"
        )
    # Other counts of a bench, by its own names.
    numbers = {key: value for key, value in record.items() if _is_figure(key, value)}
    return ", ".join(f"{key} {value:,.4g}" for key, value in numbers.items())


def _ratio(record: Record) -> str:
    """Return how many times the speed of each peer, or other version, that is, pair by pair."""
    text = ""
    for key, peer in PEERS.items():
        ratio, low, high = (record.get(f"ratio_to_{key}{end}") for end in ("", "_min", "_max"))
        if ratio is not None:
            inside = "" if low is None else f" ({low:.2f} to {high:.2f})"
            text += f"; **{ratio:.2f}** times {record.get(key, peer)}{inside}"
    return text


def _is_figure(key: str, value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and key not in ("context", "tokens", "width", "runs", "workers", "length")


def main(arguments: list[str] | None = None) -> int:
    """Write the table, or check it; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it has drifted")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the files")
    options = parser.parse_args(arguments)
    texts = {options.results / "README.md": render(options.results)}
    if options.results == RESULTS:
        texts[PAGE] = render_page(PAGE.read_text(encoding="utf-8"), RESULTS)
    for path, text in texts.items():
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            sys.stderr.write(
                f"table: {path} is not what the files say; run: python bench/table.py\n"
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
