"""Tasks out of Python's own library, and what two models of lm-eval's say to them.

lm-eval's own tasks need the Hub. Two are made here: which of four goes on from here, and how
probable a text is as a whole.
"""

import json
import math
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monolane.measure import Record
from monolane.model import ModelConfig

CHOICES, BEGINNING, CONTINUATION, WHOLE = 4, 160, 64, 1500  # of an item; characters
# Read in this order; each gives texts of its own to as many items as it has room for.
MODULES = (
    *("argparse", "ast", "bdb", "calendar", "cmd", "codecs", "configparser", "csv", "datetime"),
    *("difflib", "dis", "doctest", "enum", "fractions", "functools", "gettext", "heapq", "inspect"),
)
CHOICE, ROLLING = "local_choice", "local_rolling"
TASKS = {
    CHOICE: 'output_type: multiple_choice\ndoc_to_text: "{{beginning}}"\n'
    'doc_to_choice: "{{choices}}"\ndoc_to_target: "{{right}}"\ntarget_delimiter: ""\n'
    "metric_list:\n  - metric: acc\n  - metric: acc_norm\n",
    ROLLING: 'output_type: loglikelihood_rolling\ndoc_to_text: ""\ndoc_to_target: "{{text}}"\n'
    "metric_list:\n  - metric: bits_per_byte\n",
}
Found = Mapping[str, Any]  # of lm-eval


def write_tasks(folder: Path, items: int) -> None:
    """Write task files for lm-eval and their data."""
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = [(library / f"{name}.py").read_text(encoding="utf-8") for name in MODULES]
    width = BEGINNING + CONTINUATION
    rows = []
    for number in range(items):
        # Each item lies 2,000 characters further in its module than that module's item before.
        begin = 1000 + number // len(texts) * 2000
        parts = [text[begin : begin + width] for text in texts[number % len(texts) :] + texts]
        ends = [part[BEGINNING:] for part in parts if len(part) == width][:CHOICES]
        if len(parts[0]) < width or len(ends) < CHOICES:
            raise SystemExit(f"--items: expected fewer, the library has no room for {items}")
        right = number % CHOICES  # so that no place is favoured
        ends[0], ends[right] = ends[right], ends[0]
        whole = parts[0]
        rows.append({"beginning": whole[:BEGINNING], "choices": ends, "right": right})
    data: dict[str, list[dict[str, Any]]] = {
        CHOICE: rows,
        ROLLING: [{"text": text[:WHOLE]} for text in texts[: items // 4]],
    }
    for name, task in TASKS.items():
        lines = "".join(json.dumps(row) + "\n" for row in data[name])
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        (folder / f"{name}.yaml").write_text(
            f"task: {name}\ndataset_path: json\ntest_split: test\ndataset_kwargs:\n"
            f"  data_files:\n    test: {folder}/{name}.jsonl\n  cache_dir: {folder}/cache\n{task}",
            encoding="utf-8",
        )


def ask(model: Any, folder: Path) -> Found:
    """Have lm-eval put all items of a folder's tasks to a model of its kind."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=[str(folder)], include_defaults=False)
    found: Found = simple_evaluate(
        model, tasks=list(TASKS), task_manager=manager, bootstrap_iters=0
    )
    return found


def answers(found: Found, task: str) -> list[tuple[float, bool]]:
    """Return (nats, greedy) of each request of a task; of a whole text nothing is greedy."""
    samples = sorted(found["samples"][task], key=lambda sample: int(sample["doc_id"]))
    each = [answer for sample in samples for answer in sample["filtered_resps"]]
    pairs = (answer if isinstance(answer, list | tuple) else (answer, False) for answer in each)
    return [(float(nats), str(greedy) == "True") for nats, greedy in pairs]


def tolerance(config: ModelConfig) -> float:
    """Return how far two float32 computations of one log-probability may lie apart, in nats.

    Each of the 7 products of a layer rounds its sums of up to F terms: the error of such a sum is
    about sqrt(F) half units in the last place, 2^-24, relative to its terms. Products add theirs as
    random steps: sqrt(7 N). Logits are within some 30 of their mean, and a log-probability is a
    logit less the logarithm of a sum, whose error is at most the largest logit's: twice.
    """
    steps = math.sqrt(7 * len(config.layers) * config.intermediate_size)
    return 2 * 30 * steps * 2.0**-24


def compare(
    config: ModelConfig, ours: Found, theirs: Found, sizes: Mapping[str, Sequence[int]]
) -> list[Record]:
    """Return a record for each task of ``sizes``, how many tokens are scored of each request."""
    records = []
    for task in sizes:
        pairs = list(zip(answers(ours, task), answers(theirs, task), strict=True))
        apart = [abs(mine[0] - other[0]) for mine, other in pairs]
        share = max(d / n for d, n in zip(apart, sizes[task], strict=True))
        record: Record = {
            "name": "harness_parity",
            "task": task,
            "requests": len(pairs),
            "scored_tokens": sum(sizes[task]),
            "largest_difference_nats": max(apart),
            "largest_difference_nats_per_token": share,
            "allowed_nats_per_token": tolerance(config),
            "same_greedy": sum(mine[1] == other[1] for mine, other in pairs),
        }
        for who, found in (("ours", ours), ("hf", theirs)):
            for metric in ("acc", "acc_norm", "bits_per_byte"):
                if (value := found["results"][task].get(f"{metric},none")) is not None:
                    record[f"{metric}_{who}"] = value
        records.append(record)
    return records


def sizes_of(model: Any, folder: Path) -> dict[str, list[int]]:
    """Return how many tokens are scored of each request, in the order of ``answers``."""
    choices = [json.loads(line) for line in (folder / f"{CHOICE}.jsonl").open(encoding="utf-8")]
    texts = [json.loads(line) for line in (folder / f"{ROLLING}.jsonl").open(encoding="utf-8")]
    return {
        CHOICE: [
            len(model._encode_pair(row["beginning"], choice)[1])
            for row in choices
            for choice in row["choices"]
        ],
        ROLLING: [len(model.tok_encode(row["text"], add_special_tokens=False)) for row in texts],
    }
