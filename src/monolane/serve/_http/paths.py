"""The paths and methods that there are, for who asks by another one.

Clients are set up with a base URL, and half of them want it with ``/v1``, half without. So what is
found near a path is told, in the words of the API that it belongs to, and else all that there is.
"""

import difflib
import re
from collections.abc import Iterable, Mapping

from starlette.routing import Route

from monolane.serve._errors import ApiError

_VALUE = re.compile(r"{(\w+)(?::\w+)?}")  # in a route's path
_LONGEST = 100  # bytes of a path for which near ones are looked for: the time grows by its square
_LIKENESS = 0.8  # of 1, from which on a path is near
_TOLD = 2  # paths that are near, at most
# What base URLs have of one server and not of another.
_OF_BASES = frozenset(("", "v1", "api", "openai"))


class PathError(ApiError):
    """A path that there is not, or not by this method.

    ``meant`` is the path that comes nearest, whose API's clients read errors. ``noted`` is for the
    log: a path may hold what is nobody else's business.
    """

    def __init__(
        self,
        status: int,
        noted: str,
        message: str,
        meant: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        # The first words are those of HTTP, which programs look for.
        super().__init__(status, f"{noted}: {message}", headers=headers)
        self.noted, self.meant = noted, meant


class Paths:
    """Of the routes given; paths are as they came over the wire."""

    def __init__(self, routes: Iterable[Route]) -> None:
        """The page's files, which are not in the schema, are no paths to be told of."""
        self._routes = tuple(routes)
        shown = [_VALUE.sub(r"{\1}", x.path) for x in self._routes if x.include_in_schema]
        self._all = tuple(dict.fromkeys(shown))

    def near(self, path: str) -> list[str]:
        """Return the paths that may have been meant, the likeliest first."""
        if len(path) > _LONGEST:
            return []
        same = [one for one in self._all if _bare(one) == _bare(path)]
        like = difflib.get_close_matches(path, self._all, _TOLD, _LIKENESS)
        by_likeness = sorted((*same, *like), key=lambda one: -_likeness(one, path))
        found: dict[tuple[str, ...], str] = {}
        for one in by_likeness:  # of one path with and without /v1 the likelier
            found.setdefault(_bare(one), one)
        return [*found.values()][:_TOLD]

    def unknown(self, path: str, below: str = "") -> PathError:
        """Return the error for a path that there is not; all paths are ``below`` another."""
        near = self.near(path)
        shown = near or [one for one in self._all if f"/v1{one}" not in self._all]
        expected = (" or " if near else ", ").join(below + one for one in shown)
        return PathError(
            404,
            "Not Found",
            f"got {below + path!r:.200}, expected {expected}; mend the path or the "
            f"client's base URL; {below}/openapi.json says what each is for",
            near[0] if near else None,
        )

    def not_by(self, method: str, path: str, read: str, below: str = "") -> PathError:
        """Return the error for a path that there is, but not by this method.

        ``read``: the path as routes read it.
        """
        found = [x.methods or () for x in self._routes if x.path_regex.match(read)]
        allowed = sorted({name for methods in found for name in methods})
        told = " or ".join(name for name in allowed if name != "HEAD")
        return PathError(
            405,
            "Method Not Allowed",
            f"got {method!r:.40} for {below + path!r:.200}, expected {told}; "
            f"{below}/openapi.json says what each is for",
            headers={"Allow": ", ".join(allowed)},
        )


def _bare(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.lower().split("/") if part not in _OF_BASES)


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
