"""Layers with Mamba-2 in the native executor: states go forward, bits stay."""

from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from random_weights import weights_of
from test_layer_modules import VOCAB, config_of, layer

from monolane.cpu import CpuExecutor
from monolane.errors import BackendError, ConfigError
from monolane.executor_api import Advance
from monolane.model import COMMON_FEATURES, Experts, Mlp, ModuleConfig, Weights
from monolane.ops.mamba.spec import Mamba
from monolane.plan import PhaseKind, build, cpu, interpret, phase_cost, validate
from monolane.reference import ReferenceModel

TOKENS = 300  # beyond one pass, and beyond one chunk of keys
IDS = np.random.default_rng(1).integers(VOCAB, size=TOKENS).tolist()
ODD = Mamba(heads=9, head=7, groups=3, state_size=5, kernel=4)
# With all that some families alone have; of nine heads, three make a part.
SCALED = Mamba(
    heads=9,
    head=33,  # a whole block of columns, and one more
    groups=1,
    state_size=6,
    kernel=1,
    conv_bias=False,
    normed=False,
    scale=1.1,
    gate_scale=0.9,
    input_scale=1.2,
    write_scale=0.8,
    read_scale=1.4,
    step_scale=0.7,
)
CASES = {
    "one module a layer, no gates": config_of(
        layer(ODD),
        layer("mlp"),
        layer("attention", rotary="none"),
        layer("experts"),
        layer(ODD),
        activation="relu_squared",
        experts=Experts(6, 2, 22, normalised=True, shared=18, scores="sigmoid", corrected=True),
        norm_eps=1e-2,  # of 1e-5, what a state says of nearly nothing magnifies the last bits
    ),
    "beside attention, scaled": config_of(
        *(
            layer(
                ModuleConfig("attention", scale=0.8, read_scale=1.3),
                ModuleConfig(SCALED, beside=True, same_norm=True, scale=0.6),
                ModuleConfig(Mlp(inner=46, gate_scale=0.7), scale=1.2),
            )
            for _ in range(2)
        ),
        key_scale=0.7,
    ),
    "before experts": config_of(
        layer(ODD, "experts"),
        layer("attention", "experts", rotary="none", window=20),
        layer(ODD, "experts"),
        experts=Experts(6, 2, 22, normalised=True, shared=18),
        residual_scale=0.6,
        norm_eps=1e-2,
    ),
}


def load(weights: Weights, workers: int, dtype: str = "float32", **options: Any) -> CpuExecutor:
    options = {"context": 600, "slots": 1} | options
    return CpuExecutor(weights, dtype, workers=workers, **options)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_the_oracle_s_whatever_the_workers(case: str) -> None:
    weights = weights_of(CASES[case])
    model = ReferenceModel(weights)
    wanted = model.forward(IDS, model.new_cache())
    assert wanted.std() > 0.3  # logits near zero would agree whatever the model did
    for workers in (1, 2, 3, 13):
        found = load(weights, workers).logits(0, IDS)
        assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max(), workers


@pytest.mark.parametrize("case", CASES)
def test_the_plan_is_sound_and_the_interpreter_agrees(case: str) -> None:
    config = CASES[case]
    weights = weights_of(config)
    model = ReferenceModel(weights)
    expected = model.forward(IDS[:9], model.new_cache())
    plan = build(config, cpu(3), "float32", max_width=4)
    validate(plan)
    found = interpret(plan, weights, [IDS[:4], IDS[4:8], IDS[8:9]]).logits
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_depend_on_nothing_but_the_tokens(case: str, dtype: str) -> None:
    """In passes of any width, one by one, copied, saved and restored, with other workers."""
    weights = weights_of(CASES[case], ml_dtypes.bfloat16)
    executor = load(weights, 2, dtype, slots=3)
    logits = executor.logits(0, IDS)
    executor.truncate(0, 0)
    for begin, end in pairwise([0, 3, 70, *range(71, 100), 290]):
        np.testing.assert_array_equal(executor.logits(0, IDS[begin:end]), logits[begin:end])
    executor.copy(0, 1)
    executor.restore(2, executor.save(0, 0, 290), 290)
    executor.logits(0, IDS[:5])  # what was copied and saved is not the slot's
    for slot in (1, 2):
        np.testing.assert_array_equal(executor.logits(slot, IDS[290:]), logits[290:])
    np.testing.assert_array_equal(load(weights, 1, dtype).logits(0, IDS), logits)


def drawn(executor: CpuExecutor, drafts: int) -> list[int]:
    """Return 40 tokens behind a prompt."""
    executor.truncate(0, 0)
    ids = tuple(IDS[:20])
    executor.start([Advance(slot=0, token_ids=ids, budget=40, drafts=drafts)])
    while not executor.read(0.1):
        pass
    return [event.token_id for event in executor.take()]


@pytest.mark.parametrize("case", CASES)
def test_drafts_that_are_right_or_wrong_change_nothing(case: str) -> None:
    executor = load(weights_of(CASES[case]), 2)
    plain = drawn(executor, 0)
    for script in (plain, [*plain[:7], *(1 for _ in plain[7:])], [1] * 40):
        executor.script(0, drafts=[*IDS[:20], *script])
        assert drawn(executor, 5) == plain


def test_whole_and_token_by_token() -> None:
    model = ReferenceModel(weights_of(CASES["beside attention, scaled"]))
    cache = model.new_cache()
    each = np.concatenate([model.forward([token], cache) for token in IDS[:20]])
    assert np.abs(each - model.forward(IDS[:20], model.new_cache())).max() < 1e-4


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_codes(dtype: str) -> None:
    whole = Mamba(heads=4, head=16, groups=2, state_size=16, kernel=4)
    config = config_of(
        layer(whole, "mlp"),
        layer("attention", "mlp", rotary="none"),
        layer(whole, "mlp"),
        norm_eps=1e-2,
    )
    weights = weights_of(config)
    model = ReferenceModel(weights)
    wanted = model.forward(IDS, model.new_cache())
    found = load(weights, 2, dtype).logits(0, IDS)
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > (0.98 if dtype == "int8" else 0.85)


def test_experts_without_gates_in_a_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path))
    weights = weights_of(CASES["one module a layer, no gates"], ml_dtypes.bfloat16)
    wanted = load(weights, 2, "bfloat16").logits(0, IDS)
    for memory in (0, 40_000):
        found = load(weights, 2, "bfloat16", expert_memory=memory).logits(0, IDS)
        np.testing.assert_array_equal(found, wanted)


def test_a_nan_stays_one_behind_a_rectified_square() -> None:
    weights = weights_of(CASES["one module a layer, no gates"])
    for array in weights.layers[1].values():
        array[...] = np.nan
    assert np.isnan(load(weights, 2).logits(0, IDS[:3])).all()


def test_a_part_is_a_few_heads_of_one_group() -> None:
    assert [(x.parts, x.together) for x in (ODD, SCALED)] == [(3, 3), (3, 3)]
    granite = Mamba(heads=48, head=64, groups=1, state_size=128, kernel=4)
    assert (granite.parts, granite.together) == (12, 4)
    assert granite.channels_of(11) == (slice(2816, 3072), slice(3072, 3200), slice(3200, 3328))
    assert ODD.channels_of(2) == (slice(42, 63), slice(73, 78), slice(88, 93))


def test_a_sequence_takes_keys_of_layers_that_attend_and_states_of_the_others() -> None:
    executor = load(weights_of(CASES["one module a layer, no gates"]), 2, context=256)
    keys = 2 * 256 * 2 * 16  # of one layer
    inputs = (3 + 64) * (3 * 7 + 2 * 5 + 3)  # of a part, those of a whole pass put off
    assert executor.cache_bytes == 4 * (keys + 2 * 3 * (3 * 7 * 5 + inputs))


def test_a_plan_costs_what_is_read_and_written() -> None:
    plan = build(CASES["one module a layer, no gates"], cpu(2), "bfloat16")
    steps = phase_cost(plan, plan.find(PhaseKind.MAMBA, 0), length=100)
    assert steps.bytes == 2 * 4 * 9 * 7 * 5  # float32, whatever the weights are
    assert steps.operations == 2 * (3 * 9 * 7 * 5 + 4 * (9 * 7 + 3 * 2 * 5))
    products = phase_cost(plan, plan.find(PhaseKind.MAMBA_IN, 0))
    assert products.bytes == 2 * 64 * (2 * 9 * 7 + 2 * 3 * 5 + 9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 8}, "mamba: expected a multiple of 3 heads, as many for each group, got 8"),
        ({"kernel": 65}, "mamba: expected a kernel of 1 to 64 tokens, got 65"),
        ({"state_size": 0}, "mamba: expected a state_size of 1 to"),
        ({"scale": float("nan")}, "mamba: expected a scale above 0, got nan"),
        ({"step_scale": 0.0}, "mamba: expected a step_scale above 0, got 0"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    sizes = {"heads": 9, "head": 7, "groups": 3, "state_size": 5, "kernel": 4}
    with pytest.raises(ConfigError, match=message):
        Mamba(**sizes | changes)


@pytest.mark.parametrize(
    ("modules", "changes", "message"),
    [
        (("attention", ModuleConfig("mlp", same_norm=True)), {}, "expected the same norm where"),
        (("attention", ModuleConfig("mlp", scale=0.0)), {}, "modules: expected scales above 0"),
        (("attention", ModuleConfig("mlp", read_scale=2.0)), {}, "a read_scale of attention alone"),
        ((ModuleConfig("attention", read_scale=2.0),), {"qkv_bias": True}, "expected no read_scal"),
    ],
)
def test_modules_that_make_no_sense_are_refused(
    modules: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(layer(*modules), **changes)


def test_cuda_refuses_it_by_name() -> None:
    with pytest.raises(BackendError, match=r"operations\.Mamba: the cuda backend"):
        CASES["before experts"].check_features("cuda", *COMMON_FEATURES)
