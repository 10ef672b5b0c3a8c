"""Counts lines of code by folder: `python scripts/count_lines.py [REVISION]`.

Without tests, generated files, vendored files, blank lines, comments and docstrings. With a
revision of git, of that one, and the difference to the working tree.
"""

import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GENERATED = re.compile(r"_abi\.h$|\.pyi$|(^|/)chains\.json$")
LEFT_OUT = re.compile(r"(^|/)(tests|vendor|golden)/|^bench/results/")
C_LIKE = {".h", ".cpp", ".cu", ".cuh", ".js", ".mjs", ".css"}
HASHED = {".sh", ".cmake", ".toml", ""}  # a # begins a comment


def python_lines(text: str) -> int:
    """Lines that hold more than comments and docstrings."""
    lines: set[int] = set()
    begins = True  # a statement: a text alone is a docstring
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            continue
        if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            begins = True
            continue
        if not (begins and token.type == tokenize.STRING):
            lines.update(range(token.start[0], token.end[0] + 1))
        begins = False
    return len(lines)


def c_lines(text: str) -> int:
    """Lines that hold more than // and /* comments."""
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    return sum(bool(line.partition("//")[0].strip()) for line in text.splitlines())


def count(path: str, text: str) -> int:
    """Lines of code of a file; 0 for one that does not count."""
    suffix = Path(path).suffix
    if GENERATED.search(path) or LEFT_OUT.search(path):
        return 0
    if suffix == ".py":
        return python_lines(text)
    if suffix in C_LIKE:
        return c_lines(text)
    if suffix in HASHED or path.endswith("CMakeLists.txt"):
        return sum(bool(line.partition("#")[0].strip()) for line in text.splitlines())
    return 0


def git(*arguments: str) -> bytes:
    """What git prints."""
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True).stdout


def read(path: str, revision: str) -> bytes:
    """A file as it is, or as it was."""
    return git("show", f"{revision}:{path}") if revision else (ROOT / path).read_bytes()


def totals(revision: str = "") -> Counter[str]:
    """Folder -> lines; of the working tree for no revision."""
    listed = git("ls-tree", "-r", "--name-only", revision) if revision else git("ls-files")
    found: Counter[str] = Counter()
    for path in listed.decode().splitlines():
        parts = path.split("/")
        folder = "/".join(parts[:3]) if path.startswith("src/") and len(parts) > 3 else parts[0]
        if len(parts) == 1 or (not revision and not (ROOT / path).is_file()):
            continue
        try:
            text = read(path, revision).decode()
        except UnicodeDecodeError:
            continue
        found[folder] += count(path, text)
    return +found


def main(arguments: list[str]) -> int:
    """Print a line a folder, and the sum."""
    now = totals()
    try:
        before = totals(arguments[0]) if arguments else Counter[str]()
    except subprocess.CalledProcessError:
        print(f"expected a revision that this clone has, got {arguments[0]}", file=sys.stderr)
        return 2
    for folder in sorted(now | before):
        change = f"{now[folder] - before[folder]:+7}" if arguments else ""
        print(f"{folder:28}{now[folder]:7}{change}")
    change = f"{now.total() - before.total():+7}" if arguments else ""
    print(f"{'all':28}{now.total():7}{change}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
