"""Drafts that branch, counted on known texts beside the line that is drafted.

A tree's trunk is the line that our drafter proposes. Off each of its places go branches: what
followed the same tokens elsewhere and is another token than the trunk's. Of all these a tree takes
the positions that are most probably right. Whatever is doubtful is decided for the tree: it knows
more places than our drafter, the chances of its branches are learnt beforehand from the same texts,
and attention with a mask is taken to cost nothing.

A bound goes further: the whole line, and beside it every branch in full, for the line's price. No
choice among these branches can bring more.
"""

import heapq
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from _replay import Ids, Replay, ours

Shape = Literal["line", "tree", "bound"]
SHAPES: tuple[Shape, ...] = ("line", "tree", "bound")
ORDERS = (16, 8, 5, 3, 2, 1)  # tokens that a branch has to follow, most first
LOOK = 16  # newest places of each order
RANKS = 8  # branches off one place at most
FIRST, ON = (0.25, 4.0), (0.6, 4.0)  # chances before anything was counted, and their weight


class Rates:
    """How often branches were right, by what is known of them."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, ...], list[float]] = {}

    def chance(self, *key: int) -> float:
        right, tries = self._counts.get(key, (0.0, 0.0))
        prior, weight = FIRST if len(key) == 2 else ON
        return (right + prior * weight) / (tries + weight)

    def count(self, right: bool, *key: int) -> None:
        counts = self._counts.setdefault(key, [0.0, 0.0])
        counts[0] += right
        counts[1] += 1


class Places:
    """Where tokens followed the same ones, in a prompt and its answer; asked as of a place."""

    def __init__(self, text: Sequence[int]) -> None:
        self.text = list(text)
        self._found: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for order in ORDERS:
            for at in range(order, len(self.text)):
                self._found[tuple(self.text[at - order : at])].append(at)

    def others(self, now: int, tail: Sequence[int], not_this: int | None) -> list[tuple[int, int]]:
        """Return order and place of other tokens: longest match, most often, newest first.

        now    the tokens from here on have not been drawn yet
        tail   the text before, drafted tokens included
        """
        known = {not_this}
        found: list[tuple[int, int]] = []
        for order in ORDERS:
            chain = self._found.get(tuple(tail[-order:])) if len(tail) >= order else None
            if chain is None:
                continue
            newest = chain[: bisect_left(chain, now)][-LOOK:]
            often = Counter(self.text[at] for at in newest)
            last = {self.text[at]: at for at in newest}
            for token in sorted(often, key=lambda t: (-often[t], -last[t])):
                if token not in known:
                    known.add(token)
                    found.append((order, last[token]))
        return found[:RANKS]


@dataclass
class Branch:
    """Tokens that may come in place of a trunk's from ``at`` on."""

    at: int  # tokens of the trunk before it
    order: int
    rank: int
    tokens: list[int]
    chances: list[float]  # of each: it is right, and so are all before it


def grow(
    shape: Shape,
    prompt: Ids,
    answer: Ids,
    budget: int,
    rates: Rates,
    places: Places,
    costs: Sequence[float] | None = None,
) -> Replay:
    """Return what drafts of a shape get of an answer, with at most ``budget`` drafted positions.

    rates    what is known of branches, which goes on learning
    places   of the prompt and the answer
    costs    as of ``_replay.replay``
    """
    drafter, found, at = ours(prompt), Replay(tokens=len(answer)), 0
    while at < len(answer):
        most = min(budget, len(answer) - at - 1)
        drafted, stated = drafter.draft(most)
        now = len(prompt) + at
        ahead = places.text[now : now + most]
        trunk = Trunk(now, drafted.tolist(), np.cumprod(stated, dtype=np.float64).tolist(), most)
        right = matching(trunk.tokens, ahead)
        missed = [] if shape == "line" else branch_off(places, rates, trunk, right)
        others = all_branches(places, rates, trunk) if shape == "tree" else missed
        used, length, kept = cut(shape, trunk.chances, others, most, costs)
        taken = min(right, length)
        taken += max(
            (matching(b.tokens[:count], ahead[taken:]) for b, count in kept if b.at == taken),
            default=0,
        )
        learn(rates, missed, ahead[right:])
        found.widths[used + 1] += 1
        found.drafted += used
        found.accepted += taken
        drafter.observe(answer[at : at + taken + 1])
        at += taken + 1
    return found


@dataclass
class Trunk:
    """The line behind the first ``now`` tokens; ``most``: positions that a draft may have."""

    now: int
    tokens: list[int]
    chances: list[float]  # of each: it is right, and so are all before it
    most: int

    def missed(self, at: int) -> float:
        """Return the chance that ``at`` tokens are right and no more."""
        before = self.chances[at - 1] if at else 1.0
        return before - (self.chances[at] if at < len(self.tokens) else 0.0)


def all_branches(places: Places, rates: Rates, trunk: Trunk) -> list[Branch]:
    """Return the branches that can be among the most probable positions.

    Not those that are less probable than a whole trunk's last token.
    """
    whole = len(trunk.tokens) == trunk.most
    least = trunk.chances[-1] if whole and trunk.most else 0.0
    return [
        branch
        for at in range(min(len(trunk.tokens) + 1, trunk.most))
        if trunk.missed(at) >= least
        for branch in branch_off(places, rates, trunk, at)
    ]


def branch_off(places: Places, rates: Rates, trunk: Trunk, at: int) -> list[Branch]:
    """Return the branches in place of the trunk's token ``at``, or behind its end."""
    if at >= trunk.most:
        return []
    now, deepest = trunk.now, ORDERS[0]
    token = trunk.tokens[at] if at < len(trunk.tokens) else None
    tail = [*places.text[max(0, now - deepest) : now], *trunk.tokens[:at]][-deepest:]
    branches = []
    for rank, (order, place) in enumerate(places.others(now, tail, token)):
        tokens = places.text[place : min(place + trunk.most - at, now)]
        chances = [trunk.missed(at) * rates.chance(order, rank)]
        for depth in range(1, len(tokens)):
            chances.append(chances[-1] * rates.chance(order, rank, min(depth, 4)))
        branches.append(Branch(at, order, rank, tokens, chances))
    return branches


def cut(
    shape: Shape,
    trunk: list[float],
    branches: list[Branch],
    most: int,
    costs: Sequence[float] | None,
) -> tuple[int, int, list[tuple[Branch, int]]]:
    """Return positions used, how long the trunk is, and each branch with its length.

    The most probable positions first: no token is more probable than the ones before it.
    """
    nodes = [(-chance, i + 1, -1) for i, chance in enumerate(trunk)]
    if shape == "tree":
        for number, branch in enumerate(branches):
            nodes += [(-c, branch.at + i + 1, number) for i, c in enumerate(branch.chances)]
    nodes = sorted(nodes)[:most]
    if costs is not None:
        expected = 1 - np.cumsum([0.0, *(negative for negative, _, _ in nodes)])
        nodes = nodes[: int(np.argmax(expected / np.asarray(costs[1 : len(nodes) + 2])))]
    lengths = Counter(number for _, _, number in nodes)
    if shape == "bound":
        return len(nodes), lengths[-1], [(b, len(b.tokens)) for b in branches]
    kept = [(branches[number], count) for number, count in lengths.items() if number >= 0]
    return len(nodes), lengths[-1], kept


def matching(tokens: Sequence[int], ahead: Sequence[int]) -> int:
    """Return how many first tokens are the same."""
    count = 0
    for one, other in zip(tokens, ahead, strict=False):
        if one != other:
            break
        count += 1
    return count


def learn(rates: Rates, branches: Sequence[Branch], ahead: Sequence[int]) -> None:
    """Count the branches off the place where the line was wrong; ``ahead``: what comes there."""
    for branch in branches:
        count = matching(branch.tokens, ahead)
        rates.count(count > 0, branch.order, branch.rank)
        for depth in range(1, min(count + 1, len(branch.tokens), len(ahead))):
            rates.count(depth < count, branch.order, branch.rank, min(depth, 4))


def of_ranks(hits_DK: npt.NDArray[np.float64], positions: int, branching: bool) -> float:
    """Return tokens that a pass of ``positions`` drafted ones brings, from hit rates by rank.

    hits_DK     how often the K-th best of a drafter is right as the D-th token of a draft
    branching   the best tree of so many positions; else a line

    The best are the most probable ones, taken one by one: a child is never more probable than its
    parent, nor a later rank than an earlier one. Ranks are taken to be right independently of
    what was right before, as in Sequoia (arXiv 2402.12374).
    """
    depths, ranks = hits_DK.shape
    waiting = [(-hits_DK[0, 0], 1.0, 0, 0)]
    expected = 1.0
    for _ in range(positions):
        if not waiting:
            break
        negative, parent, depth, rank = heapq.heappop(waiting)
        expected -= negative
        if depth + 1 < depths:
            heapq.heappush(waiting, (negative * hits_DK[depth + 1, 0], -negative, depth + 1, 0))
        if branching and rank + 1 < ranks:
            chance = parent * hits_DK[depth, rank + 1]
            heapq.heappush(waiting, (-chance, parent, depth, rank + 1))
    return float(expected)
