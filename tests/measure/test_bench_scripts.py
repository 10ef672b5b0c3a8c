"""What the scripts of bench/ share: the command that is recorded, the document, a server's life."""

import importlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from monolane.errors import ConfigError
from monolane.measure import summary, validate_document

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
SCRIPTS = sorted(path.stem for path in BENCH.glob("[a-z]*.py"))

# Says where it is, and gives one answer for ever.
SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response({status} if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *arguments): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print("at http://127.0.0.1:%d" % server.server_port, file={stream}, flush=True)
server.serve_forever()
"""


@pytest.fixture(autouse=True)
def _bench_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


def module(name: str) -> Any:
    return importlib.import_module(name)


def program(text: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", text]  # begins within 0.1 s, not 0.5


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", *map(str, words)]
    # Far less than the 600 s that a server may take: one that has ended is not waited for.
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120
    )


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["bench/serving.py", "--runs", "3"], "python bench/serving.py --runs 3"),
        (["{root}/bench/serving.py"], "python bench/serving.py"),
        (["{root}/bench/../bench/serving.py"], "python bench/serving.py"),
        (["/elsewhere/serving.py"], "python serving.py"),
        (["x", "--out", "{root}/bench/results"], "python x --out bench/results"),
        (["x", "--out", "bench/results"], "python x --out bench/results"),
        (["x", "--out", "/home/me/results"], "python x --out results"),
        (["x", "--out=/home/me/results"], "python x --out=results"),
        (["x", "--out=/home/me/a=b"], "python x --out=a=b"),
        (["x", "/home/me=you/model"], "python x model"),
        (
            ["x", "--peer", "llama.cpp=/home/me/llama-bench"],
            "python x --peer llama.cpp=llama-bench",
        ),
        (["x", "../../me/model", "{root}/.."], "python x model {parent}"),
        (["x", "name/model", "share:8", "-1"], "python x name/model share:8 -1"),
        (["x", "/home/me/two words"], "python x 'two words'"),
    ],
)
def test_a_command_is_one_that_anyone_could_give(
    words: list[str], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    given = [word.format(root=ROOT) for word in words]
    assert module("_command").shown_command(given) == shown.format(parent=ROOT.parent.name)


def test_a_script_is_named_from_the_root_wherever_it_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(BENCH)
    assert module("_command").shown_command(["serving.py"]) == "python bench/serving.py"


def records() -> list[dict[str, Any]]:
    return [{"name": "read_bandwidth"} | summary([50.0], "GB/s")]


def test_a_document_without_a_place_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(BENCH / "serving.py"), "--out", "/home/me/results"])
    module("_document").publish(records(), "serving", None, label="x")
    document = json.loads(capsys.readouterr().out)
    validate_document(document)
    assert document["command"] == "python bench/serving.py --out results"
    assert document["records"] == records()
    assert document["device"]["read_bandwidth_gb_s"] == 50.0
    assert document["label"] == "x"
    assert document["load_average"] >= 0


def test_a_document_is_written_into_a_folder_or_as_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish = module("_document").publish
    publish([], "accuracy", tmp_path / "new", timed=False)
    (path,) = (tmp_path / "new").iterdir()
    assert path.name.endswith("-accuracy.json")
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"written to {path}\n")
    document = json.loads(path.read_text())
    validate_document(document)
    assert "load_average" not in document
    assert document["device"]["read_bandwidth_gb_s"] is None
    publish([], "accuracy", tmp_path / "mine.json")
    validate_document(json.loads((tmp_path / "mine.json").read_text()))


@pytest.mark.parametrize("stream", ["sys.stdout", "sys.stderr"])
def test_a_server_is_given_when_it_is_ready_and_ended_afterwards(
    stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # must not be asked
    command = program(SERVER.format(status=200, stream=stream))
    with module("_server").server(command, 60) as found:
        assert found.url.startswith("http://127.0.0.1:")
        assert found.process.poll() is None
    assert found.process.poll() is not None


@pytest.mark.parametrize("place", ["", "at http://127.0.0.1:9"])
def test_a_server_that_ends_shows_its_log(place: str) -> None:
    """Also one that has said where it is, and cannot be asked there."""
    text = "import sys, time; print('loading\\n{}', flush=True); time.sleep(0.3)\n"
    command = program(text.format(place) + "sys.exit('no model: 7')")
    begin = time.monotonic()
    with pytest.raises(SystemExit) as caught, module("_server").server(command, 60):
        pytest.fail("it never was ready")
    assert "ended with exit code 1\nloading\n" in str(caught.value)
    assert "no model: 7" in str(caught.value)
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize(
    "text",
    [
        "print('loading', flush=True); import time; time.sleep(600)",
        "print('loading', flush=True)\n" + SERVER.format(status=503, stream="sys.stderr"),
        # Half a line, of which nobody knows the whole port.
        SERVER.format(status=200, stream="sys.stderr")
        .replace("file=sys.stderr", 'end=""')
        .replace("at http", "loading\\nat http"),
    ],
    ids=["silent", "loading", "half a line"],
)
def test_a_server_that_is_not_ready_in_time_shows_its_log(text: str) -> None:
    with pytest.raises(SystemExit) as caught, module("_server").server(program(text), 2):
        pytest.fail("it never was ready")
    assert "not ready within 2 s\nloading\n" in str(caught.value)


def test_a_server_that_will_not_end_is_made_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module("_server"), "_END", 0.2)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    command = program(deaf + SERVER.format(status=200, stream="sys.stdout"))
    with module("_server").server(command, 60) as found:
        pass
    assert found.process.poll() == -signal.SIGKILL


def test_the_parts_that_scripts_share_have_one_owner() -> None:
    owners = {"document_here(": "_document", "write_document(": "_document"}
    owners |= {"Popen(": "_server", "at (": "_server"}
    for part, owner in owners.items():
        holders = {path.stem for path in BENCH.glob("*.py") if part in path.read_text()}
        # Programs that answer by lines, and clients, are no servers: they have no /health.
        others = {"_llama_logits", "hostile"} if part == "Popen(" else set()
        assert holders - others == {owner}, part
    for part in ("build_document(", "describe_machine(bandwidth)"):  # the package's own
        assert not [path for path in BENCH.glob("*.py") if part in path.read_text()], part


def test_a_document_that_cannot_be_written_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    place = Path("/proc/x.json")
    with pytest.raises(ConfigError, match=r"/proc/x\.json cannot be written: No such file"):
        module("_document").publish(records(), "things", place)
    assert len(json.loads(capsys.readouterr().out)["records"]) == len(records())


@pytest.mark.parametrize("words", ["cache_accuracy.py nosuch", "quantization.py nosuch"])
def test_a_model_that_is_not_there_is_a_message(words: str) -> None:
    script, *given = words.split()
    result = run(BENCH / script, *given)
    assert result.returncode == 1
    assert result.stderr.startswith("nosuch: expected 'demo', 'smollm2', a folder or a .gguf file")


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_can_be_started(script: str) -> None:
    result = run(BENCH / f"{script}.py", "--help")
    assert result.returncode == 0, result.stderr
    assert "usage: " in result.stdout


@pytest.mark.parametrize(
    ("script", "words", "cases"),
    [
        ("serving", "--what mixed --policy latency --clients 1 --requests 1 --tokens 8", 1),
        ("structured", "{demo} --tokens 50 --runs 1", 4),
    ],
)
def test_a_result_holds_no_place_of_this_machine(
    script: str, words: str, cases: int, tmp_path: Path
) -> None:
    given = words.format(demo=ROOT / "src" / "monolane" / "demo").split()
    result = run(BENCH / f"{script}.py", *given, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    (path,) = tmp_path.iterdir()
    assert result.stderr == f"written to {path}\n"
    document = json.loads(path.read_text())
    validate_document(document)
    shown = words.format(demo="src/monolane/demo")
    assert document["command"] == f"python bench/{script}.py {shown} --out {tmp_path.name}"
    assert str(tmp_path) not in path.read_text()
    assert str(ROOT) not in path.read_text()
    assert len(document["records"]) == cases


def test_serving_says_why_its_server_ended(tmp_path: Path) -> None:
    result = run(BENCH / "serving.py", "--what", "mixed", "--model", tmp_path / "none")
    assert result.returncode == 1
    assert "monolane serve" in result.stderr
    assert "ended with exit code" in result.stderr
    assert "none" in result.stderr.partition("ended with")[2]
    assert "Traceback" not in result.stderr
