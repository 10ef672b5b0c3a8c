"""The package's public names, with and without the packages that its classes need."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import monolane.hf

BASE_INSTALL = """
import sys
sys.path.insert(0, sys.argv[1])
sys.modules["torch"] = sys.modules["transformers"] = None  # as if they were not installed
import monolane.hf
from monolane.errors import MissingExtraError
for name in ("LaneformerConfig", "LaneformerForCausalLM", "LaneformerModel"):
    try:
        getattr(monolane.hf, name)
    except MissingExtraError as error:
        assert str(error).startswith(f"monolane.hf.{name} needs packages"), error
        assert "pip install 'monolane[hf]'" in str(error), error
    else:
        raise SystemExit(f"{name} came without torch")
try:
    monolane.hf.Nonsense
except AttributeError as error:
    assert "Nonsense" in str(error)
monolane.hf.export_hub_layout(sys.argv[2], sys.argv[3])
"""


@pytest.mark.skipif(
    not (find_spec("torch") and find_spec("transformers")),
    reason="needs torch and transformers: pip install 'monolane[hf]'",
)
def test_all_is_the_namespace() -> None:
    modules = {"configuration_laneformer", "modeling_laneformer"}
    plumbing = {"TYPE_CHECKING", "MissingExtraError", "find_spec"}
    public = {name for name in vars(monolane.hf) if not name.startswith("_")}
    assert sorted(public - modules - plumbing) == monolane.hf.__all__


def test_a_base_install_exports_and_names_the_extra(golden_folder: Path, tmp_path: Path) -> None:
    package = Path(monolane.hf.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", BASE_INSTALL, package, golden_folder, tmp_path / "out"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "model.safetensors").is_file()
