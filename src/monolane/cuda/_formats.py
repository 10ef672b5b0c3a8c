"""What a dtype means on a GPU."""

from monolane.cuda._pack import HALVES, STORED
from monolane.errors import BackendError
from monolane.model import ModelConfig

DTYPES = ("auto", *HALVES)


def find_dtype(dtype: str, config: ModelConfig) -> str:
    """Return the format of the weights; "auto" is the one in which the model is stored.

    A model in float32 or in quantised matrices is rounded to bfloat16: the matrix units take 16-bit
    inputs. "float8" (e4m3, a scale for each row) is made from any of these while the model is
    loaded.
    """
    if dtype not in DTYPES:
        raise BackendError(
            f"cuda: dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}; use backend='cpu' "
            "for others"
        )
    if dtype != "auto":
        return dtype
    stored = config.stored_dtype
    return stored if stored in STORED else "bfloat16"
