"""The monokernel's logits: right within what 16-bit activations cost, and the same bits however a
sequence was cut into passes. Emulated: the shipped source, no GPU."""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from rig import GOLDEN, Ask, Floats, MakeRig, Rig, golden_weights, random_weights, tiny_config
from tolerance import limits, oracle

from monolane.model import (
    NEVER,
    NOW,
    Head,
    LayerConfig,
    ModelConfig,
    Reduce,
    Rotary,
    SafetensorsFile,
    Weights,
)


def check_logits(weights: Weights, dtype: str, ids: list[int], logits: Floats) -> None:
    """That logits [T, V] are the oracle's, within the limits and no closer than 16 bits can be."""
    wanted, limit = oracle(weights, ids), limits(weights, ids, dtype)
    difference = np.abs(logits - wanted).max(axis=1)
    assert (difference < limit).all(), f"{(difference / limit).max():.2f} of the limit"
    # The largest of V errors is typically two to three of the limit's six deviations.
    assert 0.1 < np.median(difference / limit) < 0.5
    # Where the two largest are further apart than both may err, greedy choices agree.
    top = np.sort(wanted, axis=1)[:, -2:]
    clear = top[:, 1] - top[:, 0] > 2 * limit
    assert clear.mean() > 0.3, "too few positions show anything"
    assert (logits.argmax(axis=1) == wanted.argmax(axis=1))[clear].all()


def run_whole(rig: Rig, ids: list[int], width: int, seed: int = 0, **options: Any) -> Floats:
    """The logits of a prompt that is fed in one launch, in as wide passes as there are."""
    rig.forget()
    outcome = rig.launch(Ask(tokens=ids, all_logits=True), width=width, seed=seed, **options)
    assert outcome.healthy, (outcome.error, outcome.fault)
    assert rig.lengths[0] == len(ids)
    return outcome.logits


def run_pieces(
    rig: Rig, ids: list[int], sizes: tuple[int, ...], width: int, **options: Any
) -> Floats:
    """The same, fed in launches of so many tokens each, beside another sequence."""
    rig.forget()
    rig.poison_cache()
    found: list[Floats] = []
    begin = 0
    for i, size in enumerate([*sizes, len(ids)]):
        piece = ids[begin : begin + size]
        begin += size
        asks = [Ask(tokens=piece, all_logits=True)]
        if i % 2 and width > 1:
            asks.insert(0, Ask(tokens=ids[:3], slot=1))  # its rows come first once it decodes
        outcome = rig.launch(*asks, width=width, seed=i, **options)
        assert outcome.healthy, (outcome.error, outcome.fault)
        found.append(outcome.logits[: len(piece)])
        if begin >= len(ids):
            break
    return np.concatenate(found)


def check_widths(rig: Rig, dtype: str, ids: list[int]) -> None:
    """Right, and the same bits at all of the rig's widths and however the ids are fed."""
    first = run_whole(rig, ids, rig.layout.width)
    check_logits(rig.weights, dtype, ids, first)
    for width in rig.layouts:
        if width != rig.layout.width:
            assert run_whole(rig, ids, width, seed=width).tobytes() == first.tobytes(), width
        assert run_pieces(rig, ids, (1, 5, 2), width).tobytes() == first.tobytes(), width


def golden_ids(name: str, count: int) -> list[int]:
    expected = SafetensorsFile(GOLDEN / name / "expected.safetensors")
    return [int(i) for i in expected["input_ids"][0][:count]]


def sorted_out(cases: Iterable[Any], kept: Container[Any]) -> list[Any]:
    """The cases, marked exhaustive where they are not kept for every run."""
    return [
        case
        if case in kept
        else pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.exhaustive
        )
        for case in cases
    ]


# Workers: one block a lane, several, and numbers that rows and heads do not divide by.
WORKERS = {
    "delay1_8lanes": (16, 8, 24),
    "early_comm": (8, 4, 12),
    "head_dim_96": (4, 2, 10),
    "no_comm": (4, 8, 12),
    "released_names": (8, 4),
    "released_shape": (8, 12, 28),
    "replicate_head": (8, 4, 20),
    "shared_norm_scale": (8, 4, 12),
}


@pytest.mark.parametrize("name", WORKERS)
def test_goldens(make_rig: MakeRig, name: str) -> None:
    rig = make_rig(golden_weights(name), workers=WORKERS[name][0], widths=(8, 1))
    check_widths(rig, "bfloat16", golden_ids(name, 16))


@pytest.mark.parametrize("name", ["delay1_8lanes", "replicate_head"])
def test_goldens_in_float16(make_rig: MakeRig, name: str) -> None:
    rig = make_rig(golden_weights(name), workers=WORKERS[name][0], widths=(8,), dtype="float16")
    check_widths(rig, "float16", golden_ids(name, 20))


# What other numbers of blocks change is who has which rows and heads: one golden with fewer blocks
# than lanes, one with heads and rows that blocks do not divide, one with several blocks a lane. The
# shapes below go on with sizes that nothing divides.
ON_MANY_BLOCKS = ("delay1_8lanes", "head_dim_96", "released_shape")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted_out(WORKERS, ON_MANY_BLOCKS))
def test_goldens_on_many_blocks(make_rig: MakeRig, name: str) -> None:
    for i, workers in enumerate(WORKERS[name]):
        widths = (3,) if i else (8, 3)  # eight is what test_goldens has compiled
        rig = make_rig(golden_weights(name), workers=workers, widths=widths)
        check_widths(rig, "bfloat16", golden_ids(name, 24))


# The number format enters where 16-bit values are packed and multiplied, which two goldens above
# and three of the shapes below do in float16 too.
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", WORKERS)
def test_all_goldens_in_float16(make_rig: MakeRig, name: str) -> None:
    rig = make_rig(golden_weights(name), workers=WORKERS[name][1], widths=(3,), dtype="float16")
    check_widths(rig, "float16", golden_ids(name, 24))


@dataclass(frozen=True)
class Case:
    config: ModelConfig
    workers: int


LATE, LATER = Reduce(1), Reduce(2)
SHAPES = {
    # Three splits of one KV head, and no size that anything divides by.
    "one lane, three blocks": Case(
        tiny_config(
            num_lanes=1, hidden_size=22, intermediate_size=13, num_heads=3, num_kv_heads=1,
            head_dim=6, vocab_size=25, layers=(LayerConfig(NOW, NOW), LayerConfig(NOW, NOW, 5)) * 2,
            qkv_bias=True, rotary=Rotary(style="half"), tie_embeddings=True,
        ),
        workers=3,
    ),
    "eight lanes, two blocks": Case(
        tiny_config(
            num_lanes=8, num_heads=8, num_kv_heads=8, intermediate_size=8 * 7, vocab_size=64,
            layers=(
                LayerConfig(NOW, NEVER), LayerConfig(LATE, LATE, 5), LayerConfig(NEVER, LATER),
                LayerConfig(LATER, NOW), LayerConfig(NOW, LATE),
            ),
        ),
        workers=16,
    ),
    # Attention summed now, the MLP's outputs later, or the other way around.
    "mixed rules": Case(
        tiny_config(
            layers=(
                LayerConfig(NOW, NOW), LayerConfig(NOW, LATE), LayerConfig(LATE, NEVER),
                LayerConfig(NEVER, Reduce(3)), LayerConfig(Reduce(3), NOW), LayerConfig(NOW, LATER),
            ),
        ),
        workers=4,
    ),
    # Four query heads of a KV head: at width 8 two products' worth of query rows.
    "mean head": Case(
        tiny_config(
            head=Head.MEAN, num_heads=16, num_kv_heads=4, head_dim=16, vocab_size=43,
            norm_scale_per_lane=False,
            layers=(LayerConfig(NOW, NOW), LayerConfig(LATE, LATE, 9), LayerConfig(LATE, LATE)),
        ),
        workers=6,
    ),
    "sum head": Case(
        tiny_config(head=Head.SUM, vocab_size=23, head_dim=18, qkv_bias=True), workers=4
    ),
    "concat head": Case(
        tiny_config(head=Head.CONCAT, vocab_size=23, num_lanes=3, num_heads=3, num_kv_heads=3,
                    intermediate_size=27, rotary=Rotary(style="half")),
        workers=6,
    ),
}  # fmt: skip


def random_ids(config: ModelConfig, count: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(config.vocab_size, size=count).tolist()


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(make_rig: MakeRig, name: str) -> None:
    case = SHAPES[name]
    rig = make_rig(random_weights(case.config), workers=case.workers, widths=(8, 1))
    check_widths(rig, "bfloat16", random_ids(case.config, 24))


def on_other_blocks(case: Case) -> list[dict[str, Any]]:
    lanes = case.config.num_lanes
    return [
        {"workers": case.workers, "sm": 80},  # copies without the engine
        {"workers": lanes, "dtype": "float16"},
        {"workers": 4 * lanes, "warps": 4, "ring": 2},
        {"workers": 2 * lanes, "warps": 1, "slot_bytes": 1024, "chunk": 32},
        {"workers": case.workers, "wide": True, "dtype": "float16"},
    ]


WISHES = 5
# Of the 30 pairs two of each shape, so that each wish has two shapes or three, and float16 three. A
# wish says how rows are divided and brought in, a shape what they are; both meet in one product, of
# which test_float8.py's rows of every size are the odd cases.
PAIRS = [(name, (i + k) % WISHES) for i, name in enumerate(SHAPES) for k in (0, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wish"),
    sorted_out([(name, wish) for name in SHAPES for wish in range(WISHES)], PAIRS),
)
def test_shapes_on_other_blocks(make_rig: MakeRig, name: str, wish: int) -> None:
    case = SHAPES[name]
    found = on_other_blocks(case)[wish]
    rig = make_rig(random_weights(case.config), widths=(3,), **found)
    check_widths(rig, found.get("dtype", "bfloat16"), random_ids(case.config, 40))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_wide_passes_give_the_same_bits(make_rig: MakeRig, name: str) -> None:
    """Activations in memory or not, and more than two tiles of tokens: it is the same sums."""
    case = SHAPES[name]
    ids = random_ids(case.config, 40)
    narrow = make_rig(random_weights(case.config), workers=case.workers, widths=(8,))
    wide = make_rig(random_weights(case.config), workers=case.workers, widths=(20,))
    assert wide.layout.wide
    expected = run_whole(narrow, ids, 8)
    for seed in range(3):
        assert run_whole(wide, ids, 20, seed).tobytes() == expected.tobytes()
    assert run_pieces(wide, ids, (1, 5, 2), 20).tobytes() == expected.tobytes()
