"""Layers with Kimi's delta rule, beside latent attention: reference, plan and native executor."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from random_weights import weights_of
from test_layer_modules import VOCAB, config_of, layer

from monolane.cpu import CpuExecutor
from monolane.errors import BackendError, ConfigError
from monolane.executor_api import Advance
from monolane.model import COMMON_FEATURES, Latent
from monolane.ops.kda.spec import Kda
from monolane.plan import build, cpu, interpret, validate
from monolane.reference import ReferenceModel

IDS = np.random.default_rng(1).integers(VOCAB, size=70).tolist()
LATENT = Latent(rank=24, query_rank=None, plain=16, turned=8, value=16)
WIDE, ODD = Kda(heads=3, width=48, kernel=4), Kda(heads=5, width=13, kernel=2)
CONFIG = replace(
    config_of(layer(WIDE, "mlp"), layer("attention", "mlp", rotary="none"), layer(ODD, "mlp")),
    latent=LATENT,
    head_dim=LATENT.head,
    num_kv_heads=4,
    num_heads=4,
)


def test_the_plan_is_sound_and_the_interpreter_agrees() -> None:
    weights = weights_of(CONFIG)
    model = ReferenceModel(weights)
    expected = model.forward(IDS[:9], model.new_cache())
    plan = build(CONFIG, cpu(3), "float32", max_width=4)
    validate(plan)
    found = interpret(plan, weights, [IDS[:4], IDS[4:8], IDS[8:9]]).logits
    assert np.abs(found - expected).max() < 1e-4


def test_whole_and_token_by_token() -> None:
    model = ReferenceModel(weights_of(CONFIG))
    cache = model.new_cache()
    each = np.concatenate([model.forward([token], cache) for token in IDS[:20]])
    assert np.abs(each - model.forward(IDS[:20], model.new_cache())).max() < 1e-4


def executor_of(dtype: str, workers: int, **options: Any) -> CpuExecutor:
    weights = weights_of(CONFIG)
    return CpuExecutor(weights, context=600, slots=3, workers=workers, dtype=dtype, **options)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_logits_are_the_reference_s(workers: int) -> None:
    model = ReferenceModel(weights_of(CONFIG))
    expected = model.forward(IDS, model.new_cache())
    executor = executor_of("float32", workers)
    # The bound for float32 sums in another order, as in tests/cpu/test_latent.py.
    assert np.abs(executor.logits(0, IDS) - expected).max() < 1e-3


@pytest.mark.parametrize("split", [1, 7, 33])
def test_bits_do_not_depend_on_how_tokens_are_fed(split: int) -> None:
    executor = executor_of("bfloat16", 2)
    whole = executor.logits(0, IDS)
    parts = [executor.logits(1, IDS[i : i + split]) for i in range(0, len(IDS), split)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_a_sequence_is_kept_and_goes_on() -> None:
    executor = executor_of("bfloat16", 2)
    expected = executor.logits(0, IDS)
    executor.logits(1, IDS[:50])
    executor.restore(2, executor.save(1, 0, 50), 50)
    assert np.array_equal(executor.logits(2, IDS[50:]), expected[50:])


def drawn(executor: CpuExecutor, drafts: int) -> list[int]:
    """Return 40 tokens behind a prompt."""
    executor.truncate(0, 0)
    ids = tuple(IDS[:20])
    executor.start([Advance(slot=0, token_ids=ids, budget=40, drafts=drafts)])
    while not executor.read(0.1):
        pass
    return [event.token_id for event in executor.take()]


def test_drafts_that_are_right_or_wrong_change_nothing() -> None:
    executor = executor_of("float32", 2)
    plain = drawn(executor, 0)
    for script in (plain, [*plain[:7], *(1 for _ in plain[7:])], [1] * 40):
        executor.script(0, drafts=[*IDS[:20], *script])
        assert drawn(executor, 5) == plain


def test_what_is_not_computed_is_refused_by_its_name() -> None:
    with pytest.raises(BackendError, match=r"operations\.Kda: the cuda backend"):
        CONFIG.check_features("cuda", *COMMON_FEATURES)
    for sizes in ({"heads": 0}, {"width": 1 << 25}, {"kernel": 65}):
        with pytest.raises(ConfigError, match=f"kda: expected .*{next(iter(sizes))}"):
            replace(WIDE, **sizes)
