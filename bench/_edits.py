"""Traces to replay a drafter on: edits of Python's own library, and text with nothing to copy.

Each trace is a prompt and the answer that a model which edits without a mistake would give: the
whole file, changed. Which files, what is changed and how follow from a seed and the Python version.
"""

import ast
import io
import keyword
import random
import re
import sysconfig
import tokenize
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from _command import ROOT

BYTES = range(2000, 6001)  # sizes of the files
EACH = 15  # traces of each kind of edit
WORDS = ("buffer", "current", "entry", "handle", "index", "length", "node", "record", "target")
TYPES = ("Any", "str", "int", "bool", "str | None", "list[str]", "Callable[..., Any]")
BUGS = ((" == ", " != "), (" < ", " <= "), (" + 1", " - 1"), (" is None", " is not None"))


@dataclass(frozen=True)
class Trace:
    """A prompt and its answer; ``kind`` is the edit, or what the text is."""

    kind: str
    prompt: str
    answer: str


def rename(text: str, rng: random.Random) -> tuple[str, str, str] | None:
    """Give a name that comes up at least four times another name."""
    found = list(tokenize.generate_tokens(io.StringIO(text).readline))
    names = Counter(t.string for t in found if t.type == tokenize.NAME and len(t.string) > 3)
    often = sorted(n for n, c in names.items() if c >= 4 and not keyword.iskeyword(n))
    if not often:
        return None
    old = rng.choice(often)
    new = f"{rng.choice(WORDS)}_{old.strip('_').lower()}"
    lines = text.splitlines(keepends=True)
    for token in reversed(found):
        if token.type == tokenize.NAME and token.string == old:
            row, column = token.start
            line = lines[row - 1]
            lines[row - 1] = line[:column] + new + line[column + len(old) :]
    return f"Rename {old} to {new}.", text, "".join(lines)


def add_parameter(text: str, rng: random.Random) -> tuple[str, str, str] | None:
    """Give a function another parameter, and pass it on in the calls within the file."""
    heads = [m for m in re.finditer(r"def (\w+)\(([^()]*)\):\n", text) if m[1] != "__init__"]
    if not heads:
        return None
    name, new = rng.choice(heads)[1], rng.choice(("timeout", "encoding", "strict", "limit"))

    def call(m: re.Match[str]) -> str:
        comma = ", " if m[1].strip() else ""
        return f"{name}({m[1]}{comma}{new}={new})"

    changed = re.sub(rf"(?<!def )\b{name}\(([^()]*)\)", call, text)
    changed = re.sub(rf"def {name}\(([^()]*)\):\n", lambda m: head_of(m, name, new), changed)
    return f"Add a parameter {new}=None to {name} and pass it on where it is called.", text, changed


def head_of(m: re.Match[str], name: str, new: str) -> str:
    """Return the first line of a function with one more parameter."""
    comma = ", " if m[1].strip() else ""
    return f"def {name}({m[1]}{comma}{new}=None):\n"


def add_hints(text: str, rng: random.Random) -> tuple[str, str, str] | None:
    """Give the parameters and results of all functions with short heads type hints."""
    kinds: dict[str, str] = {}

    def hint(m: re.Match[str]) -> str:
        parts = []
        for part in m[2].split(","):
            name, equals, default = part.strip().partition("=")
            if not name or name in ("self", "cls") or not name.isidentifier():
                parts.append(part.strip())
                continue
            kind = kinds.setdefault(name, rng.choice(TYPES))
            parts.append(f"{name}: {kind}" + (f" = {default}" if equals else ""))
        result = kinds.setdefault(f"{m[1]}()", rng.choice(("None", *TYPES)))
        return f"def {m[1]}({', '.join(parts)}) -> {result}:\n"

    changed = re.sub(r"def (\w+)\(([^()\n]*)\):\n", hint, text)
    if changed == text:
        return None
    return "Add type hints to all functions.", text, changed


def fix_bug(text: str, rng: random.Random) -> tuple[str, str, str] | None:
    """Plant one bug in the prompt's file; the answer has the file as it was."""
    places = [(m.start(), good, bad) for good, bad in BUGS for m in re.finditer(good, text)]
    if not places:
        return None
    at, good, bad = rng.choice(places)
    return "Find the bug in this file and fix it.", text[:at] + bad + text[at + len(good) :], text


EDITS: dict[str, Callable[[str, random.Random], tuple[str, str, str] | None]] = {
    "rename": rename,
    "parameter": add_parameter,
    "hints": add_hints,
    "bug": fix_bug,
}


def edits(seed: int, each: int = EACH) -> list[Trace]:
    """Return ``each`` traces of every kind of edit, each of another file."""
    rng = random.Random(seed)
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [p for p in sorted(library.rglob("*.py")) if "-packages" not in str(p)]
    files = [p for p in files if "test" not in str(p) and p.stat().st_size in BYTES]
    rng.shuffle(files)
    traces = []
    for kind, edit in EDITS.items():
        found = 0
        while found < each:
            text = files.pop().read_text(encoding="utf-8", errors="replace")
            edited = edit(text, rng)
            if edited is None or edited[1] == edited[2] or not parses(edited[2]):
                continue
            request, before, after = edited
            prompt = f"{request} Answer with the whole file.\n```python\n{before}```\n"
            traces.append(Trace(kind, prompt, f"```python\n{after}```\n"))
            found += 1
    return traces


def parses(text: str) -> bool:
    """Whether Python takes it."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def prose() -> list[Trace]:
    """Return pages of this repository as answers to one line: text with hardly anything to copy."""
    pages = [ROOT / "docs" / f"{name}.md" for name in ("architecture", "sampling", "training")]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    return [
        Trace("prose", text.partition("\n")[0], text.partition("\n")[2][:6000]) for text in texts
    ]
