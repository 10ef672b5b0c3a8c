"""How much arithmetic a token costs in training, and what a device could do: for MFU.

Model FLOPs only (PaLM, 2022): what the mathematics needs, not what activation checkpointing does
again. A multiplication and an addition count as two.
"""

import torch

from monolane.hf import LaneformerConfig

# Dense 16-bit tensor-core peaks from the vendors' data sheets, FLOP/s, without sparsity. The name
# as torch.cuda.get_device_name() gives it must contain the key; longer keys are tried first.
PEAKS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "MI355X": 2500e12,
    "MI325X": 1307e12,
    "MI300X": 1307e12,
    "MI250X": 383e12,
}


def peak_flops(device: torch.device) -> float | None:
    """Return a device's peak in FLOP/s for 16-bit products, or None where it is not known."""
    return None if device.type != "cuda" else peak_of(torch.cuda.get_device_name(device))


def peak_of(name: str) -> float | None:
    """Return the peak of a device by its name, in FLOP/s, or None."""
    keys = sorted(PEAKS, key=len, reverse=True)
    return next((PEAKS[key] for key in keys if key.lower() in name.lower()), None)


def matrix_weights(config: LaneformerConfig) -> int:
    """Return the weights that every token is multiplied with: all but the embedding and norms."""
    width, head = config.hidden_size, config.head_dim
    attention = width * head * (2 * config.num_attention_heads + 2 * config.num_key_value_heads)
    layer = attention + 3 * width * config.intermediate_size
    inputs = width * (config.num_lanes if config.lm_head_type == "lane" else 1)
    return config.num_hidden_layers * layer + config.vocab_size * inputs


def flops_per_token(config: LaneformerConfig, length: int) -> float:
    """Return the FLOPs of one trained token, forward and backward, in rows of ``length`` tokens.

    Six per weight, and for attention twelve per channel and key seen: two products of two FLOPs,
    three times. Keys are those that the causal mask and the window leave, of the whole row:
    document masks leave fewer, so MFU with them is a little too high, never too low a cost.
    """
    keys = 0.0
    for kind in config.layer_types:
        window = config.sliding_window if kind == "sliding_attention" else length
        keys += mean_keys(length, min(window or length, length))
    return 6.0 * matrix_weights(config) + 12.0 * config.hidden_size * keys


def mean_keys(length: int, window: int) -> float:
    """Return how many keys a query sees on average in a row, itself included."""
    return window - window * (window - 1) / (2 * length)
