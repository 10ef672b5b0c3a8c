"""The families of models that are read, one file each, and whose words a config.json speaks.

To add a family: a file that states a ``Family``, and its name in ``FAMILIES``. If the family brings
arithmetic that no other has, that is a field of ``ModelConfig``, which executors read.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from monolane.errors import ConfigError, ModelNotFoundError
from monolane.model._config import ModelConfig
from monolane.model._fields import Fields, read_json_object
from monolane.model._quant_config import parse_quantization, render_quantization
from monolane.model._rotary import LongRopeScaling
from monolane.model._tensors import TensorSpec, list_specs, quantized_specs
from monolane.model.families._ahead import GGUF_AHEAD, ahead_of
from monolane.model.families._family import Family
from monolane.model.families._gguf import (
    AHEAD,
    FUSED_EXPERTS,
    GGUF_NAMES,
    LONG_ROPE,
    ROPE_DIVISORS,
    as_stored,
    gguf_fields,
    has_experts,
    named_stretch,
)
from monolane.model.families.arcee import ARCEE
from monolane.model.families.bamba import BAMBA
from monolane.model.families.cohere import COHERE, COHERE2
from monolane.model.families.cwm import CWM
from monolane.model.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE, YOUTU
from monolane.model.families.deepseek_v4 import DEEPSEEK_V4
from monolane.model.families.deepseek_v32 import DEEPSEEK_V32
from monolane.model.families.dots1 import DOTS1
from monolane.model.families.ernie import ERNIE4_5, ERNIE4_5_MOE
from monolane.model.families.exaone import EXAONE
from monolane.model.families.exaone4 import EXAONE4
from monolane.model.families.exaone_moe import EXAONE_MOE
from monolane.model.families.falcon_h1 import FALCON_H1
from monolane.model.families.flex_olmo import FLEX_OLMO
from monolane.model.families.gemma import GEMMA
from monolane.model.families.gemma2 import GEMMA2
from monolane.model.families.gemma3 import GEMMA3, GEMMA3_TEXT
from monolane.model.families.gemma3n import GEMMA3N, GEMMA3N_TEXT
from monolane.model.families.gemma4 import (
    GEMMA4,
    GEMMA4_TEXT,
    GEMMA4_UNIFIED,
    GEMMA4_UNIFIED_TEXT,
)
from monolane.model.families.glm4 import GLM, GLM4
from monolane.model.families.glm4_moe import GLM4_MOE
from monolane.model.families.glm_moe_dsa import GLM_MOE_DSA
from monolane.model.families.gpt_oss import GPT_OSS
from monolane.model.families.granite import GRANITE
from monolane.model.families.granitemoe import GRANITEMOE, GRANITEMOESHARED
from monolane.model.families.granitemoehybrid import GRANITEMOEHYBRID
from monolane.model.families.helium import HELIUM
from monolane.model.families.hunyuan import HUNYUAN_V1_DENSE, HUNYUAN_V1_MOE
from monolane.model.families.hyperclovax import HYPERCLOVAX
from monolane.model.families.iquestcoder import IQUESTCODER
from monolane.model.families.kimi_k25 import KIMI_K25
from monolane.model.families.kimi_linear import KIMI_LINEAR
from monolane.model.families.laneformer import LANEFORMER
from monolane.model.families.lfm2 import LFM2, LFM2_MOE
from monolane.model.families.llama import LLAMA
from monolane.model.families.llama4 import LLAMA4, LLAMA4_TEXT
from monolane.model.families.mellum import MELLUM
from monolane.model.families.minimax_m2 import MINIMAX_M2
from monolane.model.families.ministral3 import MINISTRAL3, MISTRAL3
from monolane.model.families.mistral import MINISTRAL, MISTRAL
from monolane.model.families.mistral4 import MISTRAL3_MISTRAL4, MISTRAL4
from monolane.model.families.mixtral import MIXTRAL
from monolane.model.families.nemotron_h import NEMOTRON_H
from monolane.model.families.olmo2 import OLMO2
from monolane.model.families.olmo3 import OLMO3
from monolane.model.families.olmoe import OLMOE
from monolane.model.families.phi3 import PHI3
from monolane.model.families.qwen2 import QWEN2
from monolane.model.families.qwen2_moe import QWEN2_MOE
from monolane.model.families.qwen3 import QWEN3
from monolane.model.families.qwen3_5 import (
    QWEN3_5,
    QWEN3_5_MOE,
    QWEN3_5_MOE_TEXT,
    QWEN3_5_TEXT,
)
from monolane.model.families.qwen3_moe import QWEN3_MOE
from monolane.model.families.qwen3_next import QWEN3_NEXT
from monolane.model.families.qwen3_vl import QWEN3_VL
from monolane.model.families.seed_oss import SEED_OSS
from monolane.model.families.smollm3 import SMOLLM3
from monolane.model.families.solar_open import SOLAR_OPEN
from monolane.model.families.vaultgemma import VAULTGEMMA
from monolane.ops import JOINED, Role

FAMILIES = (
    LANEFORMER,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
    QWEN3_NEXT,
    SMOLLM3,
    OLMO2,
    GEMMA3_TEXT,
    GEMMA3,
    GEMMA4_TEXT,
    GEMMA4,
    GEMMA4_UNIFIED_TEXT,
    GEMMA4_UNIFIED,
    GPT_OSS,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    LFM2,
    LFM2_MOE,
    GRANITE,
    SEED_OSS,
    ERNIE4_5,
    EXAONE4,
    OLMO3,
    PHI3,
    GLM4,
    GLM4_MOE,
    MINIMAX_M2,
    QWEN3_5_TEXT,
    QWEN3_5,
    QWEN3_5_MOE_TEXT,
    QWEN3_5_MOE,
    QWEN3_VL,
    GLM4_MOE_LITE,
    EXAONE_MOE,
    HUNYUAN_V1_DENSE,
    HUNYUAN_V1_MOE,
    MINISTRAL3,
    MISTRAL3,
    GEMMA2,
    COHERE,
    COHERE2,
    ERNIE4_5_MOE,
    LLAMA4_TEXT,
    LLAMA4,
    KIMI_LINEAR,
    GEMMA3N_TEXT,
    GEMMA3N,
    GRANITEMOEHYBRID,
    NEMOTRON_H,
    FALCON_H1,
    BAMBA,
    MISTRAL4,
    MISTRAL3_MISTRAL4,
    KIMI_K25,
    DEEPSEEK_V32,
    GLM_MOE_DSA,
    DEEPSEEK_V4,
    GEMMA,
    EXAONE,
    GLM,
    OLMOE,
    ARCEE,
    HELIUM,
    MINISTRAL,
    CWM,
    GRANITEMOE,
    GRANITEMOESHARED,
    DOTS1,
    SOLAR_OPEN,
    YOUTU,
    IQUESTCODER,
    HYPERCLOVAX,
    MELLUM,
    VAULTGEMMA,
    FLEX_OLMO,
)
_BY_NAME = {family.name: family for family in FAMILIES}
_BY_ARCHITECTURE: dict[tuple[str, bool], list[Family]] = {}
for _family in FAMILIES:
    if _family.gguf is not None:
        _mixed = _family.gguf.experts
        for _name in (_family.gguf.architecture, *_family.gguf.also):
            for _there in (False, True) if _mixed is None else (_mixed,):
                _BY_ARCHITECTURE.setdefault((_name, _there), []).append(_family)
_BY_MODEL_TYPE = {
    (kind, text): family
    for family in FAMILIES
    for kind in family.model_types
    for text in family.inside or (None,)
}
_MODEL_TYPES = tuple(kind for kind, text in _BY_MODEL_TYPE if text is None)
# No models: they draft for one (``_assistant.py``).
ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant")
# What stands in the way of families that users ask for.
_REFUSED = {
    "olmo": "its norms have no scales",
}


def parse_config(raw: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
    """Read the object of a config.json; ConfigError says which field is missing or wrong."""
    kind = raw.get("model_type")
    if kind in ASSISTANTS:
        raise ConfigError(
            f"{source}: model_type: expected a model, got {kind!r}, an assistant, which drafts for "
            "a Gemma 4 model: load that one, and give this folder as its draft (--draft)"
        )
    if not isinstance(kind, str) or kind not in _MODEL_TYPES:
        known = ", ".join(map(repr, _MODEL_TYPES))
        why = f": {_REFUSED[kind]}" if isinstance(kind, str) and kind in _REFUSED else ""
        raise ConfigError(f"{source}: model_type: expected one of {known}, got {kind!r}{why}")
    read, text = Fields(raw, source), raw.get("text_config")
    inside = text.get("model_type") if isinstance(text, dict) else None
    known_inside = isinstance(inside, str) and (kind, inside) in _BY_MODEL_TYPE
    try:
        config = _BY_MODEL_TYPE[kind, inside if known_inside else None].parse(read)
        return replace(config, quantization=parse_quantization(read))
    except ConfigError as error:
        if str(error).startswith(source):
            raise
        raise ConfigError(f"{source}: {error}") from None


def parse_gguf(
    metadata: Mapping[str, Any],
    given: Mapping[str, Any],
    divisors: tuple[float, ...] | None,
    source: str,
) -> ModelConfig:
    """Read the metadata of a GGUF file; ConfigError says which field is missing or wrong.

    ``given`` are fields of config.json that the tensors say; ``divisors`` those of rope_freqs.
    """
    kind = metadata.get("general.architecture")
    experts = isinstance(kind, str) and has_experts(metadata, kind)
    if not isinstance(kind, str) or (kind, experts) not in _BY_ARCHITECTURE:
        with_experts = " with experts" if experts else ""
        known = ", ".join(repr(name) for name, mixed in _BY_ARCHITECTURE if mixed == experts)
        raise ConfigError(
            f"{source}: general.architecture: expected one of {known}{with_experts}, got "
            f"{kind!r:.80}"
        )
    family = _choose(_BY_ARCHITECTURE[kind, experts], metadata, source)
    assert family.gguf is not None
    spelling = replace(family.gguf, architecture=kind)
    try:
        config = family.parse(gguf_fields(spelling, metadata, given, source))
        return as_stored(family.gguf, config, divisors)
    except ConfigError as error:
        if str(error).startswith(source):
            raise
        raise ConfigError(f"{source}: {error}") from None


def _choose(families: list[Family], metadata: Mapping[str, Any], source: str) -> Family:
    """Return which of the families of an architecture a file is of."""
    if len(families) == 1:
        return families[0]
    windowed = {f.gguf.windowed: f for f in families if f.gguf is not None}
    if len(windowed) == len(families):
        return windowed[f"{metadata['general.architecture']}.attention.sliding_window" in metadata]
    by_value = {value: f for f in families if f.gguf is not None for value in f.gguf.gating}
    key = f"{metadata['general.architecture']}.expert_gating_func"
    said = metadata.get(key, 0)
    if type(said) is not int or said not in by_value:
        raise ConfigError(
            f"{source}: {key}: expected one of {', '.join(map(str, sorted(by_value)))}, got "
            f"{said!r:.80}"
        )
    return by_value[said]


def gguf_specs(config: ModelConfig, stored: Container[str]) -> tuple[TensorSpec, ...]:
    """Return every tensor of a GGUF file of this config that is read.

    ``stored`` are the names that are there: older files have one of ``JOINED``, as in folders,
    where others have the roles in it; these are read where a file has both. Where one tensor has
    gate and up of experts, its ``also`` is EXPERT_UP, whose rows are the second half of an
    expert's.
    """
    spelling = find_family(config).gguf
    assert spelling is not None
    names, fused = {**GGUF_NAMES, **spelling.names(config)}, FUSED_EXPERTS
    if config.behind is not None:
        last, names = names[Role.FINAL_NORM], GGUF_AHEAD.names(config.behind, names)
        names[Role.FINAL_NORM] = (
            names[Role.FINAL_NORM] if names[Role.FINAL_NORM] in stored else last
        )
        fused = GGUF_AHEAD.placed(config.behind, FUSED_EXPERTS)
    for joined, (part, *_) in JOINED.items():
        if joined not in names or part not in names:
            continue
        layers = range(config.num_layers)
        whole, parted = (
            any(names[role].format(i=i) in stored for i in layers) for role in (joined, part)
        )
        if parted or not whole:
            del names[joined]
    mixtures = (i for i, layer in enumerate(config.layers) if layer.experts)
    if any(fused.format(i=i) in stored for i in mixtures):
        names[Role.EXPERT_GATE] = names[Role.EXPERT_UP] = fused
    return list_specs(config, names, frozenset(Role) - {Role.K_UP, Role.V_UP})


def gguf_unread(
    config: ModelConfig, metadata: Mapping[str, Any], stored: Iterable[str]
) -> frozenset[str]:
    """Return the tensors that a GGUF file may hold besides those of ``gguf_specs``.

    Some say again what others say: divisors are in the config, and ik_llama.cpp writes KV_UP beside
    K_UP and V_UP. Keys and values of layers that read another's are there in some families' files.
    Others, of ``stored``, are of blocks that predict tokens further ahead.
    """
    spelling = find_family(config).gguf
    assert spelling is not None
    joined = range(0 if config.latent is None else config.num_layers)
    said = metadata.get(f"{spelling.architecture}.{AHEAD}", 0) if AHEAD in spelling.optional else 0
    blocks = tuple(f"blk.{config.num_layers + i}." for i in range(int(said)))
    return frozenset(
        (
            ROPE_DIVISORS,
            *(LONG_ROPE if isinstance(config.rotary.scaling, LongRopeScaling) else ()),
            *(GGUF_NAMES[Role.KV_UP].format(i=i) for i in joined),
            *(
                GGUF_NAMES[role].format(i=i)
                for i, layer in enumerate(config.layers)
                if layer.keys_of is not None
                for role in (Role.K, Role.V, Role.K_NORM)
            ),
            *(name for name in stored if name.startswith(blocks)),
        )
    )


def read_config(folder: Path) -> ModelConfig:
    """Read ``folder``/config.json."""
    path = folder / "config.json"
    if not path.is_file():
        got = (
            "; got a file: 'monolane export' makes a folder of a .gguf file"
            if folder.is_file()
            else ""
        )
        raise ModelNotFoundError(f"{folder}: expected a model folder with a config.json in it{got}")
    return parse_config(read_json_object(path), str(path))


def render_config(config: ModelConfig) -> dict[str, Any]:
    """Write a config as the object of a config.json, in its family's spelling.

    ConfigError if the family has no word for a field's value: what is written is read again.
    """
    raw = find_family(config).render(config)
    if config.quantization is not None:
        raw["quantization_config"] = render_quantization(config.quantization)
    _check_same(parse_config(raw, f"config.json of {config.family}"), config)
    return raw


def as_published(config: ModelConfig) -> ModelConfig:
    """Return the config of a GGUF file's model as a config.json says it: see ``as_stored``.

    Pairs, folded norms and the rounding of an embedding's scale are those of the family; Llama 3's
    stretch has its numbers again. ConfigError if the family has no word for another field's value.
    """
    config = replace(config, rotary=named_stretch(config.rotary, config.rotary_dim("main")))
    found = parse_config(find_family(config).render(config), f"config.json of {config.family}")
    told = {name: getattr(found, name) for name in ("norm_offset", "embedding_scale")}
    if config.delta is not None:
        told["delta"] = replace(config.delta, tiled=False)
    for place in ("rotary", "local_rotary"):
        if (rotary := getattr(config, place)) is not None:
            told[place] = replace(rotary, style=found.rotary.style)
    _check_same(found, replace(config, **told))
    return found


def _check_same(again: ModelConfig, config: ModelConfig) -> None:
    """Refuse a config of which a config.json says something else: ``again`` is read from it."""
    for name in (field.name for field in fields(config)):
        if getattr(again, name) != getattr(config, name):
            raise ConfigError(
                f"{name}: expected what a config.json of {config.family} can say, such as "
                f"{getattr(again, name)}, got {getattr(config, name)}"
            )


def tensor_specs(config: ModelConfig, most: int | None = None) -> tuple[TensorSpec, ...]:
    """Return every tensor that a checkpoint of this config holds.

    ConfigError where a checkpoint of floats would hold more than ``most``: give it the number of
    those that are there, wherever a config is read with its weights.
    """
    family = find_family(config)
    names, shared = tensor_names(config), family.shared(config)
    specs = list_specs(config, names, shared, family.columns_first, most, family.halves)
    return specs if config.quantization is None else quantized_specs(config, specs)


def published_specs(config: ModelConfig) -> tuple[TensorSpec, ...]:
    """Return the tensors of a folder of floats as the family publishes them; see ``Family.merged``.

    Transformers reads some families' experts in one tensor alone.
    """
    family = find_family(config)
    if not family.merged:
        return tensor_specs(config)
    names = {**tensor_names(config), **merged_names(config)}
    return list_specs(config, names, family.shared(config), halves=True)


def tensor_names(config: ModelConfig) -> Mapping[Role, str]:
    """Return the names of a folder's tensors by their roles; see ``Family.names``."""
    family = find_family(config)
    names = family.names(config)
    if config.behind is None:
        return names
    assert family.ahead is not None
    return family.ahead.names(config.behind, names)


def merged_names(config: ModelConfig) -> Mapping[Role, str]:
    """Return the names of tensors that hold all experts of a layer; see ``Family.merged``."""
    family = find_family(config)
    if config.behind is None:
        return family.merged
    assert family.ahead is not None
    placed, count = family.ahead.placed, config.behind
    return {role: placed(count, name) for role, name in family.merged.items()}


def find_ahead(
    config: ModelConfig, stored: Container[str], gguf: bool = False
) -> ModelConfig | None:
    """Return the config of the layer that predicts further ahead; None where a model has none.

    ``stored``: the names of the model's tensors; ``gguf``: they are those of a GGUF file.
    """
    family = find_family(config)
    return ahead_of(config, GGUF_AHEAD if gguf and family.ahead else family.ahead, stored)


def find_family(config: ModelConfig) -> Family:
    """Return the family whose spelling a config is written in."""
    return _BY_NAME[config.family]
