"""How config.json and GGUF files spell Mamba-2, in the families that have it."""

from typing import Any

import numpy as np

from monolane.model._fields import Fields
from monolane.ops import Role
from monolane.ops.mamba.spec import Mamba

# What config.json calls layers with Mamba-2, and layers that attend: in earlier files, and as
# Transformers 5 writes it.
MAMBA, ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")
_TENSORS = {
    Role.MAMBA_IN: "in_proj.weight",
    Role.MAMBA_CONV: "conv1d.weight",
    Role.MAMBA_CONV_BIAS: "conv1d.bias",
    Role.MAMBA_DECAY: "A_log",
    Role.MAMBA_STEP: "dt_bias",
    Role.MAMBA_SKIP: "D",
    Role.MAMBA_NORM: "norm.weight",
    Role.MAMBA_OUT: "out_proj.weight",
}
# Keys of GGUF files. How wide all heads are is "mamba_d_ssm", as Falcon-H1 calls it.
GGUF_KEYS = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
    "ssm.inner_size": "mamba_d_ssm",
}
_UNLIMITED = ((0, float("inf")), (0, {"__float__": "Infinity"}))  # as Transformers 5 writes it


def mamba_names(prefix: str) -> dict[Role, str]:
    """Return the names of its tensors in folders."""
    return {role: prefix + name for role, name in _TENSORS.items()}


def read_mamba(fields: Fields, **others: Any) -> Mamba:
    """Read the sizes; ``others`` are fields of ``Mamba`` that a family has words of its own for.

    ConfigError names the field that is missing, wrong or not computed.
    """
    check_steps(fields)
    fields.fixed("mamba_proj_bias", False, "executors have no biases of these products")
    inner = fields.size("mamba_d_ssm", 0) or fields.size("mamba_expand", 2) * fields.size(
        "hidden_size"
    )
    heads = fields.size("mamba_n_heads", 128)
    said = fields.raw.get("mamba_d_head")
    head = max(inner // heads, 1) if said in (None, "auto") else fields.size("mamba_d_head")
    if heads * head != inner:
        raise fields.fault("mamba_n_heads", f"a number of heads of {head} that are {inner} wide")
    return Mamba(
        heads=heads,
        head=head,
        groups=fields.size("mamba_n_groups", 1),
        state_size=fields.size("mamba_d_state", 256),
        kernel=fields.size("mamba_d_conv", 4),
        conv_bias=fields.flag("mamba_conv_bias", True),
        **others,
    )


def check_steps(fields: Fields) -> None:
    """Refuse limits of the steps, which Transformers heeds in prompts and not behind them."""
    said = fields.raw.get("time_step_limit")
    plain = tuple(said) if isinstance(said, list | tuple) else said
    if plain is not None and plain not in _UNLIMITED:
        raise fields.fault("time_step_limit", "null, or 0 to infinity: steps are not limited")


def write_mamba(mamba: Mamba, hidden: int) -> dict[str, Any]:
    """Write what ``read_mamba`` reads; ConfigError where the family has no word for a size."""
    return {
        "mamba_n_heads": mamba.heads,
        "mamba_d_head": mamba.head,
        "mamba_n_groups": mamba.groups,
        "mamba_d_state": mamba.state_size,
        "mamba_d_conv": mamba.kernel,
        "mamba_expand": max(mamba.columns // hidden, 1),
        "mamba_conv_bias": mamba.conv_bias,
        "mamba_proj_bias": False,
    }


def by_layer(fields: Fields, name: str, count: int) -> list[int]:
    """Read a size of a GGUF file that it has for each layer, 0 where there is none."""
    said = fields.raw.get(name)
    found: list[Any] = said.tolist() if isinstance(said, np.ndarray) else [said] * count
    known = all(type(x) is int and x >= 0 for x in found) and len(found) == count
    if not known or len({x for x in found if x}) > 1:
        raise fields.fault(name, f"a list of {count}, one a layer: 0, or the same size")
    return found
