"""Large files of the Hub, fetched so that a download that was broken off goes on where it was.

The Hub's own library begins such a file anew in each process. So its files in Git LFS, which are
the large ones, are put into the Hub's cache under the names that the library looks for (the SHA-256
of their bytes); when it is asked for them afterwards, it finds them there. What has come so far is
``NAME.part`` beside them, locked by the process that writes it, so two that fetch the same file
share it. Each file is held against its SHA-256 before it gets its name.
"""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from monolane._progress import Report, shown_progress
from monolane.errors import ModelNotFoundError

_CHUNK = 1 << 20
_WAIT_SECONDS = 0.2  # between looks at whether another process has let go of a file


@dataclass(frozen=True, slots=True)
class LargeFile:
    """A file of a repository that lies in Git LFS."""

    name: str  # in the repository, / between folders
    url: str
    size: int
    sha256: str


def fetch_large(files: Sequence[LargeFile], blobs: Path, what: str) -> None:
    """Fetch files into a repository's folder of blobs; those that are there are left as they are.

    ``what``: the model, for messages. Progress goes to stderr. ModelNotFoundError if the disk has
    no room for what is still to come, which is asked first, or where bytes are not those that are
    meant; errors of the Hub's library and OSError where the network or the disk fails. What has
    come stays in any case, for the next try.
    """
    missing = [x for x in files if not (blobs / x.sha256).is_file()]
    if not missing:
        return
    check_room(sum(x.size - _come(_part(blobs, x)) for x in missing), blobs, what)
    blobs.mkdir(parents=True, exist_ok=True)
    with _without_bars(), shown_progress("bytes") as progress:
        for file in missing:
            _fetch(file, blobs, what, progress)


def check_room(needed: int, folder: Path, what: str) -> None:
    """ModelNotFoundError if a disk has not so many bytes free; the folder need not be there."""
    there = next(x for x in (folder, *folder.parents) if x.is_dir())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise ModelNotFoundError(
            f"{what}: expected {needed / 1e6:,.0f} MB free to fetch it to {folder}, got "
            f"{free / 1e6:,.0f} MB; make room ('monolane list', 'monolane rm'), take a smaller "
            "file, or let HF_HUB_CACHE name a folder on another disk"
        )


def _fetch(file: LargeFile, blobs: Path, what: str, progress: Report) -> None:
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    whole, part = blobs / file.sha256, _part(blobs, file)
    with _locked(part, whole) as stream:
        if stream is None:  # another process has fetched it meanwhile
            return
        received = _Received(stream, file, progress)
        http_get(
            file.url,
            received,  # type: ignore[arg-type]  # what it calls is there
            resume_size=received.tell(),
            headers=build_hf_headers(),
            expected_size=file.size,
        )
        stream.flush()
        if received.sha256 != file.sha256:
            part.unlink()
            raise ModelNotFoundError(
                f"{what}: {file.name}: expected SHA-256 {file.sha256}, got {received.sha256}; what "
                "came is damaged and was thrown away: try again"
            )
        part.replace(whole)


class _Received:
    """A file that is written behind what has come of it before; knows the hash of all of it."""

    def __init__(self, stream: IO[bytes], file: LargeFile, progress: Report) -> None:
        self._stream, self._file, self._progress = stream, file, progress
        if stream.seek(0, os.SEEK_END) > file.size:
            stream.truncate(0)  # no part of this file
        stream.seek(0)
        self._digest = hashlib.sha256()
        while chunk := stream.read(_CHUNK):
            self._digest.update(chunk)
        self._tell_far()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def tell(self) -> int:
        return self._stream.tell()

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        count = self._stream.write(data)
        self._tell_far()
        return count

    def seek(self, place: int) -> int:
        """Go back to the beginning: what a server asks for that cannot send the rest alone."""
        assert place == 0, place
        self._digest = hashlib.sha256()
        return self._stream.seek(0)

    def truncate(self) -> int:
        return self._stream.truncate()

    def _tell_far(self) -> None:
        name = Path(self._file.name).name
        self._progress(f"fetching {name}", self._stream.tell(), self._file.size)


@contextmanager
def _locked(part: Path, whole: Path) -> Iterator[IO[bytes] | None]:
    """Give a part to write on, once no other process does; None if the whole is there by then."""
    while True:
        with part.open("a+b") as found:
            try:
                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_WAIT_SECONDS)
                continue
            if whole.is_file():
                part.unlink(missing_ok=True)  # ours, just made: the other's has become the whole
                yield None
                return
            if _is_at(part, found):
                yield found
                return


def _is_at(path: Path, stream: IO[bytes]) -> bool:
    """Tell whether an open file is what lies at a path: another may have thrown it away."""
    try:
        return os.path.samestat(path.stat(), os.fstat(stream.fileno()))
    except FileNotFoundError:
        return False


def _part(blobs: Path, file: LargeFile) -> Path:
    return blobs / f"{file.sha256}.part"


def _come(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep the Hub's library from drawing bars of its own beside ours."""
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
