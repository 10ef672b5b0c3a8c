"""Transformers' logits of a model, to hold ours against."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from monolane.errors import ConfigError, MissingExtraError
from monolane.model import ModelConfig, is_gguf, read_json_object

Logits = npt.NDArray[np.float32]
LogitsOf = Callable[[Sequence[int]], Logits]


def transformers_logits(
    path: Path, config: ModelConfig, trust_remote_code: bool = False
) -> LogitsOf:
    """Load a model in Transformers, in float32, and return its logits of token ids.

    Transformers' own code for a dense model; monolane's for a Laneformer, or that in its folder.
    ConfigError: a file or codes that Transformers cannot read; CheckpointError: it did not find
    each weight there, or left some out; MissingExtraError: it is not installed.
    """
    scheme = config.quantization
    if scheme is not None and scheme.packing is None:
        raise ConfigError(
            f"{path}: expected float weights for Transformers, got {scheme.bits}-bit codes, which "
            "it cannot read; compare with the folder that was quantised"
        )
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise MissingExtraError("comparing with Transformers", "hf") from None
    from monolane.hf import LaneformerForCausalLM, load_whole

    if is_gguf(path):
        try:
            loaded = load_whole(
                AutoModelForCausalLM, path.parent, gguf_file=path.name, dtype=torch.float32
            )
        except (ValueError, KeyError, ImportError, RuntimeError) as error:
            raise ConfigError(
                f"{path}: expected a .gguf file that Transformers reads too, got: "
                f"{str(error).splitlines()[0]}; 'monolane export' makes a folder, which it may read"
            ) from None
    elif config.family != "laneformer":
        # An embedding scale is rounded to the checkpoint's dtype: Transformers does so on loading.
        dtype = getattr(torch, config.dtype) if config.embedding_scale != 1 else torch.float32
        loaded = load_whole(AutoModelForCausalLM, path, dtype=dtype).float()
    elif not trust_remote_code:
        loaded = load_whole(LaneformerForCausalLM, path, dtype=torch.float32)
    elif code := _own_code(path):
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        # Not by the Auto class: it takes monolane's code, which is registered for this type.
        theirs = get_class_from_dynamic_module(code, str(path))
        loaded = load_whole(theirs, path, dtype=torch.float32)
    else:
        raise ConfigError(
            f"{path}/config.json: expected an auto_map to the folder's own modeling code, got "
            "none; run without --trust-remote-code to compare with monolane's"
        )
    loaded.eval()

    def logits(ids: Sequence[int]) -> Logits:
        with torch.no_grad():
            row: Logits = loaded(torch.tensor([list(ids)]), use_cache=False).logits[0].numpy()
        return row

    return logits


def _own_code(path: Path) -> str:
    """Return the name of the class in a folder's own modeling code; empty where there is none."""
    named = read_json_object(path / "config.json").get("auto_map", {})
    return str(named.get("AutoModelForCausalLM", "")) if isinstance(named, dict) else ""
