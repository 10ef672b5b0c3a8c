"""What a DSpark drafter adds to DFlash's: tokens of a block that know the one before them.

See csrc/draft/markov_head.h for what is computed. Source: github.com/deepseek-ai/DeepSpec.

Shape legend: V vocabulary, D hidden, r rank.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.model._drafter_tensors import DrafterTensors
from monolane.model._fields import Fields

_IN, _OUT = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
_CONFIDENCE, _BIAS = "confidence_head.proj.weight", "confidence_head.proj.bias"

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class MarkovHead:
    """How a token moves the logits of the next.

    before      [V, r], a row of each token
    after       [V, r]: a token's logit gains its row times that of the token before
    confidence  float32 [D + r + 1]: the logistic of it times what the head reads, the row of the
                token before and 1 is the chance that a drafted token is right; None: not said
    """

    before: Array
    after: Array
    confidence: npt.NDArray[np.float32] | None

    @property
    def rank(self) -> int:
        """Return r."""
        return int(self.before.shape[1])

    @staticmethod
    def read(tensors: DrafterTensors, fields: Fields, vocab: int, hidden: int) -> "MarkovHead":
        """Read it; ConfigError or CheckpointError says which field or tensor is wrong."""
        rank = fields.size("markov_rank")
        fields.choice("markov_head_type", ("vanilla",), "vanilla")
        before, after = (tensors.floats(name, (vocab, rank)) for name in (_IN, _OUT))
        if not fields.flag("enable_confidence_head", default=False):
            return MarkovHead(before, after, None)
        wide = fields.flag("confidence_head_with_markov", default=False)
        own = tensors.floats(_CONFIDENCE, (1, hidden + rank * wide)).astype(np.float32)[0]
        none = np.zeros(rank * (not wide), np.float32)
        bias = tensors.floats(_BIAS, (1,)).astype(np.float32)
        return MarkovHead(before, after, np.concatenate([own, none, bias]))
