"""What scripts/wheels has built: installed as a user would, without a compiler, and asked."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

DIST = Path(__file__).parents[2] / "dist"
SECONDS = 20  # from pip to the answer, with the dependencies in pip's cache
NAMED = r"monolane-[\w.]+-(cp\d+)-(abi3|cp\d+)-.*manylinux_2_\d+_(\w+)\.whl"

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(not DIST.is_dir(), reason="scripts/wheels has built nothing yet"),
]


def run(*command: str | Path, **changes: str) -> str:
    environment = {**os.environ, **changes}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def pythons(wheel: Path) -> list[str]:
    """Return the commands of Pythons here that the wheel is for."""
    found = re.fullmatch(NAMED, wheel.name)
    assert found is not None, wheel.name
    first, kind, processor = found.groups()
    if processor != platform.machine():
        return []
    least = int(first[3:])
    minors = range(least, least + 1 if kind != "abi3" else 20)
    names = [f"python3.{minor}" for minor in minors]
    return [x for x in names if shutil.which(x) and not subprocess.call([x, "-c", ""])]


WHEELS = sorted(DIST.glob("*.whl"))
HERE = [(wheel, python) for wheel in WHEELS for python in pythons(wheel)]


def test_there_is_something_to_publish() -> None:
    kinds = {re.sub(r"^monolane-[\w.]+-|\.whl$", "", wheel.name) for wheel in WHEELS}
    assert {kind.split("-")[0] for kind in kinds} == {"cp311", "cp312"}, kinds
    assert len(list(DIST.glob("*.tar.gz"))) == 1
    assert HERE


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: wheel.name)
def test_a_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < 20e6
    with zipfile.ZipFile(wheel) as archive:
        assert [x for x in archive.namelist() if x.endswith(".so")], "no core"


@pytest.mark.parametrize(
    ("wheel", "python"), HERE, ids=lambda x: x.name if isinstance(x, Path) else x
)
def test_a_wheel_answers_at_once(wheel: Path, python: str, tmp_path: Path) -> None:
    tools = tmp_path / "tools"  # what a user has who compiles nothing
    tools.mkdir()
    path = str(tools)
    run(python, "-m", "venv", tmp_path / "warm")
    run(tmp_path / "warm/bin/pip", "install", "--quiet", wheel)  # fills pip's cache
    run(python, "-m", "venv", tmp_path / "new")
    begin = time.monotonic()
    run(tmp_path / "new/bin/pip", "install", "--quiet", "--no-compile", wheel, PATH=path)
    said = run(tmp_path / "new/bin/monolane", "generate", "class Stack:", "-n", "8", PATH=path)
    seconds = time.monotonic() - begin
    assert said.strip()
    assert seconds <= SECONDS, f"{seconds:.1f} s"
    doctor = run(tmp_path / "new/bin/monolane", "doctor", PATH=path)
    assert "portable" in doctor or "avx" in doctor, doctor


def test_the_source_distribution_builds_offline(tmp_path: Path) -> None:
    (source,) = DIST.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
        sizes = sum(member.size for member in archive.getmembers())
    assert sizes < 60e6
    (folder,) = tmp_path.glob("monolane-*")
    pip = (sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index")
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    setting = "--config-settings=cmake.define.MONOLANE_SETS=portable"
    run(*pip, setting, "--wheel-dir", tmp_path, folder, PATH=tools)
    assert len(list(tmp_path.glob("*.whl"))) == 1


def test_the_first_command_takes_a_wheel_where_one_is(tmp_path: Path) -> None:
    root = DIST.parent
    done = subprocess.run(
        [root / "scripts/bootstrap", tmp_path / "venv"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "from dist/" in done.stderr
    assert run(tmp_path / "venv/bin/monolane", "generate", "class Stack:", "-n", "8").strip()
