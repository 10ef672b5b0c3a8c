"""What a command line may say: each option of each command refuses what it cannot mean, with 2."""

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
import typer
from typer.models import OptionInfo

from monolane.cli import app, main

# What else a command must be given, and what an option of one needs beside it.
GIVEN: dict[str, tuple[str, ...]] = {
    "generate": ("x",),
    "rank": ("--listen", "127.0.0.1:0"),
    "pull": ("demo",),
    "fetch": ("demo",),
    "rm": ("x",),
    "key": ("keys",),
    "verify": ("-m", "demo"),
    "export": ("-m", "demo", "-o", "out"),
    "quantize": ("-m", "demo", "-o", "out", "--dtype", "int8"),
    "train": ("tiny", "-o", "out"),
    "launch": ("tiny", "-o", "out"),
    "sft": ("chats", "-m", "demo", "-o", "out"),
    "retrofit": ("-m", "demo", "-o", "out"),
    "trace": ("-o", "trace"),
    "board": ("run", "-o", "board"),
    "data prepare": ("recipe", "-o", "out"),
    "tune heads": ("-m", "demo", "-o", "out"),
    "tune eagle": ("-m", "demo", "-o", "out"),
    "data report": ("corpus",),
    "data show": ("corpus",),
    "eval tasks": ("--tasks", "perplexity", "-o", "out"),
    "eval agent-loop": ("-o", "out", "true"),
}
BESIDE = {
    **dict.fromkeys([("train", "device"), ("train", "mfu")], ("--dry-run",)),
    **{
        ("retrofit", name): ("--distil", "text")
        for name in ("order", "objective", "steps", "context", "rows", "learning_rate", "precision")
    },
    ("launch", "address"): ("--nodes", "2"),
}
# Options that take a word of a few, or of a form.
WORDS = {
    "address": "here",
    "backend": "gpu",
    "device": "abacus",
    "dtype": "int3",
    "cache_dtype": "int3",
    "expert_memory": "much",
    "tool_choice": "never",
    "head": "many",
    "lengths": "long",
    "listen": "here",
    "lora": "here",
    "objective": "fame",
    "order": "sideways",
    "override_generation_config": "{",
    "policy": "all",
    "precision": "half",
    "prefix_cache": "much",
    "ranks": "two",
    "reduce": "soon",
    "report": "all",
    "settings": "seed",
    "speculation": "sometimes",
    "sweep": "speed",
    "synthetic": "huge",
    "tasks": ",",
    "tool_format": "lama",
    "log_format": "xml",
    "log_level": "loud",
    "root_path": "llm",
    "traces": "here",
}
# Those that take any text: what it names is there or is not, which is no matter of usage.
TEXTS = {
    *("against", "allow_host", "allow_origin", "base_url", "begin_with", "draft"),
    *("generation_config", "host", "key_from", "label", "model", "name", "named", "of"),
    *("recipe", "stage", "stop", "system"),
}
SIGNED = {"seed", "priority"}
# Where a value is held against the model, or the machine: then it fails, with 1, as the work does.
LATER = {("retrofit", "device"), ("export", "dtype")}
TRAINS = {"train", "launch", "sft", "retrofit"}


def commands(group: typer.Typer, path: str = "") -> Iterator[tuple[str, Callable[..., None]]]:
    for each in group.registered_commands:
        assert each.callback is not None
        yield path + (each.name or each.callback.__name__), each.callback
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from commands(inner.typer_instance, f"{path}{inner.name} ")


COMMANDS = dict(commands(app))


def run(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["monolane", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def options(command: Callable[..., None]) -> Iterator[tuple[str, str, type]]:
    """Yield the options of a command: name, spelling, and the type of one value."""
    for name, hint in get_type_hints(command, include_extras=True).items():
        if get_origin(hint) is Annotated and isinstance(hint.__metadata__[0], OptionInfo):
            spelled = [x for x in hint.__metadata__[0].param_decls or () if x.startswith("--")]
            kind = hint.__origin__
            while get_args(kind):  # of int | None, or of a list of them
                kind = get_args(kind)[0]
            yield name, spelled[0] if spelled else f"--{name.replace('_', '-')}", kind


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_refuses_what_it_cannot_mean(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in TRAINS and not all(map(find_spec, ("torch", "transformers", "tomli_w"))):
        pytest.skip("needs torch, transformers and tomli_w: pip install 'monolane[sft]'")
    monkeypatch.chdir(tmp_path)
    first = name.split()
    given = GIVEN.get(name, ())
    assert run(*first, *given, "--no-such-option") == 2
    for option, spelling, kind in options(COMMANDS[name]):
        if kind in (bool, Path) or option in TEXTS | SIGNED or (name, option) in LATER:
            continue
        wrong = WORDS[option] if kind is str else "-9999"
        beside = BESIDE.get((name, option), ())
        capsys.readouterr()
        code = run(*first, *given, *beside, spelling, wrong)
        told = capsys.readouterr()
        assert code == 2, (spelling, wrong, told.err)
        assert told.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [name for name in COMMANDS if name in GIVEN])
def test_what_a_command_must_be_given(name: str) -> None:
    assert run(*name.split()) == 2
