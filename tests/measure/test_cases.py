"""Cases count what they say: tokens, contexts, bytes; and all of them take turns."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from monolane.errors import BackendError, RequestError
from monolane.measure import (
    DecodeCase,
    LoadedModel,
    Neighbours,
    PrefillCase,
    ReadProbe,
    bench_records,
    first_token,
    memory_record,
    run_rounds,
    startup_record,
)
from monolane.measure._arithmetic import ArithmeticProbe
from monolane.model import parse_config, tensor_specs, write_checkpoint
from monolane.plan import pass_cost


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> LoadedModel:
    return LoadedModel(tiny_model, "auto", context=96, slots=2, workers=2)


class Recorder:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log

    def warm_up(self) -> None:
        self._log.append(f"warm {self.name}")

    def run(self) -> None:
        self._log.append(self.name)

    def forget(self) -> None:
        assert self._log.pop() == self.name


class Scripted:
    """Neighbours that were quiet or not, as told."""

    def __init__(self, quiet: str) -> None:
        self._quiet = iter(quiet)
        self.patience = 1.0

    def await_quiet(self) -> None:
        pass

    def were_quiet(self) -> bool:
        return next(self._quiet) == "q"


@pytest.mark.parametrize(("quiet", "disturbed"), [("qqq", 0), ("nqnnqq", 0), ("nnnqnnn", 2)])
def test_a_disturbed_sample_is_taken_again(quiet: str, disturbed: int) -> None:
    log: list[str] = []
    script = Scripted(quiet)
    cases = [Recorder(name, log) for name in "abc"]
    assert run_rounds(cases, 1, lambda: None, cast(Neighbours, script)) == disturbed
    assert log[3:] == ["a", "b", "c"]
    assert not list(script._quiet)
    script = Scripted("nqq")
    script.patience = 0.0
    assert run_rounds(cases, 1, lambda: None, cast(Neighbours, script)) == 1


def test_neighbours_are_everybody_else() -> None:
    others = Neighbours(patience=0.0, limit=0.5)
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    end = time.monotonic() + 60
    try:
        while others.were_quiet():  # until it has had half of the time since then, on any machine
            assert time.monotonic() < end
            time.sleep(0.1)
    finally:
        child.kill()
        child.wait()  # its time is ours now
    others = Neighbours(patience=9.0, limit=1e9)
    others.await_quiet()
    assert others.were_quiet()
    assert others.patience == 9.0
    never = Neighbours(patience=0.5, limit=-1.0)
    never.await_quiet()
    assert never.patience == 0.0


def test_cases_take_turns_and_nobody_is_always_first() -> None:
    log: list[str] = []
    steps: list[int] = []
    cases = [Recorder(name, log) for name in "abc"]
    run_rounds(cases, 3, lambda: steps.append(1))
    assert log == ["warm a", "warm b", "warm c", *"abc", *"cba", *"abc"]
    assert len(steps) == 12


@pytest.mark.parametrize("tokens", [5, 70])  # within one pass's width, and beyond
def test_decode_stands_at_its_context_in_every_run(model: LoadedModel, tokens: int) -> None:
    case = DecodeCase(model, 0, 20, tokens, ReadProbe(1, 1 << 20))
    run_rounds([case], 3, lambda: None)
    assert model.executor.length(0) == 20 + tokens
    assert len(case.samples) == len(case.shares) == len(case.arithmetic) == 3
    assert len(case.token_us) == 3 * (tokens - 1)
    assert all(0 < sample < 1e7 for sample in case.samples)
    # The speed of an epoch is that of its own tokens.
    last = case.token_us[-(tokens - 1) :]
    assert case.samples[-1] == pytest.approx(1e6 / np.mean(last), rel=1e-3)
    assert case.bytes_per_token == pass_cost(model.plan, 1, 20 + tokens // 2).bytes
    case.forget()
    assert (len(case.samples), len(case.shares), len(case.arithmetic)) == (2, 2, 2)
    assert len(case.token_us) == 2 * (tokens - 1)


def test_a_model_with_states_reads_its_context_anew(tmp_path: Path) -> None:
    """States do not go back to a context that lies behind them."""
    raw = {
        "model_type": "qwen3_next",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "vocab_size": 40,
        "max_position_embeddings": 64,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "mlp_only_layers": [0, 1],
        "torch_dtype": "float32",
    }
    (tmp_path / "config.json").write_text(json.dumps(raw))
    rng = np.random.default_rng(0)
    specs = tensor_specs(parse_config(raw))
    draws = [(x.name, rng.normal(scale=0.2, size=x.shape).astype(np.float32)) for x in specs]
    write_checkpoint(tmp_path, draws)
    model = LoadedModel(tmp_path, "auto", context=64, slots=1, workers=2)
    case = DecodeCase(model, 0, 20, 5, ReadProbe(1, 1 << 20))
    run_rounds([case], 3, lambda: None)
    assert model.executor.length(0) == 20 + 5
    assert len(case.samples) == 3


def test_any_executor_can_be_timed(tiny_model: Path) -> None:
    """By its name, through the contract alone; without a plan there are no bytes to count."""
    loaded = LoadedModel(tiny_model, "auto", context=96, slots=2, workers=None, backend="reference")
    assert (loaded.dtype, loaded.workers) == ("float32", 1)
    case = PrefillCase(loaded, 1, 33)
    run_rounds([case], 2, lambda: None)
    assert loaded.executor.length(1) == 33
    assert len(case.samples) == 2
    with pytest.raises(RequestError, match="expected one that runs a plan, got 'reference'"):
        loaded.bytes_per_token(10)


def test_prefill_feeds_its_prompt(model: LoadedModel) -> None:
    case = PrefillCase(model, 1, 33)
    run_rounds([case], 2, lambda: None)
    assert model.executor.length(1) == 33
    assert len(case.samples) == 2


class _Memory(ReadProbe):
    """A memory whose speed changes at every look: 100 GB/s, 300, 500 and so on."""

    def __init__(self) -> None:
        super().__init__(1, 1 << 20)
        self.looks = 0

    def measure(self) -> float:
        self.looks += 1
        return (2 * self.looks - 1) * 100e9


def test_an_epoch_is_held_against_the_memory_of_its_own_minute(model: LoadedModel) -> None:
    case = DecodeCase(model, 0, 10, 4, _Memory())
    case.warm_up()
    case.run()
    case.run()
    expected = [200e9, 600e9]
    found = [case.bytes_per_token * s / m for s, m in zip(case.samples, case.shares, strict=True)]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_what_cores_multiply_is_counted_over_all_threads(workers: int) -> None:
    assert 1e5 < ArithmeticProbe(workers).measure() < 1e14  # the machine may stand still for long


class _Cores:
    """Cores whose speed changes at every look: 1, 3, 5 GFLOP/s and so on."""

    looks = 0

    def measure(self) -> float:
        self.looks += 1
        return (2 * self.looks - 1) * 1e9


def test_a_sample_is_held_against_the_cores_of_its_own_minute(model: LoadedModel) -> None:
    probe = ReadProbe(1, 1 << 20)
    cases = [DecodeCase(model, 0, 10, 4, probe), PrefillCase(model, 1, 12)]
    for case in cases:
        case._cores = _Cores()  # type: ignore[assignment]
        case.warm_up()  # takes no look
        for _ in range(3):
            case.run()
        assert case.arithmetic == [2e9, 6e9, 10e9]
    probe.run()
    _, *records = bench_records("tiny", probe, cases[:1], cases[1:])  # type: ignore[arg-type]
    for record in records:
        ends = ("", "_min", "_max")
        assert [record[f"core_gflops{end}"] for end in ends] == pytest.approx([6, 2, 10])


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_probe_reads_all_of_its_buffer(workers: int) -> None:
    probe = ReadProbe(workers, 1 << 20)
    assert probe.workers == workers
    assert (1 << 20) - 512 * workers < probe.size <= 1 << 20
    probe.warm_up()
    probe.run()
    assert 1e4 < probe.samples[0] < 1e14  # bytes/s; the machine may stand still for seconds


def test_records_say_bytes_and_share_of_the_bandwidth(model: LoadedModel) -> None:
    probe = ReadProbe(2, 1 << 20)
    decode = DecodeCase(model, 0, 10, 4, probe)
    prefill = PrefillCase(model, 1, 12)
    run_rounds([probe, decode, prefill], 3, lambda: None)
    read, decoded, prefilled = bench_records("tiny", probe, [decode], [prefill])
    assert (read["name"], read["unit"], read["workers"]) == ("read_bandwidth", "GB/s", 2)
    assert (decoded["context"], decoded["tokens"], decoded["dtype"]) == (10, 4, "float32")
    assert decoded["us_per_token"] == pytest.approx(1e6 / decoded["tokens_per_s"])
    moved = decode.bytes_per_token * decoded["tokens_per_s"] / 1e9
    assert decoded["gb_per_s"] == pytest.approx(moved)
    assert decoded["mbu_min"] <= decoded["mbu"] <= decoded["mbu_max"]
    assert prefilled["tokens"] == 12
    assert "mbu" not in prefilled


def test_a_cold_process(model: LoadedModel, tiny_model: Path) -> None:
    run = first_token(tiny_model, prompt=20, tokens=6, workers=1)
    assert 0 < run.load_seconds < run.seconds < 600
    assert run.memory.anonymous_bytes + run.memory.file_bytes <= run.memory.peak_bytes + (4 << 20)
    decode = DecodeCase(model, 0, 20, 6, ReadProbe(1, 1 << 20))
    memory = memory_record("tiny", decode, run)
    assert memory["peak_bytes"] > memory["weight_bytes"] > 0
    # Two windowed layers see 16 keys, two all 20; keys and values, 2 heads of 8 floats.
    assert memory["kv_bytes"] == (2 * 16 + 2 * 20) * 2 * 2 * 8 * 4
    start = startup_record("tiny", "float32", [run, run])
    assert (start["unit"], start["runs"], start["median"]) == ("s", 2, run.seconds)


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"failed: .*config\.json"):
        first_token(tmp_path)


def test_a_context_beyond_the_models(tiny_model: Path) -> None:
    with pytest.raises(RequestError, match="expected at most 96 tokens, .* got 97"):
        LoadedModel(tiny_model, "auto", context=97, slots=1, workers=1)
