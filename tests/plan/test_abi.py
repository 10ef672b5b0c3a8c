"""What native executors read: contents, and the committed C header against the NumPy layout."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from monolane.model import ModelConfig
from monolane.plan import (
    H200,
    Buffer,
    PhaseKind,
    Scope,
    build,
    c_header,
    cpu,
    named_config,
    to_arrays,
)
from monolane.plan._abi import HEADER, MATRIX, NO_WAIT, PHASE, SHARE

ROOT = Path(__file__).parents[2]
STRUCTS = {
    "PlanHeader": HEADER.dtype,
    "PlanPhase": PHASE.dtype,
    "PlanMatrix": MATRIX.dtype,
    "PlanShare": SHARE.dtype,
}


def test_the_committed_header_is_the_emitted_one() -> None:
    path = ROOT / "csrc/abi/plan_abi.h"
    assert path.read_text() == c_header(), "run: scripts/headers"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
def test_the_structs_are_laid_out_as_the_arrays(tmp_path: Path) -> None:
    """Compiles the header, which holds its own static_asserts, and asks sizes and offsets anew."""
    lines = ['#include "abi/plan_abi.h"', "#include <cstdio>", "using namespace monolane;"]
    lines += ["int main() {", '  std::printf("{");']
    for name, dtype in STRUCTS.items():
        assert dtype.names is not None
        for field in dtype.names:
            lines.append(
                f'  std::printf("\\"{name}.{field}\\": %zu, ", offsetof({name}, {field}));'
            )
        lines.append(f'  std::printf("\\"{name}\\": %zu, ", sizeof({name}));')
    lines += ['  std::printf("\\"choose\\": %d}", static_cast<int>(PhaseKind::kChoose));', "}"]
    source, program = tmp_path / "sizes.cpp", tmp_path / "sizes"
    source.write_text("\n".join(lines))
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc'}"]
    subprocess.run(["g++", *flags, str(source), "-o", str(program)], check=True)
    found = json.loads(subprocess.run([program], check=True, capture_output=True).stdout)
    expected = {"choose": int(PhaseKind.CHOOSE)}
    for name, dtype in STRUCTS.items():
        assert dtype.fields is not None
        expected[name] = dtype.itemsize
        expected |= {f"{name}.{field}": where[1] for field, where in dtype.fields.items()}
    assert found == expected


def test_arrays_say_what_the_plan_says(config: ModelConfig) -> None:
    for workers in (1, 3, 8):
        plan = build(config, cpu(workers), "bfloat16", max_width=7, context=60)
        arrays = to_arrays(plan)
        assert arrays.phases.shape == (len(plan.phases),)
        assert arrays.header["phases"] == len(plan.phases)
        assert arrays.shares.shape == (arrays.header["share_tables"], workers)
        for row, phase in zip(arrays.phases, plan.phases, strict=True):
            assert (row["kind"], row["layer"]) == (phase.kind, phase.layer)
            for scope, name in ((Scope.GROUP, "wait_group"), (Scope.ALL, "wait_all")):
                count = phase.wait(scope)
                assert row[name] == (NO_WAIT if count is None else count)
            assert row["num_matrices"] == len(phase.matrices)
            shares = [matrix.share for matrix in phase.matrices]
            tables = [row["matrices"][i]["share"] for i in range(len(shares))]
            if phase.units is not None:
                shares.append(phase.units)
                tables.append(row["units"])
            for share, table in zip(shares, tables, strict=True):
                expected = [share.of(worker) for worker in range(workers)]
                assert arrays.shares[table].tolist() == expected


def test_the_plan_of_laneformer_2b_in_numbers() -> None:
    arrays = to_arrays(build(named_config("laneformer-2b"), H200, "int8", context=2048))
    header = {name: arrays.header[name].tolist() for name in HEADER.dtype.names or ()}
    assert header.pop("norm_eps") == pytest.approx(1e-5)
    assert header.pop("query_scale") == np.float32(96**-0.5)
    assert header == {
        "schema": 4,
        "phases": 78,
        "share_tables": 6,  # K and V are alike, and OUT and DOWN
        "workers": 128,
        "groups": 8,
        "group_workers": 16,
        "group_lanes": 1,
        "lanes": 8,
        "layers": 15,
        "hidden": 3072,
        "intermediate": 12288,
        "hidden_columns": 1536,
        "experts": 0,
        "chosen": 0,
        "expert_inner": 0,
        "chosen_normalised": 0,
        "expert_scores": 0,
        "expert_groups": 1,
        "chosen_groups": 1,
        "group_best": 1,
        "expert_scale": 1.0,
        "shared_inner": 0,
        "delta_key_heads": 0,
        "delta_value_heads": 0,
        "delta_key": 0,
        "delta_value": 0,
        "delta_kernel": 0,
        "heads": 32,
        "kv_heads": 16,
        "head_dim": 96,
        "rotary_dim": 96,
        "latent": 0,
        "query_latent": 0,
        "latent_eps": 0.0,
        "vocab": 32000,
        "max_width": 64,
        "context": 2048,
        "attention_slots": 5,
        "mlp_slots": 5,
        "splits": 8,
        "chunk": 64,
        "format": 3,
        "head": 0,
        "rotary": 0,
        "norm_per_lane": 1,
        "final_norm_per_lane": 1,
        "qkv_bias": 0,
        "attention_gate": 0,
        "qk_norm": 0,
        "norm_before": 1,
        "norm_after": 0,
        "activation": 0,
        "leader": 0,
        "embedding_scale": 1.0,
        "amplitude": [1.0, 1.0],
    }
    gate_up = arrays.phases[4 + 5 * 7]  # of layer 7
    assert gate_up["kind"] == PhaseKind.GATE_UP
    assert gate_up["window"] == 2048
    assert (gate_up["update"], gate_up["update_layer"]) == (Buffer.ATTENTION_OUTPUT, 7)
    assert gate_up["update_delay"] == 2
    assert (gate_up["update_own_slot"], gate_up["update_other_slot"]) == (7 % 5, 5 % 5)
    assert arrays.phases[3 + 5 * 7]["write_slot"] == 7 % 5
    never = arrays.phases[4]
    assert (never["update"], never["update_delay"]) == (Buffer.ATTENTION_OUTPUT, -1)
    full = arrays.phases[2 + 5 * 14]
    assert (full["kind"], full["window"], full["write_slot"]) == (PhaseKind.ATTEND, 0, -1)


def test_fields_of_dense_families_in_numbers(configs: dict[str, ModelConfig]) -> None:
    both = to_arrays(build(configs["both_norms"], cpu(3), "float32"))
    names = ("qk_norm", "norm_before", "norm_after", "activation", "embedding_scale")
    assert [both.header[name].item() for name in names] == [1, 1, 1, 1, 5.5]
    assert both.header["query_scale"] == np.float32(0.3)
    turned = both.phases["rotary"][both.phases["kind"] == PhaseKind.QKV]
    assert turned.tolist() == [1, 0, -1, 1]  # local, main, none, local
    assert both.phases["rotary"][0] == -1  # EMBED is of no layer
    late = to_arrays(build(configs["late_norms"], cpu(3), "float32"))
    assert [late.header[name].item() for name in names] == [2, 0, 1, 0, 1.0]
    assert late.header["amplitude"].tolist() == [np.float32(1.2), 1.0]
    norms = late.phases[late.phases["kind"] == PhaseKind.NORM_QK]
    assert norms["layer"].tolist() == [0, 1, 2]
    assert norms["rotary"].tolist() == [0, -1, 0]
    assert late.shares[norms["units"][0]].tolist() == [(0, 4), (4, 8), (8, 12)]  # 8 + 4 heads


def test_arrays_cannot_be_changed() -> None:
    arrays = to_arrays(build(named_config("laneformer-2b"), cpu(2), "int8"))
    for array in (arrays.header, arrays.phases, arrays.shares):
        assert isinstance(array, np.ndarray)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = np.zeros(1, array.dtype)[0]
