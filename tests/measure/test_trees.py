"""bench/trees.py: what counts of lines, trees and their bound come to on texts made for them."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def branches(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("_branches")


def ids(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def grow(
    branches: Any, shape: str, prompt: np.ndarray, answer: np.ndarray, budget: int, rates: Any
) -> Any:
    places = branches.Places([*prompt.tolist(), *answer.tolist()])
    return branches.grow(shape, prompt, answer, budget, rates, places)


def test_a_line_is_what_the_drafter_gets_without_branches(branches: Any) -> None:
    replays = importlib.import_module("_replay")
    rng = np.random.default_rng(0)
    prompt, answer = ids(rng.integers(40, size=300).tolist()), rng.integers(40, size=200)
    answer[50:150] = prompt[100:200]
    for budget in (3, 15):
        mine = grow(branches, "line", prompt, ids(answer.tolist()), budget, branches.Rates())
        known = replays.replay(replays.ours, prompt, ids(answer.tolist()), budget)
        assert (mine.widths, mine.drafted, mine.accepted) == (
            known.widths,
            known.drafted,
            known.accepted,
        )


def test_a_tree_takes_what_followed_elsewhere(branches: Any) -> None:
    """Behind 1 2 3 comes one of two texts by chance: a line has to choose."""
    rng = np.random.default_rng(3)
    text = [t for x in rng.integers(4, 6, size=200).tolist() for t in (1, 2, 3, x, 10 + x, 20 + x)]
    prompt, answer, rates = ids(text[:120]), ids(text[120:]), branches.Rates()
    grow(branches, "tree", prompt, answer, 15, rates)  # learns
    line, tree = (grow(branches, shape, prompt, answer, 15, rates) for shape in ("line", "tree"))
    assert tree.passes < line.passes
    assert tree.drafted <= 15 * tree.passes


@pytest.mark.parametrize("budget", [3, 15])
def test_no_tree_is_better_than_its_bound(branches: Any, budget: int) -> None:
    rng = np.random.default_rng(1)
    parts = [rng.integers(30, size=12).tolist() for _ in range(6)]
    text = [t for i in rng.integers(6, size=80) for t in parts[i]]
    prompt, answer = ids(text[:480]), ids(text[480:])
    line, tree, bound = (
        grow(branches, shape, prompt, answer, budget, branches.Rates()).passes
        for shape in branches.SHAPES
    )
    assert bound <= min(line, tree)
    assert bound * (budget + 1) >= len(answer)


def test_trees_of_ranks(branches: Any) -> None:
    """The best two positions are two first tokens where a second one is hardly ever right."""
    hits = np.array([[0.5, 0.3], [0.4, 0.1]])
    assert branches.of_ranks(hits, 1, True) == pytest.approx(1.5)
    assert branches.of_ranks(hits, 2, False) == pytest.approx(1 + 0.5 + 0.2)
    assert branches.of_ranks(hits, 2, True) == pytest.approx(1 + 0.5 + 0.3)
    # Then the second token behind the first best, and behind the second best.
    assert branches.of_ranks(hits, 4, True) == pytest.approx(1 + 0.5 + 0.3 + 0.2 + 0.12)
    assert branches.of_ranks(hits, 9, False) == pytest.approx(1.7)


def test_costs_between_measured_widths(branches: Any) -> None:
    trees = importlib.import_module("trees")
    costs = trees.costs_of(trees.COSTS)
    assert len(costs) == 33
    assert costs[1] == pytest.approx(8.616, abs=1e-3)  # plain decoding's token
    assert costs[7] == pytest.approx((costs[6] + costs[8]) / 2)


def test_losses_of_one_text(
    branches: Any,
) -> None:
    """Copied text wins, and neither new text nor one that misleads loses 1 %."""
    losses = importlib.import_module("losses")
    rng = np.random.default_rng(5)
    file, new = rng.integers(4000, size=500), rng.integers(4000, size=900)
    texts = [("rename", ids(file.tolist()), ids(file.tolist()))]
    texts += [("prose", ids(file.tolist()), ids(new.tolist()))]
    costs = [1 + (width - 1) / 2 for width in range(34)]
    found = {r["kind"]: r["times_plain_least"] for r in losses.count(texts, "x", costs, 0.02)}
    assert found.pop("edits") > 1.5
    assert found.keys() == {"prose", "made to mislead"}
    assert all(times > 0.99 for times in found.values())
