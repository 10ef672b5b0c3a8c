"""What a dtype means on a CPU: how weights are stored, and the type of the activations."""

from collections.abc import Sequence
from dataclasses import dataclass

from monolane.errors import BackendError, RequestError
from monolane.model import FORMATS, WeightFormat, find_cache_format, find_format, formats_of

DTYPES = ("auto", *formats_of("cpu"))
_ROUNDED = ("int8", "int4")  # what blocks are rounded to: a model that drafts for itself


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a model is computed. ``weights`` None: as the checkpoint stores them, without a copy."""

    name: str
    weights: WeightFormat | None
    activation: str  # of monolane.model.ACTIVATIONS; where a format takes none such, its own
    keys: WeightFormat  # of the cache


def find_keys(cache_dtype: str, beside: WeightFormat) -> WeightFormat:
    """Return how keys and values are stored; "auto": as goes with the format of the weights."""
    return beside.key_format if cache_dtype == "auto" else find_cache_format(cache_dtype)


def find_arithmetic(
    dtype: str, stored: str, blocks: Sequence[str] = (), cache_dtype: str = "auto"
) -> Arithmetic:
    """Return what a dtype means; "auto" is the dtype in which the model's matrices are stored.

    ``blocks`` are the formats of matrices that a GGUF file holds, the one with the most bytes
    first. Beside them each matrix keeps its own format, and activations follow it; or all are
    rounded to int8 or int4.
    """
    if blocks:
        if dtype not in ("auto", *_ROUNDED):
            raise BackendError(
                f"dtype: expected auto, since this model's matrices are stored in "
                f"{', '.join(blocks)}, or {' or '.join(_ROUNDED)}, got {dtype!r}; load the "
                "unquantised model for that"
            )
        name = blocks[0] if dtype == "auto" else dtype
        wanted = None if dtype == "auto" else find_format(dtype)
        return Arithmetic(name, wanted, "bf16", find_keys(cache_dtype, find_format(name)))
    name = stored if dtype == "auto" else dtype
    if name not in DTYPES or name == "auto":
        if name in FORMATS and FORMATS[name].named:
            raise BackendError(
                f"dtype: {name} is for GPUs: expected backend='cuda', or one of "
                f"{', '.join(DTYPES)} on the cpu backend, got {name!r}; int8 is as small"
            )
        raise RequestError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    if stored in FORMATS and FORMATS[stored].coded and name != stored:
        raise BackendError(
            f"dtype: expected auto or {stored}, in which this model's matrices are stored, got "
            f"{dtype!r}; load the unquantised model for that"
        )
    found = find_format(name)
    # Exact to float32: 16-bit weights stay as they are, and are widened as they are read.
    weights = None if name == "float32" else found
    return Arithmetic(name, weights, found.activation, find_keys(cache_dtype, found))
