"""What operators are given fits the program, and the programs that read it."""

import http.client
import http.server
import json
import re
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
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
    for name in ("Containerfile", "kubernetes.yaml", "monolane.service", "nginx.conf"):
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


@contextmanager
def proxy(folder: Path, upstream: str) -> Iterator[str]:
    """Run nginx with the site in front of a server."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin")
    assert program is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = nginx(folder, upstream, port)
    process = subprocess.Popen([program, "-e", folder / "errors", "-c", config])
    try:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                threading.Event().wait(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def ask(url: str) -> http.client.HTTPResponse:
    body = {"prompt": "class Stack:", "stream": True, "temperature": 0, "max_tokens": 100}
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), kind)
    answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=60)
    return answer


@needs("nginx", "nginx-light")
def test_a_stream_comes_whole_through_nginx(tmp_path: Path, server_url: str) -> None:
    with proxy(tmp_path, server_url) as url, ask(url) as answer:
        lines = [line for line in answer if line.startswith(b"data: ")]
    assert lines[-1] == b"data: [DONE]\n"
    with ask(server_url) as direct:
        text = "".join(said(line) for line in direct)
    assert "".join(map(said, lines)) == text != ""


def said(line: bytes) -> str:
    """Return the text of an event's line."""
    if not line.startswith(b"data: {"):
        return ""
    text: str = json.loads(line[6:])["choices"][0]["text"]
    return text


@needs("nginx", "nginx-light")
def test_nginx_holds_no_event_back(tmp_path: Path) -> None:
    """The server behind it says its second event only when the client has read the first."""
    read = threading.Event()

    class Server(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b"data: 1\n\n")
            read.wait(300)
            self.wfile.write(b"data: 2\n\n")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with proxy(tmp_path, f"http://127.0.0.1:{server.server_port}") as url, ask(url) as answer:
            assert answer.readline() == b"data: 1\n"
            read.set()
            assert answer.read() == b"\ndata: 2\n\n"
        server.shutdown()


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
