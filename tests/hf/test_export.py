"""What an exported folder holds. None of this needs torch; loading is tested beside it."""

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models

import monolane.hf._export
from monolane.errors import CheckpointError, ConfigError, ModelNotFoundError, TextError
from monolane.hf._export import export_hub_layout

FOLDER = Path(monolane.hf._export.__file__).parent
INPUTS = ["input_ids", "attention_mask"]


@pytest.fixture
def source(golden_folder: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(golden_folder / name, folder / name)
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def _json(path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(path.read_text())
    return fields


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _add_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 3, "b": 4}, unk_token="a"))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    fields = _json(folder / "tokenizer.json")
    fields["added_tokens"] = [
        fields["added_tokens"][0] | {"id": 1, "content": "<s>"},
        fields["added_tokens"][0] | {"id": 2, "content": "</s>"},
    ]
    (folder / "tokenizer.json").write_text(json.dumps(fields))


def test_a_bare_model_becomes_a_complete_folder(source: Path, out: Path) -> None:
    assert export_hub_layout(source, out) == out
    assert _names(out) == [
        "README.md",
        "config.json",
        "configuration_laneformer.py",
        "generation_config.json",
        "model.safetensors",
        "modeling_laneformer.py",
    ]
    config = _json(out / "config.json")
    assert config["model_type"] == "laneformer"
    assert config["architectures"] == ["LaneformerForCausalLM"]
    assert config["swa_layers"] == [0, 1, 2, 3]
    assert config["use_attention_comm"] is config["use_mlp_comm"] is True
    assert config["torch_dtype"] == "bfloat16"
    assert not {"use_comm", "sliding_window_n_layers"} & config.keys()
    for target in config["auto_map"].values():
        module, name = target.split(".")
        assert f"class {name}(" in (out / f"{module}.py").read_text()
    assert _json(out / "generation_config.json") == {"bos_token_id": 1, "eos_token_id": [2]}


def test_weights_and_code_are_the_same_bytes(source: Path, out: Path) -> None:
    export_hub_layout(source, out)
    given, written = (load_file(folder / "model.safetensors") for folder in (source, out))
    assert given.keys() == written.keys()
    for name, array in given.items():
        assert written[name].dtype == array.dtype
        assert written[name].shape == array.shape
        assert written[name].tobytes() == array.tobytes()
    with safe_open(out / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}  # which transformers 4.57 asks for
    for name in ("configuration_laneformer.py", "modeling_laneformer.py"):
        assert (out / name).read_bytes() == (FOLDER / name).read_bytes()


def test_code_files_import_nothing_of_this_package() -> None:
    for name in ("configuration_laneformer.py", "modeling_laneformer.py"):
        assert "import monolane" not in (FOLDER / name).read_text()
        assert "from monolane" not in (FOLDER / name).read_text()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_conversion(dtype: str, source: Path, out: Path) -> None:
    export_hub_layout(source, out, dtype=dtype)
    given, written = (load_file(folder / "model.safetensors") for folder in (source, out))
    for name, array in given.items():
        assert written[name].dtype == np.dtype(dtype)
        assert np.array_equal(written[name], array.astype(np.float32).astype(dtype))
    assert _json(out / "config.json")["torch_dtype"] == dtype


def test_the_weights_decide_the_dtype_that_is_written(source: Path, out: Path) -> None:
    weights = load_file(source / "model.safetensors")
    save_file({k: v.astype(np.float32) for k, v in weights.items()}, source / "model.safetensors")
    export_hub_layout(source, out)
    assert _json(source / "config.json")["torch_dtype"] == "bfloat16"
    assert _json(out / "config.json")["torch_dtype"] == "float32"


def test_overflow_is_refused(source: Path, out: Path) -> None:
    weights = load_file(source / "model.safetensors")
    weights["model.norm.scale"] = np.full((4, 64), 1e5, ml_dtypes.bfloat16)
    save_file(weights, source / "model.safetensors")
    message = r"'model.norm.scale': expected values that float16 can hold, got up to 9.*bfloat16"
    with pytest.raises(CheckpointError, match=message):
        export_hub_layout(source, out, dtype="float16")
    assert _names(out.parent) == ["source"]


def test_shards_in_and_out(
    source: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monolane.hf._export, "MAX_SHARD_BYTES", 200_000)
    export_hub_layout(source, out)
    index = _json(out / "model.safetensors.index.json")
    shards = sorted(set(index["weight_map"].values()))
    assert shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    assert len(shards) > 2
    assert not (out / "model.safetensors").exists()
    monkeypatch.undo()
    export_hub_layout(out, tmp_path / "whole")
    given, written = (load_file(x / "model.safetensors") for x in (source, tmp_path / "whole"))
    assert all(written[name].tobytes() == array.tobytes() for name, array in given.items())


def test_what_the_source_has_is_kept(source: Path, out: Path) -> None:
    kept = {
        "README.md": "# A model\n",
        "LICENSE": "terms",
        "NOTICE": "attribution",
        "THIRD_PARTY_LICENSES/LLAMA2_LICENSE": "other terms",
        "generation_config.json": '{"temperature": 0.8, "do_sample": true}',
        "chat_template.jinja": "{{ messages }}",
        "special_tokens_map.json": "{}",
    }
    (source / "THIRD_PARTY_LICENSES").mkdir()
    for name, text in kept.items():
        (source / name).write_text(text)
    (source / "optimizer.pt").write_text("not for the Hub")
    export_hub_layout(source, out)
    for name, text in kept.items():
        assert (out / name).read_text() == text
    assert not (out / "optimizer.pt").exists()


def test_a_card_is_written_where_there_is_none(source: Path, out: Path) -> None:
    export_hub_layout(source, out)
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "# out\n" in card
    parameters = sum(array.size for array in load_file(source / "model.safetensors").values())
    assert f"{parameters / 1e6:.4g} million parameters in 6 layers of width 64" in card


def test_tokenizer_settings_name_the_class_that_obeys_the_file(source: Path, out: Path) -> None:
    _add_tokenizer(source)
    settings = {
        "tokenizer_class": "LlamaTokenizer",
        "auto_map": {"AutoTokenizer": ["x.Y", None]},
        "chat_template": "{{ é }}",
    }
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    export_hub_layout(source, out)
    assert _json(out / "tokenizer_config.json") == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": "{{ é }}",
        "model_input_names": INPUTS,
    }
    assert (out / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


def test_tokenizer_settings_are_made_where_there_are_none(source: Path, out: Path) -> None:
    _add_tokenizer(source)
    export_hub_layout(source, out)
    assert _json(out / "tokenizer_config.json") == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": INPUTS,
        "model_max_length": 128,
        "bos_token": "<s>",
        "eos_token": "</s>",
    }


def test_a_sentencepiece_tokenizer_keeps_its_class(source: Path, out: Path) -> None:
    (source / "tokenizer.model").write_bytes(b"pieces")
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    export_hub_layout(source, out)
    assert _json(out / "tokenizer_config.json") == {
        "tokenizer_class": "LlamaTokenizer",
        "model_input_names": INPUTS,
    }


def test_overwriting(source: Path, out: Path) -> None:
    export_hub_layout(source, out)
    (out / "stale").write_text("")
    with pytest.raises(CheckpointError, match="overwrite=True"):
        export_hub_layout(source, out)
    assert (out / "stale").exists()
    export_hub_layout(source, out, overwrite=True)
    assert not (out / "stale").exists()


def test_a_failure_leaves_nothing(source: Path, out: Path) -> None:
    (source / "tokenizer.json").write_text("[]")
    with pytest.raises(TextError, match=r"tokenizer.json: expected a JSON object, got list"):
        export_hub_layout(source, out)
    assert _names(out.parent) == ["source"]


def test_wrong_sources(source: Path, out: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="expected a model folder, got nothing there"):
        export_hub_layout(out, out)
    with pytest.raises(ConfigError, match=r"dtype: expected one of bfloat16, .* got 'int8'"):
        export_hub_layout(source, out, dtype="int8")
    weights = load_file(source / "model.safetensors")
    for wrong, message in (
        ({k: v for k, v in weights.items() if "wq" not in k}, "6 are missing"),
        (weights | {"model.norm.scale": np.ones((2, 64), np.float32)}, "expected shape"),
    ):
        save_file(wrong, source / "model.safetensors")
        with pytest.raises(CheckpointError, match=message):
            export_hub_layout(source, out)
    assert _names(out.parent) == ["source"]


def test_what_links_lead_to_elsewhere_stays_there(source: Path, out: Path) -> None:
    """Card and settings are the source's own, or are made anew."""
    secret = source.with_name("secret")
    secret.write_text('{"secret": 1}')
    for name in ("README.md", "generation_config.json", "tokenizer_config.json"):
        (source / name).symlink_to(secret)
    export_hub_layout(source, out)
    assert {"README.md", "generation_config.json"} <= set(_names(out))
    assert not [path for path in out.iterdir() if b"secret" in path.read_bytes()]
