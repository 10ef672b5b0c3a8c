"""Model folders as compressed-tensors, GPTQ and AWQ write them: packed number by number.

Written from the published layouts (src/monolane/model/_quant_foreign_unpack.py names them), with
nothing of the reader. What is packed is drawn at random first, so that a test knows the numbers
that are meant.
"""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from monolane.model import Role, parse_config, tensor_specs, write_checkpoint
from monolane.ops import Kind

# Shapes without a symmetry: 128 columns or 192; 64, 128, 192 or 97 rows.
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "torch_dtype": "float16",
}
CT: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "sparsity_config": {},
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "input_activations": None,
            "output_activations": None,
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": 32,
                "dynamic": False,
                "actorder": None,
            },
        }
    },
}
GPTQ: dict[str, Any] = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 64,
    "sym": True,
    "desc_act": False,
}
AWQ: dict[str, Any] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 64,
    "zero_point": True,
    "version": "gemm",
}


def ct(form: str = "pack-quantized", **weights: Any) -> dict[str, Any]:
    group = CT["config_groups"]["group_0"]
    changed = group | {"weights": group["weights"] | weights}
    return CT | {"format": form, "config_groups": {"group_0": changed}}


SCHEMES = {
    "ct int4, groups of 32": ct(),
    "ct int4, groups of 64": ct(group_size=64, actorder="weight"),
    "ct int4, rows": ct(strategy="channel", group_size=None),
    "ct int4, zero points": ct(symmetric=False),
    "ct int8 packed, groups of 64": ct(num_bits=8, group_size=64),
    "ct int8, rows": ct("int-quantized", num_bits=8, strategy="channel", group_size=None),
    "ct int8, one scale": ct("int-quantized", num_bits=8, strategy="tensor", group_size=None),
    "gptq": GPTQ,
    "gptq, rows": GPTQ | {"group_size": -1, "desc_act": True},
    "gptq, zero points": GPTQ | {"sym": False},
    "gptq v2": GPTQ | {"checkpoint_format": "gptq_v2"},
    "gptq v2, zero points": GPTQ | {"checkpoint_format": "gptq_v2", "sym": False},
    "gptq, 8 bits": GPTQ | {"bits": 8},
    "awq": AWQ,
    "awq, first names": {
        "quant_method": "awq",
        "w_bit": 4,
        "q_group_size": 32,
        "zero_point": True,
        "version": "GEMM",
    },
}
COSTLY = ("ct int4, zero points", "gptq, zero points", "gptq v2, zero points")


def words(codes: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """Unsigned codes [n, m] in int32 words, the first (or that of ``order``) in the lowest bits."""
    each = 32 // bits
    order = order or tuple(range(each))
    found = np.zeros((codes.shape[0], codes.shape[1] // each), np.uint32)
    for place, which in enumerate(order):
        found |= codes[:, which::each].astype(np.uint32) << np.uint32(bits * place)
    return found.view(np.int32)


class Drawn:
    """The numbers of one matrix [R, K], and what each tool writes of them."""

    def __init__(self, scheme: dict[str, Any], shape: tuple[int, int], rng: Any) -> None:
        self.scheme = scheme
        method = scheme["quant_method"]
        says = scheme["config_groups"]["group_0"]["weights"] if "config_groups" in scheme else {}
        says = {**scheme, **says}
        self.bits = int(says.get("bits", says.get("w_bit", says.get("num_bits", 0))))
        group = says.get("group_size", says.get("q_group_size"))
        self.group = shape[1] if group in (None, -1) else group
        rows, columns = shape
        groups = columns // self.group
        self.one_scale = says.get("strategy") == "tensor"
        symmetric = method != "awq" and says.get("sym", says.get("symmetric", True))
        top = 1 << self.bits
        self.codes = rng.integers(0, top, shape)
        self.zeros = (
            np.full((rows, groups), top // 2) if symmetric else rng.integers(0, top, (rows, groups))
        )
        size = 0.15 * 4 / top  # so that the weights are some tenths
        scales = rng.uniform(0.5 * size, 2 * size, (rows, groups))
        kind = ml_dtypes.bfloat16 if method == "compressed-tensors" else np.float16
        self.scales = scales.astype(kind)
        if self.one_scale:
            self.scales[...] = self.scales[0, 0]

    @property
    def meant(self) -> np.ndarray:
        """The weights, float32 [R, K]: every product is exact in float32."""
        wide = np.repeat(self.zeros, self.group, axis=1)
        scales = np.repeat(self.scales.astype(np.float32), self.group, axis=1)
        found: np.ndarray = (self.codes - wide).astype(np.float32) * scales
        return found

    def tensors(self, name: str) -> dict[str, np.ndarray]:
        """What the tool writes for the module ``name``."""
        method = self.scheme["quant_method"]
        if method == "compressed-tensors":
            found = self._compressed_tensors()
        elif method == "awq":
            order = (0, 2, 4, 6, 1, 3, 5, 7)
            found = {
                "qweight": words(self.codes.T, 4, order),
                "qzeros": words(self.zeros.T, 4, order),
                "scales": self.scales.T,
            }
        else:
            stored = self.zeros.T
            if self.scheme.get("checkpoint_format") != "gptq_v2":
                stored = (stored - 1) % (1 << self.bits)
            found = {
                "qweight": words(self.codes, self.bits).T,
                "qzeros": words(stored, self.bits),
                "scales": self.scales.T,
                "g_idx": (np.arange(self.codes.shape[1]) // self.group).astype(np.int32),
            }
        return {f"{name}.{part}": np.ascontiguousarray(x) for part, x in found.items()}

    def _compressed_tensors(self) -> dict[str, np.ndarray]:
        scales = self.scales[0, :1] if self.one_scale else self.scales
        if self.scheme["format"] == "int-quantized":
            codes = (self.codes - 128).astype(np.int8)
            return {"weight": codes, "weight_scale": scales}
        found = {
            "weight_packed": words(self.codes, self.bits),
            "weight_scale": scales,
            "weight_shape": np.array(self.codes.shape, np.int64),
        }
        if not self.scheme["config_groups"]["group_0"]["weights"]["symmetric"]:
            found["weight_zero_point"] = words(self.zeros.T, self.bits).T
        return found


def write_folder(folder: Path, scheme: dict[str, Any], **changes: Any) -> dict[str, np.ndarray]:
    """A folder as the tool writes it, lm_head as floats; return the float model that is meant."""
    folder.mkdir(parents=True)
    raw = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(raw | {"quantization_config": scheme}))
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    meant: dict[str, np.ndarray] = {}
    for spec in tensor_specs(parse_config(raw)):
        if spec.role.kind is Kind.MATRIX and spec.role is not Role.HEAD:
            drawn = Drawn(scheme, spec.shape, rng)  # type: ignore[arg-type]
            tensors |= drawn.tensors(spec.name.removesuffix(".weight"))
            meant[spec.name] = drawn.meant
        else:
            plain = rng.normal(scale=0.3, size=spec.shape).astype(np.float16)
            tensors[spec.name] = plain
            meant[spec.name] = plain.astype(np.float32)
    write_checkpoint(folder, tensors.items())
    return meant
