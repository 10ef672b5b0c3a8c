"""Saving and loading through transformers: names, bits, missing weights, both model types."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from monolane.hf import LaneformerConfig, LaneformerForCausalLM, LaneformerModel
from monolane.model import parse_config, tensor_specs

OPTIONS: dict[str, dict[str, Any]] = {
    "vocab_parallel": {},
    "replicate": {"lm_head_type": "replicate", "replicated_rmsn_scale": True},
    "lane": {"lm_head_type": "lane"},
    "tied": {"tie_word_embeddings": True},
    "sum": {"lm_head_type": "replicate", "pre_norm_lane_agg": True, "tie_word_embeddings": True},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIONS)
def test_round_trip_keeps_names_and_bits(
    name: str, dtype: torch.dtype, tiny: Callable[..., Any], tmp_path: Path
) -> None:
    model = LaneformerForCausalLM(tiny(**OPTIONS[name])).to(dtype)
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert stored.keys() == model.state_dict().keys()
    loaded, report = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=dtype, output_loading_info=True
    )
    assert not any(report.values()), report
    assert type(loaded) is LaneformerForCausalLM
    for key, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], tensor), key
        assert torch.equal(stored[key], tensor), key
    ids_BT = torch.randint(0, 22, (1, 8))
    assert torch.equal(loaded.eval()(ids_BT).logits, model.eval()(ids_BT).logits)


@pytest.mark.parametrize("name", OPTIONS)
def test_names_and_shapes_are_those_of_the_engine(name: str, tiny: Callable[..., Any]) -> None:
    config = tiny(**OPTIONS[name])
    state = LaneformerForCausalLM(config).state_dict()
    specs = tensor_specs(parse_config(config.to_dict()))
    assert {key: tuple(tensor.shape) for key, tensor in state.items()} == {
        spec.name: spec.shape for spec in specs
    }


def test_the_released_size() -> None:
    config = LaneformerConfig(sliding_window=2048, swa_layers=list(range(10)))
    with torch.device("meta"):
        model = LaneformerForCausalLM(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == parse_config(config.to_dict()).num_parameters
    assert round(count / 1e9, 2) == 2.32  # as the model card says


def test_golden_keys_need_no_mapping(golden_folder: Path, tmp_path: Path) -> None:
    given = load_file(golden_folder / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(golden_folder, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert written.keys() == given.keys()
    assert all(torch.equal(written[key], given[key]) for key in given)


def test_the_earlier_name_is_read_and_the_released_one_written(
    golden_folder: Path, tmp_path: Path
) -> None:
    assert json.loads((golden_folder / "config.json").read_text())["model_type"] == "laneformer_tp"
    for config in (
        AutoConfig.from_pretrained(golden_folder),
        LaneformerConfig.from_pretrained(golden_folder),
        AutoModel.from_pretrained(golden_folder, dtype=torch.float32).config,
    ):
        assert type(config) is LaneformerConfig
        config.save_pretrained(tmp_path)
        fields = json.loads((tmp_path / "config.json").read_text())
        assert fields["model_type"] == "laneformer"
        assert fields["swa_layers"] == [0, 1, 2, 3]
        assert fields["use_attention_comm"] is fields["use_mlp_comm"] is True
        assert not {"use_comm", "sliding_window_n_layers", "layer_types"} & fields.keys()


def test_the_earlier_name_is_not_warned_of(
    golden_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: said.append(record.getMessage()))
    logger = logging.getLogger("transformers")  # does not propagate, so caplog hears nothing
    logger.addHandler(handler)
    try:
        LaneformerConfig.from_pretrained(golden_folder)
        LaneformerForCausalLM.from_pretrained(golden_folder, dtype=torch.float32)
    finally:
        logger.removeHandler(handler)
    assert not [message for message in said if "laneformer_tp" in message]


def test_the_base_model_loads_from_the_same_folder(golden_folder: Path) -> None:
    base = AutoModel.from_pretrained(golden_folder, dtype=torch.float32).eval()
    whole = AutoModelForCausalLM.from_pretrained(golden_folder, dtype=torch.float32).eval()
    assert type(base) is LaneformerModel
    ids_BT = torch.randint(0, 96, (2, 5))
    with torch.no_grad():
        state_BTX = base(ids_BT).last_hidden_state
        assert state_BTX.shape == (2, 5, 4 * 64)
        assert torch.equal(whole.lm_head(state_BTX), whole(ids_BT).logits)


def test_a_missing_weight_is_drawn_anew_and_the_others_stay(
    tiny: Callable[..., Any], tmp_path: Path
) -> None:
    model = LaneformerForCausalLM(tiny(hidden_size=128))
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    lost = ("model.layers.1.attention.wo.weight", "model.layers.2.ffn_norm.scale")
    kept = {key: tensor + 1 for key, tensor in stored.items() if key not in lost}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded, report = LaneformerForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert sorted(report["missing_keys"]) == sorted(lost)
    state = loaded.state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in kept.items())
    # 0.3 / sqrt(2 * 4), of 16384 draws.
    assert state[lost[0]].std().item() == pytest.approx(0.3 / 8**0.5, rel=0.03)
    assert torch.equal(state[lost[1]], torch.ones(2, 128))
