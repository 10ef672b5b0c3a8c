"""The command lines of NVIDIA's profilers for one launch of the kernel; nothing is run here."""

from __future__ import annotations

import shutil

_INNER = (
    "python bench/gpu/monokernel/run.py --child profile --work WORK --records WORK/profile.jsonl"
)


def command_lines() -> list[str]:
    """What to type, for the profilers that are installed; WORK is a folder of `--work`."""
    found = []
    if shutil.which("ncu"):
        # The last launch decodes eight tokens; the clocks stay as they are.
        found.append(
            "ncu --clock-control none --set full --kernel-name monokernel --launch-skip 1 "
            f"--launch-count 1 -o monokernel {_INNER}"
        )
    if shutil.which("nsys"):
        found.append(f"nsys profile --trace cuda,osrt -o monokernel {_INNER}")
    return found
