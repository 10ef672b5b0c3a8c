"""The probes' kernels: their parameters, one owner for both sides, and how they are compiled.

Each kernel takes one struct by value. Its fields are written down here once; Python packs them and
generates `params.h` from them, so that host and device cannot disagree about order or size.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.litmus._source import source as shapes_source
from monolane._structs import CUDA, Field, Struct
from monolane.cuda._compile import Compiled, compile_kernel

KERNELS = Path(__file__).resolve().parent / "kernels"
SOURCES = tuple(sorted(p.name for p in KERNELS.glob("*.cu")))
HOPPER_ONLY = ("mailbox.cu", "matvec.cu", "waits.cu")  # the others also compile for sm_80


@dataclass(frozen=True)
class Buffer:
    """Device memory."""

    address: int
    nbytes: int


@dataclass(frozen=True)
class ParamStruct:
    """One kernel's parameters: `declared` are "type name" pairs, divided by commas."""

    name: str
    declared: str

    @cached_property
    def struct(self) -> Struct:
        """As the package describes what crosses to a kernel."""
        pairs = (field.strip().rsplit(" ", 1) for field in self.declared.split(","))
        return Struct(self.name, tuple(Field(name, kind) for kind, name in pairs))

    @property
    def names(self) -> set[str]:
        """Of the fields."""
        return {field.name for field in self.struct.fields}

    def pack(self, **values: int | Buffer) -> bytes:
        """The struct's bytes; every field must be given, and no other."""
        if self.names != values.keys():
            raise ValueError(
                f"{self.name}: expected exactly the fields {sorted(self.names)}; missing "
                f"{sorted(self.names - values.keys())}, unknown "
                f"{sorted(values.keys() - self.names)}"
            )
        packed = np.zeros((), self.struct.dtype)
        for name, value in values.items():
            packed[name] = value.address if isinstance(value, Buffer) else value
        return packed.tobytes()


FILL = ParamStruct(
    "FillParams", "u32* words, u32* granule_sums, u64 granules, u32 granule_words, u32 seed"
)
REPEAT = ParamStruct(
    "RepeatParams", "Vec4* to, const Vec4* pattern, u64 vectors, u64 pattern_vectors"
)
BANDWIDTH = ParamStruct(
    "BandwidthParams",
    "const u8* from, u8* to, u32* sums, u32* fault, u64 chunks, u64 watchdog_cycles, "
    "u32 chunk_bytes, u32 interleaved, u32 slots, u32 evict_first",
)
WAITS = ParamStruct(
    "WaitsParams",
    "const u8* stream_from, const u32* rank_of_sm, u32* words_base, u32* counters, u32* claims, "
    "u32* finished, u32* log, u64* totals, u32* results, u32* stream_sums, u32* stream_chunks, "
    "u32* fault, u64 watchdog_cycles, u64 run_bytes, u32 method, u32 groups, u32 members, "
    "u32 words, u32 rounds, u32 stream, u32 slots, u32 copy_bytes, u64 warm_cycles",
)
GRID_SYNC = ParamStruct(
    "GridSyncParams", "u32* words, u32* log, u64* totals, u32* results, u32 rounds"
)
TOPOLOGY = ParamStruct("TopologyParams", "u32* sm_of_block, u64 hold_cycles")
LAUNCH = ParamStruct("LaunchParams", "u32* counts, u64 work_cycles, u32 flag_value")
TOKEN = ParamStruct(
    "TokenParams",
    "const float* logits, float* table, u32* candidates, u32* chosen, u32* log, u64* totals, "
    "u32* fault, u32* host_to_device, u32* device_to_host, u64 seed, u64 watchdog_cycles, "
    "u32 vocabulary, u32 sets, u32 rounds, u32 noise, u32 position",
)
MAILBOX = ParamStruct(
    "MailboxParams",
    "const u8* stream_from, u32* mail, u32* started, u32* log, u64* totals, u32* results, "
    "u32* stream_sums, u32* stream_chunks, u32* fault, u64 watchdog_cycles, u64 run_bytes, "
    "u64 warm_cycles, u32 own, u32 kernels, u32 blocks, u32 words, u32 peers, u32 rounds, "
    "u32 stream, u32 slots, u32 copy_bytes",
)
MATVEC = ParamStruct(
    "MatvecParams",
    "const u8* weights, const Vec4* x, const float* row_scales, float* results, "
    "u32* check_words, u64* totals, u32* fault, u64 run_bytes, u64 watchdog_cycles, "
    "u32 rows, u32 columns, u32 width, u32 row_tiles, u32 column_parts, u32 phases, "
    "u32 untimed_phases, u32 partial_buffers, u32 x_vectors, u32 x_period, u32 slots, "
    "u32 slot_bytes, u32 resident",
)
LITMUS = ParamStruct(
    "LitmusParams",
    "u32* places, u32* counters, const u32* players, u32* found, u32* fault, u64 watchdog_cycles, "
    "u32 test, u32 blocks, u32 threads, u32 rounds, u32 patience",
)
MATRIX_UNIT = ParamStruct("MatrixUnitParams", "const u32* fragments, u32* out, u64 tiles, u32 half")
ALL = (
    FILL, REPEAT, BANDWIDTH, WAITS, GRID_SYNC, TOPOLOGY, LAUNCH, TOKEN, MAILBOX, MATVEC, LITMUS,
    MATRIX_UNIT,
)  # fmt: skip


def headers() -> dict[str, str]:
    """What the kernels include, by name: what is generated, and their ring."""
    structs = "\n".join(params.struct.declare(CUDA) for params in ALL)
    begin = '// Generated by _kernels.py.\n#pragma once\n#include "primitives.cuh"\n\n'
    ring = (KERNELS / "ring.cuh").read_text()
    return {"params.h": f"{begin}{structs}", "shapes.h": shapes_source(), "ring.cuh": ring}


def compile_probe(source: str, arch: str, *, use_cache: bool = True) -> Compiled:
    """A file of the kernels folder as machine code; BackendError with the log if it fails."""
    # Only the yardstick of cooperative groups includes anything of the toolkit.
    folders = toolkit_includes() if source == "grid_sync.cu" else []
    path = str(KERNELS / source)
    return compile_kernel(path, headers(), arch, use_cache=use_cache, fuse=True, folders=folders)


def toolkit_includes() -> list[str]:
    """The folders of the CUDA toolkit's headers, where a toolkit or its packages are installed."""
    roots: list[Any] = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    if nvcc := shutil.which("nvcc"):
        roots.append(Path(nvcc).resolve().parent.parent)
    roots.append("/usr/local/cuda")
    if spec := find_spec("nvidia"):
        roots += [Path(x) / "cu13" for x in spec.submodule_search_locations or ()]
    for include in (Path(root) / "include" for root in roots if root):
        if (include / "cooperative_groups.h").exists():
            return [str(folder) for folder in (include, include / "cccl") if folder.is_dir()]
    return []
