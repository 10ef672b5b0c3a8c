"""What the site has beyond the pages of docs/: files outside it that they link to, and a reference.

MkDocs calls ``on_files`` and ``on_page_markdown`` (mkdocs.yml). A link that leaves docs/ leads to a
page that shows the file, with its lines numbered, so the site is whole without the repository.
"""

import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from monolane.cli._examples import EXAMPLES
from monolane.cli._grammar import every_command
from monolane.cli._settings import is_set_elsewhere, is_shared, key_of, variables_of

ROOT = Path(__file__).parents[1]
FOLDER = "source"  # where files outside docs/ are in the site
# Text, not pictures; the address has no spaces.
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
NOT_RUN = re.compile(r"<!-- not run: ([^;]+); ([^;]+) -->\n")  # tests/pages/shown.py
LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".cu": "cpp", ".toml": "toml"}
LONGEST = 200_000  # characters of a file that are shown


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the first page, the reference, and a page for each file outside that a page links to."""
    made = {
        "index.md": _index(),
        "reference/commands.md": "".join(_commands()),
        "reference/http.md": "".join(_routes()),
    }
    pages = {
        f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()
    } | {"docs/index.md": made["index.md"]}
    linked = {path for place, text in pages.items() for path in _outside(place, text)}
    for path in sorted(linked):
        made[_page_of(path)] = _shown(path)
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    _LINKED.clear()
    _LINKED.update(linked)
    return files


_LINKED: set[str] = set()  # of the files outside, those that have a page


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave docs/ to the pages that show what they lead to."""
    del config, files
    place = _place_of(page.file.src_uri)

    def turned(found: re.Match[str]) -> str:
        text, link = found.groups()
        path, anchor = _target(place, link)
        if path is None:
            return found[0]
        if path.startswith("docs/") and (ROOT / path).is_file():
            to = path.removeprefix("docs/")
        elif path in _LINKED:
            to = _page_of(path)
            anchor = re.sub(r"^L(\d+)$", r"__codelineno-0-\1", anchor)
        else:
            return text  # of a page outside, to what no page of docs/ links to
        way = posixpath.relpath(to, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{text}]({way}{'#' + anchor if anchor else ''})"

    return NOT_RUN.sub(_said_of_a_block, LINK.sub(turned, markdown))


def _said_of_a_block(marker: re.Match[str]) -> str:
    """Show what the source has as a comment: why no test runs a block, and how long it takes."""
    why, takes = marker.groups()
    lasts = f"runs {takes}" if takes.startswith("until") else f"takes {takes}"
    return f"*Not run by a test: {why}. It {lasts}.*\n\n"


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Take iframe-worker 1.0.4, by which the search runs from a disk, from the site itself."""
    del config
    own = "../" * page.url.count("/") + "assets/iframe-worker/shim.js"
    return output.replace("https://unpkg.com/iframe-worker/shim", own)


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    """Do the same for what is no page: 404.html, which is served from the root."""
    del template_name, config
    return output.replace("https://unpkg.com/iframe-worker/shim", "/assets/iframe-worker/shim.js")


def _place_of(page: str) -> str:
    """Return where a page's text lies in the repository."""
    if page == "index.md":
        return "README.md"
    if not page.startswith(f"{FOLDER}/"):
        return f"docs/{page}"
    bare = page.removeprefix(f"{FOLDER}/")
    return bare if (ROOT / bare).exists() else bare.removesuffix(".md")


def _target(place: str, link: str) -> tuple[str | None, str]:
    """Return the file that a link leads to, and the place in it; None: no file."""
    address, _, anchor = link.partition("#")
    if not address or "://" in address or address.startswith(("mailto:", "/")):
        return None, anchor
    path = posixpath.normpath(posixpath.join(posixpath.dirname(place), address))
    if (ROOT / path).is_dir():
        path = f"{path}/README.md"  # where there is none, the link is left out
    return (path if (ROOT / path).is_file() or path.endswith("/README.md") else None), anchor


def _outside(place: str, text: str) -> Iterator[str]:
    place = "README.md" if place == "docs/index.md" else place
    for _, link in LINK.findall(text):
        path, _ = _target(place, link)
        if path is not None and not path.startswith("docs/") and (ROOT / path).is_file():
            yield path


def _page_of(path: str) -> str:
    return f"{FOLDER}/{path}" if path.endswith(".md") else f"{FOLDER}/{path}.md"


def _shown(path: str) -> str:
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        # Pictures of other folders are not in the site.
        return re.sub(r"!\[([^\]]*)\]\([^)]*\)", r"\1", text)
    more = "" if len(text) <= LONGEST else "\n\nThe file goes on.\n"
    language = LANGUAGES.get(Path(path).suffix, "text")
    code = text[:LONGEST].rstrip()
    return f'# {path}\n\n~~~~~~{{.{language} linenums="1"}}\n{code}\n~~~~~~\n{more}'


def _index() -> str:
    return (ROOT / "README.md").read_text().replace("](docs/images/", "](images/")


def _commands() -> Iterator[str]:
    """Yield the page of the command line, as the commands describe themselves."""
    import typer

    from monolane.cli import app

    yield (
        "# Commands\n\nEach takes `--help`, too. An option that is not given is taken from its "
        "variable, then from its key in config.toml: [settings](../settings.md).\n"
    )
    for path, command, _ in every_command(typer.main.get_command(app)):
        yield from _command(path, command)


def _command(path: tuple[str, ...], command: Any) -> Iterator[str]:
    name = " ".join(("monolane", *path))
    yield f"\n## {name}\n\n{_plain(command.help or '')}\n\n"
    rows = [x for x in command.params if not getattr(x, "hidden", False) and x.name != "help"]
    if rows:
        yield "| | variable, key | |\n|---|---|---|\n"
    for row in rows:
        spelled = ", ".join(f"`{x}`" for x in (*row.opts, *row.secondary_opts))
        if row.param_type_name == "argument":
            spelled = f"`{row.name}`"
        help_ = _plain(getattr(row, "help", "") or "")
        yield f"| {spelled} | {'<br>'.join(_elsewhere(path, row))} | {help_} |\n"
    if lines := EXAMPLES.get(path):
        yield "\n```sh\n{}\n```\n".format("\n".join(lines))


def _elsewhere(path: Sequence[str], option: Any) -> Iterator[str]:
    """Yield the variables and the keys of an option."""
    if not path or not is_set_elsewhere(option):
        return
    key = key_of(option)
    yield from (f"`{name}`" for name in variables_of(path, option))
    yield f"`{key}`" if is_shared(option) else f"`{'.'.join((*path, key))}`"


def _plain(text: str) -> str:
    """Return help as a cell of a table has it."""
    text = " ".join(text.replace("\b", "").split())
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[").replace("*", "\\*")


def _routes() -> Iterator[str]:
    """Yield the page of the server's routes, from its own OpenAPI document."""
    from monolane.serve._http.openapi import openapi
    from monolane.serve._openai.routes import OPERATIONS
    from monolane.serve._server import OTHERS

    document = openapi((*OPERATIONS, *OTHERS))
    yield (
        "# HTTP\n\n`GET /openapi.json` gives the whole document; "
        "[Serving](../serving.md) says what fields do.\n\n"
    )
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"\n## {method.upper()} {path}\n\n{operation['summary']}.\n\n"
            body = operation.get("requestBody")
            if body is None:
                continue
            name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            fields = schemas[name].get("properties", {})
            needed = schemas[name].get("required", ())
            listed = (f"`{x}`{' (needed)' if x in needed else ''}" for x in fields)
            yield f"Fields: {', '.join(listed)}.\n"
