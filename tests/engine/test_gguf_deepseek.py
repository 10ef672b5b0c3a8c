"""GGUF files of Mistral 4, Kimi-K2.5, DeepSeek-V3.2, GLM-5 and DeepSeek-V4: the logits of the
folder that they were made of, to the bit, and what Transformers computes of it.

converter_deepseek.json has what llama.cpp's own converter (of llama-cpp-python 0.3.36) wrote of the
first case of each: metadata, names and shapes of tensors.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.errors import BackendError, CheckpointError
from monolane.model import Blocks, Checkpoint, GgufModel, Role, Weights
from monolane.sources import unpack_gguf

from .converted import metadata, tensors
from .converted_deepseek import deepseek4_metadata, deepseek4_tensors
from .sizes import DEEPSEEK4, GROWING, INDEXED, MISTRAL4, MLA, SHARP, YARN
from .test_dense import KIMI_VISION, compute, load_file, save_file, sees, write

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

Write = Callable[..., Path]
RECORDED = json.loads(Path(__file__).with_name("converter_deepseek.json").read_text())
TOKENS, PROMPT, DRAWN = 40, 12, 12
LONG = 150  # tokens, of which 128 are an entry in DeepSeek-V4
SHARPENED = YARN | SHARP | {"mscale_all_dim": SHARP["mscale"]}
# The growth that files do not say: that of the published model.
SLOW = GROWING | {"llama_4_scaling_beta": 0.1, "partial_rotary_factor": 6 / 16}
RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
# Case: class of Transformers, architecture in the file, changes of the config.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Mistral 4": ("Mistral4", "mistral4", MISTRAL4 | {"rope_parameters": SLOW}),
    "Kimi-K2.5": (
        "Kimi_K25",
        "deepseek2",
        MLA
        | {"model_type": "kimi_k2", "n_group": 1, "topk_group": 1, "rope_parameters": SHARPENED}
        | {"num_hidden_layers": 3, "tie_word_embeddings": False},
    ),
    "DeepSeek-V3.2": ("DeepseekV32", "deepseek32", INDEXED | {"rope_parameters": SHARPENED}),
    "GLM-5": (
        "GlmMoeDsa",
        "glm-dsa",
        INDEXED | {"n_group": 1, "topk_group": 1, "indexer_types": ["full", "shared", "full"]},
    ),
    "DeepSeek-V4": (
        "DeepseekV4",
        "deepseek4",
        DEEPSEEK4
        | {"hidden_size": 64, "moe_intermediate_size": 64, "compress_rates": RATES, "hc_mult": 4}
        | {"mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"], "rope_parameters": YARN}
        | {"max_position_embeddings": 256, "o_groups": 2},
    ),
    "Mistral 4, queries of the stream, tied": (
        "Mistral4",
        "mistral4",
        MISTRAL4
        | {"q_lora_rank": None, "norm_topk_prob": False, "first_k_dense_replace": 0}
        | {"n_shared_experts": 2, "tie_word_embeddings": True, "rope_parameters": SLOW},
    ),
    "GLM-5, one index for all, YaRN, tied": (
        "GlmMoeDsa",
        "glm-dsa",
        INDEXED
        | {"indexer_types": ["full", "shared", "shared"], "tie_word_embeddings": True}
        | {"rope_parameters": SHARPENED, "norm_topk_prob": False, "n_shared_experts": 2},
    ),
    "DeepSeek-V4, two streams, no tables, not stretched": (
        "DeepseekV4",
        "deepseek4",
        DEEPSEEK4
        | {"compress_rates": RATES, "hc_mult": 2, "hc_sinkhorn_iters": 1, "sliding_window": 3}
        | {"mlp_layer_types": ["moe"] * 4, "max_position_embeddings": 256},
    ),
}
# What reference alone computes, and the field by which cpu refuses it.
ALONE = {"DeepSeek-V3.2": "index", "GLM-5": "index", "DeepSeek-V4": "hyper"}
PLACES = [
    pytest.param(case, backend, id=f"{backend}-{case}")
    for backend in ("reference", "cpu")
    for case in CASES
    if backend == "reference" or case.partition(",")[0] not in ALONE
]


@dataclass(frozen=True)
class Theirs:
    """A folder that Transformers wrote, what a file of it has, and what it computes."""

    model: Any
    folder: Path
    said: dict[str, Any]  # metadata
    stored: dict[str, np.ndarray[Any, Any]]
    ids: list[int]
    logits: np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Theirs]:
    """Computes a case with Transformers, once for all tests; nobody changes what is in it."""

    @functools.cache
    def make(case: str) -> Theirs:
        kind, architecture, changes = CASES[case]
        folder = tmp_path_factory.mktemp("deepseek")
        if kind == "Kimi_K25":
            model = text_of(sees(folder, kind, changes, KIMI_VISION | {"out_hidden_size": 60}))
        else:
            model = write(folder, kind, **changes)
        ids = np.random.default_rng(0).integers(
            model.config.vocab_size, size=LONG if architecture == "deepseek4" else TOKENS
        )
        if architecture == "deepseek4":
            said = deepseek4_metadata(model.config)
            stored = deepseek4_tensors(load_file(folder / "model.safetensors"))
        else:
            said, stored = metadata(model.config, architecture), tensors(model, architecture)
        return Theirs(model, folder, said, stored, ids.tolist(), compute(model, ids))

    return make


def text_of(model: Any) -> Any:
    """Return the text of a Kimi-K2.5 by itself, which is all that a file has of it."""
    text = transformers.DeepseekV3ForCausalLM(model.config.text_config).eval()
    text.model.load_state_dict(model.model.language_model.state_dict())
    text.lm_head.load_state_dict(model.lm_head.state_dict())
    return text


def logits_of(path: Path, ids: list[int], backend: str = "reference") -> np.ndarray[Any, Any]:
    with Engine.load(path, backend, "float32") as engine:
        return engine.logits(ids)


def close(found: np.ndarray[Any, Any], it: Theirs) -> bool:
    """As derived in tests/engine/test_dense.py, for as many tokens and layers."""
    layers = it.model.config.num_hidden_layers
    sums = 6 * np.sqrt(2 * (4 * layers + 1) * 96)
    angles = 6 * layers * len(it.ids) * np.sqrt(3)
    bound = (sums + angles) * 2.0**-24 * it.logits.std()
    return bool(np.abs(found - it.logits).max() < bound) and it.logits.std() > 0.5


@pytest.mark.parametrize(("case", "backend"), PLACES)
def test_logits(
    case: str, backend: str, theirs: Callable[[str], Theirs], write_gguf: Write, tmp_path: Path
) -> None:
    """Those of the folder to the bit, and within rounding those of Transformers."""
    it = theirs(case)
    path = write_gguf(tmp_path / "x.gguf", it.said, it.stored)
    prompt = torch.tensor(it.ids[:PROMPT])[None]
    length = {"max_new_tokens": DRAWN, "min_new_tokens": DRAWN}
    drawn = it.model.generate(prompt, **length, do_sample=False, pad_token_id=0)[0, PROMPT:]
    with Engine.load(path, backend, "float32") as engine:
        found = engine.logits(it.ids)
        params = SamplingParams(max_tokens=DRAWN, logit_bias={2: -np.inf})
        answer = engine.generate(it.ids[:PROMPT], params)
    np.testing.assert_array_equal(found, logits_of(it.folder, it.ids, backend))
    assert close(found, it)
    assert list(answer.token_ids) == drawn.tolist()


@pytest.mark.parametrize("case", ALONE)
def test_refused(
    case: str, theirs: Callable[[str], Theirs], write_gguf: Write, tmp_path: Path
) -> None:
    """What reference alone computes names its field."""
    path = write_gguf(tmp_path / "x.gguf", theirs(case).said, theirs(case).stored)
    with pytest.raises(BackendError, match=f"^{ALONE[case]}: the cpu backend does not compute it"):
        Engine.load(path, "cpu", "float32")


@pytest.mark.parametrize("case", ["Mistral 4", *ALONE])
def test_halves_are_the_same_numbers_in_a_folder_and_in_a_file(
    case: str, theirs: Callable[[str], Theirs], write_gguf: Write, tmp_path: Path
) -> None:
    it = theirs(case)
    whole = ("tid2eid",)
    folder = tmp_path / "folder"
    folder.mkdir()
    held = {
        name: array if name.endswith(whole) else array.half()
        for name, array in load_file(it.folder / "model.safetensors").items()
    }
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    raw = json.loads((it.folder / "config.json").read_text()) | {"dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(raw))
    stored = {
        name: array if array.dtype == np.int32 else array.astype(np.float16)
        for name, array in it.stored.items()
    }
    path = write_gguf(tmp_path / "x.gguf", it.said, stored)
    assert GgufModel(path).config.dtype == "float16"
    np.testing.assert_array_equal(logits_of(path, it.ids), logits_of(folder, it.ids))


@pytest.mark.parametrize("case", ["Mistral 4", "Kimi-K2.5", *ALONE])
def test_a_file_is_what_the_converter_writes(case: str, theirs: Callable[[str], Theirs]) -> None:
    """Names, shapes and metadata, but for what it says of the file and of its tokens."""
    it, recorded = theirs(case), RECORDED[CASES[case][1]]
    assert {name: list(array.shape) for name, array in it.stored.items()} == recorded["tensors"]
    apart = ("general.", "tokenizer.")
    said = {key: x for key, x in it.said.items() if not key.startswith(apart)}
    assert said.keys() == recorded["metadata"].keys()
    for key, value in recorded["metadata"].items():
        texts = isinstance(value, str)
        assert said[key] == (value if texts else pytest.approx(value, rel=1e-6)), key  # float32


@pytest.mark.parametrize("case", CASES)
def test_transformers_reads_the_folder_that_is_made_of_a_file(
    case: str, theirs: Callable[[str], Theirs], write_gguf: Write, tmp_path: Path
) -> None:
    it = theirs(case)
    path = write_gguf(tmp_path / "x.gguf", it.said, it.stored)
    unpack_gguf(path, tmp_path / "out")
    found = type(it.model).from_pretrained(tmp_path / "out", dtype=torch.float32)
    found.config._experts_implementation = "eager"
    assert close(compute(found.eval(), np.array(it.ids)), it)
    np.testing.assert_array_equal(logits_of(tmp_path / "out", it.ids), logits_of(it.folder, it.ids))


def test_a_table_stays_in_whole_numbers_whatever_floats_become(
    theirs: Callable[[str], Theirs], write_gguf: Write, tmp_path: Path
) -> None:
    it = theirs("DeepSeek-V4")
    path = write_gguf(tmp_path / "x.gguf", it.said, it.stored)
    unpack_gguf(path, tmp_path / "out", dtype="bfloat16")
    folder = Checkpoint.open(tmp_path / "out")
    table = folder["layers.1.ffn.gate.tid2eid"]
    np.testing.assert_array_equal(table, it.stored["blk.1.ffn_gate_tid2eid.weight"])
    assert folder["layers.1.ffn.gate.weight"].dtype.name == "bfloat16"


def in_blocks(name: str, array: np.ndarray[Any, Any]) -> tuple[str, np.ndarray[Any, Any]] | None:
    """A matrix as the converter has it of DeepSeek-V4's own files; None: it stays in floats."""
    kind = "MXFP4" if "_exps" in name else "Q8_0"
    told = ("_exps", "attn_q_a.", "attn_kv.")
    if not any(part in name for part in told):
        return None
    return kind, gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind])


def test_deepseek_v4_in_the_types_that_the_converter_writes(
    theirs: Callable[[str], Theirs], write_gguf: Write, tmp_path: Path
) -> None:
    """Experts in MXFP4, what was in 8 bits in Q8_0: the numbers that the blocks mean."""
    it = theirs("DeepSeek-V4")
    coded, plain = dict[str, Any](it.stored), dict(it.stored)
    for name, array in it.stored.items():
        if (packed := in_blocks(name, array)) is not None:
            coded[name] = packed
            plain[name] = gguf.quants.dequantize(
                packed[1], gguf.GGMLQuantizationType[packed[0]]
            ).astype(np.float32)
    path = write_gguf(tmp_path / "x.gguf", it.said, coded)
    weights = Weights.open(path)
    assert all(
        isinstance(x, Blocks) and x.format == "mxfp4" for x in weights.experts[Role.EXPERT_UP, 3]
    )
    found = logits_of(path, it.ids)
    wanted = logits_of(write_gguf(tmp_path / "y.gguf", it.said, plain), it.ids)
    np.testing.assert_array_equal(found, wanted)
    assert np.abs(found - it.logits).max() > 0


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("blk.0.ffn_gate_tid2eid.weight", np.full((97, 3), 7, np.int32), "0 to 6, got 7"),
        ("blk.0.ffn_gate_tid2eid.weight", np.full((97, 3), -1, np.int32), "0 to 6, got -1"),
        ("blk.0.ffn_gate_tid2eid.weight", np.zeros((97, 3), np.float32), "expected I32"),
        ("blk.0.ffn_gate_tid2eid.weight", np.zeros((96, 3), np.int32), r"expected shape \[97, 3\]"),
        ("blk.0.attn_q_a.weight", np.zeros((22, 64), np.int32), "expected one of BF16, .* got I32"),
        ("blk.2.exp_probs_b.bias", None, "1 are missing: 'blk.2.exp_probs_b.bias'"),
        ("blk.0.exp_probs_b.bias", np.zeros(7, np.float32), "got 1 more: 'blk.0.exp_probs_b.bias'"),
    ],
)
def test_tables_and_others_that_are_not_what_they_must_be_are_named(
    name: str,
    array: np.ndarray[Any, Any] | None,
    message: str,
    theirs: Callable[[str], Theirs],
    write_gguf: Write,
    tmp_path: Path,
) -> None:
    it = theirs("DeepSeek-V4")
    stored = {key: x for key, x in (it.stored | {name: array}).items() if x is not None}
    with pytest.raises(CheckpointError, match=message):
        Weights.open(write_gguf(tmp_path / "x.gguf", it.said, stored))


def test_a_table_in_a_folder_is_looked_at_too(
    theirs: Callable[[str], Theirs], tmp_path: Path
) -> None:
    it = theirs("DeepSeek-V4")
    held = load_file(it.folder / "model.safetensors")
    held["layers.1.ffn.gate.tid2eid"][5, 1] = 7
    save_file(held, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_bytes((it.folder / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"1.ffn.gate.tid2eid': expected numbers of experts"):
        Weights.open(tmp_path)


@pytest.mark.parametrize("case", ["DeepSeek-V3.2", "GLM-5", "DeepSeek-V4"])
def test_blocks_that_predict_further_ahead_are_left_alone(
    case: str, theirs: Callable[[str], Theirs], write_gguf: Write, tmp_path: Path
) -> None:
    it, architecture = theirs(case), CASES[case][1]
    count = it.said[f"{architecture}.block_count"]
    said = it.said | {
        f"{architecture}.block_count": count + 1,
        f"{architecture}.nextn_predict_layers": 1,
    }
    if architecture == "deepseek4":  # lists are of all blocks
        for key in ("swiglu_clamp_exp", "swiglu_clamp_shexp", "attention.compress_ratios"):
            listed = said[f"deepseek4.{key}"]
            said[f"deepseek4.{key}"] = [*listed, type(listed[0])(0.7)]
    ahead = {
        f"blk.{count}.{name}": np.ones((1, 4), np.float32)
        for name in ("attn_norm.weight", "nextn.eh_proj.weight", "nextn.enorm.weight")
    }
    path = write_gguf(tmp_path / "x.gguf", said, it.stored | ahead)
    plain = write_gguf(tmp_path / "y.gguf", it.said, it.stored)
    np.testing.assert_array_equal(logits_of(path, it.ids), logits_of(plain, it.ids))
