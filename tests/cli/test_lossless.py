"""``monolane verify --lossless``, which needs no Transformers."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from monolane.cli import app
from monolane.cli._lossless import read_prompts


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_lossless_with_prompts_of_a_file(tmp_path: Path) -> None:
    """Every way of answering is compared; wrong drafts were drafted, and none was taken."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text('def f(x):\n"class A:\\n    pass\\n"\n')
    given = ("--prompts", prompts, "--tokens", 20, "--backend", "cpu", "--json")
    result = invoke("verify", "--lossless", "--model", "demo", *given)
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["same"]
    assert len(report["checks"]) == 2 * 3 * 7  # draws, prompts, ways
    wrong = [check for check in report["checks"] if check["way"] == "wrong drafts"]
    assert all(check["drafted"] > 0 == check["accepted"] for check in wrong)


def test_a_byte_order_mark_is_no_part_of_the_first_prompt(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text('"a\\n"\nb\n', encoding="utf-8-sig")
    assert read_prompts(prompts) == ["a\n", "b"]


def test_lossless_refuses_prompts_that_are_none(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    result = invoke("verify", "-m", "demo", "--lossless", "--prompts", empty)
    assert result.exit_code == 1
    assert "expected a prompt in each line" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lossless", "--tokens", "0"], "--tokens: expected 1 or more with --lossless, got 0"),
        (["--lossless", "--trust-remote-code"], "--trust-remote-code: --lossless compares with no"),
    ],
)
def test_options_that_would_not_count_are_refused(arguments: list[str], message: str) -> None:
    result = invoke("verify", "-m", "demo", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
