"""The playground: a few files of the package, read once and served from memory.

They are served from a table of known paths, not from a folder: there is no path to walk out of.
"""

import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FOLDER = Path(__file__).parents[1] / "static"
_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'"
)


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page, and the headers that go with it."""

    path: str
    data: bytes
    headers: dict[str, str]


def page_files(folder: Path = _FOLDER) -> list[PageFile]:
    """Return the files below a folder by the path that they are served at; index.html is "/"."""
    return [
        _page_file("/" if name == "index.html" else f"/{name}", path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not (name := path.relative_to(folder).as_posix()).startswith(".")
    ]


def page_route(file: PageFile) -> Route:
    """Return the route of a file."""

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == file.headers["ETag"]:
            return Response(status_code=304, headers=file.headers)
        return Response(file.data, headers=file.headers)

    return Route(file.path, answer, methods=["GET"], include_in_schema=False)


def _page_file(served: str, path: Path) -> PageFile:
    data = path.read_bytes()
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if kind.startswith("text/"):
        kind += "; charset=utf-8"
    headers = {
        "Content-Type": kind,
        "Content-Security-Policy": _POLICY,
        "Cache-Control": "no-cache",
        "ETag": f'"{hashlib.sha256(data).hexdigest()[:32]}"',
    }
    return PageFile(served, data, headers)
