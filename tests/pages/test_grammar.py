"""Every command of monolane that a page shows is one: run or not, the program itself reads it.

Read only: an option has to be there and to take its value, and words have to fit; nothing is
executed. What pages stand in for a value of the reader's own, as MODEL, is taken for any value.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from monolane.cli import app
from monolane.cli._grammar import DefaultGroup, UsageError

from .shown import DATA, ROOT, RUN, TEXT, Block, Command, NotRun, blocks, pages, read, spans

PAGES = pages()
BLOCKS = [block for page in PAGES for block in blocks(page)]
STANDS_IN = re.compile(r"[A-Z][A-Z_]*|N|\.\.\.|…")  # for a value of the reader's own
MESSAGES = {"is ready at URL"}  # which begin with the program's name


def of_monolane(commands: Iterator[Command]) -> Iterator[Command]:
    """Yield the command lines of monolane, without what stands before its name."""
    for command in commands:
        words = command.words
        if words[0] == "monolane" or words[0].endswith("/bin/monolane"):
            yield Command(command.place, words[1:])
        elif "monolane" in words and words[words.index("monolane") - 1] == "-m":  # of a module
            yield Command(command.place, words[words.index("monolane") + 1 :])


def misfit(words: tuple[str, ...], whole: bool = True) -> str:
    """Return what is wrong with a command line, behind ``monolane``; "" if nothing is.

    One that is not ``whole`` is named in a sentence, and may leave out what the command must have.
    """
    command: Any = typer.main.get_command(app)
    context = command.context_class(command, info_name="monolane")
    left = list(words)
    try:
        while hasattr(command, "commands"):
            if left[:1] == ["--config"]:
                left = left[2:]
            if left in (["--help"], ["--version"]) or not (left or whole):
                return ""
            if left and not whole and STANDS_IN.fullmatch(left[0]):
                return ""
            if isinstance(command, DefaultGroup) and (not left or left[0] not in command.commands):
                left.insert(0, next(iter(command.commands)))
            if not left or left[0] not in command.commands:
                return f"expected a command of it, got {left[:1]}"
            command = command.commands[left[0]]
            context = command.context_class(command, info_name=left.pop(0), parent=context)
        if left in (["--help"], ["-h"]):
            return ""
        options = {x for each in command.params for x in (*each.opts, *each.secondary_opts)}
        if not whole and left[-1:] and left[-1] in options:  # an option's name
            left.pop()
        values, more, _ = command.make_parser(context).parse_args(left)
        if more:
            return f"expected no further words, got {more}"
        for parameter in command.params:
            if parameter.name in values and values[parameter.name] not in (None, ()):
                check(parameter, context, values[parameter.name])
            elif whole and parameter.required:
                return f"expected {max(parameter.opts, key=len)}, got none"
    except UsageError as error:
        return str(error.format_message())
    return ""


def check(parameter: Any, context: Any, value: Any) -> None:
    """UsageError for a value that the parameter's type does not take."""
    several = value if isinstance(value, list | tuple) else [value]
    if not any(isinstance(each, str) and STANDS_IN.fullmatch(each) for each in several):
        parameter.process_value(context, value)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_blocks_are_those_of_the_program(page: Any) -> None:
    shown = [x for block in blocks(page) if block.is_shell for x in of_monolane(block.commands())]
    wrong = [(x, misfit(x.words)) for x in shown]
    assert not [f"{x.place}: monolane {' '.join(x.words)}: {got}" for x, got in wrong if got]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_sentences_are_those_of_the_program(page: Any) -> None:
    named = [x for x in of_monolane(spans(page)) if " ".join(x.words) not in MESSAGES]
    wrong = [(x, misfit(x.words, whole=False)) for x in named]
    assert not [f"{x.place}: monolane {' '.join(x.words)}: {got}" for x, got in wrong if got]


def test_pages_have_commands() -> None:
    found = [x for block in BLOCKS if block.is_shell for x in of_monolane(block.commands())]
    assert len(found) > 70
    assert sum(len([*of_monolane(spans(page))]) for page in PAGES) > 60


def test_each_block_says_its_language() -> None:
    strange = [x.place for x in BLOCKS if x.language not in (*RUN, *DATA, *TEXT)]
    assert not strange, f"expected one of {(*RUN, *DATA, *TEXT)}"


def test_no_command_hides_in_a_block_of_text() -> None:
    """Where nothing would run it, nor ask for a marker."""
    texts = [x for x in BLOCKS if x.language not in RUN]
    hidden = re.compile(r"^(?:\$ |monolane |\.venv/bin/|pip install |python )", re.MULTILINE)
    assert not [x.place for x in texts if hidden.search(x.text)]


@pytest.mark.parametrize(
    "block", [x for x in BLOCKS if x.language == "json"], ids=lambda block: block.place
)
def test_json_is_json(block: Block) -> None:
    text = block.text.strip()
    if re.match(r'"\w+": ', text):  # a field
        text = f"{{{text}}}"
    for line in [text] if text.count("\n{") == 0 else text.splitlines():
        json.loads(line.replace(", ...", ""))


@pytest.mark.parametrize(
    "block", [x for x in BLOCKS if x.language == "toml"], ids=lambda block: block.place
)
def test_toml_is_toml(block: Block) -> None:
    assert tomllib.loads(block.text)


@pytest.mark.parametrize(
    ("line", "got"),
    [
        ("generate x --max-tokens 64", ""),
        ("generate x --max-tokens N", ""),
        ("generate x --max-tokens many", "valid integer"),
        ("generate x --max-token-count 64", "No such option"),
        ("generate x y", "['y']"),
        ("serve --port", "requires an argument"),
        ("bench -m demo", ""),
        ("plan --model", "requires an argument"),
        ("retrofit -m demo", "expected --output"),
        ("shine", "expected a command"),
        ("data", "expected a command"),
        ("eval agent-loop -o loop -- agent --model x", ""),
        ("quantize demo out --dtype int8", "further words"),  # as it was called before 0.1
    ],
)
def test_a_command_line_is_read_as_the_program_reads_it(line: str, got: str) -> None:
    found = misfit(tuple(line.split()))
    assert (got in found) if got else not found


MARKED = """# A page

<!-- not run: needs a GPU; 7 minutes -->
```sh
A=1 monolane generate "a # b" --stop $'\\n' > file && echo 'two
lines' | cat   # "a comment" isn't a command
monolane bench \\
  -m demo
```

1. in a list

   ```console
   $ monolane ps
   none
   ```
"""


def test_blocks_are_found_with_their_lines_commands_and_markers() -> None:
    first, second = read(MARKED, "a.md")
    assert (first.place, first.not_run) == ("a.md:5", NotRun("needs a GPU", "7 minutes"))
    assert [*first.commands()] == [
        Command("a.md:5", ("monolane", "generate", "a # b", "--stop", "$\\n")),
        Command("a.md:5", ("echo", "two\nlines")),
        Command("a.md:5", ("cat",)),
        Command("a.md:7", ("monolane", "bench", "-m", "demo")),
    ]
    assert (second.script(), second.printed()) == ("monolane ps\n", "none\n")
    assert [x.place for x in second.commands()] == ["a.md:14"]
    assert not first.runs
    assert second.runs


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("<!-- not run: needs a GPU -->", "a.md:1: expected <!-- not run: WHY; HOW LONG -->"),
        ("<!-- not run: needs a GPU; long -->", "a.md:1: expected <!-- not run"),
        ("<!-- not run: needs a GPU; hours -->\nA sentence.\n", "a.md:1: expected a block"),
        (2 * "<!-- not run: needs a GPU; hours -->\n\n", "a.md:1: expected a block"),
    ],
)
def test_a_marker_says_why_and_how_long_and_stands_before_its_block(
    before: str, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read(f"{before}\n```sh\nls\n```\n", "a.md")


def test_a_marker_before_what_never_runs_is_none() -> None:
    with pytest.raises(ValueError, match="expected commands or Python, got 'json'"):
        read("<!-- not run: needs a GPU; hours -->\n```json\n{}\n```\n", "a.md")


def test_quotes_that_stay_open_are_named() -> None:
    (block,) = read("```sh\nls\necho 'a\n```\n", "a.md")
    with pytest.raises(ValueError, match=r"a\.md:3: expected the end of a command"):
        list(block.commands())
