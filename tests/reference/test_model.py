"""Limits of the reference model, and the fields that no Laneformer uses, against Transformers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from monolane.errors import RequestError
from monolane.model import (
    NOW,
    Checkpoint,
    Head,
    LayerConfig,
    ModelConfig,
    QkNorm,
    Role,
    Rotary,
    Weights,
    lane_shape,
    layer_roles,
    read_config,
)
from monolane.reference import ReferenceModel

GOLDEN = Path(__file__).parents[1] / "golden" / "released_shape"


@pytest.fixture
def model() -> ReferenceModel:
    return ReferenceModel(Weights.load(read_config(GOLDEN), Checkpoint.open(GOLDEN)))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([96], "token ids: expected 0 to 95, got 96"),
        ([3, -1], "token ids: expected 0 to 95, got -1"),
        ([], "expected a list of at least one"),
        ([[1, 2]], "expected a list of at least one, got shape"),
        ([1] * 129, "context: expected at most 128 tokens, got 0 in the cache and 129 more"),
    ],
)
def test_limits_are_named_and_leave_the_cache_usable(
    model: ReferenceModel, ids: list[int], message: str
) -> None:
    cache = model.new_cache()
    with pytest.raises(RequestError, match=message):
        model.forward(ids, cache)
    assert cache.length == 0
    assert model.forward([1, 2], cache).shape == (2, 96)


def random_weights(config: ModelConfig, seed: int = 0) -> Weights:
    rng = np.random.default_rng(seed)

    def make(role: Role) -> np.ndarray:
        return rng.normal(scale=0.2, size=lane_shape(config, role)).astype(np.float32)

    outer = {role: make(role) for role in (Role.EMBEDDING, Role.FINAL_NORM, Role.HEAD)}
    return Weights(
        config,
        outer,
        tuple({role: make(role) for role in layer_roles(config)} for _ in config.layers),
    )


def test_one_lane_that_reduces_now_is_qwen2() -> None:
    """One lane, NOW, half-rotary and QKV biases: a dense model, as Transformers has it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = ModelConfig(
        family="qwen2",
        hidden_size=32,
        intermediate_size=48,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=50,
        max_positions=64,
        num_lanes=1,
        layers=(LayerConfig(NOW, NOW),) * 3,
        head=Head.MEAN,
        rotary=Rotary(theta=1e4, style="half"),
        norm_eps=1e-6,
        qkv_bias=True,
    )
    weights = random_weights(config)
    theirs = transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=50,
            max_position_embeddings=64,
            rms_norm_eps=1e-6,
            tie_word_embeddings=False,
        )
    ).eval()
    names = {
        Role.ATTENTION_NORM: "input_layernorm.weight",
        Role.Q: "self_attn.q_proj.weight",
        Role.K: "self_attn.k_proj.weight",
        Role.V: "self_attn.v_proj.weight",
        Role.Q_BIAS: "self_attn.q_proj.bias",
        Role.K_BIAS: "self_attn.k_proj.bias",
        Role.V_BIAS: "self_attn.v_proj.bias",
        Role.O: "self_attn.o_proj.weight",
        Role.MLP_NORM: "post_attention_layernorm.weight",
        Role.GATE: "mlp.gate_proj.weight",
        Role.UP: "mlp.up_proj.weight",
        Role.DOWN: "mlp.down_proj.weight",
    }
    state = {
        "model.embed_tokens.weight": weights.outer[Role.EMBEDDING],
        "model.norm.weight": weights.outer[Role.FINAL_NORM][0],
        "lm_head.weight": weights.outer[Role.HEAD][0],
    }
    for i, layer in enumerate(weights.layers):
        state |= {f"model.layers.{i}.{names[role]}": array[0] for role, array in layer.items()}
    theirs.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    ids = np.random.default_rng(1).integers(50, size=20)
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(ids)[None]).logits[0].numpy()
    model = ReferenceModel(weights)
    ours = model.forward(ids, model.new_cache())
    assert np.abs(ours - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_two_lanes_that_reduce_now_are_one() -> None:
    """Norms behind modules are of what the lanes sum up to, so that lanes do not show."""
    one = ModelConfig(
        family="gemma3_text",
        hidden_size=16,
        intermediate_size=24,
        num_heads=4,
        num_kv_heads=2,
        head_dim=6,
        vocab_size=12,
        max_positions=16,
        num_lanes=1,
        layers=(LayerConfig(NOW, NOW), LayerConfig(NOW, NOW, 3, "local"), LayerConfig(NOW, NOW)),
        head=Head.MEAN,
        local_rotary=Rotary(100.0),
        norm_offset=1.0,
        norm_after=True,
        norm_scale_per_lane=False,
        qk_norm=QkNorm.HEAD,
        query_scale=0.3,
        activation="gelu_tanh",
        embedding_scale=4.0,
    )
    weights = random_weights(one)

    def cut(role: Role, array: np.ndarray) -> np.ndarray:
        shape = lane_shape(two, role)
        if role in (Role.O, Role.DOWN):  # a lane owns columns
            return array.reshape(shape[1], 2, shape[2]).swapaxes(0, 1)
        return array.reshape(shape)

    two = replace(one, num_lanes=2)
    layers = tuple({role: cut(role, x) for role, x in layer.items()} for layer in weights.layers)
    models = [ReferenceModel(weights), ReferenceModel(Weights(two, weights.outer, layers))]
    ids = np.arange(12)
    alone, apart = (model.forward(ids, model.new_cache()) for model in models)
    # Sums of at most 24 terms in another order, 13 products in a row, of logits of size one.
    np.testing.assert_allclose(apart, alone, rtol=0, atol=1e-4 * alone.std())


@pytest.mark.parametrize("head", list(Head))
@pytest.mark.parametrize("tied", [False, True])
def test_every_head_equals_its_definition(head: Head, tied: bool) -> None:
    """The goldens cover two heads; here each is written out on the streams of one layer."""
    if tied and head is Head.CONCAT:
        return  # refused by the config
    config = ModelConfig(
        family="laneformer",
        hidden_size=16,
        intermediate_size=8,
        num_heads=2,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=12,
        max_positions=8,
        num_lanes=2,
        layers=(LayerConfig(NOW, NOW),),
        head=head,
        tie_embeddings=tied,
    )
    weights = random_weights(config)
    for role in (Role.O, Role.DOWN):  # modules that add nothing: the streams stay the embedding
        weights.layers[0][role][...] = 0
    if tied:
        embedding = weights.outer[Role.EMBEDDING]
        weights.outer[Role.HEAD] = embedding.reshape(lane_shape(config, Role.HEAD))  # type: ignore[index]
    model = ReferenceModel(weights)
    ids = [3, 11, 0]
    ours = model.forward(ids, model.new_cache())

    scale, matrix = weights.outer[Role.FINAL_NORM], weights.outer[Role.HEAD]
    for t, token in enumerate(ids):
        x = weights.outer[Role.EMBEDDING][token].astype(np.float64)

        def norm(stream: np.ndarray, lane: int) -> np.ndarray:
            return stream / np.sqrt(np.mean(stream**2) + 1e-5) * scale[lane]

        lanes = [norm(x, lane) for lane in range(2)] if config.final_norm_per_lane else []
        wanted = {
            Head.VOCAB_PARALLEL: lambda: np.concatenate([matrix[i] @ lanes[i] for i in range(2)]),
            Head.MEAN: lambda: matrix[0] @ ((lanes[0] + lanes[1]) / 2),
            Head.SUM: lambda: matrix[0] @ norm(2 * x, 0),
            Head.CONCAT: lambda: matrix[0] @ np.concatenate(lanes),
        }[head]()
        np.testing.assert_allclose(ours[t], wanted, rtol=1e-4, atol=1e-5)
