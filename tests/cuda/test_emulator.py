"""The emulator: its numbers are the device's, right protocols pass under every schedule, and each
bug that it is there to find is found."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import emulation
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from emulation import MOODS, Emulated, Grid, HostStore
from protocols import BUGS, SHAPES, Protocol

HERE = Path(__file__).resolve().parent
KERNELS = HERE / "kernels"
SEEDS = 30  # of each protocol and of each bug; a launch takes one to three milliseconds

Words = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]


def build(folder: Path, source: str, **defines: object) -> Emulated:
    return emulation.build(KERNELS / source, folder, defines=defines, optimise="-O1")


@pytest.fixture(scope="module")
def primitives(kernel_folder: Path) -> Emulated:
    return build(kernel_folder, "every_primitive.cu")


@pytest.fixture(scope="module")
def protocols(kernel_folder: Path) -> Emulated:
    return build(kernel_folder, "protocols.cu")


def words(*values: int) -> bytes:
    return b"".join(v.to_bytes(8, "little") for v in values)


def aligned(shape: int, dtype: npt.DTypeLike = np.uint32) -> npt.NDArray[np.uint32]:
    """Zeros at an alignment of 64 bytes, as devices allocate."""
    raw = np.zeros(shape + 16, dtype)
    start = -raw.ctypes.data % 64 // 4
    return raw[start : start + shape]


# ---- numbers -------------------------------------------------------------------------------------
def bits(values: npt.ArrayLike) -> Words:
    return np.asarray(values, np.float32).view(np.uint32)


def same(got: Floats, expected: Floats) -> bool:
    """Bit for bit, but for the NaN's own bits."""
    nan = np.isnan(expected)
    return bool(np.isnan(got[nan]).all() and (bits(got[~nan]) == bits(expected[~nan])).all())


def interesting_bits(count: int) -> Words:
    """Floats of every magnitude, those halfway between two halves, and what is special."""
    rng = np.random.default_rng(0)
    special = bits([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 65504, 65519.996, 65520, 6e-8, 2.9e-8])
    halfway = (rng.integers(0x3300, 0x47FF, 4096, np.uint32) << 16) | np.uint32(0x1000)
    anything = rng.integers(0, 1 << 32, count, np.uint32)
    return np.concatenate([special, halfway, halfway | np.uint32(0x8000), anything])[:count]


def run_numbers(device: Emulated, a: Words, b: Words) -> Words:
    out = np.zeros((20, a.size), np.uint32)
    params = words(a.ctypes.data, b.ctypes.data, out.ctypes.data, a.size)
    assert device.launch("numbers", grid=2, block=64, params=params) is None
    return out


def half(values: Floats | npt.NDArray[np.float16], dtype: npt.DTypeLike) -> Words:
    """16-bit patterns; a NaN is 0x7fff, as PTX has it."""
    with np.errstate(over="ignore"):
        got = values.astype(dtype).view(np.uint16).astype(np.uint32)
    return np.where(np.isnan(values), np.uint32(0x7FFF), got)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_numbers_are_the_devices(primitives: Emulated) -> None:
    a = interesting_bits(20_000)
    b = np.roll(a, 7)
    out = run_numbers(primitives, a, b)
    floats = out.view(np.float32)
    x, y = a.view(np.float32), b.view(np.float32)
    halves = a.view(np.uint16).reshape(-1, 2)
    assert (out[0] == (half(x, ml_dtypes.bfloat16) | half(y, ml_dtypes.bfloat16) << 16)).all()
    assert (out[1] == (half(x, np.float16) | half(y, np.float16) << 16)).all()
    for column in (0, 1):
        pattern = halves[:, column].copy()
        assert same(floats[2 + column], pattern.view(ml_dtypes.bfloat16).astype(np.float32))
        assert same(floats[4 + column], pattern.view(np.float16).astype(np.float32))
        assert same(floats[6 + column], np.roll(pattern, 7).view(np.float16).astype(np.float32))
    f16 = halves.view(np.float16)
    differences = f16 - np.roll(f16, 7, axis=0)  # NumPy rounds float16 sums once
    expected = half(differences[:, 0], np.float16) | half(differences[:, 1], np.float16) << 16
    assert (out[8] == expected).all()
    assert same(floats[11], x / y)
    assert same(floats[12], np.sqrt(x))
    assert (out[17] == (a.astype(np.uint64) * b >> 32)).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_are_within_their_bounds(primitives: Emulated) -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(1e-6, 20, 4096).astype(np.float32)
    y = rng.normal(size=4096).astype(np.float32)
    floats = run_numbers(primitives, bits(x), bits(y)).view(np.float32)
    wide = x.astype(np.float64)
    for row, expected, ulp in (
        (10, np.exp2(wide), 1), (13, wide * y + 1, 0.5), (14, np.log(wide), 0.5),
        (15, np.log(wide), 1), (16, np.log1p(wide), 2),
    ):  # fmt: skip
        error = np.abs(floats[row] - expected) / np.spacing(np.abs(expected).astype(np.float32))
        assert error.max() <= ulp * 1.001, row


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_powers_of_two(primitives: Emulated) -> None:
    """Within one ulp wherever the result is a normal number; beyond, what it becomes."""
    x = np.random.default_rng(2).uniform(-126, 128, 20_000).astype(np.float32)
    x = np.concatenate([x, np.arange(-126, 128), np.arange(-125.5, 128)]).astype(np.float32)
    found = run_numbers(primitives, bits(x), bits(x)).view(np.float32)[10]
    expected = np.exp2(x.astype(np.float64))
    error = np.abs(found - expected) / np.spacing(expected.astype(np.float32))
    assert error.max() <= 1
    assert (found[x == np.round(x)] == expected[x == np.round(x)]).all()
    beyond = np.array([-200, -126.5, -np.inf, 128, 500, np.inf, np.nan], np.float32)
    found = run_numbers(primitives, bits(beyond), bits(beyond)).view(np.float32)[10]
    np.testing.assert_array_equal(found, [0, 0, 0, np.inf, np.inf, np.inf, np.nan])


def test_every_e4m3_value(primitives: Emulated) -> None:
    pattern = np.arange(256, dtype=np.uint32)
    got = run_numbers(primitives, pattern | (255 - pattern) << 8, pattern)[9]
    expected = pattern.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    low = (got & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float32)
    high = (got >> 16).astype(np.uint16).view(np.float16).astype(np.float32)
    assert same(low, expected)
    assert same(high, expected[::-1])


def test_numbers_become_the_nearest_e4m3(primitives: Emulated) -> None:
    """All steps, what lies halfway between two, and what is below the smallest."""
    every = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    middle = (every[1:] + every[:-1]) / 2
    x = np.concatenate([every, middle, np.nextafter(middle, 0), np.nextafter(middle, 500)])
    x = np.concatenate(
        [x, np.geomspace(1e-9, 463.9, 5000, dtype=np.float32), [449.0, 464.0, 1e-45]]
    )
    x = np.concatenate([x, -x]).astype(np.float32)
    got = run_numbers(primitives, bits(x), bits(x))[19]
    expected = x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(got, expected)


def test_a_warps_primitives(primitives: Emulated) -> None:
    rng = np.random.default_rng(2)
    lane = np.arange(32, dtype=np.uint32)
    a, b = rng.normal(size=(16, 16)), rng.normal(size=(16, 8))  # [row][k], [k][column]
    fragments = np.zeros((6, 32), np.uint32)
    for word in range(4):
        rows, k = lane // 4 + word % 2 * 8, lane % 4 * 2 + word // 2 * 8
        fragments[word] = _pack(a[rows, k], a[rows, k + 1])
    for word in range(2):
        k = lane % 4 * 2 + word * 8
        fragments[4 + word] = _pack(b[k, lane // 4], b[k + 1, lane // 4])
    out = np.zeros((19, 32), np.uint32)
    params = words(fragments.ctypes.data, out.ctypes.data)
    assert primitives.launch("warp", grid=1, block=32, params=params) is None
    floats = out.view(np.float32)
    assert (out[0] == (lane ^ 5) * 3).all()
    assert (floats[1] == (lane ^ 9) ** 2).all()
    assert (out[2] == (lane + 7) % 32 * 3).all()
    assert (floats[3] == (31 - lane) ** 2).all()
    assert (out[4] == 496).all()
    assert (floats[5] == (lane**2).sum()).all()
    assert (out[6] == 1).all()
    assert (out[7] == 1).all()
    assert (out[8] == lane + 32 + 1).all()
    exact = a.astype(ml_dtypes.bfloat16).astype(np.float64) @ b.astype(ml_dtypes.bfloat16)
    for i in range(4):
        expected = exact[lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2] + i + 1
        assert np.allclose(floats[9 + i], expected, rtol=0, atol=16 * 2**-21)  # sums below 8
    assert (out[17] == 1).all()
    assert (out[18] == 1).all()


def _pack(low: npt.NDArray[np.float64], high: npt.NDArray[np.float64]) -> Words:
    bf16 = ml_dtypes.bfloat16
    upper = high.astype(bf16).view(np.uint16).astype(np.uint32) << 16
    return upper | low.astype(bf16).view(np.uint16)


@pytest.mark.parametrize("seed", range(12))
def test_memory_as_one_thread_sees_it(primitives: Emulated, seed: int) -> None:
    vectors, stamped, values, out = aligned(8), aligned(8), aligned(16), aligned(32)
    vectors[:4] = [1, 2, 3, 4]
    params = words(*(v.ctypes.data for v in (vectors, stamped, values, out)))
    assert (
        primitives.launch("memory", grid=1, block=32, shared=64, params=params, seed=seed) is None
    )
    expected = [1, 2, 3, 4, 5, 6, 7, 8, 7, 8, 46, 16, 22, 99, 99, 40, 1 << 8, 42, (1 << 10) + 3]
    assert out[:19].tolist() == expected
    assert stamped[:4].tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize("sm", [80, 90])
def test_all_ways_of_copying(kernel_folder: Path, sm: int) -> None:
    device = build(kernel_folder, "every_primitive.cu", MONOLANE_EMULATED_SM=sm)
    source = aligned(7 * 640)
    source[:] = np.random.default_rng(3).integers(0, 1 << 32, source.size)
    sums, fault = aligned(2), aligned(4)
    params = words(*(v.ctypes.data for v in (source, sums, fault)), 1 << 30)
    params += np.array([7, 2560, 3, 0], np.uint32).tobytes()
    for seed in range(10):
        sums[:] = 0
        assert device.launch(
            "copies", grid=1, block=96, shared=3 * (2560 + 16), params=params, seed=seed
        ) is None  # fmt: skip
        total = int(source.sum(dtype=np.uint64)) % (1 << 32)
        assert sums.tolist() == [total, total]


@pytest.mark.parametrize("seed", range(5))
def test_clusters(primitives: Emulated, seed: int) -> None:
    out = aligned(8)
    params = words(out.ctypes.data)
    error = primitives.launch(
        "clusters", grid=4, block=32, shared=64, cluster=4, params=params, seed=seed
    )
    assert error is None
    assert out[:4].tolist() == [0, 10, 20, 30]


# ---- protocols -----------------------------------------------------------------------------------
@pytest.mark.parametrize("sm", [80, 90])
@pytest.mark.parametrize("kernel", SHAPES)
def test_a_right_protocol_passes(kernel_folder: Path, kernel: str, sm: int) -> None:
    device = build(kernel_folder, "protocols.cu", MONOLANE_EMULATED_SM=sm)
    for seed in range(SEEDS):
        assert Protocol(kernel, **SHAPES[kernel]).run(device, seed) is None


@pytest.mark.parametrize("mood", MOODS)
def test_it_passes_in_every_mood(protocols: Emulated, mood: str) -> None:
    for kernel, shape in SHAPES.items():
        assert Protocol(kernel, **shape).run(protocols, 5, mood) is None


RARE = {"missing release": 0.5, "left in flight": 0.5, "out of step": 0.1}  # of the schedules


@pytest.mark.parametrize("bug", [b for b in BUGS if b != "none"])
def test_an_injected_bug_is_found(protocols: Emulated, bug: str) -> None:
    kernel = BUGS[bug]
    slots = 4 if bug == "out of step" else 3  # which three reading warps do not divide
    shape = SHAPES[kernel] | {"slots": slots}
    said = [Protocol(kernel, **shape, bug=bug).run(protocols, seed) for seed in range(SEEDS)]
    found = sum(s is not None for s in said)
    assert found >= RARE.get(bug, 0.9) * SEEDS, f"{found} of {SEEDS}"


def test_a_starved_wait_comes_to_its_watchdog_at_once(protocols: Emulated) -> None:
    """Emulated time passes by itself once nothing else can happen."""
    protocol = Protocol("exchange", watchdog=1 << 40, bug="wrong stamp")
    said = protocol.run(protocols, 0)
    assert said is not None
    assert protocol.arrays["fault"][0] == 3
    assert protocols.effort.ticks > 1 << 40
    assert protocols.effort.turns < 200_000


# ---- misuse --------------------------------------------------------------------------------------
def misuse(
    device: Emulated,
    case: int,
    stores: tuple[HostStore, ...] = (),
    protocol: Protocol | None = None,
) -> str | None:
    p = protocol or Protocol("misuse", blocks=1)
    p.rounds, p.slots = case, 64  # here: bytes of shared memory
    return device.launch(
        "misuse", grid=p.blocks, block=96, shared=64, params=p.params, seed=case, stores=stores
    )


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (0, r"deadlock: .* block 0 threads 0-31 at block barrier"),
        (1, r"divergent barrier: of block 0's warp \d some lanes wait at barrier \d"),
        (2, r"divergent (barrier|collective)"),
        (3, r"divergent collective: .* (warp_all|a warp barrier)"),
        (4, r"an mbarrier was used that is not initialised"),
        (5, r"livelock: nothing is left that could change what is polled: block 0 thread"),
        (6, r"block 0 wrote beyond its 64 bytes of shared memory"),
        (7, r"a copy of 32 bytes reaches beyond the block's shared memory"),
        (8, r"a copy of 16 bytes: expected addresses and size in multiples of 16"),
        (9, r"barrier 1 is one of \d+ threads for some and of \d+ for others"),
        (12, r"a thread's stack of \d+ bytes overflowed"),
    ],
)
def test_misuse_is_reported(protocols: Emulated, case: int, words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        raise RuntimeError(misuse(protocols, case))


def test_shared_memory_begins_as_nans(protocols: Emulated) -> None:
    p = Protocol("misuse", blocks=2)
    assert misuse(protocols, 10, protocol=p) is None
    assert p.arrays["results"].tolist() == [0, 2 * 16]


def test_the_host_writes_at_its_moment(protocols: Emulated) -> None:
    p = Protocol("misuse", blocks=1)
    store = HostStore(5000, p.arrays["counter"].ctypes.data, 7)
    assert misuse(protocols, 11, (store,), p) is None
    assert p.arrays["results"].tolist() == [0, 7 * 96]
    assert protocols.effort.ticks >= 5000


def test_nobody_oversleeps_while_the_clock_runs(protocols: Emulated) -> None:
    """A wait for the clock lets it run; the watchdogs of what comes after keep their patience."""
    for mood in MOODS:
        p = Protocol("misuse", blocks=4, watchdog=1 << 34)
        p.rounds, p.slots = 13, 64
        error = protocols.launch(
            "misuse", grid=4, block=96, shared=64, params=p.params, seed=1, mood=mood
        )
        assert error is None
        assert p.arrays["fault"][0] == 0, mood
        assert p.arrays["results"].tolist() == [0, 4 * 96]
        assert protocols.effort.ticks >= 1 << 32
        assert protocols.effort.turns < 10_000


# ---- launches ------------------------------------------------------------------------------------
def test_kernels_that_run_together(protocols: Emulated) -> None:
    """Two grids that count on the same counter need each other."""
    one = Protocol("count", blocks=3)
    alone = protocols.launch("count", grid=3, block=96, shared=256, params=one.params)
    assert alone is None
    stream = Protocol("stream", **SHAPES["stream"])
    count = Protocol("count")
    grids = [
        Grid("stream", stream.blocks, stream.threads, stream.shared, stream.params),
        Grid("count", count.blocks, count.threads, count.shared, count.params),
    ]
    assert protocols.launch_all(grids, seed=3) is None
    for p in (stream, count):
        assert p.arrays["results"].tolist() == [0, p.expected]
    assert "expected at most 5" in str(protocols.launch_all(grids, sms=5))


def test_more_blocks_than_sms_come_in_waves(protocols: Emulated) -> None:
    p = Protocol("stream", **SHAPES["stream"])
    error = protocols.launch("stream", grid=6, block=128, shared=p.shared, params=p.params, sms=4)
    assert error is None
    assert p.arrays["results"].tolist() == [0, p.expected]


REPLAY = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from pathlib import Path
from emulation import Emulated
from protocols import BUGS, SHAPES, Protocol
elsewhere = np.zeros(12345)
device = Emulated(Path(sys.argv[2]))
print(Protocol("count", bug="missing release").run(device, 11), device.effort)
"""


def test_a_seed_replays_in_another_process(protocols: Emulated) -> None:
    """Schedule and verdict, at whatever addresses the arrays lie."""
    said = Protocol("count", bug="missing release").run(protocols, 11)
    here = f"{said} {protocols.effort}"
    assert Protocol("count", bug="missing release").run(protocols, 12) != said
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", REPLAY, str(HERE), str(protocols.library)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() == here


def test_a_library_is_built_once(tmp_path: Path) -> None:
    source, header = tmp_path / "tiny.cu", tmp_path / "size.h"
    source.write_text('#include "size.h"\n')
    header.write_text("")

    def built(**options: Any) -> Path:
        return emulation.compile_library(source, tmp_path / "out", includes=[tmp_path], **options)

    first = built()
    assert built() == first
    assert built(defines={"A": 1}) != first
    header.write_text("// changed\n")
    assert built() != first
    source.write_text("int f() { return undeclared; }\n")
    with pytest.raises(AssertionError, match="undeclared"):
        built()


def test_the_switch_of_other_processors(kernel_folder: Path) -> None:
    defines = {"MONOLANE_UCONTEXT": 1}
    device = emulation.build(
        KERNELS / "protocols.cu", kernel_folder, defines=defines, optimise="-O0"
    )
    for kernel, shape in SHAPES.items():
        assert Protocol(kernel, **shape).run(device, 4) is None


SANITIZED = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from emulation import Emulated
from protocols import BUGS, SHAPES, Protocol
device = Emulated(Path(sys.argv[2]))
for kernel, threads in (("exchange", 96), ("count", 96), ("stream", 128)):
    p = Protocol(kernel, threads=threads)
    if sys.argv[3] == "short":
        p.arrays["values"] = p.arrays["values"][:-4].copy()
    print(p.run(device, 1))
"""


@pytest.mark.slow  # 4 s: the sanitizers' build
def test_under_the_sanitizers(kernel_folder: Path) -> None:
    """Nothing is found in right kernels; a store beyond an array is."""
    library = emulation.compile_library(
        KERNELS / "protocols.cu", kernel_folder, sanitize=True, optimise="-O1"
    )

    def run(how: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", SANITIZED, str(HERE), str(library), how],
            capture_output=True, text=True, check=False,
            env=os.environ | emulation.sanitizer_environment(),
        )  # fmt: skip

    clean = run("whole")
    assert (clean.returncode, clean.stdout.split()) == (0, ["None"] * 3), clean.stderr
    short = run("short")
    assert short.returncode != 0
    assert "heap-buffer-overflow" in short.stderr
    assert "store_late" in short.stderr or "write_now" in short.stderr


def test_what_several_want_at_once_is_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def compile_slowly(_: object, __: object, ___: object, to: Path, *____: Path) -> None:
        made.append(to.suffix)
        time.sleep(0.05)
        to.touch()

    monkeypatch.setattr(emulation, "_run_compiler", compile_slowly)
    with ThreadPoolExecutor(4) as pool:
        wanted = [
            pool.submit(emulation.compile_library, KERNELS / "protocols.cu", tmp_path)
            for _ in range(4)
        ]
        assert len({each.result() for each in wanted}) == 1
    assert sorted(made) == [".gch", ".o", ".so"]
