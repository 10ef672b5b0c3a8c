"""The playground: a few files of the package, read once and served from memory.

They are served from a table of known paths, not from a folder: there is no path to walk out of.
"""

import hashlib
import mimetypes
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FOLDER = Path(__file__).parents[1] / "static"
_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'"
)
# An empty document within the page: answers of other servers come through it, and nothing else can.
_ELSEWHERE = "elsewhere.html"
_ELSEWHERE_POLICY = (
    "default-src 'none'; connect-src http: https:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)


def page_routes(folder: Path = _FOLDER) -> list[Route]:
    """Return a route for each file below a folder; that of index.html is "/"."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    return [
        _route("/" if name == "index.html" else f"/{name}", path)
        for name, path in files.items()
        if path.is_file() and not name.startswith(".")
    ]


def _route(served: str, path: Path) -> Route:
    data = path.read_bytes()
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    headers = {
        "Content-Type": f"{kind}; charset=utf-8" if kind.startswith("text/") else kind,
        "Content-Security-Policy": _ELSEWHERE_POLICY if path.name == _ELSEWHERE else _POLICY,
        "Cache-Control": "no-cache",
        "ETag": f'"{hashlib.sha256(data).hexdigest()[:32]}"',
    }

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(data, headers=headers)

    return Route(served, answer, methods=["GET"], include_in_schema=False)
