"""What a dtype means on a GPU."""

from monolane.cuda._pack import HALVES, STORED
from monolane.errors import BackendError
from monolane.model import Blocks, ModelConfig, Weights

DTYPES = ("auto", *HALVES)


def check_weights(weights: Weights) -> None:
    """Refuse weights that the kernels do not multiply by; BackendError names their formats."""
    held = {x.format.upper() for _, x in weights.coded() if isinstance(x, Blocks)}
    if held:
        raise BackendError(
            f"cuda: expected a model of plain numbers, got blocks of "
            f"{', '.join(sorted(held))}; use backend='cpu', or a BF16 or F16 file of this model"
        )


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
