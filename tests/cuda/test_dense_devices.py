"""Dense models on several devices, emulated: cut into lanes that add up at once, a lane or two for
each device. The dense oracle's logits, and the bits of as many lanes on one device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu
from rig import MakeRig, random_weights
from test_dense import FAMILIES, LARGE, MORE, ODD, clear_prompt
from test_executor import MakeGpu, greedy, run, tokens
from test_load import quantised
from test_monokernel import check_logits, random_ids, run_pieces, run_whole

from monolane.cuda import CudaExecutor, _layout
from monolane.errors import BackendError, ConfigError
from monolane.model import ModelConfig, Weights, cut_weights, in_lanes, parse_config
from monolane.plan import PhaseKind

TOKENS = 14  # longer than the windows, in two kinds of pieces
# Inner units that four lanes share out, and what little else differs from test_dense.py: there the
# families are told apart, here it is how they are cut.
SIZES: dict[str, Any] = ODD | {"intermediate_size": 40, "num_hidden_layers": 2}
CASES: dict[str, tuple[dict[str, Any], int, int]] = {  # what besides, lanes, devices
    # 53 tokens: one head for all lanes, on their mean. Two KV heads for two lanes.
    "Llama 3": (FAMILIES["Llama 3"], 2, 2),
    # One KV head, which each of four lanes has.
    "Mistral": (FAMILIES["Mistral"], 4, 2),
    # Biases, those of repeated heads among them; a head that is the embedding's rows, in parts.
    "Qwen2.5, tied": (FAMILIES["Qwen2.5, tied"] | {"vocab_size": 56}, 4, 4),
    "Qwen3": (FAMILIES["Qwen3"] | {"vocab_size": 54}, 2, 2),
    "Gemma 3": (MORE["Gemma 3"], 2, 2),
}
# Twice the heads, units and words that two blocks have in test_dense.py.
TWICE = {"num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 80,
         "vocab_size": 622}  # fmt: skip


def config_of(case: str) -> ModelConfig:
    return parse_config(SIZES | CASES[case][0])


# The kernels of one family for every run: cold, a case compiles two in some ten seconds.
@pytest.mark.parametrize(
    "case", ["Qwen3", *(pytest.param(x, marks=pytest.mark.slow) for x in CASES if x != "Qwen3")]
)
def test_families_on_devices(make_rig: MakeRig, case: str) -> None:
    dense, (_, lanes, devices) = random_weights(config_of(case)), CASES[case]
    weights = cut_weights(dense, lanes)
    wish: dict[str, Any] = {"workers": 2 * lanes, "widths": (3,), "dtype": "float16"}
    ids = random_ids(dense.config, TOKENS)
    rig = make_rig(weights, devices=devices, **wish)
    found = run_whole(rig, ids, 3, seed=5)
    check_logits(dense, "float16", ids, found)
    assert found.tobytes() == run_whole(make_rig(weights, **wish), ids, 3).tobytes()
    assert found.tobytes() == run_pieces(rig, ids, (1, 5, 2), 3).tobytes()


@pytest.mark.slow
def test_sums_that_are_folded(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are folded and splits merged apart: the bits of one device."""
    monkeypatch.setattr(_layout, "_MERGED_APART", 0)
    config = parse_config(ODD | FAMILIES["Qwen3"] | LARGE | TWICE)
    dense, wish = random_weights(config), {"workers": 4, "widths": (3,), "dtype": "float16"}
    weights, ids = cut_weights(dense, 2), random_ids(config, TOKENS)
    rig = make_rig(weights, devices=2, folds=True, **wish)
    assert PhaseKind.HEAD in rig.layout.folded
    assert rig.layout.merge is not None
    found = run_whole(rig, ids, 3, seed=5)
    check_logits(dense, "float16", ids, found)
    assert found.tobytes() == run_whole(make_rig(weights, **wish), ids, 3).tobytes()


# ---- the executor ------------------------------------------------------------------------------
def make(weights: Weights, gpus: Sequence[EmulatedGpu], **wish: Any) -> CudaExecutor:
    return CudaExecutor(weights, "auto", tuple(gpus), context=64, slots=1, **wish)


@pytest.mark.slow
def test_an_executor_cuts_what_it_loads(make_gpu: MakeGpu) -> None:
    """On two GPUs, the bits of two lanes on one, and nearly those of the model in one piece."""
    dense = random_weights(config_of("Qwen3"))
    prompt, wanted = clear_prompt(dense, "bfloat16")
    gpus = [make_gpu(sms=2, number=i, seed=100 * i) for i in range(2)]
    executor, alone = make(dense, gpus), make(dense, [make_gpu(sms=4)], lanes=2)
    found = executor.logits(0, prompt)
    assert found.tobytes() == alone.logits(0, prompt).tobytes()
    executor.truncate(0, 0)
    assert tokens(run(executor, greedy(budget=len(wanted), prompt=tuple(prompt)))) == wanted
    bytes_of = [x._memories[0].weight_bytes for x in (executor._resident, alone._resident)]
    assert bytes_of[0] == bytes_of[1] // 2
    for one in (executor, alone):
        one.close()


@pytest.mark.parametrize(
    ("changes", "fitting"),
    [
        ({"intermediate_size": 37}, "1"),
        ({"num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 36}, "1, 3"),
    ],
)
def test_what_cannot_be_cut(make_gpu: MakeGpu, changes: dict[str, Any], fitting: str) -> None:
    fields = SIZES | FAMILIES["Llama 3"] | changes
    heads, inner = fields["num_attention_heads"], fields["intermediate_size"]
    gpus = [make_gpu(number=i) for i in range(2)]
    with pytest.raises(
        BackendError,
        match="devices: this model cannot be cut into 2 lanes for 2 devices: lanes: expected a "
        rf"number that divides num_attention_heads \({heads}\) and intermediate_size "
        rf"\({inner}\), one of {fitting}; got 2",
    ):
        make(random_weights(parse_config(fields)), gpus)
    assert all(gpu.closed for gpu in gpus)


def test_lanes_that_do_not_go_with_the_devices(make_gpu: MakeGpu) -> None:
    dense = random_weights(config_of("Llama 3"))
    with pytest.raises(BackendError, match="devices: expected one of 1, 2, which divide .* got 3"):
        make(dense, [make_gpu(number=i) for i in range(3)], lanes=2)
    lanes = random_weights(in_lanes(dense.config, 2))
    with pytest.raises(BackendError, match="lanes: expected None or the 2 that this model has"):
        make(lanes, [make_gpu()], lanes=4)


def test_blocks_are_cut_where_they_end(make_gpu: MakeGpu) -> None:
    """On two GPUs, the bits of the numbers that the blocks mean; none is cut in two."""

    def gpus() -> list[EmulatedGpu]:
        return [make_gpu(sms=2, number=i, seed=100 * i) for i in range(2)]

    logits = []
    for weights in (quantised("q8_0"), quantised("q8_0").dequantized()):
        executor = make(weights, gpus())
        logits.append(executor.logits(0, [3, 1, 4, 1, 5]))
        executor.close()
    np.testing.assert_array_equal(*logits)
    with pytest.raises(
        ConfigError, match="in q4_k: expected columns in whole blocks of 256, got 128"
    ):
        make(quantised("q4_k"), gpus())
