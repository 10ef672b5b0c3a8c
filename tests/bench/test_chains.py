"""The kernel's time between products, from its machine code: control codes, ways, and the file."""

from __future__ import annotations

import json

import pytest

from bench.gpu.monokernel._chains import Code, segments
from bench.gpu.monokernel._machine_code import (
    NO_DISASSEMBLER,
    NONE,
    Control,
    Place,
    find_disassembler,
    function_at,
    line_of,
    read_listing,
)
from bench.gpu.monokernel.chains import CONTEXT, FILE, GPUS, extract, layout_of
from monolane.cuda import compiler_version
from monolane.errors import MissingExtraError
from monolane.sim import LEVELS, Constant, find_machine, latencies, timings


def test_control_codes() -> None:
    """Of upper halves as nvdisasm prints them beside what they belong to."""
    assert Control.of(0x000FE40000000F00) == Control(2, NONE, NONE, ())  # a move
    assert Control.of(0x000EA2000C1E1900) == Control(1, 2, NONE, ())  # a load: it frees barrier 2
    assert Control.of(0x004FC80000000000) == Control(4, NONE, NONE, (2,))  # and who waits for it


