"""Several processes behind the engine."""

import os
import signal
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.errors import BackendError, MonolaneError, RankError, RequestError

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
    with pytest.raises(RequestError, match="ranks: expected backend cpu"):
        Engine.load(tiny_model, backend, ranks=2)


@pytest.mark.parametrize("wrong", [{"prefix_cache": "5X"}, {"prefix_file": "prefixes"}])
def test_no_rank_is_left_by_what_is_refused_once_they_run(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = ranks_of_this_process()
    with pytest.raises(MonolaneError, match="expected") as caught:
        Engine.load(tiny_model, "cpu", ranks=2, **wrong)
    assert caught.value  # which keeps the frames alive, as a notebook's last error does
    assert ranks_of_this_process() == before


def ranks_of_this_process() -> list[int]:
    children = (
        int(child)
        for task in Path("/proc/self/task").iterdir()
        for child in (task / "children").read_text().split()
    )
    return [x for x in children if b"cpu._rank_main" in Path(f"/proc/{x}/cmdline").read_bytes()]


@pytest.mark.parametrize("ranks", [0, -1, "2", True])
def test_ranks_are_a_number(tiny_model: Path, ranks: object) -> None:
    with pytest.raises(RequestError, match="ranks: expected a number of processes"):
        Engine.load(tiny_model, ranks=ranks)  # type: ignore[arg-type]


def test_a_dense_model_is_cut_into_a_lane_for_each_rank(llama_gguf: Path) -> None:
    greedy = SamplingParams(max_tokens=24, ignore_eos=True)
    with Engine.load(llama_gguf, "cpu", "float32") as alone:
        wanted = alone.generate([5, 6, 7], greedy).token_ids
    with Engine.load(llama_gguf, "cpu", "float32", ranks=2) as engine:
        assert engine.generate([5, 6, 7], greedy).token_ids == wanted


def test_prefixes_are_kept_by_each_rank_until_one_is_lost() -> None:
    """A conversation, sent whole each turn: read from where it is new, in the bits of one process.

    The demo model has windowed layers that drop positions. What was kept is gone with a rank.
    """
    said = np.random.default_rng(2).integers(3, 512, size=600).tolist()
    turn = SamplingParams(max_tokens=8, temperature=1.0, seed=3, logprobs=2, ignore_eos=True)
    with (
        Engine.load("demo", "cpu", prefix_cache="off") as alone,
        Engine.load("demo", "cpu", ranks=2, prefix_cache="64M") as engine,
    ):
        prompt = said[:400]
        cached = []
        for more in (said[400:430], said[430:500], said[500:]):
            answer, wanted = engine.generate(prompt, turn), alone.generate(prompt, turn)
            assert (answer.token_ids, answer.logprobs) == (wanted.token_ids, wanted.logprobs)
            cached.append(answer.timings.cache_n)
            prompt = [*prompt, *wanted.token_ids, *more]
        assert cached == [0, 407, 445]
        assert engine.prefixes.tree.nbytes > 0
        os.kill(engine.backend.executor.processes[1], signal.SIGKILL)
        with pytest.raises(RankError):
            engine.generate(prompt, turn)
        wanted = alone.generate(prompt, turn)
        for known in (0, len(prompt) - 64):
            answer = engine.generate(prompt, turn)
            assert answer.timings.cache_n >= known
            assert answer.timings.cache_n == 0 or known
            assert (answer.token_ids, answer.logprobs) == (wanted.token_ids, wanted.logprobs)


@pytest.mark.slow
def test_scarce_prefixes_of_ranks_change_no_bit() -> None:
    """What is kept is cut where prompts part, and dropped: ranks do both in rank 0's order."""
    rng = np.random.default_rng(4)
    texts = [rng.integers(3, 512, size=420).tolist() for _ in range(2)]
    short = SamplingParams(max_tokens=2, temperature=1.0, seed=5, logprobs=0, ignore_eos=True)
    hits = 0
    with (
        Engine.load("demo", "cpu", prefix_cache="off") as alone,
        Engine.load("demo", "cpu", ranks=2, prefix_cache="2M") as engine,
    ):
        for _ in range(16):
            prompt = [*texts[rng.integers(2)][: rng.integers(2, 420)], int(rng.integers(3, 9))]
            answer, wanted = engine.generate(prompt, short), alone.generate(prompt, short)
            assert (answer.token_ids, answer.logprobs) == (wanted.token_ids, wanted.logprobs)
            assert engine.prefixes.tree.nbytes <= 2 << 20
            hits += answer.timings.cache_n > 0
    assert hits > 3


def test_prefixes_of_ranks_are_in_no_file(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="prefix_file: expected one rank, got several"):
        Engine.load("demo", "cpu", ranks=2, prefix_file=tmp_path / "prefixes")


def test_a_rank_that_another_request_finds_lost_changes_no_answer() -> None:
    """It empties all slots, also those whose requests have resumed a prefix and not begun yet."""
    said = np.random.default_rng(2).integers(3, 512, size=600).tolist()
    asked = SamplingParams(max_tokens=8, logprobs=1, ignore_eos=True)
    with (
        Engine.load("demo", "cpu", prefix_cache="off") as alone,
        Engine.load("demo", "cpu", ranks=2, max_sequences=2, prefix_cache="64M") as engine,
    ):
        wanted = alone.generate(said, asked)
        for name in ("_feed", "_advance"):  # where it pauses, and where the answer begins
            engine.generate(said[:450], asked)
            stream = engine.stream(said, asked)
            strike_before(stream, name, engine)
            found = stream.result()
            assert found.timings.cache_n > 0
            assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)
            found = engine.generate(said, asked)  # nor was anything wrong kept
            assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)


def test_a_rank_that_is_lost_before_a_sequence_is_kept_fails_no_answer() -> None:
    """Amid the prompt, what was read is read again; behind the last token nothing is left to do."""
    said = np.random.default_rng(2).integers(3, 512, size=600).tolist()
    asked = SamplingParams(max_tokens=8, logprobs=1, ignore_eos=True)
    with (
        Engine.load("demo", "cpu", prefix_cache="off") as alone,
        Engine.load("demo", "cpu", ranks=2, max_sequences=2, prefix_cache="64M") as engine,
    ):
        for calls, prompt in ((1, said[:300]), (2, said[300:])):
            wanted = alone.generate(prompt, asked)
            strike_before(engine.backend, "save", engine, calls)
            found = engine.generate(prompt, asked)
            assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)
            assert engine.backend.executor.losses == calls


def strike_before(of: object, name: str, engine: Engine, calls: int = 1) -> None:
    """Have another request find a rank lost just before that call of a method."""
    call, made = getattr(of, name), count(1)

    def strike(*args: object) -> object:
        if next(made) == calls:
            lose_a_rank(engine)
        return call(*args)

    setattr(of, name, strike)


def lose_a_rank(engine: Engine) -> None:
    os.kill(engine.backend.executor.processes[1], signal.SIGKILL)
    with pytest.raises(RankError):
        engine.logits([5, 6, 7])


def test_states_and_scores_behind_a_lost_rank_are_refused(tiny_model: Path) -> None:
    """Else they would be those of a later part of the tokens alone."""
    ids = np.random.default_rng(3).integers(3, 320, size=90).tolist()
    with Engine.load(tiny_model, "cpu", ranks=2, max_sequences=2) as engine:
        looks = count()

        def cancelled() -> bool:
            if next(looks) == 1:
                lose_a_rank(engine)
            return False

        with pytest.raises(BackendError, match="a rank was lost, and with it the tokens before"):
            engine.hidden(ids, cancelled)
        with Engine.load(tiny_model, "cpu") as alone:
            np.testing.assert_array_equal(engine.hidden(ids), alone.hidden(ids))
