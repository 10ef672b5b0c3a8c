"""In which numbers the factors of a training's products are: float32, or bfloat16 where it pays.

bfloat16 halves what is read, and processors with instructions for it (AVX512-BF16, AMX) multiply
twice as many numbers in a cycle and more. Without them torch's products of bfloat16 are slower than
those of float32. GPUs from NVIDIA's Ampere on (2020) have a unit for it that is several times as
fast as float32's.
"""

import torch

from monolane.errors import BackendError
from monolane.tune._recipe import Precision


def products_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """Return the type of the factors on ``device``; ``auto`` is bfloat16 on one made for it.

    BackendError where bfloat16 is asked for on a GPU that has no unit for it.
    """
    if device.type == "cpu":
        fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    else:
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        if precision == "bfloat16" and not fast:
            raise BackendError(
                "precision: expected auto or float32 on this GPU, which multiplies no bfloat16, "
                "got bfloat16; leave it out, or train with --device cpu"
            )
    wanted = precision == "bfloat16" or (precision == "auto" and fast)
    return torch.bfloat16 if wanted else torch.float32
