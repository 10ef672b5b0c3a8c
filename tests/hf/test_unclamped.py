"""Layers of full attention among windowed ones, as ``unclamped_layers`` names them: every executor
has them, and an exported folder keeps them."""

import json
import shutil
from pathlib import Path

import numpy as np
import torch

from monolane import Engine
from monolane.hf import LaneformerForCausalLM, export_hub_layout
from monolane.model import Checkpoint, Weights, read_config
from monolane.plan import PhaseKind, build, cpu, interpret, to_arrays

TOKENS = 40  # more than twice the window


def with_unclamped(source: Path, folder: Path, layers: list[int]) -> Path:
    """A golden model, whose first four layers have a window of 16, with this list in its config."""
    folder.mkdir()
    shutil.copyfile(source / "model.safetensors", folder / "model.safetensors")
    raw = json.loads((source / "config.json").read_text()) | {"unclamped_layers": layers}
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


def engine_logits(folder: Path, backend: str) -> np.ndarray:
    with Engine.load(folder, backend, "float32") as engine:
        return engine.logits(list(range(TOKENS)))


def hf_logits(folder: Path) -> np.ndarray:
    model = LaneformerForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits: np.ndarray = model(torch.arange(TOKENS)[None]).logits[0].numpy()
    return logits


def test_all_executors_see_past_the_window_there(golden_folder: Path, tmp_path: Path) -> None:
    folder = with_unclamped(golden_folder, tmp_path / "unclamped", [1, 2])
    export_hub_layout(folder, tmp_path / "out")
    wanted = hf_logits(folder)
    config = read_config(folder)
    plan = build(config, cpu(2), "float32")
    ids = list(range(TOKENS))
    weights = Weights.load(config, Checkpoint.open(folder))
    found = {
        "plan": interpret(plan, weights, [ids[:31], ids[31:]]).logits,
        "reference": engine_logits(folder, "reference"),
        "cpu": engine_logits(folder, "cpu"),
        "exported": engine_logits(tmp_path / "out", "reference"),
        "exported, Transformers": hf_logits(tmp_path / "out"),
    }
    arrays = to_arrays(plan)
    attends = arrays.modules[arrays.phases["module"][arrays.phases["kind"] == PhaseKind.ATTEND]]
    assert attends["attention"]["window"].tolist() == [16, 0, 0, 16, 0, 0]
    # The bound for every float32 executor, as in test_golden.py.
    assert all(np.abs(logits - wanted).max() < 1e-4 for logits in found.values())
    assert np.abs(wanted - hf_logits(golden_folder)).max() > 0.01
    assert json.loads((tmp_path / "out" / "config.json").read_text())["swa_layers"] == [0, 3]
