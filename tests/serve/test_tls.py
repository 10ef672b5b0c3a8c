"""HTTPS with a certificate made here: the API, a stream, an end; and files that are none."""

import json
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from monolane.errors import RequestError
from monolane.measure import Level, Load, LoadOptions, LoadTarget, Prompts
from monolane.serve import ServerOptions


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that is its own authority, and its key."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed: apt-get install openssl")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [program, "req", "-x509", *kind, *name, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return cert, key


def test_a_server_with_a_certificate_speaks_https_only(
    start: Callable[..., Any],
    certificate: tuple[Path, Path],
    eventually: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cert, key = certificate
    server = start("--tls-cert", str(cert), "--tls-key", str(key))
    assert server.url.startswith("https://127.0.0.1:")
    trusted = ssl.create_default_context(cafile=str(cert))
    with httpx.Client(base_url=server.url, verify=trusted, timeout=120) as client:
        eventually(lambda: client.get("/health").status_code == 200)
        body = {"prompt": "def f", "max_tokens": 40, "stream": True, "ignore_eos": True}
        *events, done, _ = client.post("/v1/completions", json=body).text.split("\n\n")
        assert done == "data: [DONE]"
        assert json.loads(events[-1].removeprefix("data: "))["timings"]["predicted_n"] == 40
        assert client.get("/v1/models", headers={"Origin": server.url}).status_code == 200
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{server.url}/health", timeout=120)
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"http://127.0.0.1:{server.port}/health", timeout=120)
    # The load tool, which checks certificates as all clients of this machine do.
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    load = Load(LoadTarget.parse(server.url), LoadOptions(model="demo", max_tokens=8))
    assert not load.run(Level(clients=2, requests=2), Prompts(3), lambda: None).failures
    assert server.stop() == 0


def test_files_that_are_no_certificate_are_named(
    start: Callable[..., Any], certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = certificate
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("-----BEGIN nothing-----")
    for options in ((str(wrong), str(key)), (str(tmp_path / "none.pem"), str(key))):
        with pytest.raises(AssertionError, match="expected a PEM certificate and its private key"):
            start("--tls-cert", options[0], "--tls-key", options[1])
    both = tmp_path / "both.pem"
    both.write_text(cert.read_text() + key.read_text())
    assert start("--tls-cert", str(both)).url.startswith("https://")
    with pytest.raises(RequestError, match="tls_key: expected tls_cert with it"):
        ServerOptions(tls_key=key)
