"""Weights in float8: the kernel computes what the rounded weights say, within what its 16-bit
activations cost, with the same bits at every width; and what the rounding itself costs."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from rig import Ask, MakeRig, golden_weights, random_weights, tiny_config
from test_monokernel import check_logits, check_widths, golden_ids, random_ids, run_whole

from monolane.cuda._pack import row_scales, widened
from monolane.model import NOW, LayerConfig, Reduce, Role, layer_roles
from monolane.reference import ReferenceModel

MATRICES = (Role.Q, Role.K, Role.V, Role.O, Role.GATE, Role.UP, Role.DOWN)


@pytest.mark.parametrize(
    "name", ["replicate_head", pytest.param("released_shape", marks=pytest.mark.slow)]
)
def test_goldens(make_rig: MakeRig, name: str) -> None:
    weights = golden_weights(name)
    rig = make_rig(weights, workers=8, widths=(8, 1), dtype="float8")
    rig.weights = widened(weights)  # what the oracle gets
    check_widths(rig, "float16", golden_ids(name, 16))
    plain = golden_weights(name)
    logits = run_whole(rig, golden_ids(name, 16), 8)
    with pytest.raises(AssertionError):  # the unrounded weights are further away than activations
        check_logits(plain, "float16", golden_ids(name, 16), logits)


CONFIG = tiny_config(
    hidden_size=22, intermediate_size=26, head_dim=6, vocab_size=50, qkv_bias=True,
    layers=(LayerConfig(NOW, NOW, 9), LayerConfig(Reduce(1), Reduce(1))),
)  # fmt: skip


@pytest.mark.parametrize("wish", [{"wide": True}, {"sm": 80, "warps": 4}], ids=str)
def test_no_size_divides(make_rig: MakeRig, wish: dict[str, int]) -> None:
    weights = random_weights(CONFIG)
    rig = make_rig(weights, workers=4, widths=(3,), dtype="float8", **wish)
    rig.weights = widened(weights)
    check_widths(rig, "float16", random_ids(CONFIG, 30))


def test_rows_of_every_size(make_rig: MakeRig) -> None:
    """Scales are the rows' own: rows thousands of times larger than their neighbours."""
    weights = random_weights(CONFIG)
    rng = np.random.default_rng(3)
    layers = []
    for layer in weights.layers:
        sizes = {role: 2.0 ** rng.integers(-6, 3, layer[role].shape[:-1]) for role in MATRICES}
        layers.append(
            {
                role: layer[role] * sizes[role][..., None].astype(np.float32)
                if role in sizes
                else layer[role]
                for role in layer_roles(CONFIG)
            }
        )
    uneven = replace(weights, layers=tuple(layers))
    rig = make_rig(uneven, workers=4, widths=(3,), dtype="float8", wide=True)
    rig.weights = widened(uneven)
    ids = random_ids(CONFIG, 30)
    check_logits(rig.weights, "float16", ids, run_whole(rig, ids, 3))


def test_schedules(make_rig: MakeRig) -> None:
    """Scales are there when the sums are read, and stay until they have been."""
    rig = make_rig(random_weights(CONFIG), workers=4, widths=(3,), dtype="float8", wide=True)
    ask = Ask(tokens=random_ids(CONFIG, 4), budget=2, record_logits=True)
    expected = rig.launch(ask, mood="brisk")
    for seed in range(60):
        rig.forget()
        found = rig.launch(ask, seed=seed)
        assert found.healthy, (seed, found.error, found.fault)
        assert found.logits.tobytes() == expected.logits.tobytes(), seed


# ---- the rounding itself -----------------------------------------------------------------------
def test_scales_are_per_row_and_lane() -> None:
    weights = golden_weights("delay1_8lanes")
    found = row_scales(weights, Role.GATE, 1)
    array = weights.layers[1][Role.GATE].astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(found, np.abs(array).max(axis=-1) / np.float32(448))


def test_logits_stay_near_those_of_the_stored_weights() -> None:
    """Three bits of mantissa round a weight by 2^-4 at most, uniform errors by 0.58 of that, the
    mean over mantissas is 0.74 of it: 2.7 %. Independent errors of a sum's terms are 2.7 % of the
    sum, and those of some twenty products in a row at most sqrt(20) times that: 12 %."""
    for name in ("released_shape", "replicate_head"):
        weights, ids = golden_weights(name), golden_ids(name, 24)
        exact, rounded = (ReferenceModel(w) for w in (weights, widened(weights)))
        wanted = exact.forward(ids, exact.new_cache())
        error = rounded.forward(ids, rounded.new_cache()) - wanted
        assert 0.01 < np.sqrt((error**2).mean() / wanted.var()) < 0.12
