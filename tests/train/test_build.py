"""First weights: from the seed or from a folder, the same on every device and process."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from monolane.errors import ConfigError
from monolane.hf import LaneformerForCausalLM
from monolane.train import RunConfig
from monolane.train._build import _sharded_axis, build_model, empty_model
from monolane.train._inputs import open_blend, open_corpus
from monolane.train._process_group import open_world
from monolane.train._trainer import Trainer


def _weights(config: RunConfig) -> dict[str, torch.Tensor]:
    with open_world(config) as world:
        model = build_model(config, world)
        return {name: value.full_tensor() for name, value in model.state_dict().items()}


def test_the_seed_decides_the_weights(tiny: RunConfig) -> None:
    first, again, other = (_weights(replace(tiny, seed=seed)) for seed in (0, 0, 1))
    assert first.keys() == {name for name, _ in empty_model(tiny.model).named_parameters()}
    assert all(torch.equal(first[name], again[name]) for name in first)
    drawn = [name for name in first if "norm" not in name]
    assert not any(torch.equal(first[name], other[name]) for name in drawn)
    # The model's own rule: 0.02, and less for what adds to the stream (n = 4 layers).
    assert first["model.layers.0.attention.wq.weight"].std() == pytest.approx(0.02, rel=0.1)
    assert first["model.layers.0.attention.wo.weight"].std() == pytest.approx(
        0.02 / 8**0.5, rel=0.1
    )
    assert first["model.norm.scale"].eq(1).all()


def test_layers_are_drawn_apart(tiny: RunConfig) -> None:
    weights = _weights(tiny)
    one, two = (weights[f"model.layers.{layer}.attention.wq.weight"] for layer in (0, 1))
    assert not torch.equal(one, two)


def test_weights_of_a_folder_are_taken_to_the_bit(tiny: RunConfig, tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = empty_model(tiny.model).config
    LaneformerForCausalLM(config).bfloat16().save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    weights = _weights(replace(tiny, model=replace(tiny.model, init_from=str(tmp_path))))
    assert weights.keys() == stored.keys()
    assert all(torch.equal(weights[name], stored[name].float()) for name in stored)


def test_a_folder_of_another_shape_is_refused(tiny: RunConfig, tmp_path: Path) -> None:
    LaneformerForCausalLM(empty_model(tiny.model).config).save_pretrained(tmp_path)
    model = replace(tiny.model, init_from=str(tmp_path), swa_layers=(0,), norm_eps=1e-6)
    with pytest.raises(ConfigError, match=r"init_from: .* differs in layers, norm_eps; mend"):
        _weights(replace(tiny, model=model))


def test_an_impossible_shape_is_refused(tiny: RunConfig) -> None:
    with pytest.raises(ConfigError, match=r"\[model\]: .*num_attention_heads.*multiple of num_lan"):
        empty_model(replace(tiny.model, num_lanes=3))


@pytest.mark.parametrize(
    ("shape", "ranks", "lane_wise", "axis"),
    [
        ((8, 384, 3072), 8, False, 0),  # a lane each
        ((8, 384, 3072), 192, False, 1),  # 384 / 192
        ((8, 3072), 192, False, 1),
        ((32000, 3072), 192, False, 1),
        ((8, 384, 3072), 192, True, 0),  # Muon needs whole matrices
        ((7, 5), 2, False, 0),  # nothing divides: uneven, which only axis 0 may be
    ],
)
def test_shares_are_even(shape: tuple[int, ...], ranks: int, lane_wise: bool, axis: int) -> None:
    assert _sharded_axis(shape, ranks, lane_wise) == axis


def test_mixed_precision_computes_what_the_exported_model_does(tiny: RunConfig) -> None:
    """The forward pass in training is bit for bit that of the BF16 folder that will ship."""
    config = replace(tiny, compute=replace(tiny.compute, precision="bfloat16"))
    with open_world(config) as world:
        trainer = Trainer(config, world)
        rows = open_blend(config, open_corpus(config)).rows(0, 2)
        ids, documents = torch.from_numpy(rows.ids), torch.from_numpy(rows.documents)
        trained = trainer.evaluate(lambda _: trainer.logits(ids, documents))
        plain = LaneformerForCausalLM(trainer.model.config)
        plain.load_state_dict(
            {name: value.full_tensor() for name, value in trainer.model.state_dict().items()}
        )
        plain = plain.bfloat16().eval()
        trainer.model = plain
        with torch.no_grad():
            expected = trainer.logits(ids, documents)
    assert trained.dtype == torch.bfloat16
    assert torch.equal(trained, expected)
