"""Requests and answers taken from Python's standard library, by its syntax tree.

Data for a first instruction tuning that anybody with Python can make again: no text is invented and
none claims a person asked it. The requests are fixed phrases around source code; each answer is cut
or read from the same file (a body, a docstring, names), so it is right by construction.
"""

import ast
import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from monolane.data import is_held_out, library_texts
from monolane.errors import DataError

# The share by which the demo model's training holds files out: a request that is held out here
# comes from a file that the demo has never read.
HELD_OUT_SHARE = 0.025
_TESTS = frozenset({"test", "tests", "idle_test"})  # folders
_LONGEST = 900  # characters of code in a request or an answer: some 300 of the demo's tokens
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Request:
    """One exchange: what kind it is, the file it was taken from, and what both sides say."""

    kind: str  # write, explain, complete, parameters, imports or methods
    source: str  # file, and name in it
    held_out: bool
    user: str
    assistant: str

    def row(self) -> dict[str, Any]:
        """Return the line of a JSONL file that ``read_chats`` takes."""
        messages = [
            {"role": "user", "content": self.user},
            {"role": "assistant", "content": self.assistant},
        ]
        return {"messages": messages, "kind": self.kind, "source": self.source}


def library_requests(root: Path | None = None) -> Iterator[Request]:
    """Yield the requests of the library below ``root``, by default the running Python's own.

    File by file in the order of their names, and in a file as they stand: the same for the same
    library. A request comes once: what many files repeat is learnt from none of them better, and
    would stand on both sides of the held-out split. DataError where there are no sources.
    """
    seen: set[str] = set()
    for name, text in library_texts(root):
        if _TESTS.isdisjoint(PurePosixPath(name).parts[:-1]):
            for request in _file_requests(name, text):
                if request.user not in seen:
                    seen.add(request.user)
                    yield request
    if not seen:
        raise DataError(f"{root}: expected Python's sources with docstrings there, found none")


def write_requests(folder: Path, root: Path | None = None) -> dict[str, int]:
    """Write train.jsonl and held_out.jsonl; return the number of lines of each."""
    folder.mkdir(parents=True, exist_ok=True)
    halves: dict[str, list[str]] = {"train": [], "held_out": []}
    for request in library_requests(root):
        line = json.dumps(request.row(), ensure_ascii=False) + "\n"
        halves["held_out" if request.held_out else "train"].append(line)
    for half, lines in halves.items():
        (folder / f"{half}.jsonl").write_text("".join(lines), encoding="utf-8")
    return {half: len(lines) for half, lines in halves.items()}


def _file_requests(name: str, text: str) -> Iterator[Request]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return  # fixtures that are not meant to parse
    held_out = is_held_out(text, HELD_OUT_SHARE)
    lines = text.splitlines()
    for kind, where, user, assistant in (*_imports(tree, lines), *_definitions(tree, lines)):
        if len(user) <= 2 * _LONGEST and 0 < len(assistant) <= _LONGEST:
            yield Request(kind, f"{name}:{where}", held_out, user, assistant)


_Exchange = tuple[str, str, str, str]  # kind, name in the file, request, answer


def _imports(tree: ast.Module, lines: list[str]) -> Iterator[_Exchange]:
    """Ask for the modules that the head of a file imports."""
    heads = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    if not heads:
        return
    first, last = heads[0].lineno, min(heads[-1].end_lineno or 0, heads[0].lineno + 20)
    shown = [node for node in heads if (node.end_lineno or 0) <= last]
    names: list[str] = []
    for node in shown:
        names += _modules(node)
    code = "\n".join(lines[first - 1 : last])
    if names and _alone(code):
        answer = ", ".join(dict.fromkeys(names))
        yield "imports", "imports", f"Which modules does this code import?\n\n{code}", answer


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return ["." * node.level + (node.module or "")]


def _definitions(tree: ast.Module, lines: list[str]) -> Iterator[_Exchange]:
    for node in ast.walk(tree):
        if isinstance(node, _Function):
            yield from _function(node, lines)
        elif isinstance(node, ast.ClassDef):
            yield from _class(node, lines)


def _function(node: _Function, lines: list[str]) -> Iterator[_Exchange]:
    code = _code(node, lines)
    if len(code) > _LONGEST or not _alone(code):
        return
    bare = _without_docstring(node, lines)
    parameters = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    said = _sentence(node)
    if said and bare:
        header = bare.split("\n", 1)[0].rstrip(":")
        yield "write", node.name, f"Write this Python function.\n\n{header}\n\n{said}", bare
        yield "explain", node.name, f"What does this function do?\n\n{bare}", said
    if bare and parameters:
        answer = ", ".join(parameters)
        yield (
            "parameters",
            node.name,
            f"What are the parameters of this function?\n\n{bare}",
            answer,
        )
    whole = bare.splitlines()
    if len(whole) >= 6:
        half = len(whole) // 2
        shown, rest = "\n".join(whole[:half]), "\n".join(whole[half:])
        # The template trims an answer, so that the first line's indentation is the prompt's.
        yield "complete", node.name, f"Complete this function.\n\n{shown}", rest.strip()


def _class(node: ast.ClassDef, lines: list[str]) -> Iterator[_Exchange]:
    code = _code(node, lines)
    methods = [child.name for child in node.body if isinstance(child, _Function)]
    if methods and len(code) <= _LONGEST and _alone(code):
        request = f"Which methods does this class define?\n\n{code}"
        yield "methods", node.name, request, ", ".join(dict.fromkeys(methods))


def _code(node: _Function | ast.ClassDef, lines: list[str]) -> str:
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno])).strip("\n")


def _without_docstring(node: _Function, lines: list[str]) -> str:
    """Return the function without decorators and docstring; empty if nothing else is in it."""
    kept = list(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    if ast.get_docstring(node) is not None:
        doc = node.body[0]
        if len(node.body) == 1 or doc.lineno == node.lineno:
            return ""
        kept = [n for n in kept if not doc.lineno <= n <= (doc.end_lineno or doc.lineno)]
    return textwrap.dedent("\n".join(lines[n - 1] for n in kept)).strip("\n")


def _sentence(node: _Function) -> str:
    """Return the first paragraph of a docstring, if it reads like a sentence."""
    paragraph = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    is_one = 20 <= len(paragraph) <= 300 and paragraph[0].isupper() and paragraph.endswith(".")
    return paragraph if is_one else ""


def _alone(code: str) -> bool:
    """Whether a piece of code parses by itself, as what is asked about should."""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError):
        return False
    return True
