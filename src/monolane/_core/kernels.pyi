"""
The CPU kernels one by one, for tests and benchmarks. `isa` names an instruction set of supported() or emulated(); formats are the short names of monolane.model's table; rows of weights are uint8 [R, bytes], panels of 16 rows uint8 [R / 16, bytes], scales float16 bits [R, K / 32].
"""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


def supported() -> list[str]:
    """Names of the instruction sets of this machine and build."""

def emulated() -> list[str]:
    """
    Names of the sets whose tiles are emulated: slow, for tests, never chosen by default.
    """

def emulated_dots(isa: str) -> int:
    """
    How many products of tiles this thread had emulated by one of emulated().
    """

def amx() -> tuple:
    """
    Whether the processor has AMX tiles, and why they are not used: empty where they are.
    """

def wide_bf16(isa: str) -> bool:
    """
    Whether passes of more than 64 tokens pay, where activations are bfloat16.
    """

def best() -> str:
    """The set that the engine uses by default."""

def multiply(isa: str, format: str, values: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], scales: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, activation: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], row_begin: int, row_end: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]:
    """
    Pack x [T, K] and return its products with the rows, float32 [T, row_end - row_begin].
    """

def quantize(to: str, from_: str, values: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> tuple:
    """
    Codes, uint8 [R, bytes], and scales, uint16 [R, K / 32], of float rows.
    """

def repack(from_: str, values: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], scales: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, cols: int) -> tuple:
    """
    What products read instead of rows of codes: the format, and panels of 16 rows, uint8 [ceil(R / 16), bytes].
    """

def rms_norm(isa: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], scale: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]:
    """x [T, K] over the root of its mean square + eps, times scale [K]."""

def silu_times(isa: str, gate: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], up: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]:
    """gate / (1 + exp(-gate)) * up, each [N]."""

def sigmoid_times(isa: str, gate: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], up: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]:
    """up / (1 + exp(-gate)), each [N]."""

def gelu_tanh_times(isa: str, gate: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], up: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]:
    """GELU of the gate, by its tanh formula, * up, each [N]."""

def clamped_swiglu(isa: str, gate: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], up: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]:
    """
    GPT-OSS's SwiGLU: g * sigmoid(1.702 g) * (u + 1), g at most 7 and u from -7 to 7.
    """

def attend(isa: str, q: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], format: str, keys: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], values: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], scale: float, counts: Sequence[int] = [], cap: float = 0.0) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]:
    """
    Heads q [H, h] over keys and values, uint8 [J, bytes]: for each the unnormalised sum, the peak score and the total weight, [H, h + 2]. `counts`: q is of as many tokens, one after the other, each of which sees so many of the first keys; without, of one that sees all.
    """

def store_kv(isa: str, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], format: str) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]:
    """The bytes of x [N] in a cache format."""

def add_matrix_products(rows: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order='C', device='cpu', writable=False)], columns: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order='C', device='cpu', writable=False)], before: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, half: bool) -> Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]:
    """
    Products of rows [N, K] and columns [N, K] or [1, K], bits of float16 (`half`) or bfloat16, behind sums [N], as a GPU's matrix unit adds them: float32 [N].
    """

def add(isa: str, a: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], b: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]:
    """a + b, each [N]."""

def widen(isa: str, format: str, values: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], scales: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, cols: int, row: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]:
    """One row as float32 [K]."""

def read(isa: str, data: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> float:
    """
    Read data, a multiple of 512 bytes, and return its sum as floats: a bandwidth yardstick.
    """

def multiply_registers(isa: str, rounds: int) -> tuple:
    """
    Multiply and add registers alone, an arithmetic yardstick: how many operations that was, and a sum of their results.
    """
