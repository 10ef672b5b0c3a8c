"""Training layers that predict further ahead: they learn, a stopped run ends in the same bits, they
draft what training says that they draft, and a text is the model's."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra 'sft'")
pytest.importorskip("transformers", reason="needs the extra 'sft'")

import torch

from monolane import Engine, SamplingParams
from monolane.engine import ModelFiles
from monolane.errors import CheckpointError, ConfigError
from monolane.model import (
    Checkpoint,
    Role,
    Weights,
    open_nextn,
    write_nextn,
    write_safetensors,
)
from monolane.reference import ReferenceModel
from monolane.sources import find_model, unpack_gguf
from monolane.tune import NextNRecipe, train_nextn
from monolane.tune._nextn import _Layer

from .test_eagle import LINE, MODEL, StopError, _random_model

RECIPE = NextNRecipe(
    texts=10, context=64, vocabulary=256, depth=3, steps=240, places=1, peak_lr=3e-3
)
SIZES: dict[str, Any] = MODEL | {"num_hidden_layers": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model with the demo model's tokenizer."""
    return _random_model(tmp_path_factory.mktemp("models") / "model", SIZES)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_text(LINE * 200)
    return path


@pytest.fixture(scope="module")
def trained(
    model: Path, text: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[float], list[float]]:
    out = tmp_path_factory.mktemp("layers") / "layer"
    found = train_nextn(model, out, RECIPE, text=text)
    return out, found.right_before, found.right


def test_it_learns(trained: tuple[Path, list[float], list[float]]) -> None:
    _, before, after = trained
    assert len(before) == len(after) == RECIPE.depth
    assert before[0] < 0.2
    assert min(after) > 0.8, after


def test_a_stopped_run_ends_in_the_same_bits(
    model: Path, text: Path, trained: tuple[Path, list[float], list[float]], tmp_path: Path
) -> None:
    def stop(step: int, loss: float) -> None:
        if step == 100:
            raise StopError

    out = tmp_path / "layer"
    with pytest.raises(StopError):
        train_nextn(model, out, RECIPE, text=text, save_every=60, report=stop)
    assert not out.exists()
    train_nextn(model, out, RECIPE, text=text, resume=True)
    for name in ("config.json", "model.safetensors"):
        assert (out / name).read_bytes() == (trained[0] / name).read_bytes()


def test_training_computes_what_the_reference_does(
    model: Path, trained: tuple[Path, list[float], list[float]]
) -> None:
    """Of the folder as it is read: a draft's first token at each place, and the second of one."""
    weights = ModelFiles.open(model).weights()
    read = open_nextn(trained[0], weights)
    oracle, ahead = ReferenceModel(weights), ReferenceModel(read)
    layer = _Layer(weights, np.arange(SIZES["vocab_size"], dtype=np.int32))
    own = {Role[name]: x for name, x in layer.model.items()}
    own |= {Role.AHEAD_IN: layer.joined, Role.FINAL_NORM: layer.final_norm}
    own |= {Role.AHEAD_TOKEN_NORM: layer.token_norm, Role.AHEAD_STATE_NORM: layer.state_norm}
    stored = {role: x for part in (read.outer, *read.layers) for role, x in part.items()}
    for role, x in own.items():
        x.data.copy_(torch.from_numpy(stored[role][0].astype(np.float32)))
    ids = np.random.default_rng(0).integers(SIZES["vocab_size"], size=24)
    states = oracle.hidden(ids, oracle.new_cache())
    embedded = weights.outer[Role.EMBEDDING].astype(np.float32)[ids]

    def token(x: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(x, np.float32))[None]

    kept: Any = []
    with torch.no_grad():
        next_states, first = layer(token(states[:-2]), token(embedded[1:-1]), kept)
        _, second = layer(next_states, token(embedded[2:]), kept)
    cache = ahead.new_cache()
    wanted = ahead.forward(ids[1:-1], cache, states[:-2])
    np.testing.assert_allclose(first[0].numpy(), wanted, atol=1e-3)
    again = ahead.forward(ids[-1:], cache, next_states[0, -1:].numpy())
    np.testing.assert_allclose(second[0, -1:].numpy(), again, atol=1e-3)


@pytest.mark.usefixtures("three_drafts")
def test_texts_are_the_models_own(
    model: Path, trained: tuple[Path, list[float], list[float]]
) -> None:
    """Though most drafts are wrong here: a random model soon leaves what the layer was taught."""
    params: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True}
    with Engine.load(model, "cpu", dtype="float32", draft=trained[0]) as engine:
        assert engine.backend.executor.drafter == "heads"
        plain = engine.generate(LINE * 2, SamplingParams(speculation="off", **params))
        got = engine.generate(LINE * 2, SamplingParams(speculation="heads", **params))
    assert got.token_ids == plain.token_ids
    assert got.timings.draft_n > 40


def test_a_layer_of_a_folder_drafts_for_its_gguf(llama_gguf: Path, tmp_path: Path) -> None:
    """Whose queries and keys have their rows in another order."""
    unpack_gguf(llama_gguf, tmp_path / "folder")
    found = []
    for path in (tmp_path / "folder", llama_gguf):
        weights = ModelFiles.open(path).weights()
        if not found:  # the layer is one that both could have been trained to
            write_layer(tmp_path / "layer", _Layer(weights, np.arange(2, dtype=np.int32)), weights)
        ahead = ReferenceModel(open_nextn(tmp_path / "layer", weights))
        rng = np.random.default_rng(1)
        states = rng.normal(size=(12, weights.config.hidden_size)).astype(np.float32)
        found.append(ahead.forward(list(range(12)), ahead.new_cache(), states))
    styles = [ModelFiles.open(x).config.rotary.style for x in (tmp_path / "folder", llama_gguf)]
    assert styles == ["half", "interleaved"]
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)


def write_layer(folder: Path, layer: _Layer, weights: Weights) -> None:
    folder.mkdir()
    write_nextn(folder, weights.config, layer.arrays())


def test_a_folder_as_sglang_exports_it(
    model: Path, trained: tuple[Path, list[float], list[float]], tmp_path: Path
) -> None:
    """Its file has another name, beside the model's index, and copies of embedding and head."""
    folder = tmp_path / "layer"
    shutil.copytree(trained[0], folder)
    arrays = dict(Checkpoint.open(folder))
    hidden, vocab = SIZES["hidden_size"], SIZES["vocab_size"]
    arrays["model.layers.0.embed_tokens.weight"] = np.zeros((vocab, hidden), np.float32)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "b"}}))
    write_safetensors(folder / "nextn_layer_parameters.safetensors", list(arrays.items()))
    weights = ModelFiles.open(model).weights()
    one, other = (open_nextn(x, weights) for x in (folder, trained[0]))
    for mine, theirs in zip(one.layers, other.layers, strict=True):
        assert mine.keys() == theirs.keys()
        for role, array in mine.items():
            np.testing.assert_array_equal(array, theirs[role])


def test_folders_that_are_of_no_use(
    model: Path, trained: tuple[Path, list[float], list[float]], tmp_path: Path
) -> None:
    weights = ModelFiles.open(model).weights()

    def changed(name: str, **fields: Any) -> Path:
        folder = tmp_path / name
        shutil.copytree(trained[0], folder)
        said = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(said | fields))
        return folder

    with pytest.raises(ConfigError, match="hidden_size: expected 64, the model's, got 32"):
        open_nextn(changed("width", hidden_size=32), weights)
    folder = changed("more")
    arrays = {name: x.copy() for name, x in Checkpoint.open(folder).items()}
    arrays["model.layers.1.enorm.weight"] = arrays["model.layers.0.enorm.weight"]
    write_safetensors(folder / "model.safetensors", list(arrays.items()))
    with pytest.raises(CheckpointError, match=r"got model\.layers\.1\.enorm\.weight, too"):
        open_nextn(folder, weights)
    del arrays["model.layers.1.enorm.weight"], arrays["model.layers.0.eh_proj.weight"]
    write_safetensors(folder / "model.safetensors", list(arrays.items()))
    with pytest.raises(CheckpointError, match=r"eh_proj\.weight: expected it"):
        open_nextn(folder, weights)
    lanes = replace(weights, config=replace(weights.config, num_lanes=2))
    with pytest.raises(ConfigError, match="one lane without experts and latents, got 2 lanes"):
        open_nextn(trained[0], lanes)


def test_models_that_are_no_llama(tmp_path: Path) -> None:
    qwen = _random_model(tmp_path / "qwen", SIZES | {"model_type": "qwen3"})
    with pytest.raises(ConfigError, match="expected a model that computes what Llama does, got"):
        train_nextn(qwen, tmp_path / "layer", RECIPE)
    with pytest.raises(ConfigError, match="expected a model of one lane"):
        train_nextn(find_model("demo"), tmp_path / "layer", RECIPE)
