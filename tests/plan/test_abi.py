"""What native executors read: contents, and the committed C header against the NumPy layout."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from monolane.model import ModelConfig, Role
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
from monolane.plan._abi import HEADER, MATRIX, MODULE, NO_WAIT, PHASE, ROLES, SHARE

ROOT = Path(__file__).parents[2]
STRUCTS = {
    "PlanHeader": HEADER.dtype,
    "PlanPhase": PHASE.dtype,
    "PlanMatrix": MATRIX.dtype,
    "PlanShare": SHARE.dtype,
    "PlanModule": MODULE.dtype,
    **{part.name: part.dtype for part in (*MODULE.parts, *HEADER.parts)},
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
    assert header.pop("norm_centred") == 0
    lane = 64 * 3072  # of a pass, hidden
    both = zip(header.pop("slots"), header.pop("sizes"), strict=True)
    sizes = dict(zip(Buffer, both, strict=True))
    assert {buffer: each for buffer, each in sizes.items() if each[1]} == {
        Buffer.TOKENS: (1, 64),
        Buffer.QUERY: (1, lane),
        Buffer.KEY_VALUE: (15, 2 * 2048 * 16 * 96),
        Buffer.ATTENTION: (1, 8 * 64 * 32 * 98),  # keys in 8 parts
        Buffer.FIRST_OUTPUT: (5, 8 * lane),
        Buffer.HIDDEN: (1, 64 * 12288),
        Buffer.SECOND_OUTPUT: (5, 8 * lane),
        Buffer.STREAM: (1, 8 * lane),
        Buffer.LOGITS: (1, 64 * 32000),
        Buffer.UNNORMED: (1, 2 * lane),  # queries, keys and values
    }
    assert header == {
        "schema": 7,
        "phases": 78,
        "modules": 30,
        "share_tables": 6,  # K and V are alike, and OUT and DOWN
        "workers": 128,
        "groups": 8,
        "group_workers": 16,
        "group_lanes": 1,
        "lanes": 8,
        "layers": 15,
        "hidden": 3072,
        "streams": 1,
        "vocab": 32000,
        "max_width": 64,
        "context": 2048,
        "chunk": 64,
        "format": 3,
        "head": 0,
        "norm_per_lane": 1,
        "final_norm_per_lane": 1,
        "leader": 0,
        "embedding_scale": 1.0,
        "logit_scale": 1.0,
        "logit_cap": 0.0,
        "read": [1.0] * 64,  # no mixture
        "rotaries": [(96, 0, 1.0), (0, 0, 0.0)],
    }
    attention, mlp = arrays.modules[2 * 7], arrays.modules[2 * 7 + 1]
    assert attention["layer"] == mlp["layer"] == 7
    assert (attention["output"], mlp["output"]) == (Buffer.FIRST_OUTPUT, Buffer.SECOND_OUTPUT)
    assert (attention["norm"], mlp["norm"]) == tuple(
        ROLES.index(role) for role in (Role.ATTENTION_NORM, Role.MLP_NORM)
    )
    assert attention["post_norm"] == mlp["post_norm"] == -1
    scale = np.float32(96**-0.5)
    sizes = (32, 16, 96, 8, -1, 2048, 0, 0, 0, 0, 0, 0, 0, 0, 12)
    assert attention["attention"].tolist() == (*sizes, scale, 0, 0, 1, 0)
    assert attention["scratch"] == 12 * 2 * (96 + 2)  # whole cache lines
    assert mlp["mlp"].tolist() == (12288, 0, 1.0)
    assert mlp["attention"]["heads"] == 0
    assert arrays.modules[2 * 14]["attention"]["window"] == 0  # one of the last five
    gate_up = arrays.phases[4 + 5 * 7]  # of layer 7
    assert (gate_up["kind"], gate_up["module"]) == (PhaseKind.GATE_UP, 2 * 7 + 1)
    assert gate_up["num_updates"] == 1
    assert gate_up["updates"].tolist() == [(2 * 7, 2, 7 % 5, 5 % 5), *[(-1, 0, 0, 0)] * 3]
    assert arrays.phases[3 + 5 * 7]["write_slot"] == 7 % 5
    never = arrays.phases[4]
    assert never["updates"][0].tolist() == (0, -1, 0, 0)
    full = arrays.phases[2 + 5 * 14]
    assert (full["kind"], full["module"], full["write_slot"]) == (PhaseKind.ATTEND, 2 * 14, -1)


def test_fields_of_dense_families_in_numbers(configs: dict[str, ModelConfig]) -> None:
    both = to_arrays(build(configs["both_norms"], cpu(3), "float32"))
    attention, mlp = both.modules[::2], both.modules[1::2]
    assert attention["attention"]["qk_norm"].tolist() == [1] * 4
    assert both.header["embedding_scale"] == 5.5
    assert (both.header["logit_scale"], both.header["logit_cap"]) == (0.5, 3.0)
    assert both.modules["scale"].tolist() == [np.float32(0.4)] * 8
    assert mlp["mlp"]["activation"].tolist() == [1] * 4
    assert attention["norm"].tolist() == [ROLES.index(Role.ATTENTION_NORM)] * 4
    assert mlp["post_norm"].tolist() == [ROLES.index(Role.POST_MLP_NORM)] * 4
    assert attention["attention"]["scale"].tolist() == [np.float32(0.3)] * 4
    assert attention["attention"]["rotary"].tolist() == [1, 0, -1, 1]  # local, main, none, local
    assert both.phases["module"][0] == -1  # EMBED is of no layer
    late = to_arrays(build(configs["late_norms"], cpu(3), "float32"))
    assert late.modules["attention"]["qk_norm"][::2].tolist() == [2] * 3
    assert late.modules["norm"].tolist() == [-1] * 6
    assert late.modules["post_norm"][0] == ROLES.index(Role.POST_ATTENTION_NORM)
    assert late.header["rotaries"]["amplitude"].tolist() == [np.float32(1.2), 0.0]
    norms = late.phases[late.phases["kind"] == PhaseKind.NORM_QK]
    assert norms["layer"].tolist() == [0, 1, 2]
    assert late.modules["attention"]["rotary"][::2].tolist() == [0, -1, 0]
    assert late.shares[norms["units"][0]].tolist() == [(0, 4), (4, 8), (8, 12)]  # 8 + 4 heads


def test_arrays_cannot_be_changed() -> None:
    arrays = to_arrays(build(named_config("laneformer-2b"), cpu(2), "int8"))
    for array in (arrays.header, arrays.modules, arrays.phases, arrays.shares):
        assert isinstance(array, np.ndarray)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = np.zeros(1, array.dtype)[0]
