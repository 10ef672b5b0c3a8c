"""llama-bench as a case of ours: llama.cpp's own, ik_llama.cpp's, or what speaks its words."""

import json
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from monolane.measure import Case, ReadProbe


class PeerError(RuntimeError):
    """The peer could not be run, or said something that is not its format."""


Program = tuple[str, ...]  # a llama-bench, or a Python and the script that takes its place


def program_of(peer: str, path: str) -> Program:
    """Return what runs a peer; ``openvino`` is named with a Python that has openvino-genai."""
    if peer == "openvino":
        return path, str(Path(__file__).with_name("_openvino.py"))
    return (path,)


@cache
def has_depth(program: Program) -> bool:
    """Whether it decodes behind a context by -d, as llama.cpp's since May 2025.

    ik_llama.cpp's left the tree before: -gp times generation behind a prompt, and not the prompt.
    """
    return "--n-depth" in _run([*program, "--help"]).stdout


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise PeerError(f"{command[0]}: cannot be run: {error.strerror}") from error


@dataclass
class LlamaCase(Case):
    """One line of llama-bench: decode behind a context, or prefill of a prompt."""

    name: str  # of the peer
    program: Program
    model: Path
    dtype: str  # of the GGUF: Q4_K_M, Q8_0, BF16, ...
    threads: int
    prompt: int = 0  # tokens; 0: decode
    context: int = 0
    tokens: int = 0
    probe: ReadProbe | None = None  # reads the memory before and after each sample
    samples: list[float] = field(default_factory=list)  # tokens/s
    reads: list[tuple[float, float]] = field(default_factory=list)  # bytes/s of the probe
    build: str = ""  # commit of llama.cpp, or version

    def command(self) -> list[str]:
        """Return the command line: one test, repeated once."""
        lengths: dict[str, object] = {"-p": self.prompt, "-n": self.tokens}
        if has_depth(self.program):
            lengths |= {"-d": self.context}
        elif self.context:
            lengths = {"-p": 0, "-n": 0, "-gp": f"{self.context},{self.tokens}"}
        common = {"-m": self.model, "-t": self.threads, "-r": 1, "-ngl": 0, "-o": "json"}
        pairs = (common | lengths).items()
        return [*self.program, *(str(part) for pair in pairs for part in pair)]

    def warm_up(self) -> None:
        """Do nothing: llama-bench warms itself up each time, and our case has read the file."""

    def measure(self) -> float:
        """Run it once."""
        command = self.command()
        before = self.probe.measure() if self.probe else 0.0
        told = _run(command)
        if self.probe:
            self.reads.append((before, self.probe.measure()))
        if told.returncode != 0:
            last = (told.stderr.strip().splitlines() or ["no message"])[-1]
            raise PeerError(f"{' '.join(command)}: exit code {told.returncode}: {last}")
        return self._read(told.stdout)

    def forget(self) -> None:
        """Take the last sample back."""
        super().forget()
        if self.probe:
            self.reads.pop()

    def _read(self, text: str) -> float:
        wanted = {"n_prompt": self.prompt, "n_gen": self.tokens, "n_depth": self.context}
        if not has_depth(self.program):
            wanted = {"n_prompt": self.prompt or self.context, "n_gen": self.tokens}
        try:
            (row,) = json.loads(text)
            got: dict[str, Any] = {key: row[key] for key in wanted}
            speed = float(row["avg_ts"])
        except (ValueError, KeyError, TypeError) as error:
            raise PeerError(
                f"{self.program[-1]}: expected the JSON of one test with avg_ts, "
                f"{', '.join(wanted)}, got {text[:200]!r}"
            ) from error
        if got != wanted:
            raise PeerError(f"{self.program[-1]}: expected a test of {wanted}, got {got}")
        self.build = str(row.get("build_commit", "unknown"))
        return speed
