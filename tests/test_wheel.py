"""The wheel: what is in it, where it runs, that it computes what a source install does, and what a
newcomer gets with it: a small base install that needs neither torch nor network.

It is linked of the objects that the environment was built of, so it has this processor's sets of
instructions alone; ``scripts/wheels`` builds those that are published, and ``scripts/check
--release`` looks at them.
"""

import os
import re
import site
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from monolane import __version__, _core

ROOT = Path(__file__).parents[1]
# Of the demo model, whole and token by token: bytes, so that every bit counts.
LOGITS = """
import hashlib, monolane
with monolane.Engine.load("demo", "cpu", workers=1) as engine:
    ids = engine.tokenizer.encode("class Stack:\\n    def push(self, item):")
    said = engine.logits(ids), *(engine.logits(ids[: i + 1])[-1] for i in range(3))
    print(hashlib.sha256(b"".join(x.tobytes() for x in said)).hexdigest())
"""

MEGABYTES = 200  # of a base install: the README's promise
# Imported before anything else: an attempt to leave the machine fails.
NO_NETWORK = """
import socket

def refuse(*args, **options):
    raise OSError("this test has no network")

socket.socket.connect = refuse
socket.getaddrinfo = refuse
"""

pytestmark = pytest.mark.slow


def run(*command: str | Path, **changes: str) -> str:
    environment = {**os.environ, **changes}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    settings = ("cmake.define.MONOLANE_SETS=runnable", "cmake.define.MONOLANE_WHEEL=ON")
    asked = [f"--config-settings={setting}" for setting in settings]
    pip = (sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps")
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # ninja and cmake
    run(*pip, "--wheel-dir", folder, *asked, ROOT, PATH=tools)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment with the wheel, and with what it needs from this one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    pip = (
        sys.executable,
        "-m",
        "pip",
        f"--python={folder}",
        "install",
        "--no-deps",
        "--no-compile",
    )
    run(*pip, "--no-index", wheel)
    paths = [path for path in site.getsitepackages() if Path(path).is_dir()]
    (packages / "needed.pth").write_text("\n".join(paths))
    return folder / "bin"


def test_it_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        sizes = {info.filename: info.file_size for info in archive.infolist()}
        metadata = archive.read(f"monolane-{__version__}.dist-info/METADATA").decode()
    tracked = run("git", "-C", ROOT, "ls-files", "src/monolane").splitlines()
    package = {name for name in names if name.startswith("monolane/")}
    (core,) = package - {name.removeprefix("src/") for name in tracked}
    assert re.fullmatch(r"monolane/_core\.(abi3|cpython-311-.*)\.so", core)
    others = {name.split("/")[0] for name in names} - {"monolane"}
    assert others == {f"monolane-{__version__}.dist-info"}
    assert sizes[core] < 12e6
    assert sum(sizes.values()) < 30e6
    licenses = {name.split("/licenses/")[1] for name in names if "/licenses/" in name}
    vendor = "src/monolane/serve/static/vendor"
    assert licenses == {
        "LICENSE",
        "src/monolane/demo/LICENSE",
        *(f"{vendor}/{name}.LICENSE" for name in ("highlight", "marked", "purify")),
    }
    for name in ("Apache-2.0", "BSD-3-Clause", "MPL-2.0", "MIT", "PSF-2.0"):
        assert name in re.findall(r"^License-Expression: (.*)", metadata, re.MULTILINE)[0]


@pytest.mark.skipif(not sysconfig.get_platform().startswith("linux-x86"), reason="not x86-64")
def test_it_runs_with_old_libraries(wheel: Path) -> None:
    said = run(sys.executable, "-m", "auditwheel", "show", wheel)
    (minor,) = re.findall(
        r'following platform tag: "manylinux_2_(\d+)_x86_64"', " ".join(said.split())
    )
    assert int(minor) <= 28, said


def test_it_answers_without_a_compiler(installed: Path) -> None:
    asked = ("generate", "class Stack:", "--seed", "7", "-n", "16")
    said = run(installed / "monolane", *asked, PATH=str(installed), PYTHONPATH="")
    here = run(sys.executable, "-m", "monolane", *asked)
    assert said == here
    where = "import monolane; print(monolane.__file__)"
    assert str(installed.parent) in run(installed / "python", "-P", "-c", where, PYTHONPATH="")


def test_its_logits_are_those_of_a_source_install(installed: Path) -> None:
    theirs = run(installed / "python", "-P", "-c", LOGITS, PYTHONPATH="")
    assert theirs == run(sys.executable, "-P", "-c", LOGITS)


def test_a_base_install_answers_offline_without_torch(wheel: Path, tmp_path: Path) -> None:
    """With what it needs from the registry, and nothing of this environment."""
    folder, bin_ = tmp_path / "venv", tmp_path / "venv" / "bin"
    venv.create(folder, with_pip=False, symlinks=True)
    empty = megabytes(folder)
    pip = (sys.executable, "-m", "pip", f"--python={folder}", "install", "-q")
    run(*pip, wheel)
    # With what pip compiles; together with a core of all sets, more than an install has.
    installed = megabytes(folder) - empty + Path(_core.__file__).stat().st_size / 1e6
    assert installed < MEGABYTES, f"installed {installed:.0f} MB"
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK)
    alone = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "error"}

    def ask(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, capture_output=True, text=True, env=alone, cwd=tmp_path, check=False
        )

    said = ask(bin_ / "monolane", "generate", "def fibonacci(n):", "-n", "48")
    assert said.returncode == 0, said.stderr
    assert "48 tokens" in said.stderr
    words = ("def ", "return", "self", "class", "if ", '"""')
    assert sum(word in said.stdout for word in words) >= 2, said.stdout
    probe = "import monolane, sys; monolane.Engine.load('demo'); assert 'torch' not in sys.modules"
    assert ask(bin_ / "python", "-c", probe).returncode == 0
    missing = ask(bin_ / "monolane", "verify", "-m", "demo")
    assert missing.returncode == 1
    assert "pip install 'monolane[hf]'" in missing.stderr


def test_a_source_install_says_what_it_is_built_with() -> None:
    """pip fetches that into an environment of its own, and asks there; nothing is compiled.

    The environment of these tests was compiled by the same commands.
    """
    said = run(sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", ROOT)
    assert f"Would install monolane-{__version__}" in said


def megabytes(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
