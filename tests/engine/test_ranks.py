"""Several processes behind the engine."""

import os
import signal
from pathlib import Path

import pytest

from monolane import Engine, SamplingParams
from monolane.errors import BackendError, RankError

SAMPLED = SamplingParams(max_tokens=24, temperature=1.2, top_k=50, seed=11, ignore_eos=True)


def test_an_engine_survives_the_loss_of_a_rank(tiny_model: Path) -> None:
    prompt = [5, 6, 7]
    with Engine.load(tiny_model, "cpu") as alone:
        wanted = alone.generate(prompt, SAMPLED).token_ids
    with Engine.load(tiny_model, "cpu", ranks=2) as engine:
        assert engine.generate(prompt, SAMPLED).token_ids == wanted
        os.kill(engine.backend.executor.processes[1], signal.SIGKILL)
        with pytest.raises(RankError, match="rank 1 was killed by signal 9; ask again") as caught:
            engine.generate(prompt, SAMPLED)
        assert caught.value.rank == 1
        assert engine.generate(prompt, SAMPLED).token_ids == wanted


@pytest.mark.parametrize("backend", ["reference", "cuda"])
def test_other_backends_refuse_ranks(tiny_model: Path, backend: str) -> None:
    with pytest.raises(BackendError, match="ranks: expected backend cpu"):
        Engine.load(tiny_model, backend, ranks=2)


@pytest.mark.parametrize("ranks", [0, -1, "2", True])
def test_ranks_are_a_number(tiny_model: Path, ranks: object) -> None:
    with pytest.raises(BackendError, match="ranks: expected a number of processes"):
        Engine.load(tiny_model, ranks=ranks)  # type: ignore[arg-type]


def test_a_dense_model_is_cut_into_a_lane_for_each_rank(llama_gguf: Path) -> None:
    greedy = SamplingParams(max_tokens=24, ignore_eos=True)
    with Engine.load(llama_gguf, "cpu", "float32") as alone:
        wanted = alone.generate([5, 6, 7], greedy).token_ids
    with Engine.load(llama_gguf, "cpu", "float32", ranks=2) as engine:
        assert engine.generate([5, 6, 7], greedy).token_ids == wanted
