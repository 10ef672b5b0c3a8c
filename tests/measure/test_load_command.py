"""``monolane bench serve`` against real servers: what it prints, writes, and refuses to do."""

import json
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from monolane.cli._app import app
from monolane.measure import validate_document

SMALL = ("-n", "48", "--requests", "2", "--prompt", "20")


def run(*arguments: str | Path, **environment: str) -> Result:
    words = ["bench", "serve", *map(str, arguments)]
    return CliRunner().invoke(app, words, env={"MONOLANE_API_KEY": None, **environment})


def told(result: Result) -> str:
    return " ".join(f"{result.output} {result.exception}".replace("│", "").split())


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_our_server_is_counted_by_tokens(
    demo_url: str, demo_key: str, tmp_path: Path, route: str
) -> None:
    """It sends many tokens in an event; a count of events would be wrong by that factor.

    Speeds by the client's clock and by the server's agree in one of three attempts: an answer takes
    a quarter of a second, for which the machine may let either stand still.
    """
    chat = ["--chat"] if "chat" in route else []
    speeds = []
    for attempt in range(3):
        document = our_document(demo_url, demo_key, tmp_path / f"{attempt}", *chat)
        assert [r["clients"] for r in document["records"]] == [1, 2]
        for record in document["records"]:
            names = (record["name"], record["engine"], record["model"])
            assert names == ("serve", "monolane", "demo")
            assert record["route"] == route
            assert record["failures"] == {}
            assert record["answered_tokens"] == 512 * record["answers"]
            assert record["events"] < record["answered_tokens"]
            assert record["prompt_tokens"] == pytest.approx(20, abs=4)
            assert not any("usage" in note for note in record["notes"])
        speeds.append([(r["median"], r["server_tokens_per_s"]) for r in document["records"]])
        # An event in 5 ms is 2 % of an answer of 512 tokens at 2,000 a second.
        if all(ours == pytest.approx(theirs, rel=0.2) for ours, theirs in speeds[-1]):
            return
    raise AssertionError(f"tokens/s by client and server: {speeds}")


def our_document(url: str, key: str, out: Path, *more: str) -> dict[str, Any]:
    """Return what two levels came to, as it was printed and written."""
    out.mkdir()
    levels = ("--clients", "1", "--clients", "2")
    long = ("-n", "512", "--requests", "2", "--prompt", "20")
    result = run(url, *long, *more, *levels, "--json", "--output", out, MONOLANE_API_KEY=key)
    assert result.exit_code == 0, told(result)
    document: dict[str, Any] = json.loads(result.stdout)
    validate_document(document)
    (written,) = out.glob("*-serve-monolane.json")
    assert json.loads(written.read_text()) == document
    assert key not in result.output
    return document


def test_a_table_for_people_and_a_plot(demo_url: str, demo_key: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install 'monolane[plot]'")
    key = ("--key-from", "SOME_KEY")
    plot = ("--plot", tmp_path / "a.svg", "--label", "ours")
    result = run(demo_url + "/v1", *SMALL, *key, *plot, "-c", "2", SOME_KEY=demo_key)
    assert result.exit_code == 0, told(result)
    lines = result.stdout.splitlines()
    assert lines[0] == "ours: demo, /v1/completions, answers of 48"
    assert re.fullmatch(r" +2 clients +\d+ +4 +0 +[\d,.]+ +[\d,.]+ .* \d+%", lines[3])
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")


def test_a_key_that_is_missing_or_wrong(demo_url: str) -> None:
    assert "variable MONOLANE_API_KEY, which is not set" in told(run(demo_url, *SMALL))
    wrong = run(demo_url, *SMALL, MONOLANE_API_KEY="ml-wrong")
    assert wrong.exit_code != 0
    assert "wants an API key" in told(wrong)
    assert "which is refused" in told(wrong)


def test_another_model(demo_url: str, demo_key: str) -> None:
    result = run(demo_url, "--model", "gpt-5", *SMALL, MONOLANE_API_KEY=demo_key)
    assert "--model: expected one of demo, got 'gpt-5'" in told(result)


def test_urls_where_no_such_server_is(demo_url: str, plain: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = listener.getsockname()[1]
    assert "(connect); expected an OpenAI-compatible server" in told(
        run(f"http://127.0.0.1:{free}")
    )
    assert "url: expected the base of an OpenAI-compatible server" in told(run("127.0.0.1:8000"))
    assert "(http_503)" in told(run(plain(models=503).url))


def test_a_server_without_a_list_of_models(plain: Callable[..., Any]) -> None:
    server = plain(models=404)
    assert "(http_404)" in told(run(server.url))
    result = run(server.url, "--model", "m", *SMALL, "-c", "1")
    assert result.exit_code == 0, told(result)
    assert {body["model"] for body in server.bodies} == {"m"}


def test_a_server_that_fails_every_request(plain: Callable[..., Any]) -> None:
    result = run(plain(status=500).url, *SMALL)
    assert result.exit_code != 0
    assert "the first request failed (http_500): no, thanks" in told(result)


@pytest.mark.parametrize("option", ["--output", "--plot"])
def test_where_nothing_can_be_written_no_server_is_loaded(
    plain: Callable[..., Any], option: str
) -> None:
    server = plain()
    result = run(server.url, *SMALL, option, "/proc/x.json")
    assert "/proc/x.json cannot be written: No such file" in told(result)
    assert server.accepted == 0


def test_a_level_that_began_no_request_is_said(plain: Callable[..., Any]) -> None:
    result = run(plain().url, *SMALL, "-c", "1", "--seconds", "1e-9")
    assert result.exit_code == 1
    assert "no request began within 1e-09 s; give it more" in result.stdout


def test_a_server_that_begins_to_fail_is_shown(
    plain: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import contextlib

    import monolane._progress as module

    server = plain(tokens_per_second=2000)

    @contextlib.contextmanager
    def bar(*_: object) -> Any:
        yield lambda: server.options.update(status=429)

    monkeypatch.setattr(module, "counted", bar)
    result = run(server.url, "-n", "20", "--requests", "4", "-c", "1")
    assert result.exit_code == 0, told(result)
    assert re.search(r"1 client +\d+ +1 +3 ", result.stdout)
    assert "http_429: no, thanks" in result.stdout


def test_a_rate(plain: Callable[..., Any]) -> None:
    result = run(plain().url, *SMALL, "--rate", "50", "--json")
    (record,) = json.loads(result.stdout)["records"]
    assert (record["rate"], record["clients"], record["answers"]) == (50, None, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["http://192.0.2.1:8000"], "would get up to 120 requests, up to 8 at once, for up to"),
        (["https://api.example", "--rate", "3"], "8 requests, at random moments, for up to 2,048"),
        (["--clients", "1", "--rate", "1"], "expected --clients or --rate, got both"),
        (["--prompt", "0"], "--prompt: expected 1 token or more"),
        (["--clients", "0"], "clients: expected 1 to 512"),
        (["--requests", "0"], "greater than or equal to 1"),
    ],
)
def test_what_is_refused_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(socket.socket, "connect", None)
    monkeypatch.setattr(socket, "getaddrinfo", None)
    result = run(*arguments)
    assert result.exit_code != 0
    assert message in told(result)


def test_a_key_in_clear_text_is_said() -> None:
    result = run("http://192.0.2.1", MONOLANE_API_KEY="ml-x")
    assert "the API key would go there in clear text. If it is yours to load, say --yes" in (
        told(result)
    )


def test_yes_lets_it_go_on_and_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    import monolane.measure as measure

    monkeypatch.setattr(measure, "ask_models", lambda target: measure.Failure("connect", "no way"))
    result = run("http://192.0.2.1:8000", "--yes")
    assert "is not this machine: it gets up to 120 requests" in result.stderr
    assert "no way (connect)" in told(result)


def test_the_model_bench_keeps_its_name(tiny_model: Path) -> None:
    small = ("--buffer", "1", "--tokens", "4", "--runs", "1", "--startup", "0", "--before", "9")
    for words in (["bench", "model", "-m", str(tiny_model)], ["bench", "-m", str(tiny_model)]):
        result = CliRunner().invoke(app, [*words, *small])
        assert result.exit_code == 0, result.output


def test_a_plot_says_what_is_missing(
    plain: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    server = plain()
    result = run(server.url, *SMALL, "-c", "1", "--plot", tmp_path / "x.svg")
    assert server.bodies == []
    assert "pip install 'monolane[plot]'" in told(result)
