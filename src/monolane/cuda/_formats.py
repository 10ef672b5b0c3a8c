"""What a dtype means on a GPU."""

from monolane.cuda._pack import HALVES, STORED
from monolane.errors import BackendError
from monolane.model import ModelConfig

DTYPES = ("auto", *HALVES)


def find_dtype(dtype: str, config: ModelConfig) -> str:
    """Return the format of the weights; "auto" is the one in which the model is stored.

    A model in float32 is rounded to bfloat16: the matrix units take 16-bit inputs. "float8" (e4m3,
    a scale for each row) is made from any of these while the model is loaded.
    """
    stored = config.stored_dtype
    if stored not in (*STORED, "float32"):
        raise BackendError(
            f"cuda: expected a model in {', '.join(STORED)} or float32, got one in {stored}; use "
            "backend='cpu', or load the unquantised model"
        )
    if dtype not in DTYPES:
        raise BackendError(
            f"cuda: dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}; use backend='cpu' "
            "for others"
        )
    if dtype != "auto":
        return dtype
    return stored if stored in STORED else "bfloat16"
