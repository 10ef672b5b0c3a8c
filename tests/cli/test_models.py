"""The commands on models: list, rm, alias and ps, each in a process of its own."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A user who has nothing yet."""
    given = {x: y for x, y in os.environ.items() if not x.startswith(("HF_", "OLLAMA_", "LLAMA_"))}
    given.pop("XDG_CACHE_HOME", None)
    here = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hub"), "MONOLANE_OFFLINE": "1"}
    return given | here


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "monolane", *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=120
        )

    return call


@pytest.fixture
def cached(tmp_path: Path, llama_gguf: Path, tiny_model: Path) -> Path:
    """The Hub's cache with a repository of two files that share a blob, and one of a folder."""
    hub = tmp_path / "hub" / "hub"
    repo = hub / "models--org--some-GGUF"
    for folder in ("blobs", "refs", "snapshots/c1"):
        (repo / folder).mkdir(parents=True)
    (repo / "refs" / "main").write_text("c1")
    shutil.copy(llama_gguf, repo / "blobs" / "aa")
    (repo / "blobs" / "bb").write_bytes(llama_gguf.read_bytes()[:200])
    for name, blob in (("x-Q8_0", "aa"), ("y-Q8_0", "aa"), ("x-Q4_0", "bb")):
        (repo / "snapshots" / "c1" / f"{name}.gguf").symlink_to(f"../../blobs/{blob}")
    other = hub / "models--org--folder"
    shutil.copytree(tiny_model, other / "snapshots" / "c2")
    (other / "refs").mkdir()
    (other / "refs" / "main").write_text("c2")
    return hub


def rows(run: Run) -> dict[str, dict[str, object]]:
    told = run("list", "--json")
    assert told.returncode == 0, told.stderr
    return {x["model"]: x for x in json.loads(told.stdout)["models"]}


def test_list_tells_what_is_here_and_whether_it_runs(run: Run, cached: Path) -> None:
    found = rows(run)
    assert set(found) == {
        "demo", "org/folder", "org/some-GGUF:Q4_0", "org/some-GGUF/x-Q8_0.gguf",
        "org/some-GGUF/y-Q8_0.gguf",
    }  # fmt: skip
    assert (found["demo"]["family"], found["demo"]["runs"]) == ("laneformer", True)
    whole = found["org/some-GGUF/x-Q8_0.gguf"]
    assert (whole["family"], whole["runs"], whole["keeper"]) == ("llama", True, "Hub")
    assert whole["bytes"] == (cached / "models--org--some-GGUF/blobs/aa").stat().st_size
    assert found["org/folder"]["runs"]
    cut = found["org/some-GGUF:Q4_0"]
    assert not cut["runs"]
    assert "download or write the file again" in str(cut["fault"])
    table = run("list").stdout
    assert re.search(r"^NAME +SIZE +FAMILY +KEPT BY +RUNS$", table, re.MULTILINE)
    assert re.search(r"^org/folder +\d+ MB +laneformer +Hub +yes$", table, re.MULTILINE)


def test_a_folder_that_lacks_tensors_does_not_run(run: Run, cached: Path) -> None:
    config = cached / "models--org--folder/snapshots/c2/config.json"
    raw = json.loads(config.read_text())
    config.write_text(json.dumps(raw | {"num_hidden_layers": 8}))
    found = rows(run)["org/folder"]
    assert "missing" in str(found["fault"])
    config.write_text(json.dumps(raw | {"model_type": "abacus"}))
    assert "model_type: expected one of" in str(rows(run)["org/folder"]["fault"])


def test_rm_removes_what_a_model_has_for_itself(run: Run, cached: Path) -> None:
    repo = cached / "models--org--some-GGUF"
    told = run("rm", "org/some-GGUF/x-Q8_0.gguf", "org/some-GGUF:Q4_0")
    assert told.returncode == 0, told.stderr
    assert "removed org/some-GGUF/x-Q8_0.gguf; 0 MB are free now" in told.stdout
    assert sorted(x.name for x in (repo / "blobs").iterdir()) == ["aa"]  # y is it, too
    assert [x.name for x in (repo / "snapshots/c1").iterdir()] == ["y-Q8_0.gguf"]
    assert "org/some-GGUF:Q8_0" in rows(run)
    assert run("rm", "org/some-GGUF", "org/folder").returncode == 0
    assert not repo.exists()  # with the last of them
    assert set(rows(run)) == {"demo"}


def test_rm_removes_a_broken_download(run: Run, cached: Path) -> None:
    blobs = cached / "models--org--begun" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "cc.part").write_bytes(b"GGUF")
    assert not rows(run)["org/begun"]["runs"]
    assert run("rm", "org/begun").returncode == 0
    assert not blobs.parent.exists()


def test_rm_leaves_what_is_others(run: Run, tmp_path: Path, llama_gguf: Path) -> None:
    kept = tmp_path / ".lmstudio/models/org/some/some-Q8_0.gguf"
    kept.parent.mkdir(parents=True)
    shutil.copy(llama_gguf, kept)
    for name, why in (
        ("org/some:Q8_0", f"got one of LM Studio: remove it there, or the folder {kept}"),
        (str(llama_gguf), "got a path; remove it yourself"),
        ("demo", "got the one that is a part of monolane"),
        ("org/som:Q8_0", "got none of this name. Did you mean org/some:Q8_0?"),
    ):
        told = run("rm", name)
        assert told.returncode == 1
        assert why in told.stderr
    assert kept.exists()
    assert llama_gguf.exists()


def test_an_alias_is_a_model_s_name(run: Run, llama_gguf: Path) -> None:
    assert run("alias", "coder:small", str(llama_gguf)).returncode == 0
    assert run("pull", "coder:small").stdout == f"{llama_gguf}\n"
    assert run("alias").stdout.splitlines()[1].split() == ["coder:small", str(llama_gguf)]
    assert "Did you mean coder:small?" in run("pull", "coder:smal").stderr
    assert "is no alias any more" in run("rm", "coder:small").stdout
    assert llama_gguf.exists()
    assert run("alias", "coder:small").returncode == 2


def test_a_damaged_file_of_aliases_is_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / ".config/monolane/aliases.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"a": 1}')
    told = run("list")
    assert told.returncode == 1
    assert f"{path}: expected a JSON object of name to model" in told.stderr


@pytest.mark.slow
def test_ps_names_servers_while_they_live(run: Run, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "monolane", "serve", "--port", "0", "--no-bandwidth"]

    def start() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"starts demo at (http://\S+)$", line):
                return process, found[1]
        raise AssertionError("no server")

    one, url = start()
    two, _ = start()
    try:
        told = {x["process"]: x for x in json.loads(run("ps", "--json").stdout)["servers"]}
        assert set(told) == {one.pid, two.pid}
        assert (told[one.pid]["model"], told[one.pid]["url"]) == ("demo", url)
        assert told[one.pid]["memory_bytes"] > 1 << 20
        two.send_signal(signal.SIGKILL)
        two.wait()
        assert f"{one.pid}" in run("ps").stdout
        assert [x["process"] for x in json.loads(run("ps", "--json").stdout)["servers"]] == [
            one.pid
        ]
    finally:
        for process in (one, two):
            process.terminate()
            process.communicate()
    assert json.loads(run("ps", "--json").stdout) == {"servers": []}
