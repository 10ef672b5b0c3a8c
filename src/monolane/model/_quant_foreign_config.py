"""What config.json says of a matrix that another tool quantised, such as GPTQ, AWQ or MLX.

Only what maps exactly onto int4 or int8 in groups of 32 (``_quant_foreign_unpack.py`` does it), or
onto GGUF's blocks (``_mlx.py``, ``_mxfp4.py``, ``_nvfp4.py``), is read; all else is refused here,
by the field's name, before a weight is touched. Fields and their meaning:
github.com/vllm-project/compressed-tensors (quantization/quant_args.py, config/base.py),
github.com/ModelCloud/GPTQModel (quantization/config.py), github.com/casper-hansen/AutoAWQ
(awq/models/_config.py), github.com/NVIDIA/Model-Optimizer (torch/export) and
github.com/ml-explore/mlx-lm (mlx_lm/utils.py).
"""

from dataclasses import dataclass, replace
from typing import Literal

from monolane.errors import ConfigError
from monolane.model._fields import Fields

Layout = Literal["packed rows", "int8 rows", "gptq", "awq", "mxfp4", "nvfp4", "mlx"]
# GGUF's blocks that hold MLX's codes, by their bits. Of 6 bits with a bias there are none.
_MLX_FORMATS = {2: "q4_1", 3: "q4_1", 4: "q4_1", 5: "q5_1", 8: "q8_0"}
METHODS = ("compressed-tensors", "gptq", "awq", "modelopt", "mxfp4", "fp8")

ADVICE = "; take the model's unquantised weights and run 'monolane quantize' on them"
SHARED_SCALE = 32  # columns of a row that share a scale in our own formats

# Of models such as DeepSeek-V3 no wider weights were published.
_SMALL_FLOATS = "its weights are 8-bit floats; take a copy in BF16 or a .gguf file of the model"
# What stands in the way of schemes that users ask for; what to do instead, if it is not ``ADVICE``.
_REFUSED = {
    "aqlm": "its codes name vectors of a codebook, they are no numbers",
    "bitsandbytes": "its codes name the places of a table (NF4, FP4), they are no numbers",
    "exl2": "its columns are reordered, and its bits differ from row to row",
    "fbgemm_fp8": _SMALL_FLOATS,
    "hqq": "its scales and zero points are no float16 of 32 columns",
    "quanto": "its folders are pickles",
    "torchao": "its folders are pickles",
}


@dataclass(frozen=True, slots=True)
class Packing:
    """How the files hold a matrix [R, K] of codes, where that is not monolane's own way.

    A weight is (code - zero point) * scale; ``layout`` says in which tensors these lie.
    """

    method: str  # as quant_method spells it
    layout: Layout
    bits: int  # of a code in the file
    group: int | None  # columns of a row that share a scale; None: all of them
    symmetric: bool  # the zero point is half the range everywhere
    zero_shift: int = 0  # added to a stored zero point: the first GPTQ format stores it less one
    overrides: tuple[tuple[str, "Packing"], ...] = ()  # of single matrices, without ".weight"

    @property
    def block_format(self) -> str:
        """The format of GGUF's blocks that are made of it; "" where codes of ours are."""
        if self.layout == "mlx":
            return _MLX_FORMATS[self.bits]
        return self.layout if self.layout in ("mxfp4", "nvfp4") else ""

    def of(self, name: str) -> "Packing":
        """Return how a matrix is packed, by the name of its tensor of floats."""
        return dict(self.overrides).get(name.removesuffix(".weight"), self)

    @property
    def kept_bits(self) -> int:
        """Bits of the codes that we make: 4-bit ones with zero points lie in -15 .. 15: int8."""
        if self.block_format:
            return 8 if self.bits == 8 else 4
        return 4 if self.bits == 4 and self.symmetric else 8


def parse_packing(fields: Fields) -> Packing:
    """Read a ``quantization_config`` of another tool; ConfigError for what is not exactly ours."""
    method = fields.raw.get("quant_method")
    if method == "compressed-tensors":
        return _compressed_tensors(fields)
    if method == "gptq":
        return _gptq(fields)
    if method == "awq":
        return _awq(fields)
    if method == "modelopt":
        return _modelopt(fields)
    if method is None and fields.has("bits") and fields.has("group_size"):
        return _mlx(fields)
    if method == "mxfp4":  # of experts; modules_to_not_convert is not asked for: the files tell
        return Packing("mxfp4", "mxfp4", 4, SHARED_SCALE, symmetric=True)
    known = ", ".join(map(repr, ("monolane", *METHODS)))
    why = f": {_REFUSED[method]}" if isinstance(method, str) and method in _REFUSED else ""
    advice = "" if why.endswith(_SMALL_FLOATS) else ADVICE
    raise fields.fault("quant_method", f"one of {known}", why + advice)


def _compressed_tensors(fields: Fields) -> Packing:
    groups = fields.nested("config_groups")
    if groups is None or not groups.raw:
        raise fields.fault("config_groups", "an object with a scheme in it", ADVICE)
    found = [_scheme(fields, groups, name) for name in groups.raw]
    if any(packing != found[0] for packing in found):
        raise ConfigError(
            f"{groups.source}: expected one scheme for all matrices, got {len(found)} that "
            f"differ{ADVICE}"
        )
    for name in ("kv_cache_scheme", "sparsity_config", "transform_config"):
        given = fields.nested(name)
        dense = {"format": "dense"}.items() >= (given.raw if given else {}).items()
        if given is not None and not dense:
            raise fields.fault(name, "null or an empty object", ADVICE)
    return found[0]


def _scheme(fields: Fields, groups: Fields, name: str) -> Packing:
    """Read one entry of ``config_groups``: what is quantised, and how."""
    scheme = groups.nested(name)
    if scheme is None:
        raise groups.fault(name, "an object")
    place = scheme if scheme.has("format") else fields  # newer files say it in each group
    if place.raw.get("format") == _NVFP4_FORMAT:
        return _nvfp4(scheme)
    for activations in ("input_activations", "output_activations"):
        if scheme.has(activations):
            why = "; here activations are rounded as the executor chooses, not by a scheme"
            raise scheme.fault(activations, "null: weights alone quantised", why + ADVICE)
    layouts: dict[str, Layout] = {"pack-quantized": "packed rows", "int-quantized": "int8 rows"}
    if place.raw.get("format") not in layouts:
        known = " or ".join(map(repr, (*layouts, _NVFP4_FORMAT)))
        raise place.fault("format", known, ADVICE)
    layout = layouts[place.raw["format"]]
    weights = scheme.nested("weights")
    if weights is None:
        raise scheme.fault("weights", "an object")
    if weights.raw.get("type", "int") != "int":
        raise weights.fault("type", "'int'", ADVICE)
    if weights.raw.get("actorder") not in (None, "weight", "static"):
        raise weights.fault("actorder", "null or 'weight'", f"; {_ACT_ORDER}{ADVICE}")
    if weights.flag("dynamic", False):
        raise weights.fault("dynamic", "false", ADVICE)
    bits = _bits(weights, "num_bits", (4, 8) if layout == "packed rows" else (8,))
    symmetric = _symmetric(weights, "symmetric", bits)
    strategy = weights.raw.get("strategy")
    if strategy in ("channel", "tensor"):
        return Packing("compressed-tensors", layout, bits, None, symmetric)
    if strategy != "group":
        raise weights.fault("strategy", "'group', 'channel' or 'tensor'", ADVICE)
    return Packing("compressed-tensors", layout, bits, _group(weights), symmetric)


_NVFP4_FORMAT = "nvfp4-pack-quantized"
_NVFP4_GROUP = 16


def _nvfp4(scheme: Fields) -> Packing:
    """Read a group of NVFP4. How it would round activations is not asked for.

    Executors round them to 8 bits and more, which keeps more of them than its 4 bits.
    """
    weights = scheme.nested("weights")
    if weights is None:
        raise scheme.fault("weights", "an object")
    if weights.raw.get("type", "float") != "float":
        raise weights.fault("type", "'float'", ADVICE)
    _bits(weights, "num_bits", (4,))
    if weights.raw.get("group_size", _NVFP4_GROUP) != _NVFP4_GROUP:
        raise weights.fault("group_size", f"{_NVFP4_GROUP}", ADVICE)
    return Packing("compressed-tensors", "nvfp4", 4, _NVFP4_GROUP, symmetric=True)


def _modelopt(fields: Fields) -> Packing:
    if fields.raw.get("quant_algo") != "NVFP4":
        raise fields.fault("quant_algo", "'NVFP4'", ADVICE)
    if fields.raw.get("group_size", _NVFP4_GROUP) != _NVFP4_GROUP:
        raise fields.fault("group_size", f"{_NVFP4_GROUP}", ADVICE)
    return Packing("modelopt", "nvfp4", 4, _NVFP4_GROUP, symmetric=True)


_ACT_ORDER = "with groups in another order than the columns, 32 neighbours have several scales"


def _gptq(fields: Fields) -> Packing:
    form = fields.raw.get("checkpoint_format") or "gptq"
    if form not in ("gptq", "gptq_v2"):
        raise fields.fault("checkpoint_format", "'gptq' or 'gptq_v2'", ADVICE)
    if fields.raw.get("dynamic"):
        raise fields.fault("dynamic", "null: one scheme for all matrices", ADVICE)
    fields.fixed("is_marlin_format", False, "matrices are tiled for one GPU's kernels" + ADVICE)
    bits = _bits(fields, "bits", (4, 8))
    # desc_act is not asked for: g_idx tells the groups' order, and is looked at when it is read.
    symmetric = _symmetric(fields, "sym", bits)
    return Packing("gptq", "gptq", bits, _group(fields), symmetric, int(form == "gptq"))


def _awq(fields: Fields) -> Packing:
    bits = _bits(fields, "bits" if fields.has("bits") else "w_bit", (4,))
    version = fields.first("version", "format")
    if str(fields.raw.get(version, "gemm")).lower() != "gemm":
        raise fields.fault(version, "'gemm', the usual order of the codes", ADVICE)
    fields.fixed("zero_point", True, "AWQ's folders have zero points" + ADVICE)
    return Packing("awq", "awq", bits, _group(fields, fields.first("group_size", "q_group_size")),
                   symmetric=False)  # fmt: skip


def _mlx(fields: Fields) -> Packing:
    """Read MLX's object, which names no method."""
    if fields.raw.get("mode", "affine") != "affine":
        raise fields.fault("mode", "'affine'", ADVICE)
    found = Packing("mlx", "mlx", _bits(fields, "bits", tuple(_MLX_FORMATS)), _group(fields),
                    symmetric=False)  # fmt: skip
    # Those of which false is said are floats, which the files tell.
    own = {name: fields.nested(name) for name, x in fields.raw.items() if isinstance(x, dict)}
    overrides = tuple((name, _mlx(said)) for name, said in own.items() if said is not None)
    return replace(found, overrides=overrides)


def _bits(fields: Fields, name: str, allowed: tuple[int, ...]) -> int:
    value = fields.raw.get(name)
    if type(value) is not int or value not in allowed:
        raise fields.fault(name, " or ".join(map(str, allowed)), ADVICE)
    return value


def _symmetric(fields: Fields, name: str, bits: int) -> bool:
    symmetric = fields.flag(name, True)
    if bits == 8 and not symmetric:
        why = "; 8-bit codes less their zero points do not fit 8 bits"
        raise fields.fault(name, "true with 8 bits", why + ADVICE)
    return symmetric


def _group(fields: Fields, name: str = "group_size") -> int | None:
    """Read how many columns share a scale; -1 means a whole row, in every one of these tools."""
    value = fields.raw.get(name)
    if value == -1 and type(value) is int:
        return None
    if type(value) is not int or value <= 0 or value % SHARED_SCALE:
        raise fields.fault(name, f"a multiple of {SHARED_SCALE}, or -1 for a whole row", ADVICE)
    return value
