"""What the pages show: their fenced blocks, the commands in them, and what no test runs.

A block that is not run has a marker before it, an HTML comment that readers of the source see:

    <!-- not run: needs the Hub; 10 minutes -->

It says why, and how long the block takes whoever runs it.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
SHELL, PYTHON = ("sh", "bash", "console"), ("python",)
RUN = SHELL + PYTHON  # without a marker
DATA = ("json", "toml")  # which has to be what it says
TEXT = ("text", "")

_MARKER = re.compile(r"<!-- not run: (?P<why>[^;]+); (?P<takes>[^;]+) -->")
_UNIT = r"(?:seconds?|minutes?|hours?|days?)"
_TAKES = re.compile(rf"(?:(?:an?|[\d.]+(?: to [\d.]+)?) )?{_UNIT}|until it is ended")
_COMMAND = re.compile(r"^(?:\$ |monolane |python3? |pip |scripts/)", re.MULTILINE)
_ENDS_COMMAND = re.compile(r"[();<>|&]+")


@dataclass(frozen=True, slots=True)
class NotRun:
    """Why no test runs a block, and how long it takes."""

    why: str
    takes: str


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command of a shell: its line in the page, and its words without quotes."""

    place: str  # page:line
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its page, the line of its first line of text, and what it says."""

    page: str
    line: int
    language: str
    text: str
    not_run: NotRun | None

    @property
    def place(self) -> str:
        """Where it is: page:line."""
        return f"{self.page}:{self.line}"

    @property
    def is_shell(self) -> bool:
        """Whether it holds commands of a shell."""
        return self.language in SHELL

    @property
    def runs(self) -> bool:
        """Whether a test runs it."""
        return self.language in RUN and self.not_run is None

    def script(self) -> str:
        """Return what the shell is given: of a console what was typed at its prompts."""
        if self.language != "console":
            return self.text
        lines = self.text.splitlines(keepends=True)
        return "".join(line.removeprefix("$ ") for line in lines if line.startswith("$ "))

    def printed(self) -> str:
        """Return what a console says that the commands print; possibly nothing."""
        if self.language != "console":
            return ""
        lines = self.text.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("$ "))

    def commands(self) -> Iterator[Command]:
        """Yield the simple commands; ValueError with the place where quotes stay open."""
        begun, first = "", 0
        for number, line in enumerate(self.text.splitlines(), self.line):
            if self.language == "console":
                if not line.startswith("$ "):
                    continue
                line = line.removeprefix("$ ")
            begun, first = (f"{begun}{line}", first) if begun else (line, number)
            if begun.endswith("\\"):
                begun = begun[:-1]
            elif _is_whole(begun):
                yield from _commands(begun, f"{self.page}:{first}")
                begun = ""
            else:
                begun += "\n"
        if begun:
            raise ValueError(f"{self.page}:{first}: expected the end of a command, got none")


def pages() -> list[Path]:
    """Return the pages that are read: README, CONTRIBUTING and all of docs."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page; ValueError names the line of a marker that is none."""
    return read(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))


def read(text: str, page: str) -> list[Block]:
    """Return the fenced blocks of a page's text."""
    found, marker, marked = [], None, 0
    for token in MarkdownIt("commonmark").parse(text):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "html_block" and "not run" in token.content:
            if marker is not None:
                raise ValueError(f"{page}:{marked}: expected a block behind the marker, got none")
            marker, marked = _marker(token.content, f"{page}:{line}"), line
            continue
        if token.type == "code_block" and _COMMAND.search(token.content):
            raise ValueError(
                f"{page}:{line}: expected commands in a fenced block, got indented ones"
            )
        if token.type == "fence":
            language = token.info.strip()
            if marker is not None and language not in RUN:
                raise ValueError(f"{page}:{marked}: expected commands or Python, got {language!r}")
            found.append(Block(page, line + 1, language, token.content, marker))
        elif marker is not None:
            raise ValueError(f"{page}:{marked}: expected a block behind the marker, got text")
        marker = None
    return found


def spans(page: Path) -> Iterator[Command]:
    """Yield the commands of monolane in a page's sentences: code between backquotes."""
    name = page.relative_to(ROOT)
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        for child in token.children or ():
            text = re.sub(r"[\[\]]", "", " ".join(child.content.split()))  # what may be left out
            if child.type == "code_inline" and text.startswith("monolane "):
                line = token.map[0] + 1 if token.map else 0
                yield from _commands(text, f"{name}:{line}")


def _marker(text: str, place: str) -> NotRun:
    found = _MARKER.fullmatch(text.strip())
    if found is None or not _TAKES.fullmatch(found["takes"]):
        raise ValueError(
            f"{place}: expected <!-- not run: WHY; HOW LONG -->, as '10 minutes', 'hours' or "
            f"'until it is ended', got {text.strip()}"
        )
    return NotRun(found["why"], found["takes"])


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)


def _without_comment(line: str) -> str:
    """Return a line up to a word that begins with "#" outside of quotes."""
    for found in re.finditer(r"(?:^|\s)#", line):
        try:
            _words(line[: found.start()])
        except ValueError:  # inside of quotes
            continue
        return line[: found.start()]
    return line


def _is_whole(line: str) -> bool:
    try:
        _words(_without_comment(line))
    except ValueError:
        return False
    return True


def _commands(line: str, place: str) -> Iterator[Command]:
    """Yield the commands between "&&", "|" and the like, without where their output goes."""
    words: list[str] = []
    skipped = False
    for word in [*_words(_without_comment(line)), ";"]:
        if skipped:
            skipped = False
        elif word in (">", ">>", "<"):
            skipped = True
        elif _ENDS_COMMAND.fullmatch(word):
            if words:
                yield Command(place, tuple(words))
            words = []
        elif words or not re.fullmatch(r"\w+=.*", word, re.DOTALL):  # a variable of one command
            words.append(word)
