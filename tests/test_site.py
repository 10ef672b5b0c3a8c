"""The documentation as a site: built strictly, whole, and readable from the disk."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import monolane
from monolane.cli import app

ROOT = Path(__file__).parents[1]
PUBLIC = (ROOT / "tests" / "public_api.txt").read_text().splitlines()

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    # Its makers advertise another program; everything else on stderr is a fault.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [*command, "--quiet"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder


def text_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    python = text_of(site / "reference" / "python.html")
    missing = [name for name in monolane.__all__ if name != "__version__" and name not in python]
    assert missing == []
    commands = text_of(site / "reference" / "commands.html")
    shown = [x for x in typer.main.get_command(app).commands.items() if not x[1].hidden]  # type: ignore[attr-defined]
    assert [name for name, _ in shown if f"monolane {name}" not in commands] == []
    options = {x.rpartition(" ")[2] for x in PUBLIC if re.match(r"command monolane \w+ .*-", x)}
    assert len(options) > 100
    assert [x for x in sorted(options) if not all(y in commands for y in x.split("/"))] == []
    http = text_of(site / "reference" / "http.html")
    for path in ("/v1/chat/completions", "/v1/messages", "/infill", "/v1/responses", "/tokenize"):
        assert f"POST {path}" in http


def test_all_links_lead_to_files_and_anchors_of_the_site(site: Path) -> None:
    """MkDocs looks at links of Markdown; this looks at what was written."""
    anchors: dict[Path, set[str]] = {}
    broken = []
    for page in sorted(site.rglob("*.html")):
        if page.name == "404.html":  # which is served at any depth
            continue
        for target in re.findall(r'<a [^>]*href="([^"]+)"', page.read_text()):
            address, _, anchor = html.unescape(target).partition("#")
            if re.match(r"[a-z]+:", address):
                continue
            to = (page.parent / address).resolve() if address else page
            if to.is_dir():
                to = to / "index.html"
            if not to.exists():
                broken.append(f"{page.relative_to(site)}: {target}")
            elif anchor and to.suffix == ".html":
                if to not in anchors:
                    anchors[to] = set(re.findall(r'\b(?:id|name)="([^"]+)"', to.read_text()))
                if anchor not in anchors[to]:
                    broken.append(f"{page.relative_to(site)}: {target}")
    assert broken == []


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        for target in re.findall(
            r'<(?:link|script|img)[^>]*(?:href|src)="([^"]+)"', page.read_text()
        ):
            assert "://" not in target or 'rel="canonical"' in target, f"{page}: {target}"


def test_a_file_of_the_repository_is_shown_with_its_lines(site: Path) -> None:
    page = site / "decode-loop.html"
    link = re.search(r'href="(source/csrc/run/[\w.]+html)#(__codelineno-0-\d+)"', page.read_text())
    assert link is not None
    assert f'id="{link[2]}"' in (site / link[1]).read_text()


def test_a_marker_is_told_to_readers(site: Path) -> None:
    said = text_of(site / "start.html")
    assert "Not run by a test: needs the package index, and trains. It takes 30 minutes." in said
    said = text_of(site / "long-context.html")
    assert "It runs until it is ended." in said
    assert "<!-- not run" not in (site / "start.html").read_text()
