"""The native executor: against the oracle, and against itself, bit by bit."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monolane._processor import Core, Processor
from monolane.cpu import CpuExecutor
from monolane.errors import BackendError, RequestError
from monolane.executor_api import Advance, Draw, Guide
from monolane.model import (
    NEVER,
    NOW,
    Head,
    LayerConfig,
    ModelConfig,
    Reduce,
    Role,
    Rotary,
    Weights,
    lane_shape,
    layer_roles,
)
from monolane.reference import ReferenceModel

WORKERS = (1, 2, 3, 8, 16)


def random_weights(dtype: Any = np.float32, **changes: Any) -> Weights:
    """A small model with random weights, of any shape that a config can name."""
    sizes: dict[str, Any] = {
        "family": "laneformer",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 8,
        "num_kv_heads": 4,
        "head_dim": 8,
        "vocab_size": 72,
        "max_positions": 600,
        "num_lanes": 4,
        "layers": (
            LayerConfig(NEVER, NEVER, 24),
            LayerConfig(NOW, Reduce(1)),
            LayerConfig(Reduce(2), Reduce(1), 24),
            LayerConfig(Reduce(2), NOW),
        ),
        "head": Head.VOCAB_PARALLEL,
    }
    config = ModelConfig(**sizes | changes)
    rng = np.random.default_rng(0)

    def make(role: Role) -> np.ndarray:
        return rng.normal(scale=0.15, size=lane_shape(config, role)).astype(dtype)

    outer = {role: make(role) for role in (Role.EMBEDDING, Role.FINAL_NORM, Role.HEAD)}
    layers = tuple({role: make(role) for role in layer_roles(config)} for _ in config.layers)
    return Weights(config, outer, layers)


SHAPES: dict[str, dict[str, Any]] = {
    "mixed rules": {},
    "one lane": {"num_lanes": 1, "head": Head.MEAN, "layers": (LayerConfig(NOW, NOW),) * 2},
    "mean head": {"head": Head.MEAN, "vocab_size": 71},
    "sum head": {"head": Head.SUM, "vocab_size": 71},
    "concat head": {"head": Head.CONCAT, "vocab_size": 71},
    "half rotary": {"rotary": Rotary(style="half")},
    "biases": {"qkv_bias": True},
    "shared scales": {"norm_scale_per_lane": False},
    "odd sizes": {"hidden_size": 40, "intermediate_size": 36, "head_dim": 6},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_every_field_of_the_config_against_the_oracle(shape: str, workers: int) -> None:
    weights = random_weights(**SHAPES[shape])
    model = ReferenceModel(weights)
    ids = np.random.default_rng(1).integers(71, size=200)
    wanted = model.forward(ids, model.new_cache())
    executor = CpuExecutor(weights, "float32", context=600, slots=1, workers=workers)
    ours = executor.logits(0, ids)
    assert np.abs(ours - wanted).max() < 1e-4 * np.abs(wanted).max()


@pytest.fixture(
    scope="module",
    params=[("float32", "auto"), ("bfloat16", "auto"), ("bfloat16", "int8"), ("float32", "int4")],
    ids="-".join,
)
def long_run(request: pytest.FixtureRequest) -> tuple[CpuExecutor, np.ndarray, np.ndarray]:
    """A model, 560 tokens (beyond two chunks of attention), and their logits, fed one by one."""
    import ml_dtypes

    dtype, cache_dtype = request.param
    weights = random_weights(ml_dtypes.bfloat16, head_dim=8 if cache_dtype == "auto" else 32)
    executor = CpuExecutor(weights, dtype, context=600, slots=3, workers=2, cache_dtype=cache_dtype)
    ids = np.random.default_rng(2).integers(72, size=560)
    logits = np.concatenate([executor.logits(0, [token]) for token in ids])
    return executor, ids, logits


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(widths=st.lists(st.integers(1, 90), min_size=1, max_size=12))
def test_bits_do_not_depend_on_how_tokens_are_fed(
    long_run: tuple[CpuExecutor, np.ndarray, np.ndarray], widths: list[int]
) -> None:
    executor, ids, logits = long_run
    executor.truncate(1, 0)
    at = 0
    for width in widths:
        part = ids[at : at + width]
        if not len(part):
            break
        np.testing.assert_array_equal(executor.logits(1, part), logits[at : at + len(part)])
        at += len(part)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [("float32", "auto"), ("bfloat16", "auto"), ("float32", "int8"), ("bfloat16", "int4")],
)
def test_bits_do_not_depend_on_the_number_of_workers(
    workers: int, dtype: str, cache_dtype: str
) -> None:
    import ml_dtypes

    weights = random_weights(ml_dtypes.bfloat16, head_dim=8 if cache_dtype == "auto" else 32)
    ids = np.random.default_rng(3).integers(72, size=300)
    wanted: dict[str, Any] = {"context": 600, "slots": 1, "cache_dtype": cache_dtype}
    alone = CpuExecutor(weights, dtype, **wanted, workers=1).logits(0, ids)
    many = CpuExecutor(weights, dtype, **wanted, workers=workers)
    if many.plan.splits == 1:  # with fewer KV heads than workers, a head's keys are cut otherwise
        np.testing.assert_array_equal(many.logits(0, ids), alone)
    else:
        assert np.abs(many.logits(0, ids) - alone).max() < 0.05


def test_bits_after_rolling_back(long_run: tuple[CpuExecutor, np.ndarray, np.ndarray]) -> None:
    executor, ids, logits = long_run
    executor.truncate(2, 0)
    executor.logits(2, ids[:400])
    for keep in (390, 340, 337):
        executor.truncate(2, keep)
        executor.logits(2, ids[100:108])  # drafts that are rejected
        executor.truncate(2, keep)
        np.testing.assert_array_equal(
            executor.logits(2, ids[keep : keep + 20]), logits[keep : keep + 20]
        )


def test_a_copied_sequence_goes_on_in_the_same_bits(
    long_run: tuple[CpuExecutor, np.ndarray, np.ndarray],
) -> None:
    """Also behind windows whose rings have wrapped, and after the original has gone another way."""
    executor, ids, logits = long_run
    for kept in (20, 450):
        executor.truncate(0, 0)
        executor.logits(0, ids[:kept])
        executor.copy(0, 1)
        executor.logits(0, ids[::-1][:40])
        np.testing.assert_array_equal(
            executor.logits(1, ids[kept : kept + 30]), logits[kept : kept + 30]
        )
    for source, target in ((0, 0), (0, 3), (-1, 0)):
        with pytest.raises(RequestError):
            executor.copy(source, target)


def epoch(executor: CpuExecutor, *advances: Advance) -> dict[int, list[int]]:
    drawn: dict[int, list[int]] = {advance.slot: [] for advance in advances}
    executor.start(advances)
    while not executor.read(0.1):
        pass
    for event in executor.take():
        drawn[event.slot].append(event.token_id)
    return drawn


def sampled(slot: int, ids: np.ndarray, budget: int, seed: int = 5, **more: Any) -> Advance:
    draw = Draw(temperature=1.1, top_k=30, top_p=0.95, min_p=0.02, seed=seed)
    return Advance(
        **{"slot": slot, "token_ids": tuple(ids.tolist()), "budget": budget, "draw": draw} | more
    )


def test_batching_changes_nothing(long_run: tuple[CpuExecutor, np.ndarray, np.ndarray]) -> None:
    executor, ids, _ = long_run
    prompts = [ids[:70], ids[100:103], ids[200:330]]
    alone = []
    for slot, prompt in enumerate(prompts):
        executor.truncate(slot, 0)
        alone.append(epoch(executor, sampled(slot, prompt, 40, seed=slot))[slot])
        executor.truncate(slot, 0)
    together = epoch(
        executor, *(sampled(slot, prompt, 40, seed=slot) for slot, prompt in enumerate(prompts))
    )
    assert [together[slot] for slot in range(3)] == alone


def test_draws_are_the_oracles(long_run: tuple[CpuExecutor, np.ndarray, np.ndarray]) -> None:
    """Token by token what the definition chooses from the executor's own logits."""
    from monolane.reference import choose

    executor, ids, _ = long_run
    for temperature, k, p, m in ((0.0, 0, 1.0, 0.0), (0.8, 0, 1.0, 0.0), (1.5, 20, 0.8, 0.05)):
        draw = Draw(temperature=temperature, top_k=k, top_p=p, min_p=m, seed=2**63 + 9)
        executor.truncate(0, 0)
        prompt = ids[:30]
        drawn = epoch(executor, sampled(0, prompt, 60, draw=draw))[0]
        executor.truncate(0, 0)
        logits = executor.logits(0, [*prompt, *drawn])
        for i, token in enumerate(drawn):
            assert token == choose(logits[29 + i], draw, 30 + i)


def guided(executor: CpuExecutor, advance: Advance, guides: list[Guide]) -> list[int]:
    """Run one guided slot, each guide posted when the tokens of the one before have come."""
    drawn: list[int] = []
    executor.start([replace(advance, guided=True)])
    due, over = 0, False
    while not over:
        if len(drawn) == due and guides:
            guide = guides.pop(0)
            due += len(guide.forced) + (guide.mask is not None)
            executor.guide(advance.slot, guide)
        over = executor.read(0.02)
        drawn += [event.token_id for event in executor.take()]
    return drawn


MASKS = st.lists(st.integers(0, 71), min_size=1, max_size=72, unique=True)
BIASES = st.dictionaries(
    st.integers(0, 71), st.floats(-100, 100, width=32) | st.just(-np.inf), max_size=30
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    allowed=MASKS,
    bias=BIASES,
    temperature=st.sampled_from([0.0, 0.6, 1.7]),
    limits=st.tuples(
        st.sampled_from([0, 1, 5, 40]), st.floats(0.05, 1), st.sampled_from([0.0, 0.02, 0.4])
    ),
    seed=st.integers(0, 2**64 - 1),
)
def test_masked_and_biased_draws_are_the_oracles(
    long_run: tuple[CpuExecutor, np.ndarray, np.ndarray],
    allowed: list[int],
    bias: dict[int, float],
    temperature: float,
    limits: tuple[int, float, float],
    seed: int,
) -> None:
    """From the same logits the same token, with and without a mask."""
    from monolane.reference import choose

    executor, ids, logits = long_run
    prompt = ids[:30].tolist()
    mask = np.zeros(3, np.uint32)
    for token in allowed:
        mask[token // 32] |= np.uint32(1 << token % 32)
    k, p, m = limits
    draw = Draw(
        temperature=np.float32(temperature).item(),
        top_k=k,
        top_p=p,
        min_p=m,
        seed=seed,
        logit_bias=tuple(sorted(bias.items())),
    )
    advance = Advance(slot=0, token_ids=tuple(prompt), budget=1, draw=draw)
    for mask_M in (mask, None):
        executor.truncate(0, 0)
        if mask_M is None:
            (token,) = epoch(executor, advance)[0]
        else:
            (token,) = guided(executor, advance, [Guide(mask_M)])
        assert token == choose(logits[29], draw, 30, mask_M)


def test_forced_tokens_cost_one_wide_pass() -> None:
    executor = CpuExecutor(random_weights(), "float32", context=600, slots=1, workers=2)
    ones = np.full(3, 0xFFFFFFFF, np.uint32)
    executor.set_trace(True)
    forced = list(range(40))
    guides = [Guide(ones), Guide(ones, tuple(forced)), Guide(None, (5,))]
    drawn = guided(executor, sampled(0, np.arange(5), 43), guides)
    assert drawn[1:41] == forced
    assert drawn[42:] == [5]
    spans = executor.take_spans()
    passes = spans["width"][(spans["worker"] == 0) & (spans["phase"] == 0)].tolist()
    # The prompt, the first token drawn, the run, and the token drawn behind it.
    assert passes == [5, 1, 40, 1]


def test_a_read_waits_though_tokens_are_kept() -> None:
    """Else a reader that takes them at the end polls without a pause, and costs decode a core."""
    executor = CpuExecutor(random_weights(), "float32", context=600, slots=1, workers=2)
    executor.start([sampled(0, np.arange(5), 9, guided=True)])
    executor.guide(0, Guide(np.full(3, 0xFFFFFFFF, np.uint32)))
    while not (kept := executor.take()):
        executor.read(1.0)
    executor.guide(0, Guide(np.full(3, 0xFFFFFFFF, np.uint32)))
    executor.read(1.0)  # the second token, which stays; the third waits for its guide
    begin = time.monotonic()
    assert not executor.read(0.2)
    assert time.monotonic() - begin > 0.15
    executor.interrupt()
    while not executor.read(1.0):
        pass
    assert len(kept) + len(executor.take()) == 2


@pytest.mark.parametrize(
    ("guide", "message"),
    [
        (Guide(np.zeros(3, np.uint32)), "mask: expected one that allows a token"),
        (Guide(np.array([0, 0, 1 << 8], np.uint32)), "mask: expected one that allows a token"),
        (Guide(np.ones(2, np.uint32)), "mask: expected 3 words, got 2"),
        (Guide(None), "mask: expected 3 words, got 0"),
        (Guide(None, (72,)), "forced: expected ids from 0 to 71, got 72"),
    ],
)
def test_faulty_guides_are_named_and_the_epoch_goes_on(guide: Guide, message: str) -> None:
    executor = CpuExecutor(random_weights(), "float32", context=600, slots=2, workers=2)
    executor.start([sampled(0, np.arange(5), 1, guided=True)])
    with pytest.raises(ValueError, match=message):
        executor.guide(0, guide)
    with pytest.raises(RuntimeError, match="guide: the epoch has no such guided slot"):
        executor.guide(1, Guide(None, (1,)))
    executor.guide(0, Guide(None, (7,)))
    while not executor.read(0.02):
        pass
    assert [event.token_id for event in executor.take()] == [7]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: e.logits(0, [72]), "tokens: expected ids from 0 to 71, got 72"),
        (lambda e: e.logits(0, [-1]), "tokens: expected ids from 0 to 71, got -1"),
        (lambda e: e.logits(0, []), "tokens: expected at least one"),
        (lambda e: e.logits(1, [1]), "slot: expected 0 to 0, got 1"),
        (lambda e: e.logits(-1, [1]), "slot: expected 0 to 0, got -1"),
        (lambda e: e.logits(0, [1] * 601), "context: expected at most 600 tokens in a slot, got 0"),
        (
            lambda e: e.truncate(0, 1),
            "length: expected 0 to 0, the tokens in this slot, got 1",
        ),
        (lambda e: e.truncate(3, 0), "slot: expected 0 to 0, got 3"),
        (lambda e: e.start([]), "advances: expected 1 to 64, got 0"),
        (lambda e: e.start([sampled(0, np.ones(3, int), 0)]), "budget: expected at least 1"),
        (
            lambda e: e.start([sampled(0, np.ones(3, int), 600)]),
            "context: expected at most 600",
        ),
        (lambda e: e.start([sampled(0, np.ones(3, int), 1)] * 2), "a slot occurs twice"),
        (
            lambda e: e.start([sampled(0, np.ones(3, int), 1, draw=Draw(logit_bias=((72, 1.0),)))]),
            "logit_bias: expected ids from 0 to 71, got 72",
        ),
    ],
)
def test_wrong_calls_name_the_limit_and_the_executor_goes_on(call: Any, message: str) -> None:
    executor = CpuExecutor(random_weights(), "float32", context=600, slots=1)
    with pytest.raises(ValueError, match=message):
        call(executor)
    assert executor.logits(0, [1, 2]).shape == (2, 72)


def test_rolling_back_behind_a_window_is_refused(
    long_run: tuple[CpuExecutor, np.ndarray, np.ndarray],
) -> None:
    executor, ids, _ = long_run
    executor.truncate(0, 0)
    executor.logits(0, ids)
    with pytest.raises(ValueError, match="windowed layers have dropped the keys that"):
        executor.truncate(0, 100)
    executor.truncate(0, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int3"}, "dtype: expected one of auto, float32"),
        ({"dtype": "float8"}, "dtype: float8 is for GPUs: expected backend='cuda', or one of auto"),
        ({"workers": 0}, "workers: expected 1 to 1024, got 0"),
        ({"isa": "mmx"}, "isa: expected an instruction set that runs here, one of portable"),
        ({"cache_dtype": "q8_0"}, "cache_dtype: expected one of auto, float32, bfloat16, float16"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((BackendError, RequestError), match=message):
        CpuExecutor(random_weights(), **{"dtype": "auto", "context": 9, "slots": 1} | options)


def test_more_threads_than_can_run_are_warned_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"context": 9, "slots": 1}
    for share, workers, warned in (
        (None, 2, False),
        (None, 3, True),
        (0.5, 1, False),
        (1, 2, True),
    ):
        two = Processor((Core((0,)), Core((1,))), share)
        monkeypatch.setattr("monolane.cpu._executor.read_processor", lambda two=two: two)
        caplog.clear()
        CpuExecutor(random_weights(), **options, workers=workers)
        assert bool(caplog.records) == warned, (share, workers)
    assert "workers: 2 threads on 1 that run at once" in caplog.text
    caplog.clear()
    CpuExecutor(random_weights(), **options)
    assert not caplog.records


def test_traces_cover_every_phase_of_every_worker() -> None:
    executor = CpuExecutor(random_weights(), "float32", context=600, slots=1, workers=2)
    executor.set_trace(True)
    epoch(executor, sampled(0, np.arange(5), 4))
    spans = executor.take_spans()
    assert len(spans) == 4 * 2 * len(executor.plan.phases)
    assert (spans["arrived_ns"] <= spans["begun_ns"]).all()
    assert (spans["begun_ns"] <= spans["ended_ns"]).all()
    assert len(executor.take_spans()) == 0
