"""Kept prefixes change no bit of an answer, and save the reading of what is known."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monolane import Engine, SamplingParams
from monolane.engine import Stream, _prefixes
from monolane.engine._prefixes import prefix_budget
from monolane.errors import BackendError, RequestError
from tests.random_models import write_random_model

WINDOW = 16
# Rings hold 256 positions, a window and a pass in whole chunks, and the context is longer.
CONFIG: dict[str, Any] = {
    "model_type": "laneformer",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 1600,
    "num_lanes": 2,
    "broadcast_delay": 1,
    "sliding_window": WINDOW,
    "torch_dtype": "float32",
}
RNG = np.random.default_rng(5)
TEXT = RNG.integers(64, size=1500).tolist()
ANSWER = SamplingParams(max_tokens=12, temperature=1.0, seed=3, logprobs=3)


STATES: dict[str, Any] = {
    **{name: x for name, x in CONFIG.items() if name[:3] in ("hid", "int", "num", "voc", "max")},
    "model_type": "qwen3_next",
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 5,
    "head_dim": 8,
    "mlp_only_layers": [0, 1, 2],
    "torch_dtype": "float32",
}


CONFIGS = {
    "windowed": CONFIG | {"swa_layers": [0, 1]},
    "whole": CONFIG | {"swa_layers": []},
    "states": STATES,
}


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose windowed layers drop positions, one without any, and one with states."""
    return write_random_model(tmp_path_factory.mktemp(request.param), CONFIGS[request.param])


@pytest.fixture(scope="module")
def alone(folder: Path) -> Callable[[list[int], SamplingParams], tuple[Any, ...]]:
    """Tells what a request gets that reads its prompt anew, by itself."""
    engine = Engine.load(folder, "cpu", prefix_cache="off")
    known: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def ask(prompt: list[int], params: SamplingParams) -> tuple[Any, ...]:
        key = (tuple(prompt), repr(params))
        if key not in known:
            answer = engine.generate(prompt, params)
            assert answer.timings.cache_n == 0
            known[key] = (answer.token_ids, answer.logprobs)
        return known[key]

    return ask


def test_a_conversation_is_read_from_where_it_is_new(folder: Path, alone: Any) -> None:
    """Each turn sends everything again, behind the answer of the turn before."""
    engine = Engine.load(folder, "cpu", prefix_cache="64M")
    prompt: list[int] = []
    known = 0
    for turn in range(5):
        prompt = prompt + TEXT[200 * turn : 200 * (turn + 1)]
        answer = engine.generate(prompt, ANSWER)
        assert (answer.token_ids, answer.logprobs) == alone(prompt, ANSWER)
        assert answer.timings.cache_n == known
        prompt = [*prompt, *answer.token_ids]
        known = len(prompt) - 1  # the last token drawn was never fed


def test_another_answer_to_a_prompt_goes_on_near_its_end(folder: Path, alone: Any) -> None:
    """As when a client renders the answer in other tokens than were drawn."""
    engine = Engine.load(folder, "cpu", prefix_cache="64M")
    first = SamplingParams(max_tokens=400, temperature=1.0, seed=1, logprobs=0)
    engine.generate(TEXT[:300], first)
    prompt = [*TEXT[:300], *TEXT[700:710]]
    answer = engine.generate(prompt, ANSWER)
    assert (answer.token_ids, answer.logprobs) == alone(prompt, ANSWER)
    assert answer.timings.cache_n >= 300 - 64


def test_where_two_prompts_part_the_third_goes_on(folder: Path, alone: Any) -> None:
    """A system prompt that two requests begin with: at a distance, then where they part."""
    engine = Engine.load(folder, "cpu", prefix_cache="64M")
    cached = []
    for i in range(3):
        prompt = [*TEXT[:1300], *TEXT[100 * i : 100 * i + 120 + i]]
        answer = engine.generate(prompt, ANSWER)
        assert (answer.token_ids, answer.logprobs) == alone(prompt, ANSWER)
        cached.append(answer.timings.cache_n)
    if engine.backend.executor.tail_positions:
        assert cached[:2] == [0, 1024]
        assert 1300 - 64 < cached[2] <= 1300
    else:
        assert cached == [0, 1300, 1300]


def test_a_prompt_of_a_running_sequence_is_known(folder: Path, alone: Any) -> None:
    engine = Engine.load(folder, "cpu", max_sequences=2, prefix_cache="64M")
    with engine.stream(TEXT[:200], SamplingParams(max_tokens=1000, ignore_eos=True)) as running:
        next(running)
        answer = engine.generate(TEXT[:230], ANSWER)
        assert (answer.token_ids, answer.logprobs) == alone(TEXT[:230], ANSWER)
        assert answer.timings.cache_n >= 200 - 64


def test_namespaces_share_nothing(folder: Path) -> None:
    engine = Engine.load(folder, "cpu", prefix_cache="64M")
    engine.generate(TEXT[:200], ANSWER, namespace="alice")
    assert engine.generate(TEXT[:200], ANSWER, namespace="bob").timings.cache_n == 0
    assert engine.generate(TEXT[:200], ANSWER, namespace="alice").timings.cache_n > 0


def test_a_scored_prompt_is_read_anew_and_kept(folder: Path) -> None:
    engine = Engine.load(folder, "cpu", prefix_cache="64M")
    scored = SamplingParams(max_tokens=4, prompt_logprobs=0)
    for _ in range(2):
        answer = engine.generate(TEXT[:100], scored)
        assert (answer.timings.cache_n, len(answer.prompt_logprobs)) == (0, 99)
    prompt = [*TEXT[:100], *answer.token_ids]
    assert engine.generate(prompt, ANSWER).timings.cache_n == 103


def test_a_cancelled_prompt_is_kept_as_far_as_it_was_read(folder: Path) -> None:
    engine = Engine.load(folder, "cpu", prefix_cache="64M")
    stream = engine.stream(TEXT[:300], ANSWER)
    stream.cancel()
    assert list(stream) == []
    assert 0 <= engine.generate(TEXT[:301], ANSWER).timings.cache_n <= 300


def test_budgets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine.load(folder, "cpu", prefix_cache="off") as engine:
        executor = engine.backend.executor
        engine.generate(TEXT[:100], ANSWER)
        assert engine.generate(TEXT[:100], ANSWER).timings.cache_n == 0
        assert engine.prefixes.tree.nbytes == 0
    assert prefix_budget("off", executor) == prefix_budget(0, executor) == 0
    assert prefix_budget("3k", executor) == 3 << 10
    assert prefix_budget(77, executor) == 77
    assert 0 < prefix_budget("auto", executor) <= 4 << 30
    for free, slot, found in ((8, 1, 2), (800, 1, 4), (800, 9, 18), (40, 9, 10)):  # GB
        monkeypatch.setattr(executor, "cache_bytes", 3 * slot << 30)
        monkeypatch.setattr(executor, "slots", 3)
        monkeypatch.setattr(_prefixes, "available_bytes", lambda b=free + 3 * slot: b << 30)
        assert prefix_budget("auto", executor) == found << 30
    for wrong in ("much", "-1", -1, 1.5, True, "1.5G", ""):
        with pytest.raises(RequestError, match="prefix_cache: expected 'auto', 'off' or bytes"):
            prefix_budget(wrong, executor)  # type: ignore[arg-type]
    with Engine.load(folder, "reference", prefix_cache="auto") as engine:
        assert engine.prefixes.tree.budget == 0
    with pytest.raises(BackendError, match="the reference backend keeps no prefixes; use 'cpu'"):
        Engine.load(folder, "reference", prefix_cache="1G")


# One of a few texts, up to some place; then maybe some tokens of another.
PROMPTS = st.builds(
    lambda text, length, tail: TEXT[100 * text : 100 * text + length] + TEXT[: 7 * tail],
    st.integers(0, 1),
    st.sampled_from([1, 30, 64, 65, 150, 270, 400]),
    st.integers(0, 2),
)
STEPS = st.one_of(
    st.tuples(st.just("open"), PROMPTS, st.integers(1, 40), st.integers(0, 1)),
    st.tuples(st.just("read"), st.integers(0, 2)),
    st.tuples(st.just("close"), st.integers(0, 2)),
    st.tuples(st.just("again"), st.integers(0, 20)),
)


@pytest.fixture(scope="module", params=[30_000, 1 << 26], ids=["scarce", "plenty"])
def shared(request: pytest.FixtureRequest, folder: Path) -> Engine:
    """One engine for all examples, so that each finds what those before it have left."""
    return Engine.load(folder, "cpu", max_sequences=3, prefix_cache=request.param)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=4, max_size=24))
def test_any_interleaving_gives_each_request_what_it_gets_alone(
    shared: Engine, alone: Any, steps: list[Any]
) -> None:
    """Tokens and log-probabilities, to the bit, of requests that share prefixes and slots."""
    asked: list[tuple[list[int], SamplingParams]] = []
    open_: dict[int, tuple[Stream, list[int], SamplingParams, list[int], list[Any]]] = {}

    def read(i: int, whole: bool = False) -> None:
        stream, prompt, params, tokens, logprobs = open_[i]
        for piece in stream:
            tokens += piece.token_ids
            logprobs += piece.logprobs
            if not whole:
                break
        if stream.finish_reason is not None:
            del open_[i]
            assert (tuple(tokens), tuple(logprobs)) == alone(prompt, params)

    def begin(prompt: list[int], params: SamplingParams) -> None:
        i = min({0, 1, 2} - open_.keys())
        open_[i] = engine.stream(prompt, params), prompt, params, [], []

    engine = shared
    for kind, *step in steps:
        if kind in ("read", "close") and step[0] in open_:
            read(step[0]) if kind == "read" else open_.pop(step[0])[0].close()
        elif len(open_) < 3 and (kind == "open" or (kind == "again" and asked)):
            if kind == "open":
                prompt, tokens, seed = step
                params = SamplingParams(
                    max_tokens=tokens, temperature=1.0, seed=seed, logprobs=2, ignore_eos=True
                )
            else:  # the next turn of an earlier request
                prompt, params = asked[step[0] % len(asked)]
                prompt = [*prompt, *alone(prompt, params)[0], 5, 6]
            asked.append((prompt, params))
            begin(prompt, params)
    for i in list(open_):
        read(i, whole=True)
    assert shared.prefixes.tree.nbytes <= shared.prefixes.tree.budget
