"""The beginnings of sequences that an engine keeps, so that a prompt is read from where it is new.

What is kept lies outside the slots, in host memory; docs/prefix-cache.md says what and when.
"""

import logging
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from monolane._cgroup import available_bytes
from monolane.engine._files import ModelFiles
from monolane.engine._memory import read_bytes
from monolane.engine._prefix_file import Node, fingerprint, read_prefixes, write_prefixes
from monolane.engine._prefix_tree import PrefixTree
from monolane.engine._shared_executor import SharedExecutor
from monolane.errors import BackendError, MonolaneError, RequestError
from monolane.executor_api import Executor, bytes_of

log = logging.getLogger("monolane.engine")

# Tokens between two cuts of a long prompt, where windowed layers can be resumed at cuts only. As
# many as the window where that is wider: then tails take no more than all positions would.
_DISTANCE = 1024
# Ends of messages that are closer than so many tokens behind a cut get none of their own: what is
# read again is one narrow pass, and so is a pause. Nor do those in the last tokens of a prompt, so
# many at most, which one pass reads: a short question is answered as soon as ever.
_CLOSE, _AT_ONCE = 16, 64
# "auto": this part of the memory that is available when the model has been loaded, less what its
# sequences will take, and no more than so many bytes, some ten thousand tokens of a 2B model, or
# than two whole sequences take.
_AUTO_PART, _AUTO_MOST, _AUTO_SEQUENCES = 0.25, 4 << 30, 2

# "auto", "off", bytes, or bytes as text, such as "512M".
Budget = str | int


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a slot holds of a prompt now, and where to pause while the rest is read, to keep it."""

    length: int
    cuts: tuple[int, ...]


class Prefixes:
    """Keeps sequences of one executor, at most ``budget`` bytes of them; for any thread."""

    def __init__(self, backend: SharedExecutor, budget: int) -> None:
        tail = backend.executor.tail_positions
        self.tree = PrefixTree(budget, max(_DISTANCE, tail) if tail else 0)
        # Where nothing asks for a place to the token, a prompt is cut at a multiple of this from
        # the cut before: of the tokens that a pass carries, so that a cut costs no pass.
        self._step = backend.executor.plan.max_width if backend.executor.plan else 1
        self._backend = backend
        self._lock = threading.Lock()  # of the tree
        self._losses = 0  # of all that was kept, seen so far

    def resume(
        self,
        namespace: str,
        slot: int,
        prompt_ids: Sequence[int],
        message_ends: Collection[int] = frozenset(),
    ) -> Resumed:
        """Put the longest known beginning of a prompt into an empty slot.

        Never all of it: the last token is fed, for its logits. ``message_ends``: tokens behind
        which another message begins.
        """
        if not self.tree.budget:
            return Resumed(0, ())
        with self._lock:
            self._notice_loss()
            found = self.tree.find(namespace, prompt_ids[:-1])
        for kept, count in found.parts:  # which stay as they are, should the tree forget them
            self._backend.restore(slot, kept, count)
        begin, end = found.resumed, len(prompt_ids) - 1
        ends = [i for i in range(begin + 1, end) if prompt_ids[i - 1] in message_ends]
        return Resumed(begin, self._cuts(begin, found.common, end, ends))

    def keep(self, namespace: str, slot: int, token_ids: Sequence[int]) -> None:
        """Keep what a slot holds of these tokens, which it begins with.

        Nothing where a rank is lost meanwhile: that is no fault of what was computed before.
        """
        known = token_ids[: self._backend.length(slot)]
        if not self.tree.budget or not known:
            return
        with self._lock:
            self._notice_loss()
            found = self.tree.find(namespace, known)
            if found.resumed < len(known):
                try:
                    kept = self._backend.save(slot, found.common, len(known))
                except MonolaneError:
                    if self._losses == self._backend.executor.losses:
                        raise
                    return
                self.tree.put(namespace, known, found.common, kept)

    def load(self, path: Path, files: ModelFiles) -> None:
        """Take in what ``save`` wrote, as far as the budget goes.

        A file that is damaged, or of another model or plan, is left alone with a warning.
        """
        if not self.tree.budget or not path.exists():
            return
        try:
            nodes = read_prefixes(path, self._binding(files))
            self._check(nodes)
        except (RequestError, OSError) as error:
            log.warning("prefix file %s is ignored: %s", path, error)
            return
        with self._lock:
            for name, tokens, kept in nodes:  # the most lately used first
                if self.tree.nbytes + kept.nbytes + tokens.nbytes <= self.tree.budget:
                    self.tree.put(name, tokens, len(tokens) - kept.positions, kept)
            for name, tokens, _ in reversed(nodes):
                self.tree.find(name, tokens)

    def save(self, path: Path, files: ModelFiles) -> None:
        """Write all that is kept; a warning says why where that fails."""
        with self._lock:
            nodes = [(name, tokens, bytes_of(kept)) for name, tokens, kept in self.tree.nodes()]
        try:
            write_prefixes(path, self._binding(files), nodes)
        except OSError as error:
            log.warning("prefix file %s is not written: %s", path, error)

    def _notice_loss(self) -> None:
        if self._losses != self._backend.executor.losses:
            self._losses = self._backend.executor.losses
            self.tree.clear()

    def _check(self, nodes: list[Node]) -> None:
        """Refuse what no restore would take, before a request meets it."""
        lists, _, row = bytes_of(self._backend.save(0, 0, 0)).rows.shape
        for _, tokens, kept in nodes:
            if kept.rows.shape[::2] != (lists, row) or not 0 < kept.positions <= len(tokens):
                raise RequestError("it has keys and values of other sizes than this model's")

    def _binding(self, files: ModelFiles) -> str:
        executor = self._backend.executor
        return f"{fingerprint(files.weight_files())} {executor.identity()} {executor.context}"

    def _cuts(self, begin: int, common: int, end: int, ends: Sequence[int]) -> tuple[int, ...]:
        """Return where to pause: at the end of the prompt, for an answer may go another way.

        Without windowed layers the whole sequence can be resumed anywhere, once it is kept at its
        end; a pause serves those that come while it runs. With them, also where each message ends,
        for it may be followed by another one, or by a changed one; where this prompt leaves what is
        known, as others may do after it; and at distances.
        """
        distance = self.tree.distance
        if not distance:
            ends = ()
        marks = {end} if distance or self._backend.slots > 1 else set()
        marks |= {common} if distance else set()
        exact = set(ends)
        cuts, at = [], begin
        for mark in sorted(marks | exact):
            while distance and mark - at > distance:
                at += distance - distance % self._step
                cuts.append(at)
            cut = mark if mark in exact else mark - (mark - at) % self._step
            if cut - at >= (_CLOSE if mark in exact else 1) and end - at >= _AT_ONCE:
                cuts.append(cut)
                at = cut
        return tuple(cuts)


def prefix_budget(wanted: Budget, executor: Executor) -> int:
    """Return the bytes that ``prefix_cache`` stands for; RequestError or BackendError."""
    if wanted == "off" or (wanted == "auto" and not executor.keeps_prefixes):
        return 0
    if wanted == "auto":
        free = available_bytes() - executor.cache_bytes
        most = max(_AUTO_MOST, _AUTO_SEQUENCES * executor.cache_bytes // executor.slots)
        return min(int(_AUTO_PART * max(0, free)), most)
    budget = read_bytes(wanted)
    if budget is None:
        raise RequestError(
            f"prefix_cache: expected 'auto', 'off' or bytes, such as 512M or 2G, got {wanted!r:.80}"
        )
    if budget and not executor.keeps_prefixes:
        raise BackendError(
            f"prefix_cache: the {executor.name} backend keeps no prefixes; use 'cpu', or leave "
            "prefix_cache at 'auto'"
        )
    return budget
