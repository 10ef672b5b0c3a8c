"""What others' programs rely on does not change by accident."""

import subprocess
import sys
from pathlib import Path

import monolane

ROOT = Path(__file__).parents[1]


def written(copy: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/public_api.py"]
    return subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)


def test_the_public_api_is_the_one_that_is_written_down(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    (copy / "scripts").mkdir(parents=True)
    (copy / "tests").mkdir()
    for name in ("scripts/public_api.py", "tests/public_api.txt", "CHANGELOG.md"):
        (copy / name).write_text((ROOT / name).read_text())
    page = copy / "tests" / "public_api.txt"
    before = page.read_text().splitlines()
    done = written(copy)
    advice = "run python scripts/public_api.py, and tell users in CHANGELOG.md"
    assert done.returncode == 0, f"{advice}: {done.stderr}"
    assert page.read_text().splitlines()[1:] == before[1:], advice
    # What goes away asks for a line of the changelog; with one it may go.
    for gone in ("python Engine.forget()", "command monolane forget", "route GET /forget"):
        page.write_text("\n".join([*page.read_text().splitlines(), gone]) + "\n")
    done = written(copy)
    assert done.returncode == 1
    assert "CHANGELOG.md: expected a line" in done.stderr
    assert done.stderr.splitlines()[1:] == [
        "python Engine.forget()",
        "command monolane forget",
        "route GET /forget",
    ]
    changelog = copy / "CHANGELOG.md"
    changelog.write_text(changelog.read_text() + "\nThree things are gone.\n")
    assert written(copy).returncode == 0
    assert page.read_text().splitlines()[1:] == before[1:]


def test_who_cites_it_names_this_version() -> None:
    said = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {monolane.__version__}\n" in said


def test_what_everyone_uses_is_in_it() -> None:
    names = (ROOT / "tests" / "public_api.txt").read_text().splitlines()
    assert "python Engine.generate" in {line.split("(")[0] for line in names}
    assert "command monolane generate --seed" in names
    assert "route POST /v1/chat/completions" in names
