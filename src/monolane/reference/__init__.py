"""Slow, obvious NumPy arithmetic: the oracle for every operation and for logits.

Never imports the plan: two executors that share a mistake would agree.
"""

from monolane.reference._cache import Cache
from monolane.reference._choose import (
    allowed_tokens,
    choose,
    limited,
    log_probabilities,
    mask_bits,
)
from monolane.reference._computation import Computation, Row
from monolane.reference._dflash import ReferenceDflash
from monolane.reference._eagle import ReferenceEagle
from monolane.reference._executor import ReferenceExecutor
from monolane.reference._layer_pass import LayerPass
from monolane.reference._model import ReferenceModel
from monolane.reference._noise import gumbel_noise, philox
from monolane.reference._operations import (
    GATES,
    Floats,
    attend,
    attend_seen,
    cap_logits,
    choose_keys,
    gelu_tanh,
    linear,
    norm_stream,
    reduce,
    relu_squared,
    rms_norm,
    rotate,
    sigmoid,
    silu,
    softmax,
    softplus,
)
from monolane.reference._penalties import count_seen, penalised
from monolane.reference._rounding import find_rounding
from monolane.reference._streams import as_long

__all__ = [
    "GATES",
    "Cache",
    "Computation",
    "Floats",
    "LayerPass",
    "ReferenceDflash",
    "ReferenceEagle",
    "ReferenceExecutor",
    "ReferenceModel",
    "Row",
    "allowed_tokens",
    "as_long",
    "attend",
    "attend_seen",
    "cap_logits",
    "choose",
    "choose_keys",
    "count_seen",
    "find_rounding",
    "gelu_tanh",
    "gumbel_noise",
    "limited",
    "linear",
    "log_probabilities",
    "mask_bits",
    "norm_stream",
    "penalised",
    "philox",
    "reduce",
    "relu_squared",
    "rms_norm",
    "rotate",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
]
