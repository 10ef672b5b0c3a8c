"""What the pages show is run: every block without a marker, whole, in a folder of its own.

Blocks of a page in `IN_ORDER` build on each other and share a folder; others have one each. What
differs from what a reader types is in the tables below. Weights are the demo's and smollm2's, as a
reader's own; a port that a page names is one that the system chooses, and its address is put where
the page has the address. Servers are ended with their test.
"""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from monolane.model import parse_config, tensor_specs, write_checkpoint
from monolane.sources import find_model

from ..peft_folders import LANES, write_adapter
from .shown import ROOT, Block, blocks, pages

pytestmark = pytest.mark.slow

IN_ORDER = {
    "README.md",
    "docs/models.md",
    "docs/security.md",
    "docs/start.md",
    "docs/tutorials/agent.md",
    "docs/tutorials/own-model.md",
    "docs/tutorials/train.md",
    "docs/tutorials/tune.md",
}

# Page ("" for all): what it says, and what is run instead.
SUBSTITUTES = {
    "": {
        "scripts/bootstrap && ": "",  # tests/test_wheel.py installs
        ".venv/bin/": "",  # the environment of the tests, which is first in PATH
        "python bench/": f"python {ROOT}/bench/",
    },
    "docs/tutorials/agent.md": {"name/model:Q4_K_M --context 32768": "smollm2"},
}

# Page: what its reader has. A folder is the demo, a .gguf file smollm2; FILE.gguf is a
# random Llama of four heads, as four conversions of smollm2 take 16 s.
GIVEN = {
    "docs/adapters.md": ("MODEL", "sql-adapter", "mail-adapter"),
    "docs/benchmarks.md": ("MODEL",),
    "docs/data.md": ("recipe.toml",),
    "docs/gguf.md": ("SmolLM2-135M-Instruct.Q4_1.gguf", "model.gguf", "FILE.gguf"),
    "docs/quantization.md": ("MODEL",),
    "docs/ranks.md": ("MODEL",),
    "docs/retrofit.md": ("LLAMA_FOLDER",),
    "docs/security.md": ("chain.pem",),
    "docs/serving.md": ("MODEL",),
    "docs/tutorials/own-model.md": ("model.Q4_K_M.gguf", "folder"),
    "docs/tutorials/train.md": ("recipe.toml",),
}
# Pages that convert models without torch: for who runs them it is not there.
WITHOUT_TORCH = {"docs/gguf.md", "docs/retrofit.md", "docs/tutorials/tune.md"}
HIDDEN = 'import sys; sys.modules["torch"] = sys.modules["transformers"] = None'

# Packages that a page's commands need beyond the base install, and the extras that bring them.
NEEDED = {
    "docs/data.md": {"datatrove": "data"},
    "docs/start.md": {"torch": "train"},
    "docs/training.md": {"torch": "train"},
    "docs/tutorials/train.md": {"torch": "train", "matplotlib": "plot"},
}

SAID = "What is the capital of Japan?\n"  # to a chat
ANSWERS = {"README.md": "The capital of Japan is Tokyo.", "docs/start.md": "is Tokyo."}

# A server is started in the background, at a port of the system's and without measuring the memory,
# and waited for.
PRELUDE = """
monolane() {
  if [[ $1 != serve ]]; then command monolane "$@"; return; fi
  command monolane "$@" --port 0 --no-bandwidth >>"$SERVED/log" 2>&1 & echo $! >>"$SERVED/processes"
  until (($(grep -c 'monolane is ready at' "$SERVED/log") == $(wc -l <"$SERVED/processes"))); do
    kill -0 $! || { cat "$SERVED/log" >&2; return 1; }
    sleep 0.1
  done
}
"""


def groups() -> Iterator[tuple[str, list[Block]]]:
    """Yield what runs in one folder: a name, and its blocks in order."""
    for page in pages():
        found = [block for block in blocks(page) if block.runs]
        if found and found[0].page in IN_ORDER:
            yield found[0].page, found
        else:
            yield from ((block.place, [block]) for block in found)


GROUPS = list(groups())


class Reader:
    """Who does what a page says: a folder, an environment, and the servers that were started."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self._beside = folder / "room", folder / "beside"
        self.folder.mkdir()
        self._beside.mkdir()
        self.environment = {
            **os.environ,
            "HOME": str(self._beside),
            "MONOLANE_CACHE": str(cache),
            "MONOLANE_CONFIG": str(self._beside),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SERVED": str(self._beside),
        }

    def run(self, block: Block) -> str:
        """Run a block and return what it printed."""
        text = self.as_run(block)
        if block.page in WITHOUT_TORCH:
            (self._beside / "sitecustomize.py").write_text(HIDDEN)
            self.environment["PYTHONPATH"] = str(self._beside)
        command = ["bash", "-euo", "pipefail", "-c", PRELUDE + text]
        if not block.is_shell:
            (self._beside / "block.py").write_text(text)  # processes that it starts read it again
            command = [sys.executable, "-W", "error", str(self._beside / "block.py")]
        with (self._beside / "said").open("w+") as said:  # a server holds no pipe open
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self.environment,
                input=SAID,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                check=False,
            )
            said.seek(0)
            words = said.read()
        assert done.returncode == 0, f"{block.place}: expected 0, got {done.returncode}: {words}"
        assert "Traceback" not in words, f"{block.place}: {words}"
        return done.stdout

    def as_run(self, block: Block) -> str:
        """Return what is run of a block, with the address of the server if there is one."""
        text = block.script()
        for page in ("", block.page):
            for shown, run in SUBSTITUTES.get(page, {}).items():
                assert not page or shown in text or block.page in IN_ORDER, shown
                text = text.replace(shown, run)
        if (url := self._url()) is not None:
            text = text.replace("http://127.0.0.1:8000", url)
        return text

    def _url(self) -> str | None:
        log = self._beside / "log"
        found = re.findall(r"ready at (\S+)$", log.read_text(), re.M) if log.exists() else []
        return found[-1] if found else None

    def close(self) -> None:
        """End the servers, wait until they are gone, and see that none had a traceback."""
        processes = self._beside / "processes"
        for line in processes.read_text().split() if processes.exists() else ():
            try:
                handle = os.pidfd_open(int(line))
            except ProcessLookupError:
                continue
            signal.pidfd_send_signal(handle, signal.SIGTERM)
            select.select([handle], [], [])
            os.close(handle)
        log = self._beside / "log"
        words = log.read_text() if log.exists() else ""
        assert "Traceback" not in words, words


@pytest.fixture(scope="module")
def cache() -> Path:
    """The folder where fetched models are, before a test has a home of its own."""
    from monolane import _env

    return _env.CACHE.get()


@pytest.fixture
def reader(tmp_path: Path, cache: Path) -> Iterator[Reader]:
    made = Reader(tmp_path, cache)
    yield made
    made.close()


RECIPE = """
held_out = 0.1
[[sources]]
name = "library"
kind = "code"
path = "{root}/src/monolane/cli"
[[sources]]
name = "manuals"
kind = "text"
path = "{root}/docs"
[tokenizer]
vocabulary = 512
[stages.pretrain]
library = 0.5
manuals = 0.5
"""


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 2048,
    "max_position_embeddings": 256,
    "torch_dtype": "float32",
}


def write_llama(folder: Path) -> None:
    """Write a random Llama of eight heads, without a tokenizer."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    rng = np.random.default_rng(0)
    shapes = [(spec.name, spec.shape) for spec in tensor_specs(parse_config(LLAMA))]
    tensors = ((name, rng.normal(size=shape).astype(np.float32)) for name, shape in shapes)
    write_checkpoint(folder, tensors)


def give(name: str, folder: Path, smollm2: Path | None, small_gguf: Path) -> None:
    """Put what a page's reader has into a folder."""
    path = folder / name
    if name == "FILE.gguf":
        path.symlink_to(small_gguf)
    elif name.endswith(".gguf"):
        assert smollm2 is not None
        path.symlink_to(smollm2)
    elif name == "recipe.toml":
        path.write_text(RECIPE.format(root=ROOT))
    elif name.endswith("-adapter"):
        write_adapter(path, find_model("demo"), seed=len(name), targets=LANES)
    elif name == "LLAMA_FOLDER":
        write_llama(path)
    elif name == "chain.pem":
        kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
        files = ("-keyout", str(folder / "key.pem"), "-out", str(path))
        command = ["openssl", "req", "-x509", *kind, "-subj", "/CN=box.example", *files]
        subprocess.run(command, check=True, capture_output=True)
    else:
        shutil.copytree(find_model("demo"), path)


@pytest.mark.parametrize("group", [found for _, found in GROUPS], ids=[name for name, _ in GROUPS])
def test_what_a_page_shows_runs(
    group: list[Block], reader: Reader, request: pytest.FixtureRequest, llama_gguf: Path
) -> None:
    page = group[0].page
    for package, extra in NEEDED.get(page, {}).items():
        if find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install 'monolane[{extra}]'")
    given = [x for x in GIVEN.get(page, ()) if any(x in block.text for block in group)]
    run = " ".join(reader.as_run(block) for block in group)
    # Fetched, or skipped, where it is used alone.
    fetched = "smollm2" in run or any(x.endswith(".gguf") and x != "FILE.gguf" for x in given)
    smollm2 = request.getfixturevalue("smollm2") if fetched else None
    for name in given:
        give(name, reader.folder, smollm2, llama_gguf)
    said = ""
    for block in group:
        printed = reader.run(block)
        if block.printed():
            assert printed == block.printed(), block.place
        said += printed
    assert ANSWERS.get(page, "") in said
