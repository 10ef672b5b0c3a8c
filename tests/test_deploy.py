"""What operators are given fits the program, and the programs that read it."""

import json
import re
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

from monolane.cli import app

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"

pytestmark = pytest.mark.slow


def needs(command: str, package: str) -> pytest.MarkDecorator:
    there = shutil.which(command, path="/usr/sbin:/usr/bin:/sbin:/bin") is not None
    return pytest.mark.skipif(not there, reason=f"needs {command}: apt-get install {package}")


def names_in(expression: str) -> set[str]:
    """Return the metrics that an expression of Prometheus asks for."""
    found = re.findall(r"\b(?:vllm|monolane):\w+", expression)
    return {re.sub(r"_bucket$", "", name) for name in found}


def asked() -> set[str]:
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
    expressions = [rule["expr"] for rule in rules]
    board = json.loads((DEPLOY / "grafana.json").read_text())
    expressions += [x["expr"] for panel in board["panels"] for x in panel["targets"]]
    expressions += [x["query"]["query"] for x in board["templating"]["list"][1:]]
    return {name for expression in expressions for name in names_in(expression)}


def test_every_metric_that_is_asked_for_is_one_of_the_servers(server_url: str) -> None:
    with urllib.request.urlopen(f"{server_url}/metrics") as answer:
        text = answer.read().decode()
    there = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
    assert len(asked()) > 12
    assert asked() <= there


def test_options_of_the_files_are_those_of_serve() -> None:
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    options = {
        x for parameter in serve.params for x in (*parameter.opts, *parameter.secondary_opts)
    }
    for name in ("Containerfile", "monolane.service", "nginx.conf"):
        text = (DEPLOY / name).read_text()
        lines = [x for x in text.splitlines() if "serve" in x or "--model" in x]
        used = {x for line in lines for x in re.findall(r"(?<![\w-])--[a-z-]+", line)}
        used -= {"--read-only", "--tmpfs", "--rm", "--reload"}
        assert used
        assert used <= options, name


def nginx(folder: Path, server_url: str, port: int) -> Path:
    """Write what nginx reads to run the site as this user."""
    site = (DEPLOY / "nginx.conf").read_text()
    site = site.replace("127.0.0.1:8000", server_url.removeprefix("http://"))
    site = site.replace("listen 80;", f"listen 127.0.0.1:{port};")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/errors;\nevents {{}}\n"
        f"http {{ access_log off; {temporary}\n{site}}}\n"
    )
    return folder / "nginx.conf"


@pytest.fixture
def proxied(tmp_path: Path, server_url: str) -> Iterator[str]:
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin")
    assert program is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = nginx(tmp_path, server_url, port)
    process = subprocess.Popen([program, "-e", tmp_path / "errors", "-c", config])
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(200):
            try:
                urllib.request.urlopen(f"{url}/health").close()
                break
            except OSError:
                threading.Event().wait(0.05)
        yield url
    finally:
        process.terminate()
        process.wait()


@needs("nginx", "nginx-light")
def test_streams_come_through_nginx_piece_by_piece(proxied: str) -> None:
    """The server stops when its client goes: so nginx has not read the answer to its end."""
    body = {"prompt": "class Stack:", "stream": True, "ignore_eos": True}
    body |= {"max_tokens": 400}
    request = urllib.request.Request(
        f"{proxied}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        first = answer.readline()
        assert first.startswith(b"data: {")
        events = sum(line.startswith(b"data: {") for line in answer)
    assert events > 20


@needs("promtool", "prometheus")
def test_prometheus_takes_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", DEPLOY / "alerts.yml"], check=True)


@needs("systemd-analyze", "systemd")
def test_systemd_takes_the_unit_and_finds_it_shut_in(tmp_path: Path) -> None:
    text = (DEPLOY / "monolane.service").read_text()
    unit = tmp_path / "monolane.service"
    unit.write_text(text.replace("/opt/monolane/bin/monolane", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "monolane" in line]
    assert ours == [], done.stderr
    said = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", unit],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (level,) = re.findall(r"Overall exposure level for monolane.service: ([\d.]+)", said)
    assert float(level) <= 2.0, said
