"""GGUF files through the engine: what Transformers computes of the same weights, and the text."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.errors import CheckpointError, ModelNotFoundError, TextError
from monolane.model import Blocks, GgufModel, PairScaling, Role, Weights
from monolane.model._gguf_types import GGML_TYPES

from .converted import metadata, tensors
from .gguf_cases import (
    CASES,
    LATENT,
    VOCAB,
)
from .sizes import (
    LONG,
    LONGROPE,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = 40
Write = Callable[..., Path]


def random_model(kind: str, **changes: Any) -> Any:
    """A small random model of Transformers, with norms and biases off one and zero."""
    torch.manual_seed(0)
    fields: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
        "tie_word_embeddings": kind.startswith("Gemma"),
        "initializer_range": 0.15,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config = getattr(
        transformers, f"{kind.removesuffix('Text')}{'Text' * kind.endswith('Text')}Config"
    )
    # A copy: Transformers writes its defaults into the objects it is given, which cases share.
    config_of = config(**copy.deepcopy(fields | changes))
    config_of._experts_implementation = "eager"  # others want sizes that are multiples
    make = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM", None)
    model = (make or transformers.AutoModelForCausalLM.from_config)(config_of).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith(("bias", "scale", ".D")):
                parameter += 0.3 * torch.randn_like(parameter)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias", "layer_scalar")):
                buffer += 0.3 * torch.randn_like(buffer)
    return model


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_logits_and_tokens_are_those_of_transformers(
    case: str, backend: str, write_gguf: Write, tmp_path: Path
) -> None:
    kind, architecture, changes = CASES[case]
    theirs = random_model(kind, **changes)
    path = write_gguf(
        tmp_path / "x.gguf", metadata(theirs.config, architecture), tensors(theirs, architecture)
    )
    ids = np.random.default_rng(0).integers(VOCAB, size=TOKENS)
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(ids)[None]).logits[0].numpy()
        tokens = theirs.generate(
            torch.from_numpy(ids[:4])[None], max_new_tokens=20, min_new_tokens=20, do_sample=False
        )[0, 4:].tolist()
    with Engine.load(path, backend, "float32") as engine:
        found = engine.logits(ids.tolist())
        params = SamplingParams(max_tokens=20, logit_bias={2: -np.inf})
        answer = engine.generate(ids[:4].tolist(), params)
        if "Llama 3" in case:
            assert isinstance(engine.config.rotary.scaling, PairScaling)
    # As in tests/engine/test_dense.py, for at most 7 layers: products in a row whose sums have at
    # most 96 terms, or twice as many in a wide MLP, in two evaluations; angles of up to 40 radians
    # that are rounded differently. Embeddings of each layer are two products more.
    layers = theirs.config.num_hidden_layers
    own = bool(getattr(theirs.config, "hidden_size_per_layer_input", 0))
    terms = 192 if getattr(theirs.config, "use_double_wide_mlp", False) else 96
    products = (4 + 2 * own) * layers + 1 + own
    sums, angles = 6 * np.sqrt(2 * products * terms), 6 * layers * TOKENS * np.sqrt(3)
    assert np.abs(found - wanted).max() < (sums + angles) * 2.0**-24 * wanted.std()
    assert wanted.std() > 0.5  # logits near zero would agree whatever the model did
    assert list(answer.token_ids) == tokens


def test_an_exaone_s_epsilon_has_either_name(write_gguf: Write, tmp_path: Path) -> None:
    """What published folders call it makes newer converters write another key than older ones."""
    model = random_model("Exaone", rms_norm_eps=0.25)
    said, stored = metadata(model.config, "exaone"), tensors(model, "exaone")
    older, newer = (f"exaone.attention.layer_norm_{end}" for end in ("rms_epsilon", "epsilon"))
    renamed = {newer if key == older else key: x for key, x in said.items()}
    configs = [
        GgufModel(write_gguf(tmp_path / f"{i}.gguf", x, stored)).config
        for i, x in enumerate((said, renamed))
    ]
    assert configs[0] == configs[1]
    assert configs[0].norm_eps == 0.25


def blocks(kind: str, shape: tuple[int, int]) -> np.ndarray:
    """Random blocks of a type, with scales of some hundredths: bytes uint8 [rows, row's bytes]."""
    row = next(row for row in GGML_TYPES.values() if row.name == kind)
    rng = np.random.default_rng(0)
    count = shape[0] * shape[1] // row.block
    raw = rng.integers(256, size=(count, row.bytes), dtype=np.uint8)
    if kind == "MXFP4":  # no float16, but a power of two
        raw[:, 0] = rng.integers(118, 121, count)
        return raw.reshape(shape[0], -1)
    if kind == "NVFP4":  # four of 8 bits
        raw[:, :4] = rng.integers(8, 16, (count, 4))
        return raw.reshape(shape[0], -1)
    # Where the float16 numbers of a block lie (``ggml-common.h``): its scale, and what is added.
    super_block = row.block == 256
    starts = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,)}
    with_minima = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")
    for i, start in enumerate(starts.get(kind, (0, 2) if kind in with_minima else (0,))):
        size = 1e-3 if super_block else 1e-2
        if kind in ("Q8_0", "Q6_K", "IQ4_NL", "IQ4_XS"):
            size /= 40
        if kind.startswith("TQ"):
            size *= 40
        scales = (rng.uniform(0.5, 1, count) * size * (-4) ** i).astype(np.float16)
        if kind == "IQ1_M":  # in the upper halves of four bytes
            nibbles = scales[:, None].view(np.uint16) >> np.array([0, 4, 8, 12], np.uint16) & 15
            raw[:, 49::2] = raw[:, 49::2] & 15 | nibbles.astype(np.uint8) << 4
            continue
        raw[:, start : start + 2] = scales.view(np.uint8).reshape(-1, 2)
    return raw.reshape(shape[0], -1)


@pytest.mark.parametrize("kind", [row.name for row in GGML_TYPES.values() if row.dtype is None])
def test_blocks_compute_as_the_numbers_they_mean(
    kind: str, write_gguf: Write, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 32}
    model = random_model("Llama", num_hidden_layers=2, **sizes)
    stored: dict[str, Any] = tensors(model, "llama")
    plain = dict(stored)
    for name, array in stored.items():
        if array.ndim == 2:
            packed = blocks(kind, array.shape)
            stored[name] = (kind, packed)
            plain[name] = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[kind])
            assert 0.005 < plain[name].std() < 0.5
    said = metadata(model.config, "llama")
    ids = np.random.default_rng(0).integers(VOCAB, size=TOKENS).tolist()
    logits = {}
    for name, held in (("blocks", stored), ("plain", plain)):
        with Engine.load(write_gguf(tmp_path / f"{name}.gguf", said, held), "reference") as engine:
            logits[name] = engine.logits(ids)
    np.testing.assert_array_equal(logits["blocks"], logits["plain"])
    assert logits["plain"].std() > 0


def test_the_cpu_multiplies_by_blocks_as_they_are(
    tiny_llama: tuple[dict[str, Any], dict[str, Any]], write_gguf: Write, tmp_path: Path
) -> None:
    """The arithmetic is proved in tests/cpu; here, that tensors come into their places."""
    fields, arrays = tiny_llama
    kinds = {"attn": "Q5_1", "ffn_": "Q4_1", "toke": "Q8_0"}  # mixed, as llama.cpp mixes them
    stored: dict[str, Any] = dict(arrays)
    for name, array in arrays.items():
        if array.ndim == 2:
            kind = kinds[name.removeprefix("blk.0.").removeprefix("blk.1.")[:4]]
            packed = gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind])
            stored[name] = (kind, packed)
    path = write_gguf(tmp_path / "x.gguf", fields, stored)
    ids = list(range(3, 43))
    logits = {}
    for backend in ("reference", "cpu"):
        with Engine.load(path, backend) as engine:
            logits[backend] = engine.logits(ids)
    error = np.abs(logits["cpu"] - logits["reference"])
    # Activations of 8 bits in groups of 32 are off by at most half a 127th of the group's largest:
    # some hundredths of the spread behind two layers. A tensor in a wrong place gives all of it.
    assert 0 < error.mean() < 0.05 * logits["reference"].std()


@pytest.mark.parametrize("kind", [None, "Q8_0"])
def test_keys_and_values_of_a_latent_are_the_same_joined_and_split(
    kind: str | None, write_gguf: Write, tmp_path: Path
) -> None:
    """Older files have kv_b whole; of blocks, its keys turn over the blocks."""
    sizes = {"kv_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}
    model = random_model("DeepseekV3", **LATENT | sizes)
    logits, weights = {}, {}
    for whole in (True, False):
        stored: dict[str, Any] = tensors(model, "deepseek2", whole)
        for name, array in stored.items():
            if kind is not None and ("attn_kv_b" in name or "attn_v_b" in name):
                stored[name] = (kind, gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind]))
            elif kind is not None and "attn_k_b" in name:  # the numbers that kv_b's blocks mean
                rows = np.ascontiguousarray(array.swapaxes(1, 2))
                place = gguf.GGMLQuantizationType[kind]
                meant = gguf.quants.dequantize(gguf.quants.quantize(rows, place), place)
                stored[name] = np.ascontiguousarray(meant.swapaxes(1, 2))
        said = metadata(model.config, "deepseek2", whole)
        path = write_gguf(tmp_path / f"{whole}.gguf", said, stored)
        weights[whole] = Weights.open(path).dequantized()
        with Engine.load(path, "cpu", **{} if kind else {"dtype": "float32"}) as engine:
            logits[whole] = engine.logits(list(range(3, 43)))
    for whole, split in zip(weights[True].layers, weights[False].layers, strict=True):
        for role in (Role.K_UP, Role.V_UP):
            np.testing.assert_array_equal(whole[role], split[role])
    np.testing.assert_array_equal(logits[True], logits[False])
    assert logits[True].std() > 0.5


def quantized(array: np.ndarray, kind: str | None) -> Any:
    """An array as ``write_gguf`` takes it, in blocks of a type or as it is."""
    if kind is None:
        return array
    return kind, gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind])


@pytest.mark.parametrize("kind", [None, "Q8_0"])
def test_keys_and_values_beside_their_joined_form_are_those_read(
    kind: str | None, write_gguf: Write, tmp_path: Path
) -> None:
    """ik_llama.cpp's converter writes both, and the heads of the split pair as one matrix."""
    sizes = {"kv_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}
    model = random_model("DeepseekV3", **LATENT | sizes)
    split: dict[str, Any] = tensors(model, "deepseek2")
    beside = tensors(model, "deepseek2", whole=True)
    for name, array in split.items():
        if "attn_k_b" in name or "attn_v_b" in name:
            split[name] = quantized(array, kind)
            beside[name] = quantized(array.reshape(-1, array.shape[-1]), kind)
    for name, array in beside.items():
        if "attn_kv_b" in name:
            beside[name] = np.full_like(array, np.nan)
    logits = {}
    for both, stored in ((True, beside), (False, split)):
        said = metadata(model.config, "deepseek2", whole=both)
        path = write_gguf(tmp_path / f"{both}.gguf", said, stored)
        with Engine.load(path, "cpu", **{} if kind else {"dtype": "float32"}) as engine:
            logits[both] = engine.logits(list(range(3, 23)))
    np.testing.assert_array_equal(logits[True], logits[False])
    assert logits[True].std() > 0.5


def test_a_shared_expert_s_gate_is_a_vector_or_a_row(write_gguf: Write, tmp_path: Path) -> None:
    """Older converters drop the row's axis; older files do not say widths that others imply."""
    kind, architecture, changes = CASES["Qwen2-MoE"]
    implied = {"moe_intermediate_size": 96 // 3, "shared_expert_intermediate_size": 96}
    model = random_model(kind, **changes | implied)
    said, logits = metadata(model.config, architecture), {}
    for old in (False, True):
        stored = tensors(model, architecture)
        gate = stored["blk.1.ffn_gate_inp_shexp.weight"]
        assert gate.shape == (1, 64)
        if old:
            for name in [name for name in stored if "_inp_shexp" in name]:
                stored[name] = stored[name][0]
            said = {key: x for key, x in said.items() if "expert_" not in key or "count" in key}
        with Engine.load(write_gguf(tmp_path / f"{old}.gguf", said, stored), "cpu") as engine:
            logits[old] = engine.logits(list(range(3, 23)))
    np.testing.assert_array_equal(logits[True], logits[False])
    assert logits[True].std() > 0.5


@pytest.mark.parametrize("kind", [None, "Q8_0"])
@pytest.mark.parametrize("case", ["Qwen3-MoE", "DeepSeek-V3"])  # mixtures in all layers; not in all
def test_gates_and_ups_of_experts_are_the_same_fused_and_apart(
    case: str, kind: str | None, write_gguf: Write, tmp_path: Path
) -> None:
    family, architecture, changes = CASES[case]
    model = random_model(family, **changes | {"hidden_size": 64})  # whole blocks in a row
    apart: dict[str, Any] = tensors(model, architecture)
    fused = dict(apart)
    for name, gate in apart.items():
        if "ffn_gate_exps" in name:
            up = fused.pop(name.replace("gate", "up"))
            del fused[name]
            both = np.concatenate([gate, up], axis=1)
            fused[name.replace("gate", "gate_up")] = quantized(both, kind)
    for name, array in apart.items():
        if "ffn_gate_exps" in name or "ffn_up_exps" in name:
            apart[name] = quantized(array, kind)
    logits = {}
    for place, stored in (("fused", fused), ("apart", apart)):
        path = write_gguf(tmp_path / f"{place}.gguf", metadata(model.config, architecture), stored)
        with Engine.load(path, "cpu", **{} if kind else {"dtype": "float32"}) as engine:
            logits[place] = engine.logits(list(range(3, 23)))
    np.testing.assert_array_equal(logits["fused"], logits["apart"])
    assert logits["fused"].std() > 0.5
    file = GgufModel(tmp_path / "fused.gguf")
    whole = file["blk.2.ffn_gate_up_exps.weight"]
    for role in (Role.EXPERT_GATE, Role.EXPERT_UP):
        for matrix in Weights.of_gguf(file).experts[role, 2]:
            held = [x.data if isinstance(x, Blocks) else x for x in (matrix, whole)]
            assert np.shares_memory(*held)  # where it lies


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_1"])
def test_the_cpu_multiplies_by_the_blocks_of_a_latent(
    kind: str, write_gguf: Write, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 96}
    sizes |= {"kv_lora_rank": 64, "q_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}
    model = random_model("DeepseekV3", **LATENT | sizes)
    stored: dict[str, Any] = tensors(model, "deepseek2")
    for name, array in stored.items():
        if array.ndim > 1 and "ffn_gate_inp" not in name:
            stored[name] = (kind, gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind]))
    path = write_gguf(tmp_path / "x.gguf", metadata(model.config, "deepseek2"), stored)
    assert isinstance(Weights.open(path).quantized[Role.K_UP, 1], Blocks)
    logits = {}
    for backend in ("reference", "cpu"):
        with Engine.load(path, backend) as engine:
            logits[backend] = engine.logits(list(range(3, 23)))
    error = np.abs(logits["cpu"] - logits["reference"])
    # As above, but a rounded activation may choose another expert, which changes a token's logits:
    # so the median, of which few tokens are no part.
    assert 0 < np.median(error) < 0.05 * logits["reference"].std()


def test_text_comes_from_the_files_own_tokenizer(llama_gguf: Path) -> None:
    with Engine.load(llama_gguf, "reference") as engine:
        assert engine.prompt_ids("aé") == (1, 3, 4 + 0x61, 4 + 0xC3, 4 + 0xA9)
        assert engine.eos_ids == {2}
        answer = engine.generate("a", SamplingParams(max_tokens=8, ignore_eos=True))
        assert len(answer.token_ids) == 8
        assert engine.tokenizer is not None
        assert answer.text == engine.tokenizer.decode(answer.token_ids)
        with pytest.raises(TextError, match="this model's files have no chat template"):
            engine.prompt_ids([{"role": "user", "content": "Hi"}])


def test_a_file_without_tokenizer_takes_ids(
    tiny_llama: tuple[dict[str, Any], dict[str, Any]], write_gguf: Write, tmp_path: Path
) -> None:
    fields, arrays = tiny_llama
    kept = {key: value for key, value in fields.items() if not key.startswith("tokenizer.")}
    with Engine.load(write_gguf(tmp_path / "x.gguf", kept, arrays), "reference") as engine:
        assert engine.tokenizer is None
        answer = engine.generate([5, 6], SamplingParams(max_tokens=4))
        assert len(answer.token_ids) == 4


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGML" + b"\0" * 99)
    with pytest.raises(CheckpointError, match="expected a GGUF file, which begins with b'GGUF'"):
        Engine.load(tmp_path / "x.gguf", "reference")
    (tmp_path / "y.bin").write_bytes(b"GGUF")  # known by its bytes
    with pytest.raises(CheckpointError, match="y.bin: the header: it is truncated"):
        Engine.load(tmp_path / "y.bin", "reference")
    (tmp_path / "x.bin").write_bytes(b"GGUX")
    with pytest.raises(ModelNotFoundError, match="or a GGUF file, got another file"):
        Engine.load(tmp_path / "x.bin", "reference")
    with pytest.raises(ModelNotFoundError, match="a folder or a .gguf file on this machine"):
        Engine.load(str(tmp_path / "none.gguf"), "reference")


def test_longrope_s_divisors_are_tensors(write_gguf: Write, tmp_path: Path) -> None:
    model = random_model("Phi3", hidden_size=96, head_dim=12, **LONG)
    stored = tensors(model, "phi3")
    for length in ("long", "short"):
        stored[f"rope_factors_{length}.weight"] = np.array(LONGROPE[f"{length}_factor"], "f4")
    said = metadata(model.config, "phi3")
    said["phi3.rope.scaling.original_context_length"] = 32
    said["phi3.rope.scaling.attn_factor"] = float(np.sqrt(1 + np.log(2) / np.log(32)))
    path = write_gguf(tmp_path / "x.gguf", said, stored)
    ids = np.random.default_rng(0).integers(VOCAB, size=TOKENS)
    for context, count in ((64, TOKENS), (32, 30)):
        with torch.no_grad():
            wanted = model(torch.from_numpy(ids[:count])[None]).logits[0].numpy()
        with Engine.load(path, "cpu", "float32", context=context) as engine:
            found = engine.logits(ids[:count].tolist())
        assert np.abs(found - wanted).max() < 1e-4 * wanted.std()  # derived above


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_rows_of_several_matrices_in_blocks(
    backend: str, write_gguf: Write, tmp_path: Path
) -> None:
    """Each matrix has its rows of a tensor's blocks, where these lie."""
    kind, architecture, changes = CASES["Phi-3"]
    model = random_model(kind, **changes)
    stored: dict[str, Any] = tensors(model, architecture)
    logits = {}
    for whole in (True, False):
        for name, array in stored.items():
            if "attn_qkv" in name or "ffn_up" in name:
                own, data = quantized(array, "Q8_0") if whole else ("Q8_0", array[1])
                plain = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[own])
                stored[name] = (own, data) if whole else plain
        path = write_gguf(
            tmp_path / f"{whole}.gguf", metadata(model.config, architecture), dict(stored)
        )
        with Engine.load(path, backend, "float32" if backend == "reference" else "auto") as engine:
            logits[whole] = engine.logits(list(range(3, 23)))
    error = np.abs(logits[True] - logits[False])
    if backend == "reference":
        np.testing.assert_array_equal(logits[True], logits[False])
    else:  # activations are rounded beside codes
        assert np.median(error) < 0.05 * logits[False].std()
