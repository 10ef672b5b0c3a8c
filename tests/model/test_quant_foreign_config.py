"""What config.json says of another tool's quantisation: what does not map exactly is refused."""

from typing import Any

import pytest
from packed_folders import AWQ, CONFIG, CT, GPTQ, ct

from monolane.errors import ConfigError
from monolane.model import parse_config

UNQUANTISED = "; take the model's unquantised weights and run 'monolane quantize' on them"


def without(scheme: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in scheme.items() if key != name}


def grouped(**group: Any) -> dict[str, Any]:
    return CT | {"config_groups": {"group_0": CT["config_groups"]["group_0"] | group}}


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes': its codes name"),
        ({"quant_method": "novel"}, "'monolane', .*, 'mxfp4', 'fp8', got 'novel'"),
        ({"quant_method": 7}, "quant_method: expected one of .*, got 7"),
        (without(CT, "config_groups"), "config_groups: expected an object with a scheme in it"),
        (CT | {"config_groups": {}}, "config_groups: expected an object with a scheme in it"),
        (CT | {"config_groups": {"group_0": 4}}, "group_0: expected an object or null, got 4"),
        (CT | {"format": "float-quantized"}, "format: expected 'pack-quantized' or 'int-quantized"),
        (CT | {"format": "marlin-24"}, "format: expected 'pack-quantized' or .* got 'marlin-24'"),
        (grouped(format="nvfp4-pack-quantized"), "group_0: weights: type: expected 'float', got"),
        (
            grouped(input_activations={"num_bits": 8, "type": "int"}),
            "group_0: input_activations: expected null: weights alone quantised, got",
        ),
        (grouped(weights=None), "group_0: weights: expected an object, got None"),
        (ct(type="float", num_bits=8), "weights: type: expected 'int', got 'float'"),
        (ct(num_bits=3), "weights: num_bits: expected 4 or 8, got 3"),
        (ct("int-quantized"), "weights: num_bits: expected 8, got 4"),
        (ct(num_bits=8, symmetric=False), "symmetric: expected true with 8 bits, got False"),
        (ct(actorder="group"), "actorder: expected null or 'weight', got 'group'; with groups in"),
        (ct(strategy="block"), "strategy: expected 'group', 'channel' or 'tensor', got 'block'"),
        (ct(group_size=48), "group_size: expected a multiple of 32, or -1 .*, got 48"),
        (ct(group_size=True), "group_size: expected a multiple of 32, or -1 .*, got True"),
        (ct(dynamic=True), "dynamic: expected false, got True"),
        (CT | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme: expected null or an empty"),
        (CT | {"sparsity_config": {"format": "sparse-24"}}, "sparsity_config: expected null or an"),
        (CT | {"transform_config": {"config_groups": {"R1": 1}}}, "transform_config: expected"),
        (
            CT | {"config_groups": CT["config_groups"] | ct(num_bits=8)["config_groups"] | {
                "group_1": CT["config_groups"]["group_0"]}},
            "config_groups: expected one scheme for all matrices, got 2 that differ",
        ),
        (GPTQ | {"bits": 3}, "quantization_config: bits: expected 4 or 8, got 3"),
        (GPTQ | {"bits": "4"}, "bits: expected 4 or 8, got '4'"),
        (GPTQ | {"bits": 8, "sym": False}, "sym: expected true with 8 bits, got False; 8"),
        (GPTQ | {"group_size": 16}, "group_size: expected a multiple of 32, or -1 .*, got 16"),
        (without(GPTQ, "group_size"), "group_size: expected a multiple of 32, .*, it is missing"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format: expected 'gptq' or 'gptq_v2'"),
        (GPTQ | {"dynamic": {"-:lm_head": {}}}, "dynamic: expected null: one scheme for all"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format: expected false, got True"),
        (AWQ | {"bits": 8}, "bits: expected 4, got 8"),
        (AWQ | {"version": "gemv"}, "version: expected 'gemm', the usual order .*, got 'gemv'"),
        (AWQ | {"zero_point": False}, "zero_point: expected true, got False"),
        (AWQ | {"group_size": 0}, "group_size: expected a multiple of 32"),
    ],
)  # fmt: skip
def test_schemes_that_do_not_map_exactly(scheme: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_config(CONFIG | {"quantization_config": scheme}, "/m/config.json")
    assert str(caught.value).startswith("/m/config.json: quantization_config")
    objects = ("expected an object, got", "expected an object or null", "an object with")
    assert UNQUANTISED in str(caught.value) or any(x in str(caught.value) for x in objects)


@pytest.mark.parametrize("method", ["fbgemm_fp8"])
def test_small_floats_name_what_there_is_instead(method: str) -> None:
    # DeepSeek-V3's weights were published in no other way.
    with pytest.raises(ConfigError, match="8-bit floats; take a copy in BF16 or a .gguf file of"):
        parse_config(CONFIG | {"quantization_config": {"quant_method": method}})


def test_lanes_have_no_packed_files() -> None:
    lanes = {
        "model_type": "laneformer",
        "num_lanes": 2,
        "broadcast_delay": 1,
        "quantization_config": GPTQ,
    }
    with pytest.raises(ConfigError, match="expected a scheme of ours with 2 lanes, got gptq"):
        parse_config(CONFIG | lanes)
