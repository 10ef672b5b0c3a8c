"""The constraints that answers of the server follow: a grammar, a least length, or both.

Each is an engine's ``Constraint``: it keeps the place of one answer and takes one token at a time.
"""

import re
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import llguidance
import numpy as np
import numpy.typing as npt

from monolane._processor import usable_processors
from monolane.engine import Guide
from monolane.errors import RequestError
from monolane.serve._grammar.released import NO_TOKEN, released

# What a grammar may cost, in seconds of processor time. The library counts its items, but not how
# often it finds one that it has: where a text can be read in many ways, that is the square of what
# it counts, or more, and grows with the answer.
TOKEN_SECONDS = 0.02  # for each token of the answer
BURST_SECONDS = 0.5  # and so much more in all
# Steps of an answer whose grammar has cost more than this are no business of the thread that
# decodes it: dozens of such threads would leave no core to anybody else.
_CHEAP_TOKEN, _CHEAP_BURST = 0.002, 0.05
_cores = threading.BoundedSemaphore(max(1, len(usable_processors()) // 2))  # for the cheap ones
# What a step may take while no other thread of Python runs. Where dozens of answers take more, the
# event loop waits for one of them at each of its turns.
_HELD_SECONDS = 0.0003

_OURS = re.compile(r"at 1\(8\): failed to compile JSON schema: (.*)\n +1 \| start: %json .*", re.S)


Step = Callable[[], Guide]


def _here(step: Step) -> Guide:
    return step()


class GrammarWalk:
    """The place of one answer in its grammar; ``where`` is the field that asked for it."""

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        where: str,
        vocab: int,
        forces: bool,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """``forces``: text that must come next is given as tokens, without a draw.

        ``clock`` tells the seconds of processor time of the thread that asks.
        """
        self.aside: Callable[[Step], Guide] = _here  # does costly steps elsewhere
        self._clock, self._spent, self._tokens = clock, 0.0, 0
        self._idle: llguidance.LLMatcher | None = None  # once a step has taken too long
        self._matcher, self._where, self._forces = matcher, where, forces
        self._words = -(-vocab // 32)
        self.forced = 0  # tokens given without a draw

    def step(self, token_id: int | None) -> Guide:
        """Take the token drawn, None at first; return what may follow it.

        RequestError where the grammar cannot be followed, or costs too much.
        """
        if self._spent > _CHEAP_BURST + _CHEAP_TOKEN * self._tokens:
            guide = self.aside(lambda: self._measured(token_id))
        else:
            with _cores:
                guide = self._measured(token_id)
        if self._spent > BURST_SECONDS + TOKEN_SECONDS * self._tokens:
            refuse(
                self._where,
                f"it takes more than {TOKEN_SECONDS * 1e3:.0f} ms of processor time a token; "
                "write it so that a text can be read in one way only, unlike s ::= s s | [a-z]",
            )
        return guide

    def _measured(self, token_id: int | None) -> Guide:
        begun = self._clock()
        guide, elsewhere = self._step(token_id)
        took = self._clock() - begun + elsewhere
        self._spent += took
        self._tokens += (token_id is not None) + len(guide.forced)
        if took > _HELD_SECONDS and self._idle is None and released().is_timed:
            self._idle = self._matcher.deep_copy()
            self._idle.consume_token(NO_TOKEN)  # an error, which it stays with
        return guide

    def _step(self, token_id: int | None) -> tuple[Guide, float]:
        """Return what may follow, and the seconds that another thread took for it."""
        matcher, idle, elsewhere = self._matcher, self._idle, 0.0
        if token_id is not None and idle is not None:
            elsewhere += released().consume(matcher, idle, token_id)
        elif token_id is not None:
            matcher.consume_token(token_id)
        forced = matcher.compute_ff_tokens() if self._forces else []
        # No more than the grammar takes: the tokenizer alone decides how a text is cut.
        forced = forced[: matcher.validate_tokens(forced)] if forced else []
        if forced:
            matcher.consume_tokens(forced)
            self.forced += len(forced)
        mask = None
        if not matcher.is_stopped() and idle is not None:
            mask, seconds = released().mask(matcher, idle, self._words)
            elsewhere += seconds
        elif not matcher.is_stopped():
            mask = np.frombuffer(matcher.compute_bitmask(), np.uint32)[: self._words]
        if matcher.is_error():
            refuse(self._where, matcher.get_error())
        return Guide(mask, tuple(forced)), elsewhere


class AtLeast:
    """``min_tokens``: no token that would end the answer before ``count`` have come.

    ``inner`` is the answer's other constraint, if any. Where nothing but the end may follow, as
    after the last brace of a JSON value, the answer ends: a grammar comes first.
    """

    def __init__(
        self, count: int, ends: frozenset[int], vocab: int, inner: GrammarWalk | None
    ) -> None:
        self._left, self._inner = count, inner
        allowed = np.zeros(-(-vocab // 32) * 32, bool)
        allowed[:vocab] = True
        self._all = _mask(allowed)
        allowed[[token for token in ends if token < vocab]] = False
        self._on = _mask(allowed)  # all but the tokens that end the answer

    @property
    def forced(self) -> int:
        """Tokens given without a draw."""
        return 0 if self._inner is None else self._inner.forced

    def step(self, token_id: int | None) -> Guide:
        """Take the token drawn, None at first; return what may follow it."""
        self._left -= token_id is not None
        guide = Guide(self._all) if self._inner is None else self._inner.step(token_id)
        self._left -= len(guide.forced)
        if guide.mask is None or self._left <= 0:
            return guide
        mask = guide.mask & self._on
        return Guide(mask, guide.forced) if mask.any() else guide


def _mask(allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    return np.packbits(allowed, bitorder="little").view(np.uint32)


def refuse(where: str, reason: str) -> NoReturn:
    """Raise the RequestError of a grammar, on one line, without the library's own state."""
    reason, _, _ = reason.partition("<backtrace>")
    # A schema is line 1 of a grammar of ours, which its sender has never seen.
    reason = _OURS.sub(r"\1", reason)
    line = " ".join(reason.replace("<non-verbose/>", "").split())
    line = line.replace("NoExtensionBias", "no text meets it")
    raise RequestError(f"{where}: cannot be followed: {line:.400}")
