"""The model against the outputs of an independent implementation of the architecture."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import monolane.hf  # noqa: F401  makes the Auto classes know the model

FOLDERS = sorted(
    path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/expected.safetensors")
)


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture(params=["eager", "sdpa"])
def model(request: pytest.FixtureRequest, folder: Path) -> Any:
    loaded, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=request.param, output_loading_info=True
    )
    assert not any(report.values()), report  # no key missing, surplus or of another shape
    assert loaded.config._attn_implementation == request.param
    return loaded.eval()


def test_there_are_folders() -> None:
    assert len(FOLDERS) >= 8


@torch.no_grad()
def test_logits_and_greedy_ids(folder: Path, model: Any) -> None:
    expected = load_file(folder / "expected.safetensors")
    logits_BTV = model(expected["input_ids"]).logits
    # The bound for every float32 executor; here about 1e-6, which is the order of summation.
    assert (logits_BTV - expected["logits"]).abs().max() < 1e-4
    ids = expected["greedy_ids"]
    for cache in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
        generated = model.generate(
            ids[:, :8],
            attention_mask=torch.ones_like(ids[:, :8]),
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            **cache,
        )
        assert torch.equal(generated, ids), cache
