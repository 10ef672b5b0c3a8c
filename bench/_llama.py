"""llama-bench, llama.cpp's own or ik_llama.cpp's, as a case of ours: all take turns in one run."""

import json
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from monolane.measure import Case


class PeerError(RuntimeError):
    """The peer could not be run, or said something that is not its format."""


@cache
def has_depth(program: Path) -> bool:
    """Whether it decodes behind a context by -d, as llama.cpp's since May 2025.

    ik_llama.cpp's left the tree before: -gp times generation behind a prompt, and not the prompt.
    """
    try:
        told = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise PeerError(f"{program}: cannot be run: {error.strerror}") from error
    return "--n-depth" in told.stdout


@dataclass
class LlamaCase(Case):
    """One line of llama-bench: decode behind a context, or prefill of a prompt."""

    name: str  # of the peer: llama.cpp, or a program that keeps its llama-bench
    program: Path
    model: Path
    dtype: str  # of the GGUF: Q4_K_M, Q8_0, BF16, ...
    threads: int
    prompt: int = 0  # tokens; 0: decode
    context: int = 0
    tokens: int = 0
    samples: list[float] = field(default_factory=list)  # tokens/s
    build: str = ""  # commit of llama.cpp

    def command(self) -> list[str]:
        """Return the command line: one test, repeated once."""
        lengths: dict[str, object] = {"-p": self.prompt, "-n": self.tokens}
        if has_depth(self.program):
            lengths |= {"-d": self.context}
        elif self.context:
            lengths = {"-p": 0, "-n": 0, "-gp": f"{self.context},{self.tokens}"}
        common = {"-m": self.model, "-t": self.threads, "-r": 1, "-ngl": 0, "-o": "json"}
        pairs = (common | lengths).items()
        return [str(self.program), *(str(part) for pair in pairs for part in pair)]

    def warm_up(self) -> None:
        """Do nothing: llama-bench warms itself up each time, and our case has read the file."""

    def measure(self) -> float:
        """Run it once."""
        command = self.command()
        try:
            told = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise PeerError(f"{self.program}: cannot be run: {error.strerror}") from error
        if told.returncode != 0:
            last = (told.stderr.strip().splitlines() or ["no message"])[-1]
            raise PeerError(f"{' '.join(command)}: exit code {told.returncode}: {last}")
        return self._read(told.stdout)

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
                f"{self.program}: expected the JSON of one test with avg_ts, "
                f"{', '.join(wanted)}, got {text[:200]!r}"
            ) from error
        if got != wanted:
            raise PeerError(f"{self.program}: expected a test of {wanted}, got {got}")
        self.build = str(row.get("build_commit", "unknown"))
        return speed
