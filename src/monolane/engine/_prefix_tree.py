"""Kept sequences as a radix tree over their tokens: what several begin with is there once.

Each node holds the keys and values of a run of tokens behind those of its parent. The least
recently used are forgotten first, down to the bytes allowed; of tails that lie close, those whose
loss costs least. Namespaces share nothing.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from monolane.executor_api import Kept, KeptBytes

# Where room is wanted, tails that lie close give way to what was looked up within so many look-ups,
# some sixty requests; and older sequences to them, up to this part of the budget. So an agent has
# many, beside the talks of yesterday, and costs nobody at work the only ones.
_LATELY, _CLOSE_PART = 256, 0.25

Tokens = npt.NDArray[np.int32]
Ids = Sequence[int] | Tokens


@dataclass(slots=True, eq=False)
class Node:
    """A run of tokens, and what was kept of them; the root of a namespace has none."""

    parent: "Node | None"
    tokens: Tokens
    kept: Kept
    children: "dict[int, Node]" = field(default_factory=dict)  # by the first of their tokens
    used: int = 0  # at which look-up

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

    ``distance``: of the tails that a sequence has as long as it is there; 0 for a model without
    tails.
    """

    def __init__(self, budget: int, distance: int) -> None:
        self.budget, self.distance = budget, distance
        self.nbytes = self._lookups = 0
        self._roots: dict[str, Node] = {}
        # All nodes but roots, the least recently used first. A node comes after its children, for
        # whoever uses one uses its parents after it: the first is always a leaf.
        self._order: OrderedDict[Node, None] = OrderedDict()

    def find(self, namespace: str, token_ids: Ids) -> Found:
        """Return the longest beginning of a sequence that there is; counts as a use of it."""
        path = self._walk(namespace, np.asarray(token_ids, np.int32))
        self._lookups += 1
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
        while self.nbytes > self.budget:
            self._make_room()

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

    def _make_room(self) -> None:
        """Drop what is missed least: a tail that others are close to, or a node."""
        oldest = next(iter(self._order))
        age = self._lookups - oldest.used
        # Of a sequence that takes all the room, the end is worth more than tails far before it.
        distance = self.distance if age else self.budget
        close = self._close_tails(distance) if self.distance else []
        most = 0.0 if age < _LATELY else _CLOSE_PART * self.budget
        if sum(tail.nbytes for tail in close) > most:
            node = _cheapest(close)
            self.nbytes -= node.kept.tail_nbytes or 0
            node.kept = node.kept.part(0, node.kept.positions)
        else:
            self._forget(oldest)

    def _close_tails(self, distance: int) -> "list[_Tail]":
        """Return the tails that may go, the least recently used first.

        The last two of a sequence stay, of its last prompt and its last answer, the last one before
        sequences part, and of the others one for each distance.
        """
        found: dict[Node, _Tail] = {}
        # Nodes, the tokens from the last tail to them, and from the last that stays for its place.
        below = [(node, 0, 0) for root in self._roots.values() for node in root.children.values()]
        while below:
            node, close, far = below.pop()
            close, far = close + len(node.tokens), far + len(node.tokens)
            if node.kept.tail_nbytes is not None:
                if far >= distance:
                    far = 0
                elif (after := _to_next_but_last(node)) is not None:
                    found[node] = _Tail(node, close, after)
                close = 0
            below += ((child, close, far) for child in node.children.values())
        return [found[node] for node in self._order if node in found]

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
            node.used = self._lookups
            self._order.move_to_end(node)


@dataclass(frozen=True, slots=True)
class _Tail:
    """A tail that may go: of which node, and the tokens from the tail before, to the one behind."""

    node: Node
    before: int
    after: int

    @property
    def nbytes(self) -> int:
        return self.node.kept.tail_nbytes or 0


def _cheapest(tails: Sequence[_Tail]) -> Node:
    """Return the node whose tail is missed least, of the sequence that was used least recently.

    Without it so many tokens more are read again as lie before it. That is the less likely the
    further it is from the end: an agent's changes are mostly of late. So what is left lies the
    closer, the nearer the end is.
    """
    ways: dict[Node, int] = {}  # tokens from the end of a node to that of the sequence
    way = tails[0].after
    for node in _up(tails[0].node):
        ways[node] = way
        way += len(node.tokens)
    found = [tail for tail in tails if tail.node in ways]
    return min(found, key=lambda tail: tail.before / ways[tail.node]).node


def _to_next_but_last(node: Node) -> int | None:
    """Return the tokens to the next tail; None if sequences part before it, or it is the last."""
    count = 0
    while len(node.children) == 1:
        (node,) = node.children.values()
        count += len(node.tokens)
        if node.kept.tail_nbytes is not None:
            return count if any(map(_has_tail, node.children.values())) else None
    return None


def _has_tail(node: Node) -> bool:
    """Tell whether a node or one below it has a tail."""
    below = [node]
    while below:
        at = below.pop()
        if at.kept.tail_nbytes is not None:
            return True
        below += at.children.values()
    return False


def _up(node: Node | None) -> Iterator[Node]:
    """Yield a node and its parents, without the root."""
    while node is not None and node.parent is not None:
        yield node
        node = node.parent


def _common(a: Tokens, b: Tokens) -> int:
    """Return how many tokens two runs begin with alike."""
    count = min(len(a), len(b))
    other = np.flatnonzero(a[:count] != b[:count])
    return int(other[0]) if other.size else count
