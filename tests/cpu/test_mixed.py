"""Models whose matrices are GGUF's blocks, a format for each, in the native executor.

Against the oracle, which widens the same blocks by the gguf package; and that what is read in place
is in place, what is repacked is as large as the plan says, and no dtype but our codes can be asked
for.
"""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from blocks import BLOCKS, random_blocks

from monolane._core import kernels
from monolane.cpu import CpuExecutor
from monolane.errors import BackendError, RequestError
from monolane.executor_api import Advance
from monolane.model import (
    FORMATS,
    NOW,
    Blocks,
    Head,
    LayerConfig,
    ModelConfig,
    Role,
    Weights,
    lane_shape,
    layer_roles,
)
from monolane.plan import PlanError, build, cpu, pass_cost, phase_cost, validate
from monolane.reference import ReferenceModel

CONFIG = ModelConfig(
    family="llama",
    hidden_size=256,
    intermediate_size=512,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    vocab_size=301,
    max_positions=128,
    num_lanes=1,
    layers=(LayerConfig(NOW, NOW),) * 3,
    head=Head.VOCAB_PARALLEL,
)
FLOATS: dict[str, Any] = {"float32": "f4", "float16": "f2", "bfloat16": ml_dtypes.bfloat16}
# Matrices of one phase with activations of three kinds, and every format in some place.
MIXED = (*BLOCKS, *FLOATS)
MATRICES = (Role.Q, Role.K, Role.V, Role.O, Role.GATE, Role.UP, Role.DOWN, Role.HEAD)
IDS = np.random.default_rng(3).integers(301, size=70)


def make(formats: tuple[str, ...], config: ModelConfig = CONFIG, tied: bool = False) -> Weights:
    """A model whose matrices take the formats in turn."""
    rng = np.random.default_rng(0)
    count = 0
    outer: dict[Role, Any] = {Role.FINAL_NORM: np.ones(lane_shape(config, Role.FINAL_NORM), "f4")}
    layers: list[dict[Role, Any]] = [{} for _ in config.layers]
    quantized: dict[tuple[Role, int | None], Any] = {}
    places: list[tuple[Role, int | None]] = [
        (role, i) for i in range(config.num_layers) for role in layer_roles(config)
    ]
    for role, layer in [*places, (Role.HEAD, None), (Role.EMBEDDING, None)]:
        at = outer if layer is None else layers[layer]
        shape = lane_shape(config, role)
        if role not in MATRICES and role is not Role.EMBEDDING:
            at[role] = np.ones(shape, np.float32)
            continue
        name = formats[count % len(formats)]
        count += 1
        if name in FLOATS:
            at[role] = (rng.standard_normal(shape) * 0.08).astype(FLOATS[name])
        else:
            quantized[role, layer] = random_blocks(rng, name, shape)
    if tied:
        head = quantized[Role.HEAD, None]
        quantized[Role.EMBEDDING, None] = replace(head, data=head.data[0])
    return Weights(replace(config, tie_embeddings=tied), outer, tuple(layers), quantized)


def run(weights: Weights, **options: Any) -> np.ndarray:
    return CpuExecutor(weights, context=128, slots=1, **options).logits(0, IDS)


def oracle(weights: Weights) -> np.ndarray:
    model = ReferenceModel(weights)
    return model.forward(IDS, model.new_cache())


def bound(config: ModelConfig, logits: np.ndarray) -> float:
    """As in test_quantized.py: 4N + 1 products whose activations are rounded to int8 in groups.

    Activations that are rounded to bfloat16, and those that are not, err less.
    """
    products = 4 * config.num_layers + 1
    activations = np.sqrt(32) / 254 / np.sqrt(3)
    share = np.sqrt(products * activations**2 + config.num_layers * (2.0**-9) ** 2 / 3)
    return float(share * logits.std())


def miss(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.sqrt(((found - wanted) ** 2).mean()))


@pytest.mark.parametrize("name", BLOCKS)
def test_each_format_against_the_oracle(name: str) -> None:
    weights = make((name,))
    wanted = oracle(weights)
    assert miss(run(weights), wanted) < bound(weights.config, wanted)
    assert wanted.std() > 0.1  # logits that say something
    other = oracle(make((name,), replace(CONFIG, norm_eps=0.5)))
    assert miss(other, wanted) > bound(weights.config, wanted)  # and the bound sees a difference


@pytest.mark.parametrize("isa", kernels.supported())
@pytest.mark.parametrize("first", [0, 4, 9])
def test_mixed_formats_against_the_oracle(isa: str, first: int) -> None:
    """Turned, so that each phase meets blocks, float16, bfloat16 and float32 beside each other."""
    config = replace(CONFIG, layers=CONFIG.layers[:2])  # 16 matrices; all formats
    weights = make(MIXED[first:] + MIXED[:first], config)
    wanted = oracle(weights)
    assert miss(run(weights, isa=isa), wanted) < bound(weights.config, wanted)


@pytest.mark.parametrize("name", ["q8_0", "q6_k"])
def test_a_tied_head(name: str) -> None:
    weights = make((name, "q4_k"), replace(CONFIG, layers=CONFIG.layers[:2]), tied=True)
    wanted = oracle(weights)
    assert miss(run(weights), wanted) < bound(weights.config, wanted)


def test_bits_do_not_depend_on_workers_or_width() -> None:
    weights = make(MIXED)
    whole = run(weights, workers=1)
    np.testing.assert_array_equal(run(weights, workers=2), whole)
    executor = CpuExecutor(weights, context=128, slots=1, workers=2)
    parts = [executor.logits(0, IDS[a:b]) for a, b in [(0, 1), (1, 2), (2, 9), (9, 70)]]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_embedding_rows_are_looked_up_in_the_blocks_themselves() -> None:
    """Changed after loading they change the logits; a matrix that was repacked does not."""
    weights = make(("q5_k",))
    executor = CpuExecutor(weights, context=128, slots=1)
    before = executor.logits(0, IDS)
    for place, seen in (((Role.UP, 1), False), ((Role.EMBEDDING, None), True)):
        data = weights.quantized[place].data
        assert isinstance(data, np.ndarray)
        data[..., 60:] ^= 1
        executor.truncate(0, 0)
        assert np.array_equal(executor.logits(0, IDS), before) is not seen


def test_the_plan_counts_what_is_read() -> None:
    weights = make(MIXED)
    executor = CpuExecutor(weights, context=128, slots=1, workers=2)
    assert executor.dtype == "q5_1"  # of the most bytes, as the names are dealt here
    validate(executor.plan)
    arrays = {(Role(r), i): a for i, x in enumerate(weights.layers) for r, a in x.items()}
    floats = sum(a.nbytes for (role, _), a in arrays.items() if role in MATRICES)
    head = weights.outer.get(Role.HEAD)
    floats += 0 if head is None else head.nbytes
    repacked = sum(
        FORMATS[b.format].multiplied.row_bytes(b.columns) * int(np.prod(b.shape[:-1]))
        for (role, _), b in weights.quantized.items()
        if isinstance(b, Blocks) and role is not Role.EMBEDDING
    )
    # Each worker's copies of a matrix begin on a cache line.
    lines = 2 * 2 * 64 * len(weights.quantized)
    assert repacked <= executor.converted_bytes <= repacked + lines
    keys = sum(phase_cost(executor.plan, p, 1, 50).bytes for p in executor.plan.phases
               if not p.matrices)  # fmt: skip
    assert executor.bytes_per_token(50) == floats + repacked + keys
    assert pass_cost(executor.plan, 1, 50).bytes == floats + repacked + keys


def test_a_plan_of_mixed_formats_is_validated() -> None:
    formats = {(Role.V, 1): "q6_k_panels", (Role.HEAD, None): "int8"}
    plan = build(CONFIG, cpu(2), "q4_k_panels", formats=formats)
    validate(plan)
    qkv = next(p for p in plan.phases if p.layer == 1 and len(p.matrices) == 3)
    assert [m.row_bytes for m in qkv.matrices] == [148, 148, 210]
    assert plan.phases[-2].matrices[0].row_bytes == 272
    with pytest.raises(PlanError, match="v: expected 148 bytes a row, got 210"):
        validate(replace(plan, formats=()))


def test_generation_is_greedy_over_the_logits() -> None:
    weights = make(MIXED)
    executor = CpuExecutor(weights, context=128, slots=1)
    first = executor.logits(0, IDS[:10])[-1].argmax()
    executor.truncate(0, 0)
    executor.start([Advance(slot=0, token_ids=tuple(int(x) for x in IDS[:10]), budget=1)])
    while not executor.read(1.0):
        pass
    assert [event.token_id for event in executor.take()] == [first]


@pytest.mark.parametrize(("dtype", "same"), [("int8", "q8_0"), ("int4", "q4_0")])
def test_blocks_are_rounded_to_our_codes_as_floats_are(dtype: str, same: str) -> None:
    weights = make(tuple(name for name in MIXED if name != same))
    found = run(weights, dtype=dtype)
    assert np.array_equal(found, run(weights.dequantized(), dtype=dtype))
    assert not np.array_equal(found, run(weights))


@pytest.mark.parametrize(("dtype", "same"), [("int8", "q8_0"), ("int4", "q4_0")])
def test_blocks_of_our_own_codes_stay_as_they_are(dtype: str, same: str) -> None:
    weights = make((same,))
    assert np.array_equal(run(weights, dtype=dtype), run(weights))


def test_blocks_draft_for_themselves_in_fewer_bits() -> None:
    weights = make(("q6_k", "bfloat16"))
    executor = CpuExecutor(weights, context=128, slots=1, draft=weights, draft_dtype="int4")
    assert executor.drafter == "draft"
    executor.start([Advance(slot=0, token_ids=tuple(map(int, IDS[:10])), budget=8)])
    drawn: list[int] = []
    while len(drawn) < 8:
        executor.read(1.0)
        drawn += [event.token_id for event in executor.take()]
    plain = CpuExecutor(weights, context=128, slots=1)
    for token in drawn:
        ids = [*IDS[:10], *drawn[: drawn.index(token)]]
        assert plain.logits(0, ids)[-1].argmax() == token
        plain.truncate(0, 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "q4_k", "fp8"])
def test_blocks_have_no_other_dtype(dtype: str) -> None:
    weights = make(("q4_k", "q6_k"))
    wanted = f"expected auto, since .* q6_k, q4_k, or int8 or int4, got '{dtype}'"
    with pytest.raises(BackendError, match=wanted):
        CpuExecutor(weights, dtype, context=9, slots=1)


def test_a_model_of_plain_numbers_cannot_ask_for_blocks() -> None:
    weights = make(("float16",))
    for name in ("q4_k", "q4_k_panels"):
        with pytest.raises(RequestError, match=f"dtype: expected one of auto, .* '{name}'"):
            CpuExecutor(weights, name, context=9, slots=1)
