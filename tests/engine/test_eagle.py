"""EAGLE-3 drafters from folders: what is computed, what is drafted, and what is refused.

Neither the authors' code nor a published drafter is at hand. Here are random ones in the layout
that SpecForge writes; what they compute is written down a second time with torch.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.engine import ModelFiles
from monolane.errors import CheckpointError, ConfigError, RequestError
from monolane.model import Eagle, Role, Weights
from monolane.reference import ReferenceEagle, ReferenceModel, gumbel_noise
from tests.drafters import ROUNDED, save_drafter
from tests.random_models import write_random_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
llama = pytest.importorskip("transformers.models.llama.modeling_llama")

D, F, H, K, h, V = 64, 96, 4, 2, 32, 40
IDS = (3, 7, 11, 20, 30, 38)  # of the model, that are drafted
R = len(IDS)
LAYERS = 8
MODEL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": D,
    "intermediate_size": F,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": H,
    "num_key_value_heads": K,
    "head_dim": h,
    "vocab_size": V,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
DRAFTER: dict[str, Any] = MODEL | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": R,
}
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]
HOT, SEED = 2.0, 5


def write_model(folder: Path) -> Path:
    return write_random_model(folder, MODEL, scale=0.2)


def drafter_tensors() -> dict[str, Any]:
    """What a folder of a drafter holds, random."""
    rng = np.random.default_rng(1)

    def make(*shape: int, mean: float = 0.0) -> Any:
        return (mean + rng.normal(scale=0.2, size=shape)).astype(np.float32)

    layer = "midlayer."
    chosen = np.zeros(V, np.bool_)
    chosen[list(IDS)] = True
    return {
        "fc.weight": make(D, 3 * D),
        f"{layer}self_attn.q_proj.weight": make(H * h, 2 * D),
        f"{layer}self_attn.k_proj.weight": make(K * h, 2 * D),
        f"{layer}self_attn.v_proj.weight": make(K * h, 2 * D),
        f"{layer}self_attn.o_proj.weight": make(D, H * h),
        f"{layer}mlp.gate_proj.weight": make(F, D),
        f"{layer}mlp.up_proj.weight": make(F, D),
        f"{layer}mlp.down_proj.weight": make(D, F),
        f"{layer}input_layernorm.weight": make(D, mean=1.0),
        f"{layer}hidden_norm.weight": make(D, mean=1.0),
        f"{layer}post_attention_layernorm.weight": make(D, mean=1.0),
        "norm.weight": make(D, mean=1.0),
        "lm_head.weight": make(R, D),
        "d2t": np.array(IDS, np.int64) - np.arange(R),
        "t2d": chosen,
    }


def write_drafter(folder: Path, leave_out: tuple[str, ...] = (), **changed: Any) -> Path:
    return save_drafter(folder, DRAFTER, drafter_tensors(), leave_out, changed)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=[False, True], ids=["stream", "norm joins"])
def drafter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafter")
    return write_drafter(folder, norm_before_residual=request.param)


def theirs(folder: Path, embedding: Any, ids: Any, streams: Any) -> tuple[Any, Any]:
    """The method in torch, of tokens [T], each with three streams [T, 3D] of the one before."""
    raw = json.loads((folder / "config.json").read_text())
    config = transformers.LlamaConfig(**raw)
    w = pytest.importorskip("safetensors.torch").load_file(folder / "model.safetensors")
    norm = lambda x, name: torch.nn.functional.rms_norm(x, (D,), w[name], config.rms_norm_eps)  # noqa: E731
    x = torch.from_numpy(streams) @ w["fc.weight"].T
    read = norm(x, "midlayer.hidden_norm.weight")
    token = norm(torch.from_numpy(embedding[ids]), "midlayer.input_layernorm.weight")
    both = torch.cat([token, read], -1)
    q, k, v = (
        (both @ w[f"midlayer.self_attn.{name}_proj.weight"].T).view(1, len(ids), -1, h)
        for name in "qkv"
    )
    turn = llama.LlamaRotaryEmbedding(config)
    cosine, sine = turn(both, torch.arange(len(ids))[None])
    q, k = llama.apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cosine, sine)
    said = torch.nn.functional.scaled_dot_product_attention(
        q, k, v.transpose(1, 2), is_causal=True, enable_gqa=True
    )
    x = read if raw.get("norm_before_residual") else x
    x = x + said.transpose(1, 2).reshape(len(ids), -1) @ w["midlayer.self_attn.o_proj.weight"].T
    inner = norm(x, "midlayer.post_attention_layernorm.weight")
    gate, up = (inner @ w[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    x = x + (torch.nn.functional.silu(gate) * up) @ w["midlayer.mlp.down_proj.weight"].T
    return (norm(x, "norm.weight") @ w["lm_head.weight"].T).numpy(), x.numpy()


def oracle(model: Path, drafter: Path, **options: Any) -> tuple[Weights, ReferenceEagle]:
    weights = ModelFiles.open(model).weights()
    embedding = weights.outer[Role.EMBEDDING].reshape(V, D)
    return weights, ReferenceEagle(Eagle.open(drafter), embedding, **options)


def streams_of(weights: Weights, eagle: Eagle, ids: list[int]) -> Any:
    reference = ReferenceModel(weights)
    found = reference.streams(ids, reference.new_cache(), eagle.layers_of(weights.config))
    return np.concatenate(found, axis=-1)


def test_the_oracle_is_what_torch_computes(model: Path, drafter: Path) -> None:
    weights, mine = oracle(model, drafter)
    ids = np.random.default_rng(2).integers(V, size=30)
    streams = np.random.default_rng(3).normal(size=(30, 3 * D)).astype(np.float32)
    logits, states = mine.forward(ids, streams)
    embedding = weights.outer[Role.EMBEDDING].reshape(V, D)
    their_logits, their_states = theirs(drafter, embedding, ids, streams)
    # Sums of up to 192 products of float32, some ten one behind the other, of numbers up to 30.
    np.testing.assert_allclose(states, their_states, atol=3e-4)
    np.testing.assert_allclose(logits, their_logits, atol=3e-4)
    assert np.ptp(logits) > 1


def test_the_streams_are_those_of_transformers(model: Path) -> None:
    """Layer i's is what i layers have made of the embedding."""
    weights = ModelFiles.open(model).weights()
    ids = np.random.default_rng(4).integers(V, size=20)
    reference = ReferenceModel(weights)
    found = reference.streams(ids, reference.new_cache(), range(LAYERS))
    other = transformers.AutoModelForCausalLM.from_pretrained(model).eval()
    with torch.no_grad():
        said = other(torch.from_numpy(ids)[None], output_hidden_states=True).hidden_states
    for mine, their in zip(found, said[:LAYERS], strict=True):
        np.testing.assert_allclose(mine, their[0].numpy(), atol=1e-4)


def hot(known: int, logits: Any, place: int) -> int:
    """Draw as the sequence does at a place of its draft, ``known`` tokens behind its beginning."""
    noise = gumbel_noise(SEED, known + place, np.array(IDS))
    return int((logits / np.float32(HOT) + noise).argmax())


@pytest.mark.usefixtures("three_drafts")
@pytest.mark.parametrize("layers", [None, [0, 3, 6]], ids=["usual layers", "said layers"])
def test_what_is_drafted_is_what_the_oracle_drafts(
    model: Path, drafter: Path, tmp_path: Path, layers: list[int] | None
) -> None:
    """Counted: each pass drafts three tokens, and the model takes those that it draws itself.

    The drafter draws with the sequence's own noise, so that even a random one is often right.
    """
    folder = drafter
    if layers is not None:
        said = json.loads((drafter / "config.json").read_text())
        config = {"eagle_aux_hidden_state_layer_ids": layers}
        folder = write_drafter(
            tmp_path, eagle_config=config, norm_before_residual=said["norm_before_residual"]
        )
    weights, mine = oracle(model, folder, rounded=ROUNDED)
    assert mine.eagle.layers_of(weights.config) == ((2, 4, 5) if layers is None else (1, 4, 7))
    tokens = 120
    params = SamplingParams(
        max_tokens=tokens,
        temperature=HOT,
        seed=SEED,
        logit_bias=dict.fromkeys(IDS, 100.0),
        speculation="heads",
        logprobs=0,
    )
    with Engine.load(model, "cpu", dtype="float32", draft=folder, workers=2) as engine:
        assert engine.backend.executor.drafter == "heads"
        found = engine.generate(PROMPT, params)
        plain = engine.generate(PROMPT, replace(params, speculation="off"))
    assert (found.token_ids, found.logprobs) == (plain.token_ids, plain.logprobs)
    ids = [*PROMPT, *found.token_ids]
    streams = streams_of(weights, mine.eagle, ids)
    drawn, drafted, accepted = 1, 0, 0
    while drawn < tokens:
        count, at = min(3, tokens - drawn - 1), len(PROMPT) + drawn
        choose = partial(hot, at)
        said = mine.draft(ids[1:at], streams[: at - 1], count, choose) if count > 0 else []
        right = 0
        while right < len(said) and said[right] == ids[at + right]:
            right += 1
        drafted, accepted, drawn = drafted + len(said), accepted + right, drawn + right + 1
    assert found.timings.drafters["heads"]["draft_n"] == drafted
    assert found.timings.drafters["heads"]["draft_n_accepted"] == accepted
    assert tokens / 10 < accepted < drafted * 0.9  # so that the counts tell something


@pytest.mark.usefixtures("three_drafts")
@pytest.mark.parametrize(
    "more",
    [{}, {"temperature": 0.9, "seed": 4, "top_p": 0.9}, {"frequency_penalty": 0.4}],
    ids=["greedy", "sampled", "penalised"],
)
def test_answers_stay_the_same(model: Path, drafter: Path, more: dict[str, Any]) -> None:
    """Behind a kept prefix, of prompts that are longer than a pass, and of several at once."""
    params = SamplingParams(max_tokens=40, logprobs=2, **more)
    prompts = [(PROMPT * 20)[: 90 + i] for i in range(3)]
    with Engine.load(
        model, "cpu", dtype="float32", draft=drafter, max_sequences=3, prefix_cache="64M"
    ) as engine:
        plain = engine.generate_all(prompts, replace(params, speculation="off"))
        for _ in range(2):
            for mine, other in zip(engine.generate_all(prompts, params), plain, strict=True):
                assert (mine.token_ids, mine.logprobs) == (other.token_ids, other.logprobs)
                assert mine.timings.draft_n > 0


def test_what_does_not_fit_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    def refused(error: type[Exception], match: str, *out: str, **changed: Any) -> None:
        with pytest.raises(error, match=match):
            Engine.load(model, "cpu", draft=write_drafter(tmp_path, out, **changed))

    refused(ConfigError, "vocab_size: expected 40, the model's, got 41", vocab_size=41)
    refused(CheckpointError, r"fc.weight: expected .*\[32, 96\].* got float32", hidden_size=32)
    refused(CheckpointError, "lm_head.weight: expected it", "lm_head.weight")
    refused(CheckpointError, "d2t: expected it, for 6 of 40 tokens", "d2t")
    wrong = np.zeros(R, np.int64)
    wrong[1] = -1
    refused(CheckpointError, "d2t: expected ids from 0 to 39, each once", d2t=wrong)
    refused(ConfigError, "num_hidden_layers: expected 1", num_hidden_layers=2)
    far = {"eagle_aux_hidden_state_layer_ids": [1, 3, 7]}
    refused(ConfigError, "expected layers of the model, which has 8", eagle_config=far)
    none = {"eagle_aux_hidden_state_layer_ids": [1]}
    refused(ConfigError, "eagle_config: expected three numbers", eagle_config=none)
    refused(ConfigError, "a DFlash drafter of another kind", architectures=["DFlashForX"])
    refused(ConfigError, "a DSpark drafter of another", architectures=["X"], model_type="dspark")
    refused(ConfigError, "of Speculators of another kind", architectures=["HydraSpeculator"])
    refused(ConfigError, "EAGLE drafter of another kind", architectures=["EagleModel"])
    with pytest.raises(RequestError, match="draft: expected backend cpu"):
        Engine.load(model, "reference", draft=write_drafter(tmp_path))


# ---- the layout of Speculators -------------------------------------------------------------------
def write_theirs(folder: Path, layer: dict[str, Any] | None = None, **changed: Any) -> Path:
    """The same drafter as Speculators writes it: the layer's config apart, other names."""
    said: dict[str, Any] = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": R,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [1, 4, 6],
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "x"}},
        "transformer_layer_config": MODEL | {"num_hidden_layers": 1} | (layer or {}),
    }
    tensors = {name.replace("midlayer.", "layers.0."): x for name, x in drafter_tensors().items()}
    tensors["embed_tokens.weight"] = np.zeros((V, D), np.float32)
    return save_drafter(folder, said, tensors, (), changed)


@pytest.mark.parametrize("architecture", ["Eagle3Speculator", "Eagle3DraftModel"])
def test_a_folder_of_speculators_is_the_same_drafter(tmp_path: Path, architecture: str) -> None:
    ours = Eagle.open(
        write_drafter(
            tmp_path / "ours",
            norm_before_residual=True,
            # SpecForge names the layers behind which the stream is read, Speculators those before.
            eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 3, 5]},
        )
    )
    theirs = Eagle.open(write_theirs(tmp_path / "theirs", architectures=[architecture]))
    assert theirs.weights.keys() == ours.weights.keys()
    for name, x in ours.weights.items():
        np.testing.assert_array_equal(theirs.weights[name], x)
    np.testing.assert_array_equal(theirs.tokens, ours.tokens)
    facts = ("vocab_size", "layers", "heads", "rotary", "norm_eps", "norm_joins")
    assert all(getattr(theirs, x) == getattr(ours, x) for x in facts)
    assert theirs.layers == (1, 4, 6)


def test_what_speculators_compute_besides_is_refused(model: Path, tmp_path: Path) -> None:
    def refused(match: str, **changed: Any) -> None:
        with pytest.raises(ConfigError, match=match):
            Engine.load(model, "cpu", draft=write_theirs(tmp_path, **changed))

    refused("norm_before_fc: expected false", norm_before_fc=True)
    refused("norm_output: expected false", norm_output=True)
    refused("transformer_layer_config: expected the config", transformer_layer_config=None)
    refused("use_sliding_window: expected false", layer={"use_sliding_window": True})
    refused("model_type: expected one of 'llama', got 'qwen3'", layer={"model_type": "qwen3"})
    refused("num_hidden_layers: expected 1", layer={"num_hidden_layers": 2})
    refused("expected three numbers of layers", eagle_aux_hidden_state_layer_ids=[1, 2])
    refused("of Speculators of another kind", speculators_model_type="mlp")
