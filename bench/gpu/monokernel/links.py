"""What joins the GPUs of a machine: its topology, and how long a stamped word is on its way."""

from __future__ import annotations

import shutil
import subprocess
from itertools import combinations
from pathlib import Path

import numpy as np

from bench.gpu._device import device_line, open_device
from bench.gpu._stage import NotMeasuredError, Stage, expect, speed
from bench.gpu.monokernel._random_weights import make_block
from bench.gpu.monokernel._several import COUNTS, dense_config, dense_folder, gpus_here
from monolane._results import Record
from monolane._structs import CUDA, Field, Struct
from monolane.cuda import Device
from monolane.cuda._device import Launch
from monolane.cuda._peers import connect, join

SOURCE = Path(__file__).with_name("ping.cu")
PARAMS = Struct(
    "PingParams",
    (
        Field("mine", "Word*", "[1] polled here"),
        Field("theirs", "Word*", "[1] the peer's: stored there"),
        Field("elapsed", "u64*", "[1] ns of all rounds"),
        Field("late", "u32*", "[1] the round whose word did not come"),
        Field("patience_ns", "u64"),
        Field("first", "u32", "1: of a round, this one begins it"),
        Field("warm_up", "u32", "rounds that are not counted"),
        Field("rounds", "u32"),
    ),
)
_HEADER = "\n".join(["#pragma once", '#include "primitives.cuh"', "", PARAMS.declare(CUDA)])
_PATIENCE_NS = 2_000_000_000
_BYTES = 256  # the word, the time, the round: a cache line apart


def topology(stage: Stage, job: str) -> None:
    """What the GPUs are and which reach which; and the weights that later parts load."""
    stage.emit(device_line(stage.scale.emulated))
    make_block(stage.scale.config, stage.work)
    make_block(dense_config(stage.scale.emulated), dense_folder(stage.work))
    stage.attempt("topology", _topology, stage)


def _topology(stage: Stage) -> Record:
    count = min(gpus_here(stage.scale.emulated), COUNTS[-1])
    devices = [open_device(stage.scale.emulated, stage.work, number=i) for i in range(count)]
    try:
        names = [f"{x.info.name}, {x.info.sms} SMs" for x in devices]
        missing = [
            f"{i} to {j}"
            for i, one in enumerate(devices)
            for j, other in enumerate(devices)
            if i != j and not one.reach(other)
        ]
    finally:
        for device in devices:
            device.close()
    return {"gpus": names, "unreachable": missing, "matrix": _matrix(stage.scale.emulated)}


def _matrix(emulated: bool) -> list[str]:
    """Lines of nvidia-smi's own table: NV18 is eighteen NVLinks, SYS the processors' bus."""
    tool = shutil.which("nvidia-smi")
    if emulated or tool is None:
        return []
    done = subprocess.run([tool, "topo", "-m"], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def links(stage: Stage, job: str) -> None:
    """Half a round trip between every two GPUs."""
    count = min(gpus_here(stage.scale.emulated), COUNTS[-1])
    if count < 2:
        raise NotMeasuredError("this machine has one GPU")
    for pair in stage.paced(list(combinations(range(count), 2))):
        stage.attempt("link", _link, stage, pair, pair=f"{pair[0]}-{pair[1]}")


def _link(stage: Stage, pair: tuple[int, int]) -> Record:
    """Medians of launches: us that a word takes one way, its store and the look at it included."""
    emulated, scale = stage.scale.emulated, stage.scale
    devices = [open_device(emulated, stage.work, number=i) for i in pair]
    rounds = 20 if emulated else 2000
    try:
        connect(devices)
        samples = [_ping(devices, rounds) for _ in range(scale.rounds)]
    finally:
        for device in devices:
            device.close()
    return speed(samples, unit="us") | {"rounds": rounds}


def _ping(devices: list[Device], rounds: int) -> float:
    homes = [device.allocate(_BYTES) for device in devices]
    boxes = [device.pin(_BYTES) for device in devices]
    for device, home in zip(devices, homes, strict=True):
        device.clear(home, _BYTES)
    join(devices)
    for i, (device, home) in enumerate(zip(devices, homes, strict=True)):
        params = np.zeros((), PARAMS.dtype)
        params["mine"], params["theirs"] = home, homes[1 - i]
        params["elapsed"], params["late"] = home + 64, home + 128
        params["first"], params["patience_ns"] = i == 0, _PATIENCE_NS
        params["warm_up"], params["rounds"] = rounds // 10, rounds
        kernel = device.kernel(str(SOURCE), "ping", {"ping_params.h": _HEADER})
        device.launch(kernel, Launch(1, 32), params.tobytes())
    for device, home, box in zip(devices, homes, boxes, strict=True):
        device.copy_out(box, home, _BYTES)
    for device in devices:
        device.wait(device.mark(), 20.0)
    late = [int(box.array[128:132].view(np.uint32)[0]) for box in boxes]
    expect(not any(late), f"words of round {max(late)} did not come within 2 s")
    return float(boxes[0].array[64:72].view(np.uint64)[0]) / rounds / 2 / 1e3
