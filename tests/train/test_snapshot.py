"""A snapshot is what Python imports in a run, and nobody can change it without being noticed."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import monolane
from monolane.errors import CheckpointError
from monolane.train._launch.snapshot import (
    Snapshot,
    code_digest,
    has_snapshot,
    snapshot_environment,
    take_snapshot,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run")
    assert not has_snapshot(run)
    take_snapshot(run, "seed = 0\n", ["monolane", "launch", "x"])
    return run


def _python(run: Path, code: str, folder: Path) -> list[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=snapshot_environment(run, os.environ),
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()


def test_python_imports_the_snapshot_and_no_other(run: Path, tmp_path: Path) -> None:
    code = """
import monolane.model, monolane._core, subprocess, sys
print(monolane.__file__)
print(monolane.model.__file__)
print(monolane._core.__file__)
child = "import monolane.errors; print(monolane.errors.__file__)"
subprocess.run([sys.executable, "-c", child], check=True)
"""
    found = _python(run, code, tmp_path)
    assert len(found) == 4
    assert all(Path(path).is_relative_to(run / "snapshot" / "code") for path in found)


def test_a_site_customisation_that_it_hides_still_runs(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = 'here'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert _python(run, "import sys; print(sys.mine)", tmp_path) == ["here"]


def test_it_says_where_it_came_from(run: Path) -> None:
    about = Snapshot.read(run)
    folder = run / "snapshot"
    assert about.command == ("monolane", "launch", "x")
    assert about.version == monolane.__version__
    assert about.folder == str(Path.cwd())
    assert (folder / "config.toml").read_text() == "seed = 0\n"
    assert f"numpy=={__import__('numpy').__version__}\n" in (folder / "packages.txt").read_text()
    source = Path(monolane.__file__).parent
    command = ["git", "-C", str(source), "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    assert about.commit == (commit or None)
    copied = folder / "code" / "monolane"
    assert (copied / "errors.py").read_bytes() == (source / "errors.py").read_bytes()
    assert not (copied / "errors.py").stat().st_mode & 0o222


def test_an_edit_of_it_is_noticed(tmp_path: Path) -> None:
    take_snapshot(tmp_path, "", [])
    path = tmp_path / "snapshot" / "code" / "monolane" / "errors.py"
    path.chmod(0o644)
    path.write_text(path.read_text() + "# edited\n")
    with pytest.raises(CheckpointError, match="expected the files that the run began with"):
        Snapshot.read(tmp_path)


def test_half_a_snapshot_is_none(tmp_path: Path) -> None:
    (tmp_path / "snapshot.tmp" / "code").mkdir(parents=True)  # of a launch that was killed
    assert not has_snapshot(tmp_path)
    about = take_snapshot(tmp_path, "", [])
    assert about.digest == code_digest(tmp_path / "snapshot" / "code")
    assert not (tmp_path / "snapshot.tmp").exists()
    assert not list((tmp_path / "snapshot").rglob("*.pyc"))  # of our folder, which has some
    (tmp_path / "snapshot" / "about.json").write_text(json.dumps({"version": 1}))
    with pytest.raises(CheckpointError, match="expected the snapshot of a run"):
        Snapshot.read(tmp_path)


def test_a_full_disk_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: str, **_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", target)

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(
        CheckpointError, match="the code of the run there, got: .*No space"
    ) as found:
        take_snapshot(tmp_path, "", [])
    assert len(str(found.value)) < 1000
