"""Compressed attention and hyper-connections: entries by hand, kept, taken back and restored."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from monolane.errors import BackendError, ConfigError
from monolane.model import (
    NOW,
    AltUp,
    Experts,
    Head,
    Hyper,
    LayerConfig,
    ModelConfig,
    Role,
    Rotary,
    Weights,
    lane_shape,
    layer_roles,
    outer_roles,
)
from monolane.ops.compressed.spec import Compressed, Compressor
from monolane.ops.experts.reference import choose_experts
from monolane.plan import build, cpu
from monolane.reference import ReferenceModel

VOCAB, TOKENS = 61, 50
IDS = np.random.default_rng(1).integers(VOCAB, size=TOKENS)
ATTENTION = Compressed(
    heads=6, width=14, turned=6, query_rank=22, window=5, groups=3, group_rank=11
)
CHOSEN = Compressor(ratio=3, overlap=True, index_heads=9, index_width=10, chosen=4)
HEAVY = Compressor(ratio=7)
EXPERTS = Experts(
    *(7, 3, 38, True), scores="sqrtsoftplus", corrected=True, scale=1.5, shared=38, limit=0.7
)


def layer_of(compressor: Compressor | None, hashed: bool = False) -> LayerConfig:
    attention = replace(ATTENTION, compressor=compressor)
    return LayerConfig(NOW, NOW, experts=True, hashed=hashed, modules=(attention, "experts"))


def config_of(*layers: LayerConfig, **changes: Any) -> ModelConfig:
    sizes: dict[str, Any] = {
        "family": "deepseek_v4",
        "hidden_size": 40,
        "intermediate_size": 38,
        "num_heads": 6,
        "num_kv_heads": 1,
        "head_dim": 14,
        "vocab_size": VOCAB,
        "max_positions": 64,
        "num_lanes": 1,
        "layers": layers or (layer_of(CHOSEN, hashed=True), layer_of(None), layer_of(HEAVY)),
        "head": Head.VOCAB_PARALLEL,
        "rotary": Rotary(theta=300.0),
        "local_rotary": Rotary(theta=100.0),
        "experts": EXPERTS,
        "hyper": Hyper(streams=3, rounds=4, eps=1e-6),
    }
    return ModelConfig(**sizes | changes)


def weights_of(config: ModelConfig) -> Weights:
    rng = np.random.default_rng(0)

    def draw(role: Role, layer: int | None = None) -> Any:
        shape = lane_shape(config, role, layer=layer)
        if role is Role.EXPERT_TABLE:
            return np.stack([[rng.permutation(7)[:3] for _ in range(VOCAB)]])
        return rng.normal(scale=0.4, size=shape).astype(np.float32)

    layers = range(config.num_layers)
    roles = [layer_roles(config, i) for i in layers]
    return Weights(
        config,
        {role: draw(role) for role in outer_roles(config)},
        tuple({x: draw(x, i) for x in roles[i] if not x.of_each} for i in layers),
        experts={
            (x, i): tuple(draw(x, i) for _ in range(7))
            for i in layers
            for x in roles[i]
            if x.of_each
        },
    )


def test_tokens_one_by_one_taken_back_and_restored() -> None:
    """Also amid an entry, where a state would not go back."""
    model = ReferenceModel(weights_of(config_of()))
    whole = model.forward(IDS, model.new_cache())
    assert whole.std() > 0.3
    bound = 1e-5 * np.abs(whole).max()  # the same sums in products of other shapes
    cache, other, copied = (model.new_cache() for _ in range(3))
    begun = np.concatenate([model.forward(IDS[:19], cache), model.forward(IDS[19:29], cache)])
    assert np.abs(begun - whole[:29]).max() < bound
    model.forward(IDS[:8], cache)  # drafts that are rejected
    cache.truncate(29)
    other.restore(cache.save(0, 29))
    copied.copy_from(cache)
    for kept in (cache, other, copied):
        rest = np.concatenate([model.forward([token], kept) for token in IDS[29:]])
        assert np.abs(rest - whole[29:]).max() < bound


def test_fewer_tokens_than_an_entry_is_made_of() -> None:
    """Of DeepSeek-V4's own entries some are of 128 tokens, and most chats begin with fewer."""
    model = ReferenceModel(weights_of(config_of()))
    whole = model.forward(IDS[:9], model.new_cache())
    cache = model.new_cache()
    found = np.concatenate([model.forward(IDS[:2], cache), model.forward(IDS[2:9], cache)])
    assert np.abs(found - whole).max() < 1e-5 * np.abs(whole).max()  # as above


@pytest.mark.parametrize("compressor", [HEAVY, CHOSEN])
def test_an_entry_is_seen_from_its_last_token_on(compressor: Compressor) -> None:
    """What a token says goes on through entries, behind the window and in whole entries alone."""
    config = config_of(layer_of(compressor))
    entry = compressor.ratio - 1  # the token that ends the first one
    near = [*range(ATTENTION.window)]
    assert touched(config_of(layer_of(None))) == near
    found = touched(config)
    assert set(found) >= set(near)
    if compressor is HEAVY:  # all entries are seen
        assert found == [*near, *range(entry, TOKENS)]


def touched(config: ModelConfig) -> list[int]:
    """The tokens whose logits are others if the first token is another."""
    model, other = ReferenceModel(weights_of(config)), IDS.copy()
    other[0] = (IDS[0] + 1) % VOCAB
    one, two = (model.forward(ids, model.new_cache()) for ids in (IDS, other))
    # Experts' products of other widths round otherwise.
    return np.flatnonzero(np.abs(one - two).max(axis=-1) > 1e-5 * one.std()).tolist()


def test_streams_that_are_mixed_by_shares_that_add_up() -> None:
    """With a module that says nothing streams stay in their sum, whatever mixes them."""
    config = config_of(layer_of(None), hyper=Hyper(streams=3, rounds=40, eps=1e-9))
    weights = weights_of(config)
    weights.layers[0][Role.O][:] = 0
    weights.layers[0][Role.SHARED_DOWN][:] = 0
    for matrix in weights.experts[Role.EXPERT_DOWN, 0]:
        matrix[:] = 0
    weights.outer[Role.HYPER_OUT][:] = 0
    model = ReferenceModel(weights)
    embedded = weights.outer[Role.EMBEDDING][IDS]
    shares = 1 / (1 + np.exp(-weights.outer[Role.HYPER_OUT_BASE][0]))
    found = model._residual(IDS, model.new_cache(), None)[0]
    np.testing.assert_allclose(found, embedded * shares.sum(), rtol=1e-4, atol=1e-5)


def test_experts_that_a_table_tells() -> None:
    told = replace(EXPERTS, corrected=False, table=VOCAB, scale=1.0)
    logits = np.array([[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]], np.float32)
    weights = choose_experts(logits, told, told_Tk=np.array([[4, 0, 2]]))
    scores = np.sqrt(np.log1p(np.exp(logits[0].astype(np.float64))))
    wanted = np.where(np.isin(np.arange(7), [0, 2, 4]), scores, 0) / scores[[0, 2, 4]].sum()
    np.testing.assert_allclose(weights[0], wanted, rtol=1e-6)
    twice = choose_experts(logits, told, told_Tk=np.array([[4, 4, 2]]))
    assert np.flatnonzero(twice[0]).tolist() == [2, 4]
    np.testing.assert_allclose(twice.sum(), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hyper": None}, "operations.Compressed"),
        ({}, "hyper"),
    ],
)
def test_no_plan_has_it(changes: dict[str, Any], message: str) -> None:
    config = config_of(
        experts=None,
        layers=(replace(layer_of(None), experts=False, modules=(ATTENTION, "mlp")),),
        **changes,
    )
    with pytest.raises(BackendError, match=f"^{message}: the interpreter backend does not"):
        build(config, cpu(2), "bfloat16")


@pytest.mark.parametrize("name", ["experts.limit", "experts.scores", "layers.hashed"])
def test_what_mixtures_have_besides_is_refused_by_its_name(name: str) -> None:
    plain = replace(EXPERTS, scores="sigmoid", limit=None)
    experts = {
        "experts.limit": replace(plain, limit=2.0),
        "experts.scores": replace(plain, scores="sqrtsoftplus"),
        "layers.hashed": plain,
    }[name]
    layer = LayerConfig(NOW, NOW, experts=True, hashed=name == "layers.hashed")
    config = config_of(layer, hyper=None, local_rotary=None, experts=experts)
    with pytest.raises(BackendError, match=f"^{name}: the interpreter backend does not compute"):
        build(config, cpu(2), "bfloat16")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Compressor(ratio=0), "compressor: expected a ratio of 1 to"),
        (lambda: Compressor(ratio=3, chosen=2), "compressor: expected all sizes of an index"),
        (lambda: replace(ATTENTION, turned=5), "compressed: expected an even part of 2 to 14"),
        (lambda: replace(ATTENTION, groups=4), "compressed: expected groups that divide 6"),
        (lambda: replace(ATTENTION, window=0), "compressed: expected window of 1 to"),
        (lambda: Hyper(0, 1, 1e-6), "hyper: expected 1 to 64 streams"),
        (lambda: Hyper(2, 1, 0.0), "hyper: expected an eps between"),
        (lambda: replace(EXPERTS, limit=0.0), "experts: expected a limit above 0"),
        (lambda: replace(EXPERTS, table=9), "experts: expected a table .* none where experts"),
        (lambda: config_of(altup=AltUp(2)), "altup: expected one lane, and layers of 4"),
        (
            lambda: config_of(replace(layer_of(None), modules=("experts",))),
            "hyper: expected one lane, layers of 2 modules",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
