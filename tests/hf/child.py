"""Programs of users, run in a process where monolane does not exist, on the tests' Transformers.

The tests may run on another Transformers than the environment's (scripts/check has the oldest in
a folder before it): a program gets the one that is imported here, and says if it did not.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import transformers

# An editable install hooks the import system itself: so a finder before it refuses the package.
PREAMBLE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "monolane":
            raise ModuleNotFoundError(f"{name} must not be imported here", name=name)

sys.meta_path.insert(0, Refuse())
try:
    import monolane
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("monolane can be imported: this test proves nothing")

import transformers
import torch

if transformers.__version__ != sys.argv.pop(1):
    raise SystemExit(f"another Transformers is imported, {transformers.__version__}")
torch.set_num_threads(1)
"""


def run_child(
    code: str, arguments: list[Any], folder: Path, preamble: str = PREAMBLE
) -> subprocess.CompletedProcess[str]:
    """Run a program in ``folder``, which is its home too; nothing is fetched."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "HF_HOME": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(Path(transformers.__file__).parents[1]),
    }
    words = [transformers.__version__, *map(str, arguments)]
    return subprocess.run(
        # Neither the working directory nor the user's own packages are on the path.
        [sys.executable, "-P", "-s", "-c", preamble + code, *words],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
