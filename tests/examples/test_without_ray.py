"""examples/scale_out where Ray is not installed: it says what to install."""

import os
import subprocess
import sys
from pathlib import Path

APP = Path(__file__).parents[2] / "examples" / "scale_out" / "app.py"


def test_it_names_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'ray'\", name='ray')"
    )
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    result = subprocess.run(
        [sys.executable, str(APP), "--help"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    told = "app.py: expected Ray Serve, which is not installed; pip install 'monolane[scale]'\n"
    assert result.stderr == told
