"""What each operation says of itself, written out: no number of a spec can change unseen.

Sizes are odd and unequal, so that no two of them can be mistaken for each other.
"""

from typing import Any

import pytest

from monolane.ops import (
    Attention,
    Delta,
    Experts,
    Index,
    Latent,
    Mlp,
    Operation,
    QkNorm,
    Role,
    Room,
    State,
    operations,
)
from monolane.ops.ahead.spec import Ahead
from monolane.ops.compressed.spec import Compressed, Compressor
from monolane.ops.conv.spec import Conv
from monolane.ops.kda.spec import Kda
from monolane.ops.laurel.spec import Laurel
from monolane.ops.mamba.spec import Mamba
from monolane.ops.per_layer.spec import PerLayer
from monolane.ops.sparse_mlp.spec import SparseMlp

HIDDEN = 10
ONE = Room(lanes=1, hidden=HIDDEN, width=5, context=40, workers=3, group_lanes=1)
TWO = Room(lanes=2, hidden=HIDDEN, width=5, context=40, workers=3, group_lanes=1)
ATTENTION: dict[str, Any] = {
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 6,
    "window": 7,
    "rotary": "local",
    "qk_norm": QkNorm.ALL,
    "bias": True,
    "out_bias": True,
    "sinks": True,
    "gate": False,
    "scale": 0.5,
    "latent": None,
}
PLAIN: dict[str, Any] = {"bias": False, "out_bias": False, "sinks": False}
GATED = {**PLAIN, "qk_norm": QkNorm.HEAD, "gate": True, "window": None, "rotary": "none"}
LATENT = {**PLAIN, "heads": 3, "kv_heads": 3, "head_dim": 11, "qk_norm": None, "rotary": "main"}
SIZES = Latent(rank=10, query_rank=9, plain=7, turned=4, value=5)
SIGMOID: dict[str, Any] = {"scores": "sigmoid", "corrected": True, "groups": 3, "group_best": 2}
SHARED: dict[str, Any] = {"shared": 13, "shared_expert_gate": True, "scale": 2.5}

COMPRESSED: dict[str, Any] = {
    "heads": 6,
    "width": 8,
    "turned": 4,
    "query_rank": 7,
    "window": 11,
    "groups": 3,
    "group_rank": 5,
}
PLAIN_MAMBA: dict[str, Any] = {
    "heads": 5,
    "head": 4,
    "groups": 1,
    "state_size": 6,
    "kernel": 3,
    "conv_bias": False,
    "normed": False,
    "scale": 2.0,
    "gate_scale": 0.5,
    "input_scale": 0.25,
    "write_scale": 4.0,
    "read_scale": 0.125,
    "step_scale": 8.0,
}

CASES: dict[str, tuple[Operation, Room]] = {
    "attention": (Attention(**ATTENTION), TWO),
    "gated": (Attention(**ATTENTION | GATED), TWO),
    "keys of layer 2": (Attention(**ATTENTION | GATED | {"keys_of": 2}), TWO),
    "keys are values": (
        Attention(**ATTENTION | GATED, value_norm=True, key_is_value=True),
        TWO,
    ),
    "latent": (Attention(**ATTENTION | LATENT | {"latent": SIZES}), ONE),
    "latent with an index": (
        Attention(
            **ATTENTION | LATENT | {"latent": SIZES},
            index=Index(heads=5, width=6, chosen=7, style="half"),
        ),
        ONE,
    ),
    "compressed": (Compressed(**COMPRESSED), ONE),
    "compressed, entries": (Compressed(**COMPRESSED, compressor=Compressor(ratio=5)), ONE),
    "compressed, chosen entries": (
        Compressed(
            **COMPRESSED,
            compressor=Compressor(ratio=3, overlap=True, index_heads=2, index_width=9, chosen=8),
        ),
        ONE,
    ),
    "experts that are told": (
        Experts(6, 2, 11, normalised=True, scores="sqrtsoftplus", limit=3.0, table=50),
        ONE,
    ),
    "delta": (Delta(key_heads=2, value_heads=6, key=5, value=7, kernel=4), ONE),
    "experts": (
        Experts(
            6,
            2,
            11,
            normalised=True,
            biases=True,
            chosen_groups=2,
            activation="clamped_swiglu",
            router_norm=True,
            each_scaled=True,
            **SIGMOID,
            **SHARED,
        ),
        ONE,
    ),
    "laurel": (Laurel(rank=3), ONE),
    "sparse_mlp": (SparseMlp(inner=14, sparsity=0.5, activation="gelu_tanh"), ONE),
    "mlp": (Mlp(inner=14, activation="gelu_tanh", gate_scale=0.5), TWO),
    "mlp without a gate": (Mlp(inner=14, activation="relu_squared"), ONE),
    "experts without gates": (
        Experts(6, 2, 11, normalised=True, shared=13, activation="relu_squared"),
        ONE,
    ),
    "mamba": (Mamba(heads=12, head=7, groups=2, state_size=5, kernel=4), ONE),
    "mamba without a norm": (Mamba(**PLAIN_MAMBA), ONE),
    "conv": (Conv(channels=32, taps=4), ONE),
    "ahead": (Ahead(width=10), ONE),
    "kda": (Kda(heads=3, width=4, kernel=4), ONE),
    "per_layer": (PerLayer(inner=7, layers=3, rows=50, activation="gelu_tanh"), ONE),
}
PLAIN_COMPRESSED: dict[str, tuple[int, ...]] = {
    "q_down": (1, 7, 10),
    "q_norm": (1, 7),
    "q": (1, 48, 7),
    "kv_down": (1, 8, 10),
    "k_norm": (1, 8),
    "sinks": (1, 6),
    "o_down": (1, 15, 16),
    "o": (1, 10, 15),
}
TENSORS: dict[str, dict[str, tuple[int, ...]]] = {
    "attention": {
        "q": (2, 24, 10),
        "k": (2, 12, 10),
        "v": (2, 12, 10),
        "q_bias": (2, 24),
        "k_bias": (2, 12),
        "v_bias": (2, 12),
        "q_norm": (1, 48),
        "k_norm": (1, 24),
        "sinks": (2, 4),
        "o": (2, 10, 24),
        "o_bias": (1, 10),
    },
    "gated": {
        "q": (2, 48, 10),
        "k": (2, 12, 10),
        "v": (2, 12, 10),
        "q_norm": (1, 6),
        "k_norm": (1, 6),
        "o": (2, 10, 24),
    },
    "keys of layer 2": {"q": (2, 48, 10), "q_norm": (1, 6), "o": (2, 10, 24)},
    "keys are values": {
        "q": (2, 48, 10),
        "k": (2, 12, 10),
        "q_norm": (1, 6),
        "k_norm": (1, 6),
        "o": (2, 10, 24),
    },
    "latent": {
        "q_down": (1, 9, 10),
        "kv_down": (1, 14, 10),
        "q": (1, 33, 9),
        "q_norm": (1, 9),
        "k_norm": (1, 10),
        "k_up": (3, 10, 7),
        "v_up": (3, 5, 10),
        "kv_up": (1, 36, 10),
        "o": (1, 10, 15),
    },
    "latent with an index": {
        "q_down": (1, 9, 10),
        "kv_down": (1, 14, 10),
        "q": (1, 33, 9),
        "q_norm": (1, 9),
        "k_norm": (1, 10),
        "k_up": (3, 10, 7),
        "v_up": (3, 5, 10),
        "kv_up": (1, 36, 10),
        "index_q": (1, 30, 9),
        "index_k": (1, 6, 10),
        "index_norm": (1, 6),
        "index_norm_bias": (1, 6),
        "index_weights": (1, 5, 10),
        "o": (1, 10, 15),
    },
    "compressed": PLAIN_COMPRESSED,
    "compressed, entries": {
        **PLAIN_COMPRESSED,
        "compress_kv": (1, 8, 10),
        "compress_gate": (1, 8, 10),
        "compress_bias": (1, 5, 8),
        "compress_norm": (1, 8),
    },
    "compressed, chosen entries": {
        **PLAIN_COMPRESSED,
        "compress_kv": (1, 16, 10),
        "compress_gate": (1, 16, 10),
        "compress_bias": (1, 3, 16),
        "compress_norm": (1, 8),
        "index_kv": (1, 18, 10),
        "index_gate": (1, 18, 10),
        "index_bias": (1, 3, 18),
        "index_kv_norm": (1, 9),
        "index_q": (1, 18, 7),
        "index_weights": (1, 2, 10),
    },
    "experts that are told": {
        "router": (1, 6, 10),
        "expert_table": (1, 50, 2),
        "expert_gate": (1, 11, 10),
        "expert_up": (1, 11, 10),
        "expert_down": (1, 10, 11),
    },
    "delta": {
        "delta_qkv": (1, 62, 10),
        "delta_z": (1, 42, 10),
        "delta_in": (1, 104, 10),
        "delta_gates": (1, 12, 10),
        "delta_beta": (1, 6, 10),
        "delta_alpha": (1, 6, 10),
        "delta_conv": (1, 62, 1, 4),
        "delta_decay": (1, 6),
        "delta_step": (1, 6),
        "delta_norm": (1, 7),
        "delta_out": (1, 10, 42),
    },
    "experts": {
        "router_norm": (1, 10),
        "router": (1, 6, 10),
        "expert_scales": (1, 6),
        "router_bias": (1, 6),
        "router_correction": (1, 6),
        "expert_gate": (1, 11, 10),
        "expert_up": (1, 11, 10),
        "expert_down": (1, 10, 11),
        "expert_gate_bias": (1, 6, 11),
        "expert_up_bias": (1, 6, 11),
        "expert_down_bias": (1, 6, 10),
        "shared_gate": (1, 13, 10),
        "shared_up": (1, 13, 10),
        "shared_down": (1, 10, 13),
        "shared_expert_gate": (1, 10),
    },
    "laurel": {"laurel_left": (1, 3, 10), "laurel_right": (1, 10, 3), "laurel_norm": (1, 10)},
    "sparse_mlp": {"gate": (1, 14, 10), "up": (1, 14, 10), "down": (1, 10, 14)},
    "mlp": {"gate": (2, 7, 10), "up": (2, 7, 10), "down": (2, 10, 7)},
    "kda": {
        "q": (1, 12, 10),
        "k": (1, 12, 10),
        "v": (1, 12, 10),
        "kda_decay_down": (1, 4, 10),
        "kda_gate_down": (1, 4, 10),
        "kda_beta": (1, 3, 10),
        "kda_decay_up": (1, 12, 4),
        "kda_gate_up": (1, 12, 4),
        "kda_q_conv": (1, 12, 1, 4),
        "kda_k_conv": (1, 12, 1, 4),
        "kda_v_conv": (1, 12, 1, 4),
        "kda_decay": (1, 1, 1, 3, 1),
        "kda_step": (1, 12),
        "kda_norm": (1, 4),
        "o": (1, 10, 12),
    },
    "mlp without a gate": {"up": (1, 14, 10), "down": (1, 10, 14)},
    "experts without gates": {
        "router": (1, 6, 10),
        "expert_up": (1, 11, 10),
        "expert_down": (1, 10, 11),
        "shared_up": (1, 13, 10),
        "shared_down": (1, 10, 13),
    },
    "mamba": {
        "mamba_in": (1, 200, 10),
        "mamba_conv": (1, 104, 1, 4),
        "mamba_conv_bias": (1, 104),
        "mamba_decay": (1, 12),
        "mamba_step": (1, 12),
        "mamba_skip": (1, 12),
        "mamba_norm": (1, 84),
        "mamba_out": (1, 10, 84),
    },
    "mamba without a norm": {
        "mamba_in": (1, 57, 10),
        "mamba_conv": (1, 32, 1, 3),
        "mamba_decay": (1, 5),
        "mamba_step": (1, 5),
        "mamba_skip": (1, 5),
        "mamba_out": (1, 10, 20),
    },
    "ahead": {
        "ahead_token_norm": (1, 10),
        "ahead_state_norm": (1, 10),
        "ahead_in": (1, 10, 20),
    },
    "conv": {"conv_in": (1, 96, 10), "conv_taps": (1, 32, 1, 4), "conv_out": (1, 10, 32)},
    "per_layer": {"per_layer_gate": (1, 7, 10), "per_layer_out": (1, 10, 7)},
}
BUFFERS: dict[str, dict[str, tuple[int, ...]]] = {
    "attention": {
        "QUERY": (2, 5, 24),
        "KEY_VALUE": (2, 2, 40, 2, 6),
        "ATTENTION": (2, 3, 5, 4, 8),
        "UNNORMED": (2, 5, 36),
    },
    "gated": {
        "QUERY": (2, 5, 24),
        "KEY_VALUE": (2, 2, 40, 2, 6),
        "ATTENTION": (2, 3, 5, 4, 8),
        "QUERY_GATE": (2, 5, 24),
    },
    "keys of layer 2": {
        "QUERY": (2, 5, 24),
        "KEY_VALUE": (2, 2, 40, 2, 6),
        "ATTENTION": (2, 3, 5, 4, 8),
        "QUERY_GATE": (2, 5, 24),
    },
    "keys are values": {
        "QUERY": (2, 5, 24),
        "KEY_VALUE": (2, 2, 40, 2, 6),
        "ATTENTION": (2, 3, 5, 4, 8),
        "QUERY_GATE": (2, 5, 24),
    },
    "latent": {
        "QUERY": (1, 5, 42),
        "KEY_VALUE": (1, 1, 40, 1, 14),
        "ATTENTION": (1, 3, 5, 3, 16),
        "LATENTS": (1, 5, 23),
        "HEADS": (1, 5, 15),
    },
    "latent with an index": {
        "QUERY": (1, 5, 42),
        "KEY_VALUE": (1, 1, 40, 1, 14),
        "ATTENTION": (1, 3, 5, 3, 16),
        "LATENTS": (1, 5, 23),
        "HEADS": (1, 5, 15),
    },
    "compressed": {},
    "compressed, entries": {},
    "compressed, chosen entries": {},
    "experts that are told": {"ROUTED": (1, 5, 6), "HIDDEN": (1, 5, 22)},
    "delta": {"MIXED": (1, 5, 116), "HEADS": (1, 5, 42), "STATE": (2, 198)},
    "experts": {"ROUTED": (1, 5, 6), "HIDDEN": (1, 5, 35)},
    "laurel": {"HIDDEN": (1, 5, 3), "MIXED": (1, 5, 10)},
    "sparse_mlp": {"HIDDEN": (1, 5, 28)},
    "mlp": {"HIDDEN": (2, 5, 7)},
    "kda": {"MIXED": (1, 5, 47), "LATENTS": (1, 5, 24), "HEADS": (1, 5, 12), "STATE": (3, 52)},
    "mlp without a gate": {"HIDDEN": (1, 5, 14)},
    "experts without gates": {"ROUTED": (1, 5, 6), "HIDDEN": (1, 5, 35)},
    "mamba": {"MIXED": (1, 5, 200), "HEADS": (1, 5, 84), "STATE": (4, 198)},
    "mamba without a norm": {"MIXED": (1, 5, 57), "HEADS": (1, 5, 20), "STATE": (5, 56)},
    "ahead": {"STATES": (1, 5, 10)},
    "conv": {"MIXED": (1, 5, 96), "HEADS": (1, 5, 32), "STATE": (2, 48)},
    "per_layer": {"HIDDEN": (1, 5, 7), "PER_LAYER": (1, 5, 21)},
}
SHARED_TENSORS: dict[str, dict[str, tuple[int, ...]]] = {
    "per_layer": {
        "per_layer_embedding": (50, 21),
        "per_layer_projection": (1, 21, 10),
        "per_layer_norm": (1, 7),
    }
}
STATES = {
    "delta": State(parts=2, numbers=105, inputs=37, before=3),
    "kda": State(parts=3, numbers=16, inputs=17, before=3),
    "conv": State(parts=2, numbers=0, inputs=16, before=3),
    "mamba": State(parts=4, numbers=105, inputs=34, before=3),
    "mamba without a norm": State(parts=5, numbers=24, inputs=17, before=2),
}
# Floats, each piece rounded up to a cache line of 16.
SCRATCH = {
    "attention": 192,
    "gated": 192,
    "keys of layer 2": 192,
    "keys are values": 192,
    "latent": 384,
    "latent with an index": 384,
    "delta": 4848 + 112 + 32 + 16,
    "kda": 2240 + 16 + 48,
    "conv": 2096,
    "mamba": 4464 + 112 + 32 + 16,
    "mamba without a norm": 2224 + 32 + 16 + 16,
    "per_layer": 32,
}
NATIVE: dict[str, dict[str, dict[str, Any]]] = {
    "attention": {
        "attention": {
            "heads": 8,
            "kv_heads": 4,
            "head_dim": 6,
            "splits": 3,
            "keys_of": -1,
            "window": 7,
            "chunked": 0,
            "rotary": 1,
            "gate": 0,
            "qk_norm": 2,
            "norm_turned": 0,
            "qk_unscaled": 0,
            "value_norm": 0,
            "key_is_value": 0,
            "at_once": 12,
            "scale": 0.5,
            "cap": 0.0,
            "temperature": 0.0,
            "temperature_context": 1,
            "temperature_ahead": 0,
        }
    },
    "gated": {
        "attention": {
            "heads": 8,
            "kv_heads": 4,
            "head_dim": 6,
            "splits": 3,
            "keys_of": -1,
            "window": 0,
            "chunked": 0,
            "rotary": -1,
            "gate": 1,
            "qk_norm": 1,
            "norm_turned": 0,
            "qk_unscaled": 0,
            "value_norm": 0,
            "key_is_value": 0,
            "at_once": 12,
            "scale": 0.5,
            "cap": 0.0,
            "temperature": 0.0,
            "temperature_context": 1,
            "temperature_ahead": 0,
        }
    },
    "keys of layer 2": {
        "attention": {
            "heads": 8,
            "kv_heads": 4,
            "head_dim": 6,
            "splits": 3,
            "keys_of": 2,
            "window": 0,
            "chunked": 0,
            "rotary": -1,
            "gate": 1,
            "qk_norm": 1,
            "norm_turned": 0,
            "qk_unscaled": 0,
            "value_norm": 0,
            "key_is_value": 0,
            "at_once": 12,
            "scale": 0.5,
            "cap": 0.0,
            "temperature": 0.0,
            "temperature_context": 1,
            "temperature_ahead": 0,
        }
    },
    "keys are values": {
        "attention": {
            "heads": 8,
            "kv_heads": 4,
            "head_dim": 6,
            "splits": 3,
            "keys_of": -1,
            "window": 0,
            "chunked": 0,
            "rotary": -1,
            "gate": 1,
            "qk_norm": 1,
            "norm_turned": 0,
            "qk_unscaled": 0,
            "value_norm": 1,
            "key_is_value": 1,
            "at_once": 12,
            "scale": 0.5,
            "cap": 0.0,
            "temperature": 0.0,
            "temperature_context": 1,
            "temperature_ahead": 0,
        }
    },
    "latent": {
        "attention": {
            "heads": 3,
            "kv_heads": 1,
            "head_dim": 14,
            "splits": 3,
            "keys_of": -1,
            "window": 7,
            "chunked": 0,
            "rotary": 0,
            "gate": 0,
            "qk_norm": 0,
            "norm_turned": 0,
            "qk_unscaled": 0,
            "value_norm": 0,
            "key_is_value": 0,
            "at_once": 8,
            "scale": 0.5,
            "cap": 0.0,
            "temperature": 0.0,
            "temperature_context": 1,
            "temperature_ahead": 0,
        },
        "latent": {"rank": 10, "query_rank": 9, "norm_eps": 1e-6},
    },
    "delta": {
        "delta": {
            "key_heads": 2,
            "value_heads": 6,
            "key": 5,
            "value": 7,
            "kernel": 4,
            "tiled": 0,
        }
    },
    "experts": {
        "experts": {
            "count": 6,
            "chosen": 2,
            "inner": 11,
            "shared": 13,
            "activation": 2,
            "scores": 1,
            "normalised": 1,
            "groups": 3,
            "chosen_groups": 2,
            "group_best": 2,
            "scale": 2.5,
            "router_norm": 1,
            "weigh_inputs": 0,
        }
    },
    "laurel": {"laurel": {"rank": 3}},
    "compressed": {},
    "compressed, entries": {},
    "compressed, chosen entries": {},
    "experts that are told": {
        "experts": {
            "count": 6,
            "chosen": 2,
            "inner": 11,
            "shared": 0,
            "activation": 0,
            "scores": 2,
            "normalised": 1,
            "groups": 1,
            "chosen_groups": 1,
            "group_best": 1,
            "scale": 1.0,
            "router_norm": 0,
            "weigh_inputs": 0,
        }
    },
    "sparse_mlp": {"sparse_mlp": {"inner": 14, "deviations": 0.0, "activation": 1}},
    "kda": {"kda": {"heads": 3, "width": 4, "kernel": 4}},
    "mlp": {"mlp": {"inner": 14, "activation": 1, "gate_scale": 0.5}},
    "mlp without a gate": {"mlp": {"inner": 14, "activation": 3, "gate_scale": 1.0}},
    "experts without gates": {
        "experts": {
            "count": 6,
            "chosen": 2,
            "inner": 11,
            "shared": 13,
            "activation": 3,
            "scores": 0,
            "normalised": 1,
            "groups": 1,
            "chosen_groups": 1,
            "group_best": 1,
            "scale": 1.0,
            "router_norm": 0,
            "weigh_inputs": 0,
        }
    },
    "mamba": {
        "mamba": {
            "heads": 12,
            "head": 7,
            "groups": 2,
            "state": 5,
            "kernel": 4,
            "together": 3,
            "normed": 1,
            "gate_scale": 1.0,
            "input_scale": 1.0,
            "write_scale": 1.0,
            "read_scale": 1.0,
            "step_scale": 1.0,
        }
    },
    "mamba without a norm": {
        "mamba": {
            "heads": 5,
            "head": 4,
            "groups": 1,
            "state": 6,
            "kernel": 3,
            "together": 1,
            "normed": 0,
            "gate_scale": 1.0,
            "input_scale": 0.5,
            "write_scale": 8.0,
            "read_scale": 0.25,
            "step_scale": 16.0,
        }
    },
    "ahead": {"ahead": {"width": 10}},
    "conv": {"conv": {"channels": 32, "taps": 4, "parts": 2}},
    "per_layer": {"per_layer": {"inner": 7, "layers": 3, "rows": 50, "activation": 1}},
}
NATIVE["latent with an index"] = NATIVE["latent"]  # which no native executor computes
PARAMETERS = {
    "attention": 1626,
    "gated": 1932,
    "keys of layer 2": 1446,
    "keys are values": 1692,
    "latent": 1056,
    "latent with an index": 1056 + 270 + 60 + 2 * 6 + 50,
    "compressed": 897,
    "compressed, entries": 897 + 2 * 80 + 40 + 8,
    "compressed, chosen entries": 897 + 2 * 160 + 48 + 8 + 2 * 180 + 54 + 9 + 126 + 20,
    "experts that are told": 60 + 100 + 6 * 330,
    "delta": 1847,
    "experts": 2660,
    "laurel": 70,
    "sparse_mlp": 420,
    "mlp": 420,
    "kda": 849,
    "mlp without a gate": 280,
    "experts without gates": 60 + 6 * 220 + 260,
    "mamba": 2000 + 416 + 104 + 3 * 12 + 84 + 840,
    "mamba without a norm": 570 + 96 + 3 * 5 + 200,
    "ahead": 220,
    "conv": 1408,
    "per_layer": 140,
}


@pytest.mark.parametrize("name", CASES)
def test_each_number_of_a_spec(name: str) -> None:
    operation, room = CASES[name]
    tensors = operation.tensors(HIDDEN, room.lanes)
    assert {str(role): shape for role, shape in tensors.items()} == TENSORS[name]
    assert list(tensors) == [Role(role) for role in TENSORS[name]], "the order of a pass"
    buffers = operation.buffers(room).items()
    assert {x.name: shape for x, shape in buffers if 0 not in shape} == BUFFERS[name]
    assert operation.state() == STATES.get(name)
    assert operation.native(room) == NATIVE[name]
    assert operation.scratch(room) == SCRATCH.get(name, 0)
    assert operation.parameters(HIDDEN) == PARAMETERS[name]
    assert {str(x): y for x, y in operation.outer(HIDDEN).items()} == SHARED_TENSORS.get(name, {})


def test_every_operation_is_written_out() -> None:
    assert {type(operation) for operation, _ in CASES.values()} == set(operations())


@pytest.mark.parametrize("operation", operations())
def test_native_structs_are_whole(operation: type[Operation]) -> None:
    """Each field of a struct is filled in by an operation that has it."""
    filled: dict[str, set[str]] = {}
    for x, room in CASES.values():
        for name, values in x.native(room).items() if type(x) is operation else ():
            filled.setdefault(name, set()).update(values)
    wanted = {name: {x.name for x in struct.fields} for name, struct in operation.structs.items()}
    assert filled == wanted
