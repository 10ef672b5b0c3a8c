"""Dense families from their own folders: the logits and the tokens that Transformers computes."""

import copy
import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.errors import BackendError, CheckpointError, ConfigError
from monolane.model import (
    Checkpoint,
    Quantization,
    parse_config,
    quantize_folder,
    read_config,
    render_config,
)

from .dense_cases import (
    CASES,
)
from .sizes import (
    EVEN,
    GEMMA4,
    GROWING,
    HYBRID,
    HYBRID_MOE,
    LLAMA4,
    LONG,
    MISTRAL4,
    MLA,
    ODD,
    UNIFIED,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
load_file = pytest.importorskip("safetensors.torch").load_file
save_file = pytest.importorskip("safetensors.torch").save_file

TOKENS, PROMPT, DRAWN = 40, 12, 12  # longer than every window, and than YaRN's trained context
Make = Callable[..., Path]


# What reference alone computes, and the field by which the others refuse it.
ALONE = {case: "hyper" for case in CASES if case.startswith("DeepSeek-V4")}
ALONE |= {case: "index" for case in CASES if case.startswith(("DeepSeek-V3.2", "GLM-5"))}
PLACES = [
    pytest.param(case, backend, id=f"{backend}-{case}")
    for backend in ("reference", "cpu")
    for case in CASES
    if backend == "reference" or case not in ALONE
]


@dataclass(frozen=True)
class Theirs:
    """A folder that Transformers wrote, and what it computes of it."""

    folder: Path
    ids: np.ndarray[Any, Any]  # [TOKENS]
    logits: np.ndarray[Any, Any]  # [TOKENS, V]
    tokens: list[int]  # greedily behind the first PROMPT ids
    rendered: np.ndarray[Any, Any]  # logits of the same weights behind the config that we write


def write(folder: Path, kind: str = "Llama", **changes: Any) -> Any:
    """Write a small random model as Transformers saves it; return it."""
    torch.manual_seed(0)
    fields: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 96,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "initializer_range": 0.15,  # large enough for softmax and silu to bend
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    apart = ("Gemma3", "Gemma3n", "Gemma4", "Gemma4Unified", "Llama4", "Qwen3_5")
    apart += ("Qwen3_5Moe",)
    kinds = {kind: f"{kind}Text" for kind in apart}
    # A copy: Transformers writes its defaults into the objects it is given, which cases share.
    fields = copy.deepcopy(fields | changes)
    config = getattr(transformers, f"{kinds.get(kind, kind)}Config")(**fields)
    config._experts_implementation = "eager"  # others want sizes that are multiples
    # Some have a config alone, and are computed by another family's class.
    make = getattr(transformers, f"{kind}ForCausalLM", None)
    model = (make or transformers.AutoModelForCausalLM.from_config)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith(
                ("bias", "scale", "base", "sinks", ".D")
            ):  # off one and zero, so that they show
                parameter += 0.3 * torch.randn_like(parameter)
            if name.endswith("gate_up_proj"):  # gates and ups beyond GPT-OSS's limit, 7
                parameter *= 4
        for name, correction in model.named_buffers():
            # It decides about as often as scores do.
            if name.endswith(("e_score_correction_bias", "expert_bias", "layer_scalar")):
                correction += 0.3 * torch.randn_like(correction)
            if name.endswith("tid2eid"):  # of each token other experts
                count = config.n_routed_experts
                each = [torch.randperm(count)[: correction.shape[1]] for _ in correction]
                correction[:] = torch.stack(each)
    model.save_pretrained(folder)
    if kind == "DeepseekV4":  # of which Transformers 5.24 writes other names than it reads
        names = {"model.embed_tokens.": "embed.", "model.hc_head.hc_": "hc_head_", "model.": ""}
        names |= {".attn.norm.": ".attn.kv_norm."}
        stored = load_file(folder / "model.safetensors")
        for old, new in names.items():
            stored = {name.replace(old, new): array for name, array in stored.items()}
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
    if kind == "KimiLinear":  # published files have the first layer's MLP under a name of its own
        stored = load_file(folder / "model.safetensors")
        dense = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
        renamed = {
            name.replace("block_sparse_moe", "mlp")
            if name.endswith(dense) and ".shared_experts." not in name
            else name: array
            for name, array in stored.items()
        }
        save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    return model


def sees(folder: Path, kind: str, text: dict[str, Any], vision: Any) -> Any:
    """Write a small random model with a vision tower; return it."""
    torch.manual_seed(0)
    text = {"initializer_range": 0.15, "max_position_embeddings": 64, **text}
    tied = {name: text[name] for name in ("tie_word_embeddings",) if name in text}
    outer = tied | ({"audio_config": HEARING} if kind == "Gemma4Unified" else {})
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision, **outer)
    config.text_config._experts_implementation = "eager"
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    model.save_pretrained(folder)
    if kind == "Kimi_K25":  # which Transformers 5.24 writes with a name of the tower in the text's
        stored = load_file(folder / "model.safetensors")
        old, new = "language_model.model.blocks.", "language_model.model.layers."
        renamed = {name.replace(old, new): array for name, array in stored.items()}
        save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    return model


def compute(model: Any, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return what Transformers computes: float32 [len(ids), V]."""
    with torch.no_grad():
        logits: np.ndarray[Any, Any] = model(torch.from_numpy(ids)[None]).logits[0].numpy()
    return logits


@pytest.fixture
def dense(tmp_path: Path) -> Make:
    """Writes a small random model."""

    def make(kind: str = "Llama", **changes: Any) -> Path:
        write(tmp_path / "dense", kind, **changes)
        return tmp_path / "dense"

    return make


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Theirs]:
    """Computes a case with Transformers, once for all backends."""

    @functools.cache
    def make(case: str) -> Theirs:
        kind, changes = CASES[case]
        folder = tmp_path_factory.mktemp("dense")
        model = write(folder, kind, **changes)
        ids = np.random.default_rng(0).integers(model.config.vocab_size, size=TOKENS)
        logits = compute(model, ids)
        # ``min_new_tokens`` never chooses the end of the text, 2.
        length = {"max_new_tokens": DRAWN, "min_new_tokens": DRAWN}
        prompt = torch.from_numpy(ids[:PROMPT])[None]
        drawn = model.generate(prompt, **length, do_sample=False, pad_token_id=0)[0, PROMPT:]
        raw = render_config(read_config(folder))
        said = type(model.config).from_dict(raw)
        said._experts_implementation = "eager"
        again = type(model)(said).eval()
        again.load_state_dict(model.state_dict())
        return Theirs(folder, ids, logits, drawn.tolist(), compute(again, ids))

    return make


@pytest.mark.parametrize(("case", "backend"), PLACES)
def test_logits_and_tokens_are_those_of_transformers(
    case: str, backend: str, theirs: Callable[[str], Theirs]
) -> None:
    it = theirs(case)
    with Engine.load(it.folder, backend, "float32") as engine:
        at_once = engine.logits(it.ids.tolist())
        engine.backend.truncate(0, 0)
        begin = [engine.backend.logits(0, it.ids[:PROMPT].tolist())]
        by_token = [engine.backend.logits(0, [token]) for token in it.ids[PROMPT:].tolist()]
        params = SamplingParams(max_tokens=DRAWN, logit_bias={2: -np.inf})
        answer = engine.generate(it.ids[:PROMPT].tolist(), params)
    # As in tests/tune/test_retrofit.py: 13 products in a row whose sums have at most 96 terms, each
    # off by sqrt(96) 2^-24, in two evaluations, 6 times that for the largest of all logits; and
    # angles that are rounded differently, 3 units of up to 40 radians in each of 3 layers.
    sums, angles = 6 * np.sqrt(2 * 13 * 96), 6 * 3 * TOKENS * np.sqrt(3)
    bound = (sums + angles) * 2.0**-24 * it.logits.std()  # 9.2e-5 of the logits' size
    assert np.abs(at_once - it.logits).max() < bound
    assert np.abs(np.concatenate([*begin, *by_token]) - it.logits).max() < bound
    assert it.logits.std() > 0.5  # logits near zero would agree whatever the model did
    assert list(answer.token_ids) == it.tokens


@pytest.mark.parametrize("case", ALONE)
def test_what_reference_alone_computes_is_refused_by_its_name(
    case: str, theirs: Callable[[str], Theirs]
) -> None:
    with pytest.raises(BackendError, match=f"^{ALONE[case]}: the cpu backend does not compute it"):
        Engine.load(theirs(case).folder, "cpu", "float32")


def test_gemma3n_is_read_out_of_a_model_that_sees_and_hears(
    theirs: Callable[[str], Theirs], tmp_path: Path
) -> None:
    """Its towers ask for a library of pictures: here are the text's tensors under their names."""
    it = theirs("Gemma 3n")
    text = json.loads((it.folder / "config.json").read_text())
    whole = {"model_type": "gemma3n", "text_config": text, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    renamed = {
        name.replace("model.", "model.language_model.", 1): array
        for name, array in load_file(it.folder / "model.safetensors").items()
    }
    towers = {f"model.{x}.weight": torch.ones(2) for x in ("vision_tower", "embed_audio")}
    save_file(renamed | towers, tmp_path / "model.safetensors", {"format": "pt"})
    for backend in ("reference", "cpu"):
        with Engine.load(tmp_path, backend, "float32") as engine:
            found = engine.logits(it.ids.tolist())
        assert np.abs(found - it.logits).max() < 1e-4 * it.logits.std()  # derived above


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_says_the_same_to_transformers(
    case: str, theirs: Callable[[str], Theirs]
) -> None:
    np.testing.assert_array_equal(theirs(case).rendered, theirs(case).logits)


@pytest.mark.parametrize(
    "kind", ["Mixtral", "Qwen2Moe", "Qwen3Moe", "GptOss", "DeepseekV2", "DeepseekV3"]
)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_tied_experts_weigh_what_they_do_in_transformers(
    kind: str, backend: str, tmp_path: Path
) -> None:
    """Which of equals are chosen torch leaves open. So all experts tie, and all are alike."""
    if kind.startswith("Deepseek"):
        model = write(tmp_path, kind, **MLA)
    else:
        count = "num_experts" if kind.startswith("Qwen") else "num_local_experts"
        model = write(tmp_path, kind, **{count: 5, "num_experts_per_tok": 2}, num_hidden_layers=2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".experts" in name:
                parameter[:] = parameter[:1].clone()
            if ".router." in name or ".mlp.gate.weight" in name:
                parameter[:] = 0
        for name, correction in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                correction[:] = 0
    model.save_pretrained(tmp_path)
    ids = np.arange(TOKENS)
    wanted = compute(model, ids)
    with Engine.load(tmp_path, backend, "float32") as engine:
        found = engine.logits(ids.tolist())
    assert np.abs(found - wanted).max() < 1e-4 * wanted.std()  # derived above
    assert wanted.std() > 0.5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_oracle_widens_16_bits_exactly(dtype: str, dense: Make, tmp_path: Path) -> None:
    source = dense("Qwen3", head_dim=12)
    tensors = {
        name: array.to(getattr(torch, dtype))
        for name, array in load_file(source / "model.safetensors").items()
    }
    logits = []
    for name, as_dtype in (("narrow", dtype), ("wide", "float32")):
        folder = tmp_path / name
        shutil.copytree(source, folder)
        stored = {key: value.to(getattr(torch, as_dtype)) for key, value in tensors.items()}
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        with Engine.load(folder, "reference") as engine:
            logits.append(engine.logits(range(TOKENS)))
    assert np.array_equal(logits[0], logits[1])


@pytest.mark.parametrize("kind", ["Mixtral", "Qwen3Moe", "Qwen3Next", "DeepseekV3"])
def test_mixtures_of_experts_are_quantised(kind: str, dense: Make, tmp_path: Path) -> None:
    sizes = {"head_dim": 16, "num_hidden_layers": 2, "num_experts_per_tok": 2}
    inner = {} if kind == "Mixtral" else {"moe_intermediate_size": 64, "mlp_only_layers": [1]}
    if kind == "DeepseekV3":  # whose kv_b_proj stays as it is
        ranks = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 16}
        groups = {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
        heads = {"num_attention_heads": 8, "num_key_value_heads": 8}
        few = {k: x for k, x in sizes.items() if k != "head_dim"}
        source = dense(kind, **MLA | EVEN | few | heads | ranks | groups)
    else:
        few: dict[str, Any] = {"num_experts": 4}
        if kind == "Mixtral":
            few = {"num_local_experts": 4}
        if kind == "Qwen3Next":  # whose gates of states stay as they are
            few |= {"layer_types": ["linear_attention", "full_attention"]}
            few |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
            few |= {"linear_key_head_dim": 12, "linear_value_head_dim": 16}
            few |= {"shared_expert_intermediate_size": 32, "rms_norm_eps": 1e-3}
        source = dense(kind, **sizes, **few, **inner)
    quantize_folder(source, tmp_path / "int8", Quantization(8))
    before, after = read_config(source), read_config(tmp_path / "int8")
    assert replace(after, quantization=None) == before
    ids = list(range(TOKENS))
    logits = {}
    for name, folder, backend in (
        ("plain", source, "reference"),
        ("codes", tmp_path / "int8", "reference"),
        ("cpu", tmp_path / "int8", "cpu"),
    ):
        with Engine.load(folder, backend) as engine:
            logits[name] = engine.logits(ids)
    for name in ("codes", "cpu"):
        assert 0 < np.abs(logits[name] - logits["plain"]).mean() < 0.1 * logits["plain"].std()


def test_quantised_dense_models_run(dense: Make, tmp_path: Path) -> None:
    source = dense("Qwen2", head_dim=8)
    report = quantize_folder(source, tmp_path / "int8", Quantization(8))
    assert read_config(tmp_path / "int8").stored_dtype == "int8"
    assert max(matrix.relative_error for matrix in report.matrices) < 0.01
    ids = list(range(TOKENS))
    with Engine.load(source, "cpu", "float32") as engine:
        plain = engine.logits(ids)
    with Engine.load(tmp_path / "int8", "cpu") as engine:
        coarse = engine.logits(ids)
    assert 0 < np.abs(coarse - plain).mean() < 0.1 * plain.std()


@pytest.mark.parametrize("kind", ["SmolLM3", "Olmo2", "Gemma3"])
def test_new_families_are_quantised(kind: str, dense: Make, tmp_path: Path) -> None:
    source = dense(kind, head_dim=16, num_hidden_layers=2)
    quantize_folder(source, tmp_path / "int8", Quantization(8))
    before, after = read_config(source), read_config(tmp_path / "int8")
    assert replace(after, quantization=None) == before
    ids = list(range(TOKENS))
    with Engine.load(source, "reference") as engine:
        plain = engine.logits(ids)
    with Engine.load(tmp_path / "int8", "reference") as engine:
        coarse = engine.logits(ids)
    assert 0 < np.abs(coarse - plain).mean() < 0.1 * plain.std()


TOWER = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "patch_size": 14}
SIGLIP = TOWER | {"num_attention_heads": 1, "image_size": 28, "model_type": "siglip_vision_model"}
PIXTRAL = TOWER | {"num_attention_heads": 1, "image_size": 28, "model_type": "pixtral"}
LLAMA_VISION = TOWER | {
    **dict.fromkeys(("vision_output_dim", "projector_input_dim", "projector_output_dim"), 8),
    "num_attention_heads": 1,
    "image_size": 28,
    "model_type": "llama4_vision_model",
}
KIMI_VISION = TOWER | {"num_attention_heads": 1, "pos_emb_height": 2, "pos_emb_width": 2}
PATCHES = {"patch_size": 2, "mm_embed_dim": 10, "mm_posemb_size": 5, "output_proj_dims": 10}
HEARING = {"audio_embed_dim": 7}
QWEN_VL = {"hidden_size": 8, "intermediate_size": 8, "depth": 1, "num_heads": 1}
# Case: class of Transformers, its text and its tower.
SEEING: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Qwen3.5": ("Qwen3_5", HYBRID | {"model_type": "qwen3_5_text"}, QWEN_VL),
    "Qwen3.5-MoE": ("Qwen3_5Moe", HYBRID_MOE | {"model_type": "qwen3_5_moe_text"}, QWEN_VL),
    "Qwen3-VL": (
        "Qwen3VL",
        ODD
        | {"num_hidden_layers": 3, "model_type": "qwen3_vl_text"}
        | {"rope_parameters": {"rope_type": "default", "mrope_section": [3, 2, 2]}},
        QWEN_VL | {"deepstack_visual_indexes": [0]},
    ),
    "Gemma 4": (
        "Gemma4",
        ODD
        | GEMMA4
        | {"num_hidden_layers": 3, "model_type": "gemma4_text", "sliding_window": 9}
        | {"hidden_size_per_layer_input": 7, "vocab_size_per_layer_input": 97},
        TOWER | {"num_attention_heads": 1, "head_dim": 8, "model_type": "gemma4_vision"},
    ),
    "Gemma 4 unified": (
        "Gemma4Unified",
        ODD
        | UNIFIED
        | {"num_hidden_layers": 3, "model_type": "gemma4_unified_text", "sliding_window": 9}
        | {"attention_k_eq_v": True, "final_logit_softcapping": 3.0},
        PATCHES,
    ),
    "Llama 4": (
        "Llama4",
        ODD | LLAMA4 | {"num_hidden_layers": 3, "model_type": "llama4_text"},
        LLAMA_VISION,
    ),
    "Mistral 3": (
        "Mistral3",
        ODD | {"num_hidden_layers": 3, "model_type": "ministral3", "rope_parameters": GROWING},
        PIXTRAL,
    ),
    "Mistral Small 4": (
        "Mistral3",
        MISTRAL4 | {"num_hidden_layers": 3, "model_type": "mistral4"},
        PIXTRAL,
    ),
    "Kimi-K2.5": (
        "Kimi_K25",
        MLA | {"num_hidden_layers": 3, "model_type": "kimi_k2", "tie_word_embeddings": False},
        KIMI_VISION,
    ),
    "Mistral Small 3": (
        "Mistral3",
        ODD | {"num_hidden_layers": 3, "model_type": "mistral", "sliding_window": None},
        PIXTRAL,
    ),
}


@pytest.mark.parametrize("case", SEEING)
def test_the_text_is_read_out_of_a_model_that_sees(case: str, tmp_path: Path) -> None:
    kind, text, tower = SEEING[case]
    model = sees(tmp_path, kind, text, tower | {"out_hidden_size": 60})
    names, others = list(Checkpoint.open(tmp_path)), ["visual.", "vision_tower.", "vision_model."]
    others += ["vision_embedder."]
    assert any(name.removeprefix("model.").startswith(tuple(others)) for name in names)
    ids = np.random.default_rng(0).integers(97, size=TOKENS)
    # Transformers' whole Llama 4 asks its text for pictures, and fails where it was given none.
    wanted = compute(model.language_model if kind == "Llama4" else model, ids)
    for backend in ("reference", "cpu"):
        with Engine.load(tmp_path, backend, "float32") as engine:
            found = engine.logits(ids.tolist())
            engine.backend.truncate(0, 0)
            by_token = [engine.backend.logits(0, [token]) for token in ids.tolist()]
        for logits in (found, np.concatenate(by_token)):
            assert np.abs(logits - wanted).max() < 1e-4 * wanted.std()  # derived above
    assert wanted.std() > 0.5


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", ["longrope", "su"])
def test_longrope_is_chosen_by_the_context_that_a_model_is_loaded_for(
    backend: str, name: str, tmp_path: Path
) -> None:
    model = write(tmp_path, "Phi3", **ODD | {"hidden_size": 72, "head_dim": 12, **LONG})
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["rope_parameters"]["rope_type"] = name
    (tmp_path / "config.json").write_text(json.dumps(raw))
    ids = np.random.default_rng(0).integers(97, size=TOKENS)
    found = {}
    for context, count in ((64, TOKENS), (32, 30)):
        wanted = compute(model, ids[:count])
        with Engine.load(tmp_path, backend, "float32", context=context) as engine:
            found[context] = engine.logits(ids[:count].tolist())
            engine.backend.truncate(0, 0)
            by_token = [engine.backend.logits(0, [token]) for token in ids[:count].tolist()]
        for logits in (found[context], np.concatenate(by_token)):
            assert np.abs(logits - wanted).max() < 1e-4 * wanted.std()  # derived above
    assert np.abs(found[64][:30] - found[32]).max() > 0.1
    config = read_config(tmp_path)
    assert parse_config(render_config(config)) == config


def test_experts_of_a_layer_in_one_tensor_are_the_same(tmp_path: Path) -> None:
    """As Qwen3.5's mixtures are published; Transformers writes one for each."""
    model = write(tmp_path / "each", "Qwen3_5Moe", **HYBRID_MOE)
    shutil.copytree(tmp_path / "each", tmp_path / "merged")
    save_file(model.state_dict(), tmp_path / "merged" / "model.safetensors", {"format": "pt"})
    names = {name: set(Checkpoint.open(tmp_path / name)) for name in ("each", "merged")}
    assert len(names["each"]) > len(names["merged"])
    assert "model.layers.0.mlp.experts.gate_up_proj" in names["merged"]
    logits = []
    for name in names:
        with Engine.load(tmp_path / name, "reference", "float32") as engine:
            logits.append(engine.logits(range(TOKENS)))
    np.testing.assert_array_equal(*logits)
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    wrong = {
        "model.layers.1.mlp.experts.down_proj": merged["model.norm.weight"].clone()[None, None]
    }
    save_file(merged | wrong, tmp_path / "merged" / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1.mlp.experts.down_proj': expected shape \[7, 60"):
        Engine.load(tmp_path / "merged", "reference")


def test_experts_of_a_layer_in_one_tensor_are_quantised_one_by_one(tmp_path: Path) -> None:
    sizes = EVEN | {"head_dim": 16, "shared_expert_intermediate_size": 32}
    sizes |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 16}
    model = write(tmp_path / "each", "Qwen3_5Moe", **HYBRID_MOE | sizes)
    shutil.copytree(tmp_path / "each", tmp_path / "merged")
    save_file(model.state_dict(), tmp_path / "merged" / "model.safetensors", {"format": "pt"})
    for name in ("each", "merged"):
        quantize_folder(tmp_path / name, tmp_path / f"{name}-int8", Quantization(8))
    one, other = (Checkpoint.open(tmp_path / f"{name}-int8") for name in ("each", "merged"))
    assert set(one) == set(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    with Engine.load(tmp_path / "each", "reference") as plain:
        wanted = plain.logits(range(TOKENS))
    with Engine.load(tmp_path / "merged-int8", "cpu") as engine:
        found = engine.logits(range(TOKENS))
    assert 0 < np.abs(found - wanted).mean() < 0.1 * wanted.std()


def test_gemma3_is_read_out_of_a_model_that_sees(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text = {"hidden_size": 96, "intermediate_size": 64, "num_attention_heads": 6, "head_dim": 16}
    text |= {"num_hidden_layers": 3, "num_key_value_heads": 2, "vocab_size": 97}
    text |= {"sliding_window": 9, "sliding_window_pattern": 2, "initializer_range": 0.15}
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    vision = small | {"num_attention_heads": 1, "image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**text, max_position_embeddings=64),
        vision_config=transformers.SiglipVisionConfig(**vision),
        mm_tokens_per_image=1,
    )
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path / "sees")
    ids = np.arange(TOKENS)
    wanted = compute(model, ids)
    for backend in ("reference", "cpu"):
        with Engine.load(tmp_path / "sees", backend, "float32") as engine:
            found = engine.logits(ids.tolist())
        assert np.abs(found - wanted).max() < 1e-4 * wanted.std()  # derived in the test above
    assert wanted.std() > 0.5
    told: list[tuple[str, int, int]] = []
    quantize_folder(
        tmp_path / "sees",
        tmp_path / "int8",
        Quantization(8),
        progress=lambda *step: told.append(step),
    )
    assert told[-1][1] == told[-1][2]  # the tower is not counted
    with Engine.load(tmp_path / "int8", "reference") as engine:
        coarse = engine.logits(ids.tolist())
    assert 0 < np.abs(coarse - wanted).mean() < 0.1 * wanted.std()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type: expected one"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor: expected 1"),
        ({"mlp_bias": True}, "mlp_bias: expected false, got True"),
        ({"hidden_act": "gelu"}, "hidden_act: expected one of 'silu', got 'gelu'"),
    ],
)
def test_what_no_executor_computes_is_refused(
    edit: dict[str, Any], message: str, dense: Make
) -> None:
    folder = dense()
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | edit))
    with pytest.raises(ConfigError, match=message):
        Engine.load(folder, "reference")
