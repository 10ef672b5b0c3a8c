"""Indices that choose the keys of latent attention: what they choose, kept, taken back, shared."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from monolane.errors import ConfigError
from monolane.model import (
    NOW,
    Head,
    Index,
    Latent,
    LayerConfig,
    ModelConfig,
    QkNorm,
    Role,
    Rotary,
    Weights,
    lane_shape,
    layer_roles,
    outer_roles,
)
from monolane.reference import Cache, ReferenceModel, choose_keys

VOCAB, TOKENS = 61, 50
IDS = np.random.default_rng(1).integers(VOCAB, size=TOKENS)
LAYER = LayerConfig(NOW, NOW)
INDEX = Index(heads=9, width=8, chosen=6, style="half")


def config_of(**changes: Any) -> ModelConfig:
    latent = Latent(rank=18, query_rank=22, plain=10, turned=6, value=14)
    sizes: dict[str, Any] = {
        "family": "deepseek_v32",
        "hidden_size": 40,
        "intermediate_size": 44,
        "num_heads": 6,
        "num_kv_heads": 6,
        "head_dim": latent.head,
        "vocab_size": VOCAB,
        "max_positions": 64,
        "num_lanes": 1,
        "layers": (LAYER, replace(LAYER, index_of=0), LAYER),
        "head": Head.VOCAB_PARALLEL,
        "rotary": Rotary(theta=100.0),
        "latent": latent,
        "index": INDEX,
    }
    return ModelConfig(**sizes | changes)


def weights_of(config: ModelConfig) -> Weights:
    rng = np.random.default_rng(0)

    def draw(role: Role, layer: int | None = None) -> Any:
        shape = lane_shape(config, role, layer=layer)
        return rng.normal(scale=0.4, size=shape).astype(np.float32)

    outer = {role: draw(role) for role in outer_roles(config)}
    layers = range(config.num_layers)
    return Weights(
        config, outer, tuple({x: draw(x, i) for x in layer_roles(config, i)} for i in layers)
    )


def logits_of(weights: Weights, ids: Any, cache: Cache | None = None) -> Any:
    model = ReferenceModel(weights)
    return model.forward(ids, model.new_cache() if cache is None else cache)


def test_the_largest_are_chosen_and_of_equal_ones_the_first() -> None:
    q = np.array([[[1.0], [-1.0]]], np.float32)  # [T=1, H=2, d=1]
    k = np.array([[3.0], [-2.0], [0.0], [5.0], [-1.0], [9.0]], np.float32)
    weights = np.array([[1.0, -2.0]], np.float32)
    # Scores 3, -4, 0, 5, -2, 9; the last is hidden.
    hidden = np.arange(6)[None] > 4
    for count, wanted in ((1, [3]), (2, [0, 3]), (4, [0, 2, 3, 4]), (9, [0, 1, 2, 3, 4])):
        chosen = choose_keys(q, k, weights, hidden, count)
        assert np.flatnonzero(chosen[0]).tolist() == wanted
    even = choose_keys(q, k, np.zeros_like(weights), hidden, 3)
    assert np.flatnonzero(even[0]).tolist() == [0, 1, 2]


def test_an_index_that_chooses_all_is_none() -> None:
    weights = weights_of(config_of(index=replace(INDEX, chosen=TOKENS)))
    plain = replace(weights.config, index=None, layers=(LAYER,) * 3)
    roles = [role for role in Role if role.startswith("index")]
    layers = tuple({r: x for r, x in layer.items() if r not in roles} for layer in weights.layers)
    without = logits_of(replace(weights, config=plain, layers=layers), IDS)
    np.testing.assert_array_equal(logits_of(weights, IDS), without)
    few = replace(weights, config=replace(weights.config, index=INDEX))
    found = logits_of(few, IDS)
    np.testing.assert_array_equal(found[:6], without[:6])  # which see all there is
    assert np.abs(found[7:] - without[7:]).max() > 0.1 * without.std()


def test_a_layer_may_see_what_another_s_index_chose() -> None:
    weights = weights_of(config_of())
    assert Role.INDEX_Q in weights.layers[0]
    assert Role.INDEX_Q not in weights.layers[1]
    model = ReferenceModel(weights)
    assert [len(model.new_cache()._lists[i]) for i in range(3)] == [2, 1, 2]


def test_tokens_one_by_one_taken_back_and_restored() -> None:
    model = ReferenceModel(weights_of(config_of()))
    whole = model.forward(IDS, model.new_cache())
    bound = 1e-5 * np.abs(whole).max()  # the same sums in products of other shapes
    cache, other = model.new_cache(), model.new_cache()
    one = np.concatenate([model.forward(IDS[:20], cache), model.forward(IDS[20:30], cache)])
    assert np.abs(one - whole[:30]).max() < bound
    model.forward(IDS[:8], cache)  # drafts that are rejected
    cache.truncate(30)
    other.restore(cache.save(0, 30))
    copied = model.new_cache()
    copied.copy_from(cache)
    for kept in (cache, other, copied):
        rest = np.concatenate([model.forward([token], kept) for token in IDS[30:]])
        assert np.abs(rest - whole[30:]).max() < bound


def test_keys_of_an_index_are_not_rounded_as_keys_are() -> None:
    """What an index decides is a jump."""
    model = ReferenceModel(weights_of(config_of()))
    cache = model.new_cache(cache_dtype="bfloat16")
    model.forward(IDS[:5], cache)
    latents, keys = (cached[0, :5] for cached in cache._lists[0])
    coarse = (np.float32(x.view(np.uint32) & 0xFFFF == 0).mean() for x in (latents, keys))
    assert [share == 1 for share in coarse] == [True, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latent": None, "head_dim": 8}, "index: expected latent attention"),
        ({"index": replace(INDEX, width=5)}, "index: expected latent attention .* from the 6"),
        ({"layers": (replace(LAYER, index_of=0),)}, "layer 0: index_of: expected an earlier"),
        (
            {"layers": (LAYER, replace(LAYER, index_of=0), replace(LAYER, index_of=1))},
            "layer 2: index_of: expected an earlier layer with an index of its own",
        ),
        (
            {"index": None, "layers": (LAYER, replace(LAYER, index_of=0))},
            "layer 1: index_of: expected an earlier",
        ),
        ({"qk_norm": QkNorm.HEAD}, "qk_norm: expected None"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(**changes)
    with pytest.raises(ConfigError, match="index: expected chosen of 1 to"):
        replace(INDEX, chosen=0)
