"""Where options come from: the command line, variables, the config file, then defaults."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from monolane import _env
from monolane.cli import app, main
from monolane.cli._doctor import _settings
from monolane.cli._grammar import every_command
from monolane.cli._settings import SHARED, Settings, is_set_elsewhere, is_shared, variables_of

ROOT: Any = typer.main.get_command(app)
Run = Callable[..., tuple[int, str]]


@pytest.fixture(name="run")
def _run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run a command line; return its exit code and stderr. The config file is ``tmp_path``'s."""
    monkeypatch.setenv("MONOLANE_CONFIG", str(tmp_path))

    def run(*words: str | Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["monolane", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, capsys.readouterr().err

    return run


def taken(monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, Any]:
    """Return what a command's options are, by name; the command is not run."""
    found: dict[str, Any] = {}
    seen = ROOT
    for word in words:
        seen = getattr(seen, "commands", {}).get(word, seen)
    monkeypatch.setattr(type(seen), "invoke", lambda _, ctx: found.update(ctx.params))
    ROOT.main(list(words), prog_name="monolane", standalone_mode=False)
    return found


def test_the_first_place_that_says_something_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONOLANE_CONFIG", str(tmp_path))
    places: list[Callable[[], object]] = [
        lambda: (tmp_path / "config.toml").write_text("threads = 2\n"),
        lambda: (tmp_path / "config.toml").write_text("threads = 2\n[serve]\nthreads = 3\n"),
        lambda: monkeypatch.setenv("MONOLANE_THREADS", "4"),
        lambda: monkeypatch.setenv("MONOLANE_SERVE_THREADS", "5"),
    ]
    found = [taken(monkeypatch, "serve")["workers"]]
    for place in places:
        place()
        found.append(taken(monkeypatch, "serve")["workers"])
    found.append(taken(monkeypatch, "serve", "--threads", "6")["workers"])
    assert found == [None, 2, 3, 4, 5, 6]
    assert taken(monkeypatch, "generate", "x")["workers"] == 4  # what is said of all commands


def test_kinds_of_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'model = "x"\nprefix_cache = 512\n[serve]\nallow_host = ["a", "b"]\nbandwidth = false\n'
        'any_model = true\ndeadline = 1.5\ntls_cert = "c.pem"\n[bench.serve]\nclients = 3\n'
    )
    found = taken(monkeypatch, "--config", str(file), "serve")
    wanted = {"model": "x", "prefix_cache": "512", "allow_host": ["a", "b"], "bandwidth": False}
    wanted |= {"any_model": True, "deadline": 1.5, "tls_cert": Path("c.pem")}
    assert {name: found[name] for name in wanted} == wanted
    monkeypatch.setenv("MONOLANE_CONFIG", str(file))  # which may name a file, too
    assert taken(monkeypatch, "bench", "serve")["clients"] == [3]
    assert taken(monkeypatch, "bench", "serve")["model"] is None  # the server's own
    monkeypatch.setenv("MONOLANE_SERVE_ALLOW_HOST", "c d")
    monkeypatch.setenv("MONOLANE_SERVE_BANDWIDTH", "1")
    found = taken(monkeypatch, "serve")
    assert (found["allow_host"], found["bandwidth"]) == (["c", "d"], True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[sevre]\n", "expected a section that there is, got [sevre]; did you mean serve?"),
        ("modle = 1\n", "expected a key that there is, got modle above all sections; did you mean"),
        ("[serve]\nprot = 1\n", "got prot in [serve]; did you mean port?"),
        ("port = 1\n", "expected a key that there is, got port above all sections"),
        ("[serve]\nport = 'x'\n", "config.toml: port: expected a whole number, got 'x'"),
        ("[serve]\nport = true\n", "[serve] port: expected a number or a text, got True; mend it"),
        ("[serve]\nport = [1]\n", "[serve] port: expected a number or a text, got [1]; mend it"),
        ("[serve]\nany_model = 1\n", "[serve] any_model: expected true or false, got 1; mend it"),
        ("[serve]\nallow_host = [true]\n", "expected a list of numbers or texts, got [True]"),
        ("[serve\n", "config.toml: expected TOML, got:"),
        ("[serve.port]\n", "[serve] port: expected a number or a text, got {}; mend it"),
    ],
)
def test_a_file_that_says_what_there_is_not(
    run: Run, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "config.toml").write_text(text)
    code, told = run("serve", "--policy", "none")  # which is looked at later
    assert code in (1, 2)
    assert message in told
    assert told.count("\n") == 1
    assert run("serve", "--help")[0] == 0


def test_files_that_are_none(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    told = (
        f"monolane: {tmp_path / 'config.toml'}: expected a file, got a folder; remove or rename it"
    )
    assert run("ps") == (1, f"{told}\n")
    for wrong in (tmp_path / "none.toml", tmp_path):
        code, told = run("--config", wrong, "ps")
        assert code == 1
        assert told.startswith(f"monolane: {wrong}: expected a config file, got: ")
    (tmp_path / "latin.toml").write_bytes(b"model = '\xe9'\n")
    assert "expected TOML, got: 'utf-8'" in run("--config", tmp_path / "latin.toml", "ps")[1]


def test_a_wrong_value_is_named_by_where_it_stands(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONOLANE_SERVE_PORT", "x")
    assert run("serve") == (
        2,
        "monolane serve: MONOLANE_SERVE_PORT: expected a whole number, got 'x'\n",
    )


def test_processes_of_a_launcher_are_told_everything_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MONOLANE_TRAIN_STEPS", "5")
    assert taken(monkeypatch, "train", "tiny")["steps"] == 5
    monkeypatch.setenv("MONOLANE_LAUNCHER", "1")
    # Parameters keep what an earlier call has told them of variables: a process has one call.
    for parameter in ROOT.commands["train"].params:
        parameter.envvar = None
    assert taken(monkeypatch, "train", "tiny")["steps"] is None


def test_doctor_tells_what_is_set_and_what_nothing_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONOLANE_CONFIG", str(tmp_path))
    monkeypatch.setenv("MONOLANE_THREADS", "2")
    monkeypatch.setenv("MONOLANE_SERVE_PRT", "1")
    (tmp_path / "config.toml").write_text("[serve]\nport = 1\n[chat]\nsytem = 'x'\n")
    found = {x.name: x for x in _settings(None)}
    assert found["MONOLANE_THREADS"].value == "2 (--threads)"
    assert found["MONOLANE_SERVE_PRT"].state == "missing"
    assert found["MONOLANE_SERVE_PRT"].mend == "did you mean MONOLANE_SERVE_PORT?"
    assert found["config file"].state == "broken"
    assert "got sytem in [chat]; did you mean system?" in found["config file"].value
    (tmp_path / "config.toml").write_text("[serve]\nport = 1\n[bench]\nruns = 1\n[bench.serve]\n")
    (last,) = (x for x in _settings(None) if x.name == "config file")
    assert (last.state, last.value.endswith("(2 keys and sections)")) == ("ok", True)


def test_doctor_outlives_a_broken_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[")
    code, told = run("doctor", "--json")
    assert (code, told) == (1, "")


def test_no_variable_means_two_things() -> None:
    """Of two options, nor of an option and what Python reads."""
    table = {x.name for x in _env.VARIABLES}
    owners: dict[str, tuple[str, ...]] = {}
    shared = set()
    for path, command, _ in every_command(ROOT):
        for option in filter(is_set_elsewhere, command.params):
            names = variables_of(path, option)
            assert names[0] not in table
            assert owners.setdefault(names[0], (*path, str(option.name)))[:-1] == path
            if is_shared(option):
                shared.add(names[1])
    assert not shared & owners.keys()
    assert shared & table == {"MONOLANE_BACKEND"}  # which says the same
    assert {name.removeprefix("MONOLANE_").lower() for name in shared} == SHARED


def test_the_place_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert _env.config_file() == tmp_path / "monolane" / "config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "not/absolute")
    assert _env.config_file() == Path.home() / ".config" / "monolane" / "config.toml"
    monkeypatch.setenv("MONOLANE_CONFIG", str(tmp_path / "x.toml"))
    assert (_env.config_file(), _env.config_folder()) == (tmp_path / "x.toml", tmp_path)
    assert json.dumps(dict(Settings.read(None).table)) == "{}"
