"""A .gguf file as a folder: the model that Transformers reads there is that of the file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from monolane.engine import Engine
from monolane.errors import CheckpointError, ConfigError
from monolane.model import Checkpoint, Llama3Scaling, read_config
from monolane.sources import unpack_gguf
from monolane.text import Tokenizer

from .converted import metadata, tensors
from .gguf_cases import CASES, VOCAB
from .test_gguf import TOKENS, blocks, random_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

Write = Callable[..., Path]
TEXTS = ("a b", " é½", "</s>x", "")


@pytest.mark.parametrize("case", CASES)
def test_transformers_reads_the_model_that_the_file_was_made_of(
    case: str, write_gguf: Write, tmp_path: Path
) -> None:
    kind, architecture, changes = CASES[case]
    original = random_model(kind, **changes)
    path = write_gguf(
        tmp_path / "x.gguf",
        metadata(original.config, architecture),
        tensors(original, architecture),
    )
    config = unpack_gguf(path, tmp_path / "out")
    if "Llama 3" in case:
        assert config.rotary.scaling == Llama3Scaling(4.0, 1.0, 4.0, 32)
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    found.config._experts_implementation = "eager"  # others want sizes that are multiples
    ids = torch.from_numpy(np.random.default_rng(0).integers(VOCAB, size=TOKENS))[None]
    with torch.no_grad():
        wanted, ours = (model(ids).logits[0].numpy() for model in (original, found.eval()))
    # Weights are the same bits, but for Gemma's norms, which are rounded with 1 added; config.json
    # holds eps as the float32 of the file. Each moves a logit by some float32 roundings a layer.
    assert np.abs(ours - wanted).max() < 1e-4 * wanted.std()
    assert wanted.std() > 0.5


def test_blocks_become_the_numbers_that_they_mean(
    tiny_llama: tuple[dict[str, Any], dict[str, Any]], write_gguf: Write, tmp_path: Path
) -> None:
    fields, stored = tiny_llama
    packed = blocks("Q4_1", (96, 64))
    stored["blk.1.ffn_up.weight"] = ("Q4_1", packed)
    path = write_gguf(tmp_path / "x.gguf", fields, stored)
    unpack_gguf(path, tmp_path / "out")
    found = Checkpoint.open(tmp_path / "out")["model.layers.1.mlp.up_proj.weight"]
    meant = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q4_1)
    np.testing.assert_array_equal(found, meant)
    assert read_config(tmp_path / "out").dtype == "float32"
    unpack_gguf(path, tmp_path / "half", dtype="bfloat16")
    assert {x.dtype.name for x in Checkpoint.open(tmp_path / "half").values()} == {"bfloat16"}


def test_the_folder_has_the_files_tokenizer_and_what_ends_an_answer(
    llama_gguf: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    unpack_gguf(llama_gguf, out)
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    with Engine.load(llama_gguf, "reference") as first, Engine.load(out, "reference") as second:
        assert second.eos_ids == first.eos_ids == {2}
        assert isinstance(second.tokenizer, Tokenizer)
        for text in TEXTS:
            assert second.prompt_ids(text) == first.prompt_ids(text)
            if "</s>" not in text:  # which Transformers takes for the control token
                assert tuple(theirs(text)["input_ids"]) == first.prompt_ids(text)


def test_a_folder_without_tokenizer_is_said_to_have_none(
    caplog: pytest.LogCaptureFixture,
    tiny_llama: tuple[dict[str, Any], dict[str, Any]],
    write_gguf: Write,
    tmp_path: Path,
) -> None:
    fields, arrays = tiny_llama
    path = write_gguf(tmp_path / "x.gguf", fields | {"tokenizer.ggml.model": "rwkv"}, arrays)
    unpack_gguf(path, tmp_path / "out")
    assert "the folder has no tokenizer and takes token ids only" in caplog.text
    assert "got 'rwkv'" in caplog.text
    with Engine.load(tmp_path / "out", "reference") as engine:
        assert engine.tokenizer is None


def test_what_cannot_be_written_leaves_nothing_behind(
    tiny_llama: tuple[dict[str, Any], dict[str, Any]], write_gguf: Write, tmp_path: Path
) -> None:
    fields, arrays = tiny_llama
    odd = {"rope_freqs.weight": np.array([1, 3, 2, 7, 1, 1, 1, 5], np.float32)}
    path = write_gguf(tmp_path / "x.gguf", fields, arrays | odd)
    with pytest.raises(ConfigError, match=r"rope_freqs.weight: expected divisors of Llama 3's"):
        unpack_gguf(path, tmp_path / "out")
    large = {"output_norm.weight": np.full(64, 1e6, np.float32)}
    path = write_gguf(tmp_path / "y.gguf", fields, arrays | large)
    with pytest.raises(CheckpointError, match="expected values that float16 can hold"):
        unpack_gguf(path, tmp_path / "out", dtype="float16")
    assert {x.name for x in tmp_path.iterdir()} == {"x.gguf", "y.gguf"}


def test_the_licence_in_the_metadata_is_on_the_card(
    tiny_llama: tuple[dict[str, Any], dict[str, Any]], write_gguf: Write, tmp_path: Path
) -> None:
    fields, arrays = tiny_llama
    path = write_gguf(tmp_path / "x.gguf", fields | {"general.license": "apache-2.0"}, arrays)
    (tmp_path / "LICENSE").write_text("terms")
    unpack_gguf(path, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith('---\nlicense: "apache-2.0"\n---\n')
    assert (tmp_path / "out" / "LICENSE").read_text() == "terms"
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == {
        "eos_token_id": [2]
    }
