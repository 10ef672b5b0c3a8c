"""From a folder to a run, to a folder, to the engine: the same numbers all the way."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from monolane.engine import Engine, SamplingParams
from monolane.errors import CheckpointError
from monolane.hf import LaneformerForCausalLM
from monolane.train import RunConfig, export_run, read_weights, train_run
from monolane.train._build import empty_model
from monolane.train._checkpoints import checkpoint_steps


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BF16 folder in Hub layout, of the shape of ``tiny``."""
    from monolane.train import load_config

    folder = tmp_path_factory.mktemp("start")
    torch.manual_seed(3)
    LaneformerForCausalLM(empty_model(load_config("tiny").model).config).bfloat16().save_pretrained(
        folder
    )
    return folder


@pytest.fixture
def run(tiny: RunConfig, start: Path, tmp_path: Path) -> Path:
    """A run of two steps from that folder, with the checkpoint before the first step."""
    config = replace(
        tiny,
        model=replace(tiny.model, init_from=str(start)),
        schedule=replace(tiny.schedule, steps=2, warmup=0, decay=0),
    )
    train_run(config, tmp_path / "run", lambda start: ())
    assert checkpoint_steps(tmp_path / "run") == [0, 2]
    return tmp_path / "run"


def test_in_and_out_again_is_the_same_folder(run: Path, start: Path, tmp_path: Path) -> None:
    out = export_run(run, tmp_path / "out", step=0, dtype="bfloat16")
    before, after = (load_file(path / "model.safetensors") for path in (start, out))
    assert before.keys() == after.keys()
    for name in before:
        assert before[name].dtype == after[name].dtype == torch.bfloat16
        assert torch.equal(before[name], after[name]), name


def test_the_newest_checkpoint_is_exported_as_it_was_trained(run: Path, tmp_path: Path) -> None:
    out = export_run(run, tmp_path / "out")
    weights, exported = read_weights(run, 2), load_file(out / "model.safetensors")
    assert weights.keys() == exported.keys()
    assert all(torch.equal(weights[name], exported[name]) for name in weights)
    moved = read_weights(run, 0)
    assert not any(torch.equal(weights[name], moved[name]) for name in weights)


def test_three_readers_agree_on_the_exported_folder(run: Path, tmp_path: Path) -> None:
    out = export_run(run, tmp_path / "out")
    model = LaneformerForCausalLM(empty_model_of(out))
    model.load_state_dict(read_weights(run, 2))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    prompt = [1, 40, 41, 42, 43, 44]
    with torch.no_grad():
        ids = torch.tensor([prompt])
        expected = model.eval()(input_ids=ids, use_cache=False).logits
        assert torch.equal(theirs.eval()(input_ids=ids, use_cache=False).logits, expected)
    greedy = theirs.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None)
    with Engine.load(out, backend="reference") as engine:
        sampling = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
        assert (
            list(engine.generate(prompt, sampling).token_ids) == greedy[0, len(prompt) :].tolist()
        )


def empty_model_of(folder: Path) -> transformers.PretrainedConfig:
    from monolane.hf import LaneformerConfig

    return LaneformerConfig.from_pretrained(folder)


def test_a_checkpoint_that_is_not_there_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a checkpoint after 7 steps, found those after 0, 2"):
        export_run(run, tmp_path / "out", step=7)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_one_command_trains_and_the_folder_generates(corpus: Path, tmp_path: Path) -> None:
    def monolane(*arguments: object) -> str:
        command = [sys.executable, "-m", "monolane", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    settings = ("--set", f"data.corpus={corpus}", "--set", "log.tensorboard=false")
    assert monolane("train", "tiny", "-o", tmp_path / "run", *settings) == f"{tmp_path / 'run'}\n"
    assert (
        monolane("export", "-m", tmp_path / "run", "-o", tmp_path / "out")
        == f"{tmp_path / 'out'}\n"
    )
    text = monolane("generate", "-m", tmp_path / "out", "-n", 8, "-t", 0, "import json")
    assert text.strip()
