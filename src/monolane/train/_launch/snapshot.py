"""The code and config of a run, kept in its folder, so that an edit cannot change a restart.

    <run>/snapshot/
        code/monolane/           the package as it was, its compiled core included; read-only
        code/sitecustomize.py    puts this copy before any installed one, in every process
        config.toml              the run's config, every field spelled out
        about.json               when, where, by which command, from which commit
        changes.diff             what the working tree had changed since that commit
        packages.txt             the versions of everything installed

A run is started with ``code`` on PYTHONPATH. That alone would not do: an editable install puts its
own finder before every path. Git is asked for commit and changes where there is one; the copied
code is the truth, with or without it.
"""

import hashlib
import json
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from pydantic import TypeAdapter

from monolane._version import __version__
from monolane.errors import CheckpointError

SNAPSHOT = "snapshot"  # folder below the run's
_ABOUT = "about.json"
_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")

# Runs at the start of every Python process that has the snapshot's code on PYTHONPATH.
_SITE = '''\
"""Makes Python import monolane from this folder, whatever is installed; see ../about.json."""

import runpy
import sys
from importlib.machinery import PathFinder
from pathlib import Path

HERE = str(Path(__file__).parent)
for path in map(Path, sys.path):  # the one that this file hides; not that of another snapshot
    if (path / "sitecustomize.py").is_file() and not (path / "monolane").is_dir():
        runpy.run_path(str(path / "sitecustomize.py"))
        break
# The finder of an editable install looks before any path does: not in a run.
sys.meta_path[:] = [
    finder
    for finder in sys.meta_path
    if finder is PathFinder or finder.find_spec("monolane", None) is None
]
sys.path[:] = [HERE, *(path for path in sys.path if path != HERE)]
'''


@dataclass(frozen=True)
class Snapshot:
    """What a run was started from; ``about.json`` in a snapshot's folder."""

    version: str  # of monolane
    digest: str  # SHA-256 of the code's files
    commit: str | None  # None: no git, or not a checkout
    changed: bool  # whether the working tree differed from the commit
    time: str  # UTC
    host: str
    platform: str
    python: str
    command: tuple[str, ...]  # that started the run
    folder: str  # working folder, which relative paths in the config refer to

    @classmethod
    def read(cls, run: Path) -> "Snapshot":
        """Read the snapshot of a run; CheckpointError where the code is not what was kept."""
        folder = run / SNAPSHOT
        try:
            about = TypeAdapter(cls).validate_json((folder / _ABOUT).read_bytes())
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{folder}: expected the snapshot of a run, could not read it ({error}); remove "
                "the folder, and the next launch takes a new one"
            ) from error
        if (digest := code_digest(folder / "code")) != about.digest:
            raise CheckpointError(
                f"{folder}/code: expected the files that the run began with "
                f"({about.digest[:12]}), found others ({digest[:12]}); put them back, or start "
                "another run"
            )
        return about


def has_snapshot(run: Path) -> bool:
    """Whether a run has a whole snapshot."""
    return (run / SNAPSHOT / _ABOUT).is_file()


def take_snapshot(run: Path, config: str, command: Sequence[str]) -> Snapshot:
    """Keep the running package and ``config`` (TOML) below ``run``; whole or not at all."""
    unfinished = run / f"{SNAPSHOT}.tmp"
    shutil.rmtree(unfinished, ignore_errors=True)
    code = unfinished / "code"
    code.mkdir(parents=True)
    source = Path(__file__).parents[2]  # the package
    _copy_package(source, code / "monolane")
    _copy_core(code / "monolane")
    (code / "sitecustomize.py").write_text(_SITE, encoding="utf-8")
    for path in code.rglob("*"):
        if path.is_file():
            path.chmod(0o444)
    (unfinished / "config.toml").write_text(config, encoding="utf-8")
    (unfinished / "packages.txt").write_text(_packages(), encoding="utf-8")
    tracked = bool(_git(source, "ls-files", "__init__.py"))  # else the repository is another's
    if tracked and (changes := _git(source, "diff", "HEAD", "--binary")):
        (unfinished / "changes.diff").write_text(changes, encoding="utf-8")
    about = Snapshot(
        version=__version__,
        digest=code_digest(code),
        commit=(_git(source, "rev-parse", "HEAD") or "").strip() or None if tracked else None,
        changed=tracked and bool(_git(source, "status", "--porcelain")),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        host=socket.gethostname(),
        platform=platform.platform(),
        python=platform.python_version(),
        command=tuple(command),
        folder=str(Path.cwd()),
    )
    (unfinished / _ABOUT).write_text(json.dumps(asdict(about), indent=1) + "\n", encoding="utf-8")
    unfinished.replace(run / SNAPSHOT)
    return about


def snapshot_environment(run: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which Python imports the snapshot's code."""
    paths = [str((run / SNAPSHOT / "code").resolve()), environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def code_digest(code: Path) -> str:
    """Return the SHA-256 over names and contents of a snapshot's code."""
    total = hashlib.sha256()
    for path in sorted(code.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(code).as_posix()} {content}\n".encode())
    return total.hexdigest()


def _copy_package(source: Path, target: Path) -> None:
    try:
        shutil.copytree(source, target, ignore=_IGNORED)
    except shutil.Error as error:  # of every file that failed; a full disk refuses them all
        _, refused, reason = error.args[0][0]
        raise CheckpointError(
            f"{target}: expected to keep the code of the run there, got: {reason} (and "
            f"{len(error.args[0]) - 1} more, {refused} first); make room, or name another folder"
        ) from None


def _copy_core(package: Path) -> None:
    """Copy the compiled core, which lies elsewhere in an editable install."""
    spec = find_spec("monolane._core")
    if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
        target = package / Path(spec.origin).name
        if not target.exists():
            shutil.copyfile(spec.origin, target)


def _packages() -> str:
    """List what is installed, like pip freeze, without needing pip."""
    found = {f"{each.metadata['Name']}=={each.version}" for each in metadata.distributions()}
    return "".join(f"{line}\n" for line in sorted(found, key=str.lower))


def _git(folder: Path, *arguments: str) -> str | None:
    """Ask git about the checkout that holds ``folder``; None without git or outside of one."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")
