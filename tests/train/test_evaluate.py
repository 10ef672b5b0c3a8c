"""Scores are checked against a model whose probabilities are known, and against one long pass."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from monolane.hf import LaneformerConfig, LaneformerForCausalLM
from monolane.train import DemoRecipe, _evaluate
from monolane.train._evaluate import (
    Score,
    Window,
    cut_windows,
    score_documents,
    score_windows,
)


def new_model(recipe: DemoRecipe) -> LaneformerForCausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return LaneformerForCausalLM(LaneformerConfig(**recipe.config_fields()))


class _Uniform(torch.nn.Module):
    """Gives each of 8 tokens the same probability, and remembers the widths it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: list[int] = []

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        self.widths.append(input_ids.shape[1])
        return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 8))


@pytest.mark.parametrize("length", [2, 9, 10, 11, 15, 16, 100, 1001])
def test_every_token_but_the_first_is_scored_once(length: int) -> None:
    document = np.zeros(length, dtype=np.uint16)
    model = _Uniform()
    (score,) = score_documents(model, [document], [50], context=10)
    assert score.tokens == length - 1
    assert score.bits == pytest.approx(3.0 * (length - 1))  # log2(8) each
    assert score.bits_per_byte == pytest.approx(3.0 * (length - 1) / 50)
    assert max(model.widths) <= 10


def test_a_document_within_one_window_is_scored_exactly(recipe: DemoRecipe) -> None:
    model = new_model(recipe).eval()
    ids = np.arange(1, 60, dtype=np.uint16)
    (score,) = score_documents(model, [ids], [1], recipe.context)
    tensor = torch.from_numpy(ids.astype(np.int64))[None]
    with torch.inference_mode():
        loss = model(input_ids=tensor, labels=tensor).loss
    assert score.bits == pytest.approx(float(loss) * 58 / math.log(2), rel=1e-5)


def test_windows_padded_together_score_as_alone(recipe: DemoRecipe) -> None:
    model = new_model(recipe).eval()
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 500, 150).astype(np.uint16)  # windows 0..63, 32..95, 64..127, 96..149
    (score,) = score_documents(model, [ids], [1], recipe.context)
    expected = 0.0
    for start, first in ((0, 1), (32, 64), (64, 96), (96, 128)):
        window = torch.from_numpy(ids[start : start + 64].astype(np.int64))
        with torch.inference_mode():
            log_TV = model(input_ids=window[None]).logits[0].log_softmax(-1)
        for place in range(first - start, len(window)):
            expected -= float(log_TV[place - 1, window[place]])
    assert score.bits == pytest.approx(expected / math.log(2), rel=1e-5)


def test_scores_add_up() -> None:
    total = Score(8.0, 4, 2) + Score(2.0, 1, 3)
    assert total == Score(10.0, 5, 5)
    assert total.bits_per_byte == 2.0


def test_greedy_says_whether_each_scored_token_is_the_most_probable(recipe: DemoRecipe) -> None:
    model = new_model(recipe).eval()
    ids = torch.arange(1, 20)[None]
    with torch.inference_mode():
        for _ in range(5):  # what greedy decoding writes
            ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], 1)
    written = ids[0].numpy()
    other = written.copy()
    other[-2] = (other[-2] + 1) % 512
    windows = [Window(written, 19), Window(other, 19), Window(other, 23), Window(written[:12], 1)]
    scores = score_windows(model, windows)
    assert scores.greedy.tolist()[:2] == [True, False]
    assert not scores.greedy[3]
    together, *_ = scores.nats
    apart = [score_windows(model, [Window(written, 19)]).nats[0]]
    assert together == pytest.approx(apart[0], rel=1e-5)


def test_nothing_is_left_changed(recipe: DemoRecipe) -> None:
    model = new_model(recipe).train()
    score_documents(model, [np.arange(1, 60)], [59], recipe.context)
    assert model.training
    assert all(weight.requires_grad for weight in model.parameters())
    assert not any(weight.is_inference() for weight in model.parameters())
    model(input_ids=torch.arange(1, 9)[None], labels=torch.arange(1, 9)[None]).loss.backward()


_RANK = """
import json, sys
from pathlib import Path
import numpy as np, torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from monolane.hf import LaneformerConfig, LaneformerForCausalLM
from monolane.train._evaluate import score_documents
from monolane.train._process_group import leave

torch.set_num_threads(1)
dist.init_process_group("gloo")
fields, out = json.loads(sys.argv[1]), Path(sys.argv[2])
torch.manual_seed(0)
model = LaneformerForCausalLM(LaneformerConfig(**fields))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
rng = np.random.default_rng(0)
documents = [rng.integers(5, 500, length) for length in (150, 20, 90, 64, 7)]
scores = score_documents(model, documents, [len(ids) for ids in documents], 64, rows=2)
out.joinpath(f"{dist.get_rank()}.json").write_text(json.dumps([score.bits for score in scores]))
# Training goes on: the gathered weights were put back.
model(input_ids=torch.arange(1, 9)[None], labels=torch.arange(1, 9)[None]).loss.backward()
dist.barrier()  # or the first to leave closes what the other still sends on
leave()
"""


def test_each_window_has_one_owner_and_each_process_as_many_passes(
    recipe: DemoRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes one after the other, without what joins them: their sum is the whole."""
    model = new_model(recipe)
    ids = np.random.default_rng(0).integers(5, 500, 300)
    windows = list(cut_windows(ids, 64))
    assert len(windows) == 9  # 5 batches of 2: with two processes, one makes one for show
    whole = score_windows(model, windows, rows=2)
    parts: list[torch.Tensor] = []
    passes: list[list[float]] = [[], []]
    monkeypatch.setattr(_evaluate, "_several", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", lambda results: parts.append(results.clone()))
    for rank in (0, 1):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        score_windows(model, windows, rows=2, tick=passes[rank].append)
    assert [len(made) for made in passes] == [3, 3]
    nats, greedy = (parts[0] + parts[1]).numpy()
    assert nats.tolist() == whole.nats.tolist()
    assert (greedy > 0).tolist() == whole.greedy.tolist()
    assert not np.any((parts[0][0] != 0).numpy() & (parts[1][0] != 0).numpy())


@pytest.mark.slow  # two processes that import torch
def test_a_sharded_model_scores_the_same_on_every_process(
    recipe: DemoRecipe, tmp_path: Path
) -> None:
    """Five documents make 9 windows and 5 batches: with two processes, one makes one for show."""
    (tmp_path / "rank.py").write_text(_RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    arguments = [str(tmp_path / "rank.py"), json.dumps(recipe.config_fields()), str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, *arguments], check=True, timeout=600, env=environment)
    model = new_model(recipe)
    rng = np.random.default_rng(0)
    documents = [rng.integers(5, 500, length) for length in (150, 20, 90, 64, 7)]
    scores = score_documents(model, documents, [len(ids) for ids in documents], 64, rows=2)
    for rank in (0, 1):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == [s.bits for s in scores]
