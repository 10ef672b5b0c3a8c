"""What a model is: its config, the names and shapes of its tensors, and its files.

A leaf package: it imports no other. Executors read ``ModelConfig`` and ``Weights`` and need to know
nothing of families, config.json or safetensors.
"""

from monolane.model._adapter import Adapter, LowRank
from monolane.model._altup import IN as ALTUP_IN
from monolane.model._altup import OUT as ALTUP_OUT
from monolane.model._altup import STEPS as ALTUP_STEPS
from monolane.model._altup import AltUp
from monolane.model._assistant import (
    ASSISTANT_MATRICES,
    ASSISTANT_NORMS,
    Assistant,
    is_assistant,
)
from monolane.model._atomic_folder import check_place, check_replaceable, folder_aside, writing
from monolane.model._checkpoint import Checkpoint, find_shards, find_weights, write_checkpoint
from monolane.model._config import Head, ModelConfig, WeightDtype
from monolane.model._dflash import DFLASH_MATRICES, DFLASH_NORMS, Dflash, is_dflash
from monolane.model._draft_heads import Heads, check_heads, is_heads
from monolane.model._eagle import EAGLE_MATRICES, EAGLE_NORMS, Eagle, check_eagle, is_eagle
from monolane.model._features import COMMON_FEATURES
from monolane.model._fields import read_json_object
from monolane.model._formats import (
    ACTIVATIONS,
    CACHE_DTYPES,
    FORMATS,
    STORED,
    WeightFormat,
    find_cache_format,
    find_format,
    formats_header,
    formats_of,
)
from monolane.model._gguf import GgufFile
from monolane.model._gguf_model import GgufModel, is_gguf, read_config
from monolane.model._hyper import HYPER, HYPER_OUT, Hyper
from monolane.model._laneformer_folder import open_laneformer
from monolane.model._lanes import LaneCut, find_lanes, in_lanes, lane_cut
from monolane.model._layer_config import LayerConfig, ModuleConfig
from monolane.model._mapped_file import MappedFile
from monolane.model._markov import MarkovHead
from monolane.model._module import Module
from monolane.model._nextn import (
    check_nextn,
    is_nextn,
    nextn_config,
    open_nextn,
    paired,
    write_nextn,
)
from monolane.model._quant_config import Quantization
from monolane.model._quant_convert import (
    MatrixError,
    QuantizeReport,
    quantize_folder,
    repack_folder,
)
from monolane.model._quant_matrix import Blocks, Matrix, Quantized, quantize_matrix
from monolane.model._reduce import NEVER, NOW, Reduce
from monolane.model._rotary import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    PairScaling,
    PairStyle,
    Rotary,
    RotaryScaling,
    YarnScaling,
)
from monolane.model._rounding import rounded
from monolane.model._safetensors import PendingTensor, SafetensorsFile, write_safetensors
from monolane.model._shard_weights import cut_weights
from monolane.model._sidecar_files import LICENCE_FILES, copy_beside
from monolane.model._tensors import (
    JOINING_NORMS,
    Part,
    TensorSpec,
    lane_shape,
    layer_roles,
    norm_read_by,
    outer_roles,
)
from monolane.model._unpack import write_unpacked
from monolane.model._weights import Weights, matrix_formats
from monolane.model._weights_hash import digest
from monolane.model.families import ASSISTANTS, parse_config, render_config, tensor_specs
from monolane.ops import (
    EXPERT_ROLES,
    Attention,
    Delta,
    Experts,
    Index,
    Kind,
    Latent,
    LayerRotary,
    Mlp,
    Operation,
    QkNorm,
    Role,
    Temperature,
)

__all__ = [
    "ACTIVATIONS",
    "ALTUP_IN",
    "ALTUP_OUT",
    "ALTUP_STEPS",
    "ASSISTANTS",
    "ASSISTANT_MATRICES",
    "ASSISTANT_NORMS",
    "CACHE_DTYPES",
    "COMMON_FEATURES",
    "DFLASH_MATRICES",
    "DFLASH_NORMS",
    "EAGLE_MATRICES",
    "EAGLE_NORMS",
    "EXPERT_ROLES",
    "FORMATS",
    "HYPER",
    "HYPER_OUT",
    "JOINING_NORMS",
    "LICENCE_FILES",
    "NEVER",
    "NOW",
    "STORED",
    "Adapter",
    "AltUp",
    "Assistant",
    "Attention",
    "Blocks",
    "Checkpoint",
    "Delta",
    "Dflash",
    "Eagle",
    "Experts",
    "GgufFile",
    "GgufModel",
    "Head",
    "Heads",
    "Hyper",
    "Index",
    "Kind",
    "LaneCut",
    "Latent",
    "LayerConfig",
    "LayerRotary",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "LowRank",
    "MappedFile",
    "MarkovHead",
    "Matrix",
    "MatrixError",
    "Mlp",
    "ModelConfig",
    "Module",
    "ModuleConfig",
    "Operation",
    "PairScaling",
    "PairStyle",
    "Part",
    "PendingTensor",
    "QkNorm",
    "Quantization",
    "QuantizeReport",
    "Quantized",
    "Reduce",
    "Role",
    "Rotary",
    "RotaryScaling",
    "SafetensorsFile",
    "Temperature",
    "TensorSpec",
    "WeightDtype",
    "WeightFormat",
    "Weights",
    "YarnScaling",
    "check_eagle",
    "check_heads",
    "check_nextn",
    "check_place",
    "check_replaceable",
    "copy_beside",
    "cut_weights",
    "digest",
    "find_cache_format",
    "find_format",
    "find_lanes",
    "find_shards",
    "find_weights",
    "folder_aside",
    "formats_header",
    "formats_of",
    "in_lanes",
    "is_assistant",
    "is_dflash",
    "is_eagle",
    "is_gguf",
    "is_heads",
    "is_nextn",
    "lane_cut",
    "lane_shape",
    "layer_roles",
    "matrix_formats",
    "nextn_config",
    "norm_read_by",
    "open_laneformer",
    "open_nextn",
    "outer_roles",
    "paired",
    "parse_config",
    "quantize_folder",
    "quantize_matrix",
    "read_config",
    "read_json_object",
    "render_config",
    "repack_folder",
    "rounded",
    "tensor_specs",
    "write_checkpoint",
    "write_nextn",
    "write_safetensors",
    "write_unpacked",
    "writing",
]
