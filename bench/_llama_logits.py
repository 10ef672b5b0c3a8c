"""llama.cpp's logits of tokens, by a small program that is compiled against a built llama.cpp."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from _llama import PeerError

SOURCE = Path(__file__).with_name("llama_logits.cpp")


def compile_logits(llama_cpp: Path, folder: Path) -> Path:
    """Compile the program into a folder; PeerError if llama.cpp's folder is not a built one."""
    libraries, program = llama_cpp / "build/bin", folder / "llama_logits"
    command = ["c++", "-std=c++17", "-O1", str(SOURCE), "-o", str(program)]
    command += [f"-I{llama_cpp / part}" for part in ("include", "ggml/include")]
    command += [f"-L{libraries}", "-lllama", f"-Wl,-rpath,{libraries.resolve()}"]
    run_tool(command)
    return program


def run_tool(command: Sequence[str]) -> str:
    """Run a program and return what it prints; PeerError if it cannot, with its last words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise PeerError(f"{command[0]}: cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PeerError(f"{' '.join(command)}: exit code {done.returncode}: {last}")
    return done.stdout


class LlamaLogits:
    """One model in llama.cpp, which reads texts of up to ``context`` tokens."""

    def __init__(self, program: Path, model: Path, context: int, vocab: int) -> None:
        self._command = [str(program), str(model), str(context)]
        self._vocab = vocab
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the logits after each token: float32 [len(token_ids), vocab]."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(np.array([len(token_ids), *token_ids], np.int32).tobytes())
        self._process.stdin.flush()
        size = 4 * len(token_ids) * self._vocab
        found = self._process.stdout.read(size)
        if len(found) != size:
            raise PeerError(f"{' '.join(self._command)}: expected {size} bytes, got {len(found)}")
        return np.frombuffer(found, np.float32).reshape(len(token_ids), self._vocab)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait()
