"""Runs llama.cpp's own server tests, unmodified, against monolane serve, and counts.

    python tests/serve/llamacpp/run.py LLAMA_CPP/tools/server/tests

LLAMA_CPP is its source, or vendor/llama.cpp in that of llama-cpp-python, which pip downloads
(``pip download --no-binary :all: --no-deps llama-cpp-python==0.3.36``). The tests need the packages
requests, openai, wget and filelock.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

FOLDER = Path(__file__).parent
# Files that test what this server has, too. The others are about a router of several models,
# rerankers, LoRA, pictures, saved slots, built-in tools, sleeping, context that shifts.
FILES = (
    "basic", "chat_completion", "compat_oai_responses", "completion", "ctx_shift", "ignore_eos",
    "infill", "security", "template", "tokenize",
)  # fmt: skip


def main(tests: Path, *more: str) -> int:
    python_path = [str(FOLDER), str(tests), str(FOLDER.parents[2] / "src")]
    scratch = Path(tempfile.mkdtemp(prefix="llamacpp-tests-"))
    outcomes, starter = scratch / "outcomes.json", scratch / "starter"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(python_path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LLAMA_SERVER_BIN_PATH": str(FOLDER / "llama-server"),
        "MONOLANE_OUTCOMES": str(outcomes),
        "MONOLANE_STARTER": str(starter),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    chosen = [f"unit/test_{name}.py" for name in FILES]
    command = [sys.executable, "-m", "pytest", "-p", "plugin", "-p", "no:cacheprovider", "-q"]
    command += ["--rootdir", str(tests), "-o", "addopts=", "--tb=short", *chosen, *more]
    start = [sys.executable, str(FOLDER / "starter.py"), str(starter)]
    with subprocess.Popen(start, env=environment) as process:
        while not starter.exists():
            assert process.poll() is None, "the starter has ended"
            time.sleep(0.1)
        code = subprocess.run(command, cwd=tests, env=environment, check=False).returncode
        process.terminate()
    count(json.loads(outcomes.read_text()))
    return code


def count(outcomes: dict[str, str]) -> None:
    """Print a row of the table for each file."""
    rows: dict[str, Counter[str]] = {}
    for name, outcome in outcomes.items():
        rows.setdefault(name.partition("::")[0], Counter())[outcome] += 1
    rows["all"] = sum(rows.values(), Counter())
    sys.stdout.write("| file | tests | pass | fail | left out |\n|---|---|---|---|---|\n")
    for name, row in rows.items():
        ran = (row["passed"], row["failed"] + row["skipped"], row["left out"])
        sys.stdout.write(f"| {name} | {row.total()} | {' | '.join(map(str, ran))} |\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), *sys.argv[2:]))
