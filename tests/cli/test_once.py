"""What commands took until 0.1: still the same, with one line of how it is written now."""

from typing import Any

import pytest
import typer

from monolane.cli import app
from monolane.cli._grammar import every_command
from monolane.cli._once import _OPTIONS, _WORDS

ROOT: Any = typer.main.get_command(app)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("export demo out", "export --model demo --output out"),
        ("quantize demo out --dtype int8", "quantize --model demo --output out --dtype int8"),
        ("quantize int8 --dtype int8 int8", "quantize --model int8 --output int8 --dtype int8"),
        ("verify --lossless demo", "verify --model demo --lossless"),
        ("bench demo --context 5 --out=x", "bench --model demo --before 5 --output=x"),
        ("bench model demo --workers 2", "bench model --model demo --threads 2"),
        ("trace demo --out x", "trace --model demo --output x"),
        ("tune heads demo out --context 9", "tune heads --model demo --output out --window 9"),
        ("sft demo chats out --lora 2", "sft --model demo --output out --lora 2 chats"),
        ("retrofit --lanes 2 demo out", "retrofit --model demo --output out --lanes 2"),
        ("train tiny run --steps 3", "train --output run --steps 3 tiny"),
        ("launch tiny run -- ", "launch --output run tiny"),
        ("data prepare recipe out --workers 1", "data prepare --output out --processes 1 recipe"),
        ("generate x --workers 2", "generate x --threads 2"),
        ("sim --svg x", "sim --plot x"),
    ],
)
def test_the_old_way_is_the_new_one(
    before: str, now: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for line in (before, now):
        words = line.split()
        seen = ROOT
        for word in words:
            seen = getattr(seen, "commands", {}).get(word, seen)
        monkeypatch.setattr(
            type(seen), "invoke", lambda _, ctx: found.append((ctx.command_path, ctx.params))
        )
        ROOT.main(words, prog_name="monolane", standalone_mode=False)
        found.append(capsys.readouterr().err)
    assert found[0] == found[2]
    assert found[3] == ""
    for line in found[1].splitlines():
        assert " goes away in the next release; write --" in line


def test_nothing_is_said_of_options_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """--context of 'generate' is no old name of anything, and a word too many is none, either."""
    for line in ("generate x --context 5 --help", "sim --context 5 --help"):
        ROOT.main(line.split(), prog_name="monolane", standalone_mode=False)
        assert capsys.readouterr().err == ""
    with pytest.raises(Exception, match="Missing parameter: model"):
        ROOT.main(["export", "a", "b", "c"], prog_name="monolane", standalone_mode=False)


def test_everything_that_is_renamed_is_there_now() -> None:
    commands = {
        path: {x for p in command.params for x in p.opts}
        for path, command, _ in every_command(ROOT)
    }
    for path, options in _WORDS.items():
        assert set(options) - {""} <= commands[path]
    everything = set().union(*commands.values())
    for options in _OPTIONS.values():
        assert set(options) <= everything
