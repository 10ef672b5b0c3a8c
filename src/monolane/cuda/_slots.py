"""The sequences of an executor: how long each is, and what its cache still holds."""

from collections.abc import Sequence

from monolane.cuda._layout import Layout
from monolane.errors import RequestError
from monolane.executor_api import Advance

_NEVER = 1 << 40  # a position that no sequence has


class Slots:
    """The host's account of the cache; positions are tokens from the beginning of a sequence."""

    def __init__(self, count: int, layout: Layout) -> None:
        self._layers = layout.layers
        self._context = layout.plan.context
        self._vocab = layout.plan.config.vocab_size
        self._lengths = [0] * count
        self._highest = [0] * count  # one past the highest position ever written
        # Where a sequence goes on from a tail: before what it sees, windowed layers hold nothing.
        self._restored = [0] * count

    def length(self, slot: int) -> int:
        """Return the number of tokens in a slot."""
        if not 0 <= slot < len(self._lengths):
            raise RequestError(f"slot: expected 0 to {len(self._lengths) - 1}, got {slot}")
        return self._lengths[slot]

    def set_length(self, slot: int, length: int) -> None:
        """Take note of how far a launch has brought a slot."""
        self._lengths[slot] = length
        self._highest[slot] = max(self._highest[slot], length)

    def clear(self) -> None:
        """Empty all slots."""
        self._lengths = [0] * len(self._lengths)
        self._highest = [0] * len(self._highest)
        self._restored = [0] * len(self._restored)

    def truncate(self, slot: int, length: int) -> None:
        """Take back the tokens of a slot from ``length`` on.

        RequestError if a windowed layer no longer holds the keys that the next token would see.
        """
        now = self.length(slot)
        if not 0 <= length <= now:
            raise RequestError(
                f"length: expected 0 to {now}, the tokens in this slot, got {length}"
            )
        if (dropped := self._dropped(slot, length)) is not None:
            raise RequestError(
                f"length: windowed layers have dropped the keys before position {dropped}; "
                "truncate to 0 and feed again"
            )
        self._lengths[slot] = length
        if length == 0:
            self._highest[slot] = self._restored[slot] = 0

    def has_tail(self, slot: int, end: int) -> bool:
        """Tell whether windowed layers hold all that a token behind ``end - 1`` sees."""
        return self._dropped(slot, end) is None

    def _dropped(self, slot: int, length: int) -> int | None:
        """Return up to where a layer has dropped keys that the next token would see, or None."""
        for layer in self._layers:
            oldest_needed = max(0, length - layer.window + 1)
            oldest_kept = max(
                self._highest[slot] - layer.capacity, self._restored[slot] - layer.window + 1
            )
            if length > 0 and layer.window > 0 and oldest_needed < oldest_kept:
                return oldest_kept
        return None

    def check_span(self, slot: int, begin: int, end: int) -> None:
        """Refuse positions that a slot does not hold."""
        if not 0 <= begin <= end <= self.length(slot):
            raise RequestError(
                f"save: expected positions within 0 and {self.length(slot)}, got {begin} to {end}"
            )

    def restore(self, slot: int, count: int, with_tail: bool) -> None:
        """Take note of positions that were put behind those of a slot."""
        length = self.length(slot) + count
        self._lengths[slot] = self._highest[slot] = length
        self._restored[slot] = length if with_tail else _NEVER

    def copy(self, source: int, target: int) -> None:
        """Take note that a slot holds what another holds."""
        for account in (self._lengths, self._highest, self._restored):
            account[target] = account[source]

    def check_tokens(self, slot: int, tokens: Sequence[int], more: int = 0) -> None:
        """Refuse tokens that a slot cannot take, with ``more`` to come after them."""
        if not tokens:
            raise RequestError("tokens: expected at least one")
        for token in tokens:
            if not 0 <= token < self._vocab:
                raise RequestError(f"tokens: expected ids from 0 to {self._vocab - 1}, got {token}")
        now, count = self.length(slot), len(tokens) + more
        if now + count > self._context:
            raise RequestError(
                f"context: expected at most {self._context} tokens in a slot, got {now} there and "
                f"{count} more"
            )

    def check(self, advances: Sequence[Advance]) -> None:
        """Refuse an epoch that cannot be run."""
        if not 1 <= len(advances) <= len(self._lengths):
            raise RequestError(f"advances: expected 1 to {len(self._lengths)}, got {len(advances)}")
        for advance in advances:
            if advance.budget < 1:
                raise RequestError(f"budget: expected at least 1, got {advance.budget}")
            self.check_tokens(advance.slot, advance.token_ids, advance.budget - 1)
            advance.check_history(self.length(advance.slot))
        if len({advance.slot for advance in advances}) < len(advances):
            raise RequestError("advances: a slot occurs twice")
