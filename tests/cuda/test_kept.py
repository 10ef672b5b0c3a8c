"""What is kept of a sequence, put into another slot, has the bits of one that was read anew."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu
from rig import random_weights, tiny_config
from test_dense import write_folder
from test_executor import MakeGpu, greedy, run, tokens

from monolane import Engine, SamplingParams
from monolane.cuda import CudaExecutor
from monolane.engine import _engine
from monolane.errors import RequestError
from monolane.executor_api import bytes_of
from monolane.model import NOW, LayerConfig, ModelConfig, Weights

TEXT = [(7 * i * i + 3 * i + 1) % 23 for i in range(90)]
WINDOWS = (LayerConfig(NOW, NOW, 6), LayerConfig(NOW, NOW))
CASES: dict[str, tuple[ModelConfig, dict[str, Any]]] = {
    "whole": (tiny_config(max_positions=128, vocab_size=24), {}),
    "windows": (tiny_config(max_positions=128, vocab_size=24, layers=WINDOWS), {}),
    "heads of 20": (
        tiny_config(
            max_positions=128, vocab_size=24, num_heads=4, head_dim=20, hidden_size=40,
            layers=WINDOWS,
        ),
        {},
    ),
    "two devices": (
        tiny_config(max_positions=128, vocab_size=24, layers=WINDOWS), {"devices": 2}
    ),
}  # fmt: skip


def make(make_gpu: MakeGpu, case: str, **wish: Any) -> CudaExecutor:
    config, own = CASES[case]
    count = own.get("devices", 1)
    gpus = [make_gpu(sms=4 // count, number=i, seed=50 * i) for i in range(count)]
    return CudaExecutor(random_weights(config), "auto", gpus, context=128, slots=3, **wish)


def drawn(executor: CudaExecutor, slot: int, last: int) -> list[int]:
    return tokens(run(executor, greedy(slot=slot, budget=4, prompt=(last,))), slot)


@pytest.mark.parametrize("case", CASES)
def test_a_sequence_goes_on_from_what_was_kept(make_gpu: MakeGpu, case: str) -> None:
    """At places within tiles and at their ends, in one piece and in two."""
    executor = make(make_gpu, case)
    assert executor.keeps_prefixes
    assert bool(executor.tail_positions) == (case != "whole")
    for end, cut in ((37, 16), (64, 21)):
        for slot in range(3):
            executor.truncate(slot, 0)
        executor.logits(0, TEXT[:cut])
        first = executor.save(0, 0, cut)
        executor.logits(0, TEXT[cut:end])
        whole, rest = executor.save(0, 0, end), executor.save(0, cut, end)
        assert (whole.tail_nbytes is not None) == (case != "whole")
        wanted = executor.logits(0, TEXT[end : end + 3])
        executor.restore(1, whole, end)
        assert executor.length(1) == end
        executor.restore(2, first.part(0, cut), cut)
        executor.restore(2, rest, end - cut)
        for slot in (1, 2):
            found = executor.logits(slot, TEXT[end : end + 3])
            assert found.tobytes() == wanted.tobytes(), (end, slot)
            again = bytes_of(executor.save(slot, 0, end))
            np.testing.assert_array_equal(again.rows, bytes_of(whole).rows)
        assert drawn(executor, 1, 5) == drawn(executor, 2, 5) == drawn(executor, 0, 5)
    executor.close()


@pytest.mark.parametrize("case", ["windows", "two devices"])
def test_a_copy_goes_on_as_its_source(make_gpu: MakeGpu, case: str) -> None:
    executor = make(make_gpu, case)
    executor.logits(0, TEXT[:80])
    executor.copy(0, 2)
    assert executor.length(2) == 80
    assert drawn(executor, 2, 5) == drawn(executor, 0, 5)
    executor.truncate(2, 78)
    executor.truncate(0, 78)
    found = [executor.logits(slot, TEXT[:5]) for slot in (0, 2)]
    assert found[0].tobytes() == found[1].tobytes()
    executor.close()


def test_what_windowed_layers_have_dropped(make_gpu: MakeGpu) -> None:
    executor = make(make_gpu, "windows")
    executor.logits(0, TEXT)
    old, new = executor.save(0, 0, 10), executor.save(0, 0, 88)
    assert old.tail_nbytes is None, "nothing can go on from there"
    assert new.tail_nbytes is not None
    executor.restore(1, new, 88)
    with pytest.raises(RequestError, match="have dropped the keys before position 83"):
        executor.truncate(1, 87)
    assert executor.save(1, 0, 87).tail_nbytes is None
    executor.restore(2, new, 40)
    assert executor.save(2, 0, 40).tail_nbytes is None, "the tail was of 88"
    executor.truncate(2, 0)
    executor.logits(2, TEXT[:20])
    assert executor.save(2, 0, 20).tail_nbytes is not None
    with pytest.raises(RequestError, match="save: expected positions within 0 and 20, got 4 to 21"):
        executor.save(2, 4, 21)
    with pytest.raises(RequestError, match="restore: expected at most 88 positions, got 89"):
        executor.restore(2, new, 89)
    executor.close()


@pytest.mark.slow
def test_an_engine_reads_a_prompt_once(
    kernel_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a talk has read is not read again, also not after a restart."""
    weights = random_weights(CASES["windows"][0])
    write_folder(tmp_path / "model", weights)
    params = SamplingParams(max_tokens=4, ignore_eos=True)

    def made(weights: Weights, dtype: str, **more: Any) -> CudaExecutor:
        return CudaExecutor(weights, dtype, EmulatedGpu(kernel_folder, sms=4), **more)

    monkeypatch.setattr(_engine, "find_backend", lambda *_: made)

    def talk(kept: str, folder: Path | None) -> list[Any]:
        wish: dict[str, Any] = {"prefix_cache": kept, "prefix_file": folder}
        with Engine.load(tmp_path / "model", "cuda", max_sequences=2, **wish) as engine:
            first = engine.generate(TEXT[:70], params)
            return [first, engine.generate([*TEXT[:70], *first.token_ids, 3, 1], params)]

    plain = talk("off", None)
    kept, again = talk("64M", tmp_path / "kept"), talk("64M", tmp_path / "kept")
    for found in (kept, again):
        assert [x.token_ids for x in found] == [x.token_ids for x in plain]
    assert [x.timings.cache_n for x in plain] == [0, 0]
    assert kept[1].timings.cache_n > 60
    assert again[0].timings.cache_n > 30


def test_kernels_that_differ_have_other_names(make_gpu: MakeGpu) -> None:
    one, same = make(make_gpu, "whole"), make(make_gpu, "whole")
    other = make(make_gpu, "windows")
    assert one.identity() == same.identity() != other.identity()
    for executor in (one, same, other):
        executor.close()
