"""Kept sequences as a radix tree over their tokens: what several begin with is there once.

Each node holds the keys and values of a run of tokens behind those of its parent. The least
recently used are forgotten first, down to the bytes allowed. Namespaces share nothing.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from monolane.executor_api import Kept, KeptBytes

Tokens = npt.NDArray[np.int32]
Ids = Sequence[int] | Tokens


@dataclass(slots=True, eq=False)
class Node:
    """A run of tokens, and what was kept of them; the root of a namespace has none."""

    parent: "Node | None"
    tokens: Tokens
    kept: Kept
    children: "dict[int, Node]" = field(default_factory=dict)  # by the first of their tokens

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, but for some hundred of the node itself."""
        return self.kept.nbytes + self.tokens.nbytes


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of a sequence: ``parts``, each with the positions to restore of it.

    ``common`` tokens are known, of which ``resumed`` can be gone on from: with windowed layers,
    those up to the last tail.
    """

    parts: tuple[tuple[Kept, int], ...]
    resumed: int
    common: int


class PrefixTree:
    """At most ``budget`` bytes of sequences; not for several threads at once.

    ``distance``: of the tails that are left behind a longer sequence's last two; 0 for a model
    without tails.
    """

    def __init__(self, budget: int, distance: int) -> None:
        self.budget, self.distance = budget, distance
        self.nbytes = 0
        self._roots: dict[str, Node] = {}
        # All nodes but roots, the least recently used first. A node comes after its children, for
        # whoever uses one uses its parents after it: the first is always a leaf.
        self._order: OrderedDict[Node, None] = OrderedDict()

    def find(self, namespace: str, token_ids: Ids) -> Found:
        """Return the longest beginning of a sequence that there is; counts as a use of it."""
        path = self._walk(namespace, np.asarray(token_ids, np.int32))
        self._use(node for node, _ in path)
        common = sum(count for _, count in path)
        if self.distance:
            while path and (
                path[-1][1] < len(path[-1][0].tokens) or path[-1][0].kept.tail_nbytes is None
            ):
                path.pop()
        parts = tuple((node.kept, count) for node, count in path)
        return Found(parts, sum(count for _, count in path), common)

    def put(self, namespace: str, token_ids: Ids, begin: int, kept: Kept) -> None:
        """Add what was kept of a sequence from token ``begin`` on, with the tail of its end.

        Nothing is added if the tokens before ``begin`` are not there any more.
        """
        tokens = np.asarray(token_ids, np.int32)
        path = self._walk(namespace, tokens)
        common = sum(count for _, count in path)
        if common < begin or len(tokens) == 0:
            return
        nodes = [node for node, _ in path]
        if (
            path
            and path[-1][1] < len(nodes[-1].tokens)
            and (common < len(tokens) or kept.tail_nbytes is not None)
        ):
            nodes[-1] = self._split(nodes[-1], path[-1][1])
        if common < len(tokens):
            parent = nodes[-1] if nodes else self._root(namespace)
            if common > begin:
                kept = kept.part(common - begin, kept.positions, kept)
            nodes.append(Node(parent, tokens[common:].copy(), kept))
            self._add(nodes[-1])
        elif nodes[-1].kept.tail_nbytes is None and kept.tail_nbytes is not None:
            rows = nodes[-1].kept  # which were there before
            nodes[-1].kept = rows.part(0, rows.positions, kept)
            self.nbytes += kept.tail_nbytes
        self._use(nodes)
        self._thin(nodes)
        while self.nbytes > self.budget:
            self._forget(next(iter(self._order)))

    def clear(self) -> None:
        """Forget all."""
        self.nbytes = 0
        self._roots.clear()
        self._order.clear()

    def nodes(self) -> Iterator[tuple[str, Tokens, Kept]]:
        """Yield all nodes, the most lately used first: namespace, tokens up to its end, its part.

        Put in this order, they make this tree again: parents come before their children.
        """
        for node in reversed(self._order):
            above = [part.tokens for part in _up(node)]
            yield self._namespace(node), np.concatenate(above[::-1]), node.kept

    def _namespace(self, node: Node) -> str:
        while node.parent is not None:
            node = node.parent
        return next(name for name, root in self._roots.items() if root is node)

    def _walk(self, namespace: str, tokens: Tokens) -> list[tuple[Node, int]]:
        """Return the nodes that begin as the tokens do, each with how many of its own match."""
        path: list[tuple[Node, int]] = []
        node, at = self._roots.get(namespace), 0
        while node is not None and at < len(tokens):
            node = node.children.get(int(tokens[at]))
            if node is None:
                break
            count = _common(node.tokens, tokens[at:])
            path.append((node, count))
            at += count
            if count < len(node.tokens):
                break
        return path

    def _root(self, namespace: str) -> Node:
        if namespace not in self._roots:
            nothing = np.empty(0, np.int32), KeptBytes(np.empty((0, 0, 0), np.uint8))
            self._roots[namespace] = Node(None, *nothing)
        return self._roots[namespace]

    def _split(self, node: Node, count: int) -> Node:
        """Cut a node in two and return the upper one, which has the first ``count`` tokens."""
        kept, parent = node.kept, node.parent
        assert parent is not None
        upper = Node(parent, node.tokens[:count].copy(), kept.part(0, count))
        parent.children[int(upper.tokens[0])] = upper
        upper.children[int(node.tokens[count])] = node
        node.parent, node.tokens = upper, node.tokens[count:].copy()
        node.kept = kept.part(count, kept.positions, kept)
        self._order[upper] = None
        return upper

    def _add(self, node: Node) -> None:
        assert node.parent is not None
        node.parent.children[int(node.tokens[0])] = node
        self._order[node] = None
        self.nbytes += node.nbytes

    def _thin(self, path: Sequence[Node]) -> None:
        """Drop tails that a longer sequence has made needless: one may be as large as its rows.

        Those of its last answer and last prompt stay, the last before sequences part, and of the
        others one for each distance.
        """
        ends = [*accumulate(len(node.tokens) for node in path)]
        tails = [i for i, node in enumerate(path) if node.kept.tail_nbytes is not None]
        last = 0
        for i, following in pairwise(tails[:-1]):
            parts = any(len(node.children) > 1 for node in path[i:following])
            kept = path[i].kept
            if ends[i] - last >= self.distance:
                last = ends[i]
            elif not parts:
                self.nbytes -= kept.tail_nbytes or 0
                path[i].kept = kept.part(0, kept.positions)

    def _forget(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        assert not node.children
        del parent.children[int(node.tokens[0])], self._order[node]
        self.nbytes -= node.nbytes
        if parent.parent is None and not parent.children:
            self._roots = {name: root for name, root in self._roots.items() if root is not parent}

    def _use(self, path: "Sequence[Node] | Iterator[Node]") -> None:
        for node in reversed([*path]):
            self._order.move_to_end(node)


def _up(node: Node) -> Iterator[Node]:
    """Yield a node and its parents, without the root."""
    at: Node | None = node
    while at is not None and at.parent is not None:
        yield at
        at = at.parent


def _common(a: Tokens, b: Tokens) -> int:
    """Return how many tokens two runs begin with alike."""
    count = min(len(a), len(b))
    other = np.flatnonzero(a[:count] != b[:count])
    return int(other[0]) if other.size else count
