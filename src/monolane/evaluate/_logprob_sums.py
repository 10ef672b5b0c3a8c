"""How probable a text is to a model, and how far its logits lie from another's."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.evaluate._windows import Window
from monolane.reference import log_probabilities

Logits = npt.NDArray[np.floating]


@dataclass
class Tally:
    """Sums over the scored tokens of one variant."""

    nats: float = 0.0
    tokens: int = 0
    squared: float = 0.0  # mean over the vocabulary of squared differences to the oracle's logits
    largest: float = 0.0
    divergence: float = 0.0  # KL(oracle || this), nats
    same: int = 0  # tokens whose most probable next token is the oracle's
    spread: float = 0.0  # variance of the oracle's logits, to hold ``squared`` against

    def score(self, window: Window, logits_TV: Logits) -> None:
        """Count a window's scored tokens, without an oracle; row t has the logits of token t+1."""
        for t in range(window.first - 1, len(window.ids) - 1):
            self.nats -= float(log_probabilities(logits_TV[t])[window.ids[t + 1]])
            self.tokens += 1

    def add(self, window: Window, logits_TV: Logits, oracle_TV: Logits) -> None:
        """Count a window's scored tokens; row t holds the logits of token t + 1."""
        for t in range(window.first - 1, len(window.ids) - 1):
            ours, theirs = (log_probabilities(rows[t]) for rows in (logits_TV, oracle_TV))
            difference = logits_TV[t] - oracle_TV[t]
            self.nats -= float(ours[window.ids[t + 1]])
            self.tokens += 1
            self.squared += float((difference**2).mean())
            self.spread += float(oracle_TV[t].var())
            self.largest = max(self.largest, float(np.abs(difference).max()))
            self.divergence += float((np.exp(theirs) * (theirs - ours)).sum())
            self.same += int(logits_TV[t].argmax() == oracle_TV[t].argmax())

    def record(self, size: int) -> dict[str, Any]:
        """Return the figures per token and per byte; ``size`` bytes were scored."""
        return {
            "tokens": self.tokens,
            "bytes": size,
            "perplexity": math.exp(self.nats / self.tokens),
            "bits_per_byte": bits_per_byte(self.nats, size),
            "logit_rms_error": math.sqrt(self.squared / self.tokens),
            "logit_rms_error_share": math.sqrt(self.squared / self.spread),
            "logit_largest_error": self.largest,
            "kl_nats": self.divergence / self.tokens,
            "top1_agreement": self.same / self.tokens,
        }

    def plain(self) -> dict[str, float]:
        """Return the sums, as a journal keeps them."""
        return asdict(self)

    @staticmethod
    def total(parts: Iterable["Tally"]) -> "Tally":
        """Return the sums of several tallies."""
        whole = Tally()
        for part in parts:
            for each in fields(Tally):
                sums = getattr(whole, each.name), getattr(part, each.name)
                setattr(whole, each.name, max(sums) if each.name == "largest" else sum(sums))
        return whole


def bits_per_byte(nats: float, size: int) -> float:
    """Return bits per byte of a text of ``size`` bytes that cost ``nats``."""
    return nats / math.log(2) / size
