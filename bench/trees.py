"""What drafts that branch would bring beside the lines that are drafted, at the same positions.

    python bench/trees.py [--each N] [--costs FILE] [--heads FOLDER --model NAME] [--out DIR]

Counts, no clock: the traces of bench/speculation.py are replayed with lines, with trees and with a
bound on trees (``_branches.py``). A pass costs what a pass of its width has cost in a results file
of bench/speculation.py (``--costs``); beside that stands a machine whose passes all cost the same,
which is the best that a tree can meet. ``auto`` drafts as many positions as its chances make worth
their cost. ``--heads`` names a folder of heads as ``monolane tune heads`` leaves it, with the texts
in FOLDER.run: how often their best tokens are right is counted on the texts they have not learnt
from, and lines and trees follow from that.
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
from _branches import SHAPES, Places, Rates, Shape, grow, of_ranks
from _command import ROOT
from _document import publish
from _program import run_script
from _replay import Replay
from speculation import BUDGETS, SEED, Costs, Text, texts_of

from monolane.engine import ModelFiles
from monolane.measure import Record
from monolane.model import Heads, Role
from monolane.sources import find_model

COSTS = ROOT / "bench" / "results" / "2026-11-22-amd-epyc-speculation-smollm2.json"
RANKS = 8  # best tokens of heads that are looked at
DEPTH = 4  # tokens of a draft, as heads learn them
HELD_OUT = 20  # of the texts, every so manieth is not learnt from; they are the last ones


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description="Trees of drafts beside lines, by counting.")
    parser.add_argument("--tokenizer", default="smollm2", help="model whose tokenizer is used")
    parser.add_argument("--each", type=int, default=15, help="traces of each kind of edit")
    parser.add_argument("--costs", type=Path, default=COSTS, help="results of bench/speculation.py")
    parser.add_argument("--heads", type=Path, help="a folder of heads, FOLDER.run beside it")
    parser.add_argument("--model", default="demo", help="with --heads: whose they are")
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    costs = costs_of(options.costs)
    if options.heads:
        records, what = heads_records(options.heads, options.model, costs), f"heads-{options.model}"
    else:
        options.own = 0
        records, what = suffix_records(texts_of(options, False), costs), "suffixes"
    about = {"tokenizer": options.tokenizer, "seed": SEED, "costs": options.costs.name}
    publish(records, f"trees-{what}", options.out, timed=False, **about)


def costs_of(path: Path) -> Costs:
    """Return ms of a pass by width from a results file; those between are interpolated."""
    records = json.loads(path.read_text())["records"]
    known = {r["width"]: r["median"] for r in records if r["name"] == "speculation_pass"}
    known[1] = known.pop(0, known.get(1))  # 0: plain decoding's token
    widths = sorted(known)
    return [
        float(ms) for ms in np.interp(range(widths[-1] + 1), widths, [known[w] for w in widths])
    ]


def suffix_records(texts: list[Text], costs: Costs) -> list[Record]:
    """Replay all texts in each shape; return a record for edits and one for prose, of each."""
    cases = [(f"fixed {budget}", budget, None) for budget in BUDGETS]
    known = [Places([*prompt.tolist(), *answer.tolist()]) for _, prompt, answer in texts]
    records: list[Record] = []
    for case, budget, weighed in (*cases, ("auto", max(BUDGETS), costs)):
        lines: dict[str, Replay] = {}
        for shape in SHAPES if weighed is None else SHAPES[:2]:  # a bound's branches have no price
            rates = Rates()
            for _ in range(2 if shape == "tree" else 1):  # the first time to learn
                totals: defaultdict[str, Replay] = defaultdict(Replay)
                for (kind, prompt, answer), places in zip(texts, known, strict=True):
                    replay = grow(shape, prompt, answer, budget, rates, places, weighed)
                    totals["prose" if kind == "prose" else "edits"].add(replay)
            sys.stderr.write(f"{case}, {shape}\n")
            lines = lines or dict(totals)
            records += [
                record_of(case, shape, kind, total, lines[kind], costs)
                for kind, total in totals.items()
            ]
    return records


def record_of(
    case: str, shape: Shape, kind: str, total: Replay, line: Replay, costs: Costs
) -> Record:
    """Return what a shape gets, and how that is beside the line."""
    gain = line.milliseconds(costs) / total.milliseconds(costs)
    return {
        "name": f"speculation_tree {case}, {shape}, {kind}",
        "drafter": "suffix",
        "case": case,
        "shape": shape,
        "kind": kind,
        "tokens": total.tokens,
        "tokens_per_pass": round(total.tokens / total.passes, 3),
        "positions_per_pass": round(total.drafted / total.passes, 3),
        "times_plain": round(total.tokens * costs[1] / total.milliseconds(costs), 3),
        "times_line": round(gain, 4),
        "times_line_where_passes_cost_the_same": round(line.passes / total.passes, 4),
    }


def heads_records(folder: Path, model: str, costs: Costs) -> list[Record]:
    """Return what lines and trees of heads bring, from how often their best tokens are right."""
    hits_DK, places = hit_rates(folder, model)
    records: list[Record] = []
    for positions in range(1, 8):
        line, tree = (of_ranks(hits_DK, positions, branching) for branching in (False, True))
        cost = costs[positions + 1] / costs[1]
        records.append(
            {
                "name": f"speculation_tree heads, fixed {positions}",
                "drafter": "heads",
                "model": model,
                "case": f"fixed {positions}",
                "places": places,
                "line_tokens_per_pass": round(line, 3),
                "tree_tokens_per_pass": round(tree, 3),
                "line_times_plain": round(line / cost, 3),
                "tree_times_plain": round(tree / cost, 3),
                "times_line": round(tree / line, 4),
            }
        )
    shares = [[round(float(x), 4) for x in row] for row in hits_DK]
    return [{"name": "heads_hit_rates", "model": model, "by_depth_and_rank": shares}, *records]


def hit_rates(folder: Path, model: str) -> tuple[npt.NDArray[np.float64], int]:
    """Return how often the K-th best of heads is the model's own choice, by depth, and of what."""
    heads = Heads.open(folder)
    weights = ModelFiles.open(find_model(model)).weights()
    coded = weights.quantized.get((Role.EMBEDDING, None))
    embedding_VD = coded.widened() if coded is not None else weights.outer[Role.EMBEDDING]
    row_V = np.full(heads.vocab_size, -1)
    row_V[heads.tokens] = np.arange(len(heads.tokens))
    paths = sorted(folder.with_name(f"{folder.name}.run").glob("texts/*.npz"))
    hits_DK, places = np.zeros((DEPTH, RANKS)), 0
    for path in paths[-max(1, len(paths) // HELD_OUT) :]:
        text = np.load(path)
        begin, count = int(text["begin"]), len(text["ids"]) - DEPTH
        at_N = np.arange(begin, max(begin, count))
        places += len(at_N)
        state_ND = normed(text["hidden"][at_N].astype(np.float32), heads.norm_eps)
        for depth in range(DEPTH):
            token_N = text["ids"][at_N + depth + 1]
            embedded_ND = normed(embedding_VD[token_N].astype(np.float32), heads.norm_eps)
            input_N2D = np.concatenate([state_ND, embedded_ND], axis=1)
            gate_NF = input_N2D @ heads.gate.T
            inner_NF = gate_NF / (1 + np.exp(-gate_NF)) * (input_N2D @ heads.up.T)
            state_ND = state_ND + inner_NF @ heads.down.T
            logits_NR = normed(state_ND, heads.norm_eps) @ heads.head.T
            row_N = row_V[text["best"][at_N + depth + 1, 0]]
            wanted_N1 = np.take_along_axis(logits_NR, np.maximum(row_N, 0)[:, None], axis=1)
            rank_N = np.where(row_N < 0, RANKS, (logits_NR > wanted_N1).sum(axis=1))
            hits_DK[depth] += np.bincount(rank_N[rank_N < RANKS], minlength=RANKS)
    return hits_DK / max(1, places), places


def normed(rows: npt.NDArray[np.float32], eps: float) -> npt.NDArray[np.float32]:
    """Return rows divided by their root mean square."""
    mean_N1 = np.square(rows).mean(axis=1, keepdims=True, dtype=np.float32)
    scaled: npt.NDArray[np.float32] = rows / np.sqrt(mean_N1 + np.float32(eps))
    return scaled


if __name__ == "__main__":
    run_script(main)
