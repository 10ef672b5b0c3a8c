"""Models that come in Python packages: real pip, and wheels that a local folder serves."""

import base64
import hashlib
import importlib.machinery
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.engine import SamplingDefaults
from monolane.errors import ModelNotFoundError
from monolane.sources import _packaged as packaged
from monolane.sources import fetch_model, find_model
from monolane.sources._packaged import PackagedModel

# Of no use to a compressor, so that half of a wheel holds half of the file.
CONTENT = np.random.default_rng(0).bytes(300_000)
TINY = PackagedModel(
    name="tiny",
    requirement="monolane-tiny-test-model==1.0",
    wheel_bytes=300_500,
    member="monolane_tiny/tiny.gguf",
    file_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    notice="From a test.\n",
    defaults={},
)
PROGRAM = [sys.executable, "-W", "error", "-c", "from monolane.cli import main; main()"]


def write_wheel(folder: Path, content: bytes = CONTENT, member: str = TINY.member) -> Path:
    """A wheel as the packaging standard has it: the file, METADATA, WHEEL and RECORD."""
    info = "monolane_tiny_test_model-1.0.dist-info"
    files = {
        member: content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: monolane-tiny-test-model\nVersion: 1.0\n"
        b"Requires-Dist: no-such-package-anywhere\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()},\n"
        for name, data in files.items()
    )
    path = folder / "monolane_tiny_test_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:  # stored: a byte of the file is one of the wheel
        for name, data in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the one place of packages; a cache beside it."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [x for x in os.environ if x.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setitem(packaged.PACKAGED, "tiny", TINY)
    return folder


def left(tmp_path: Path) -> list[str]:
    """All files of the cache."""
    return sorted(x.name for x in (tmp_path / "cache").rglob("*") if x.is_file())


def test_a_model_is_fetched_once(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = write_wheel(index)
    path = find_model("tiny")
    assert path == tmp_path / "cache" / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert (path.parent / "NOTICE").read_text() == "From a test.\n"
    assert sorted(x.name for x in path.parent.iterdir()) == ["NOTICE", "tiny.gguf"]
    said = capsys.readouterr()
    assert said.out == ""
    first, *progress = said.err.splitlines()
    assert first == (
        "monolane: fetching tiny, once: monolane-tiny-test-model==1.0 (0 MB) from the package index"
    )
    assert progress[0].startswith("fetching tiny: ")
    assert progress[0].endswith(" of 0.3 MB")
    wheel.unlink()
    monkeypatch.setenv("MONOLANE_OFFLINE", "1")
    assert find_model("tiny") == fetch_model("tiny") == path
    assert capsys.readouterr().err == ""


def test_a_file_that_has_changed_is_fetched_again(index: Path) -> None:
    write_wheel(index)
    path = find_model("tiny")
    path.write_bytes(CONTENT[:-1] + b"?")
    assert fetch_model("tiny").read_bytes() == CONTENT
    path.write_bytes(CONTENT[:1000])  # as nobody of ours leaves it; its size is looked at always
    assert find_model("tiny").read_bytes() == CONTENT


def fail(match: str) -> ModelNotFoundError:
    with pytest.raises(ModelNotFoundError, match=match) as caught:
        find_model("tiny")
    other = "cannot be written"  # what any fault of the disk is called, and no other
    assert (other in match) == (other in str(caught.value))
    return caught.value


def test_another_file_is_refused(index: Path, tmp_path: Path) -> None:
    changed = CONTENT[:5] + b"\0" + CONTENT[6:]
    write_wheel(index, changed)
    error = fail(f"expected SHA-256 {TINY.sha256}, got {hashlib.sha256(changed).hexdigest()}")
    assert "the package index gave another file or a part of it: try again" in str(error)
    assert left(tmp_path) == []
    for change, message in (
        ({"content": CONTENT + b"\0"}, "expected 300000 bytes, got 300001"),
        ({"member": "other.gguf"}, "expected a whole wheel that holds it, got .*tiny/tiny.gguf"),
    ):
        with pytest.raises(ModelNotFoundError, match=message):
            packaged._unpack(TINY, write_wheel(index, **change), tmp_path)


def test_a_damaged_wheel_is_refused(index: Path, tmp_path: Path) -> None:
    wheel = write_wheel(index)
    whole = wheel.read_bytes()
    at = whole.index(CONTENT[:64]) + 1000
    wheel.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    fail("expected a whole wheel that holds it, got Bad CRC-32")
    wheel.write_bytes(whole[: len(whole) // 2])
    error = fail("pip did not give monolane-tiny-test-model==1.0: ")
    assert "Check the network and pip's index" in str(error)
    assert left(tmp_path) == []


def test_no_network(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail("pip did not give .*: ERROR: .*No matching distribution found for monolane-tiny")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the port that discards
    fail("pip did not give .*: ERROR: .*. Check the network and pip's index .pip config list.")
    assert left(tmp_path) == []


@pytest.mark.parametrize(("name", "value"), [("MONOLANE_OFFLINE", "1"), ("HF_HUB_OFFLINE", "yes")])
def test_downloads_may_be_forbidden(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    write_wheel(index)
    monkeypatch.setenv(name, value)
    fail(f"expected .*tiny.gguf, which is not there, and {name} forbids downloads; unset it, or")
    assert left(tmp_path) == []


def test_a_cache_that_cannot_be_written(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "file" / "cache"))
    fail("models/tiny cannot be written: Not a directory; make room or let MONOLANE_CACHE name")


def test_a_disk_without_room(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wheel(index)
    monkeypatch.setitem(packaged.PACKAGED, "tiny", replace(TINY, file_bytes=10**18))
    fail(r"expected 1,000,000,000,001 MB free to fetch it to .*, got [\d,]+ MB; make room or let")
    assert left(tmp_path) == []


# Run in a process of its own: a limit on a file's size stands for the end of a disk.
_LIMITED = """
import resource, sys
from test_packaged import TINY, CONTENT, replace, hashlib, packaged
zeros = bytes(40_000_000)
model = replace(TINY, file_bytes=len(zeros), sha256=hashlib.sha256(zeros).hexdigest())
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000_000, 20_000_000))
packaged.find_packaged(model)
"""


def test_a_disk_that_fills_up(index: Path, tmp_path: Path) -> None:
    path = write_wheel(index, b"")
    with zipfile.ZipFile(path) as archive:
        parts = {x.filename: archive.read(x) for x in archive.infolist() if x.file_size}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**parts, TINY.member: bytes(40_000_000)}.items():
            archive.writestr(name, data)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", _LIMITED]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert "models/tiny cannot be written: File too large; make room or let MONO" in result.stderr
    assert left(tmp_path) == []


def test_a_machine_without_pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wheel(index)
    finder = importlib.machinery.PathFinder
    find = finder.find_spec
    monkeypatch.setattr(
        finder, "find_spec", lambda name, *more: None if name == "pip" else find(name, *more)
    )
    path = find_model("tiny")  # by the pip on PATH
    path.unlink()
    monkeypatch.setenv("PATH", str(index))
    fail(r"expected pip, .* got none .* add it with '.*python.* -m ensurepip' or 'uv pip install")


def test_two_at_once_and_what_a_killed_one_left(index: Path, tmp_path: Path) -> None:
    write_wheel(index)
    forgotten = tmp_path / "cache" / "models" / "tiny" / ".fetching-old"
    forgotten.mkdir(parents=True)
    (forgotten / "half").write_bytes(CONTENT[:9])
    os.utime(forgotten, (0, time.time() - 4000))
    code = "from test_packaged import TINY, packaged; print(packaged.find_packaged(TINY))"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(2)
    ]
    paths = [process.communicate(timeout=120)[0].strip() for process in running]
    assert paths[0] == paths[1] == str(tmp_path / "cache" / "models" / "tiny" / "tiny.gguf")
    assert Path(paths[0]).read_bytes() == CONTENT
    assert left(tmp_path) == ["NOTICE", "tiny.gguf"]


def test_the_command(index: Path, tmp_path: Path) -> None:
    folder = subprocess.run([*PROGRAM, "fetch", "demo"], capture_output=True, text=True, check=True)
    assert Path(folder.stdout.strip(), "config.json").is_file()
    as_json = subprocess.run(
        [*PROGRAM, "fetch", "demo", "--json"], capture_output=True, text=True, check=True
    )
    answer = json.loads(as_json.stdout)
    assert (answer["model"], answer["path"]) == ("demo", folder.stdout.strip())
    assert answer["bytes"] == sum(
        x.stat().st_size for x in Path(answer["path"]).rglob("*") if x.is_file()
    )
    refused = subprocess.run(
        [*PROGRAM, "fetch", "smollm2"],
        capture_output=True,
        text=True,
        env=os.environ | {"MONOLANE_OFFLINE": "1"},
        check=False,
    )
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert "monolane: smollm2: expected " in refused.stderr
    assert "MONOLANE_OFFLINE forbids downloads" in refused.stderr
    wrong = subprocess.run(
        [*PROGRAM, "fetch", "smollm3"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 1
    assert "smollm3: expected 'demo', 'smollm2', a folder or a .gguf file" in wrong.stderr


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_smollm2_answers_in_english(
    backend: str, smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real model, from the package index of this machine."""
    monkeypatch.setenv("MONOLANE_CACHE", str(smollm2.parents[2]))  # the session's, if it had one
    assert smollm2.stat().st_size == 98_362_432
    assert hashlib.sha256(smollm2.read_bytes()).hexdigest() == packaged.PACKAGED["smollm2"].sha256
    assert "Apache License 2.0" in (smollm2.parent / "NOTICE").read_text()
    with Engine.load("smollm2", backend, context=128) as engine:
        assert engine.defaults == SamplingDefaults(**packaged.PACKAGED["smollm2"].defaults)
        asked = [{"role": "user", "content": "What is the capital of France? In one sentence."}]
        answer = engine.generate(asked, SamplingParams(max_tokens=16, temperature=0.0))
    assert answer.text == "The capital of France is Paris."


def test_folders_that_go_while_they_are_looked_at_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pip removes its own: here each one, just before it is read."""
    (tmp_path / "kept").write_bytes(b"12345")
    for name in "abc":
        (tmp_path / name / "inner").mkdir(parents=True)
    scan = os.scandir

    def late(path: object) -> object:
        if Path(str(path)) != tmp_path:
            shutil.rmtree(str(path))
        return scan(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", late)
    assert packaged._bytes_in(tmp_path) == 5


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [x for x in os.environ if x.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_proxies")
def test_the_proxy_that_a_fetch_goes_through_is_named(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@127.0.0.1:9")
    said = " It goes through the proxy http://127.0.0.1:9 of HTTPS_PROXY: check that, too"
    assert str(fail("pip did not give")).endswith(said)
    monkeypatch.setenv("NO_PROXY", "pypi.org")
    assert "proxy" not in str(fail("pip did not give"))
    monkeypatch.setenv("PIP_PROXY", "127.0.0.1:8")
    assert "the proxy 127.0.0.1:8 of PIP_PROXY" in str(fail("pip did not give"))


@pytest.mark.usefixtures("no_proxies")
def test_the_proxy_to_the_hub_is_named() -> None:
    program = "from monolane.sources import find_model; find_model('no-one/nothing')"
    environment = os.environ | {"HTTPS_PROXY": "http://me:secret@127.0.0.1:9"}
    del environment["HF_HUB_OFFLINE"]
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    last = result.stderr.splitlines()[-1]
    assert "the Hub did not give it" in last
    assert last.endswith("through the proxy http://127.0.0.1:9 of HTTPS_PROXY: check that, too")
    assert "secret" not in last
    assert "monolane: fetching no-one/nothing from the Hub" in result.stderr
