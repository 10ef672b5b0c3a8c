"""In which numbers the factors of a training's products are: float32, or bfloat16 where it pays.

bfloat16 halves what is read, and processors with instructions for it (AVX512-BF16, AMX) multiply
twice as many numbers in a cycle and more. Without them torch's products of bfloat16 are slower than
those of float32.
"""

import torch

from monolane.errors import BackendError
from monolane.tune._recipe import Precision


def products_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """Return the type of the factors on ``device``; ``auto`` is bfloat16 on a CPU made for it.

    On a GPU products are float32 ones; BackendError where bfloat16 is asked for.
    """
    if device.type != "cpu":
        if precision == "bfloat16":
            raise BackendError(
                f"precision: expected auto or float32 on {device.type}, got bfloat16, whose "
                "products are made on a CPU only; leave it out, or train with --device cpu"
            )
        return torch.float32
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    wanted = precision == "bfloat16" or (precision == "auto" and fast)
    return torch.bfloat16 if wanted else torch.float32
