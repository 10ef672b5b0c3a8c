"""The README keeps its word: answers, links, CI's command. What it shows is run by tests/pages."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from monolane._core import kernels

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
STATUS = (ROOT / "docs" / "status.md").read_text()


def test_the_readme_has_two_screens() -> None:
    assert len(README.encode()) <= 6000


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx2", "auto"])
def test_the_real_model_says_what_the_page_says(
    isa: str, smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isa not in (*kernels.supported(), "auto"):
        pytest.skip(f"this processor has no {isa}")
    monkeypatch.setenv("MONOLANE_ISA", isa)
    ((question, answer),) = re.findall(r"Asked `(.*?)` it says `(.*?)`", README)
    result = subprocess.run(
        [sys.executable, "-m", "monolane", "chat", "--model", str(smollm2)],
        input=f"{question}\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == f"{answer}\n"


def test_links_and_paths_are_there() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#][^)]*)\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target.split("#")[0]).exists(), f"{document}: {target}"


def test_links_into_a_page_lead_to_a_heading() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", document.read_text()):
            if re.fullmatch(r"L\d+", anchor):  # a line of a source: tests/test_rooms.py
                continue
            page = document.parent / target if target else document
            headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in slugs, f"{document}: {target}#{anchor}"


def test_commands_of_the_status_table_are_those_of_the_program() -> None:
    from monolane.cli import app

    shown = [command for command in app.registered_commands if not command.hidden]
    names = {command.name or command.callback.__name__ for command in shown}
    names |= {group.name for group in app.registered_groups}
    (row,) = re.findall(r"^\| (`generate`.*?) \| works \|$", STATUS, re.MULTILINE)
    assert set(re.findall(r"`(\w+)", row)) == names


def test_ci_runs_the_readmes_test_command() -> None:
    line = README.split("## Test", 1)[1].split("```sh\n", 1)[1].splitlines()[0]
    assert line == "scripts/check"
    script = (ROOT / ".ci" / "run").read_text()
    assert "README.md" in script


def test_the_waits_of_a_laneformer_are_counted_right() -> None:
    from monolane.model import NOW
    from monolane.plan import H200, Plan, Scope, build, named_config

    def over_all_lanes(plan: Plan) -> list[int]:
        """How many phases back the waits over all lanes reach; 0: to the phase before."""
        waits = [(phase, phase.wait(Scope.ALL)) for phase in plan.phases]
        return [phase.index - count for phase, count in waits if count is not None]

    model = named_config("laneformer-2b")
    plan = build(model, H200, "bfloat16")
    back = over_all_lanes(plan)
    two_layers = 2 * 5  # phases
    counts = len(back), back.count(two_layers), back.count(0)
    assert counts == (27, 26, 1)
    layers = [replace(layer, attention_reduce=NOW, mlp_reduce=NOW) for layer in model.layers]
    ordinary = over_all_lanes(build(replace(model, layers=tuple(layers)), H200, "bfloat16"))
    assert set(ordinary) == {0}
    page = " ".join((ROOT / "docs" / "plan.md").read_text().split())
    assert f"has {counts[0]} waits over all lanes in a pass of {len(plan.phases)} phases" in page
    assert f"{counts[1]} of them reach back ten phases" in page
    assert f"twice a layer, {len(ordinary)} times in all" in page
    inside = sum(phase.wait(Scope.GROUP) is not None for phase in plan.phases)
    assert f"{inside} times in a pass on an H200" in page
