"""The protocols of the monokernel as litmus tests (protocols.txt)."""

from pathlib import Path

from bench.gpu.litmus.program import read_litmus

PROTOCOLS = tuple(read_litmus(Path(__file__).with_suffix(".txt").read_text()))
