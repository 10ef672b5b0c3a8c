"""A browser, the page without a server (a stand-in answers what a test wants), and a real server.

Chromium is Debian's (`apt-get install chromium-headless-shell`), so nothing is downloaded; without
it these tests skip. Where only `chromium` is there, they take it, at more processor time: it has
windows. PLAYGROUND_SCREENSHOTS names a folder for pictures of the page.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Page,
    Playwright,
    Request,
    Route,
    expect,
    sync_playwright,
)

import monolane

# What must come is waited for with patience: a machine that stands still for seconds, or is many
# times slower, is no fault of the page. Playwright's own limits are 30 s, and 5 s of expect().
PATIENCE = 300  # seconds: an answer of 900 tokens has taken 200 where twenty others computed
expect.set_options(timeout=PATIENCE * 1000)

STATIC = Path(monolane.__file__).parent / "serve" / "static"
KINDS = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
# A name below localhost is a secure origin, as 127.0.0.1 is: the clipboard works there.
ORIGIN = "http://playground.localhost"
POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'"
)
ELSEWHERE_POLICY = (  # of the empty document that asks other servers
    "default-src 'none'; connect-src http: https:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)
MODEL = {
    "id": "stand-in",
    "root": "stand-in",
    "max_model_len": 4096,
    "monolane": {"backend": "cpu", "dtype": "float32", "max_tokens": 4095},
}


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where Chromium is."""
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        pytest.skip("Chromium is not installed: apt-get install chromium-headless-shell")
    return program


# Chromium has pages of its own behind its address bar, which nobody sees here: two thirds of the
# processor time of a window. The list takes the place of Playwright's, so it repeats those of that
# which keep requests on their routes, and Chromium from asking the network.
_WITHOUT = (
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup"),
    *("AvoidCorsURLLoaderRestartOnRedirect", "AvoidUnnecessaryBeforeUnloadCheckSync"),
    *("HttpsUpgrades", "HttpsFirstBalancedModeAutoEnable", "ThirdPartyStoragePartitioning"),
    *("PaintHolding", "DestroyProfileOnBrowserClose", "MediaRouter", "OptimizationHints"),
    *("NetworkTimeServiceQuerying", "AimEnabled", "PreconnectToSearch", "LensOverlay"),
)


class _Open:
    """The browser that is open, if one is: until the next test is of another folder.

    While it is open, no other test may run an event loop of its own.
    """

    browser: Browser | None = None
    _playwright: Playwright | None = None

    def get(self, chromium: str) -> Browser:
        """Open it where it is not, or has crashed."""
        if self.browser is not None and self.browser.is_connected():
            return self.browser
        self.close()
        # As root, or in a container without user namespaces, its own sandbox cannot start.
        options = [] if os.geteuid() else ["--no-sandbox"]
        options.append(f"--disable-features={','.join(_WITHOUT)}")
        self._playwright = sync_playwright().start()
        self.browser = self._playwright.chromium.launch(
            executable_path=chromium, args=options, timeout=PATIENCE * 1000
        )
        return self.browser

    def close(self) -> None:
        if self.browser is not None and self._playwright is not None:
            self.browser.close()
            self._playwright.stop()
        self.browser = self._playwright = None


_OPEN = _Open()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """Close the browser behind the last test of this folder: a start takes two seconds."""
    yield
    if nextitem is None or nextitem.path.parent != Path(__file__).parent:
        _OPEN.close()


@pytest.fixture(scope="module")
def browser(chromium: str) -> Browser:
    """A browser, one for all files that come one behind the other."""
    return _OPEN.get(chromium)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A fresh profile of a desktop's size, which may use the clipboard."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    context.set_default_timeout(PATIENCE * 1000)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page on which nothing goes wrong unnoticed: script errors and CSP violations fail a test.

    A failed request is reported by the browser itself; tests that provoke one look at the page.
    """
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))

    def hear(message: ConsoleMessage) -> None:
        reports = ("Failed to load resource", "Access to fetch at ")  # of a failed request
        if message.type == "error" and not message.text.startswith(reports):
            wrong.append(message.text)

    def refuse(dialog: Dialog) -> None:
        wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("console", hear)
    page.on("dialog", refuse)
    yield page
    assert wrong == []


class StandIn:
    """Answers in the server's place, through the browser's own interception.

    ``text`` is what the next answer says, in pieces of ``step`` characters, one token each, behind
    ``deltas``; ``requests`` are the bodies of the answers asked for, ``counted`` those of drafts.
    ``health``, ``refusal`` and ``busy``, the number of 429s to come, make it fail. With ``hold``
    answers wait for ``release``.
    """

    def __init__(self) -> None:
        self.text = "Hello."
        self.step = 7
        self.deltas: list[dict[str, Any]] = []  # of a chat's message, before its text
        self.end = "stop"
        self.model: dict[str, Any] = MODEL
        self.health = 200
        self.refusal: tuple[int, dict[str, Any]] | None = None
        self.broken: str | None = None  # in place of the answer's end
        self.busy = 0
        self.hold = False
        self.held: list[tuple[Route, Request]] = []
        self.timings: dict[str, Any] = {}  # beside those of every chunk
        self.requests: list[dict[str, Any]] = []
        self.counted: list[dict[str, Any]] = []
        self.elsewhere: list[str] = []  # requests that left the origin

    def answer(self, route: Route, request: Request) -> None:
        """Fulfil one request."""
        if not request.url.startswith(f"{ORIGIN}/"):
            self.elsewhere.append(request.url)
            route.abort()
            return
        path = request.url.removeprefix(ORIGIN).partition("?")[0]
        if path == "/health":
            route.fulfill(status=self.health, json={"status": "ok"})
        elif path == "/v1/models":
            route.fulfill(json={"object": "list", "data": [self.model]})
        elif path == "/tokenize":
            self.counted.append(json.loads(request.post_data or ""))
            words = len((request.post_data or "").split())
            route.fulfill(json={"count": words, "max_model_len": 4096, "tokens": []})
        elif request.method == "POST" and self.busy > 0:
            self.busy -= 1
            error = {"message": "the queue is full", "code": 429}
            route.fulfill(status=429, headers={"Retry-After": "2"}, json={"error": error})
        elif request.method == "POST" and self.hold:
            self.held.append((route, request))
        elif request.method == "POST":
            self._complete(route, request)
        else:
            self._file(route, STATIC / (path[1:] or "index.html"))

    def release(self) -> None:
        """Give the answers that were held."""
        self.hold = False
        for route, request in self.held:
            self._complete(route, request)
        self.held = []

    def _file(self, route: Route, file: Path) -> None:
        policy = ELSEWHERE_POLICY if file.name == "elsewhere.html" else POLICY
        headers = {"Content-Type": KINDS[file.suffix], "Content-Security-Policy": policy}
        route.fulfill(body=file.read_bytes(), headers=headers)

    def _complete(self, route: Route, request: Request) -> None:
        self.requests.append(json.loads(request.post_data or ""))
        if self.refusal is not None:
            status, body = self.refusal
            route.fulfill(status=status, json=body)
            return
        chat = request.url.endswith("/chat/completions")
        lines = [': {"phase": "queued", "index": 0, "ahead": 2}', ': {"phase": "prefill"}']
        pieces = [self.text[at : at + self.step] for at in range(0, len(self.text), self.step)]
        for delta in self.deltas:
            part = {"index": 0, "delta": delta, "finish_reason": None}
            lines.append("data: " + json.dumps({"choices": [part]}))
        for count, piece in enumerate(pieces, 1):
            end = None if count < len(pieces) or self.broken else self.end
            lines.append("data: " + json.dumps(_chunk(piece, count, end, chat, self.timings)))
        lines += ["data: [DONE]"] if self.broken is None else [self.broken]
        headers = {"Content-Type": "text/event-stream", "Content-Security-Policy": POLICY}
        route.fulfill(body="".join(f"{line}\n\n" for line in lines), headers=headers)


def _chunk(
    piece: str, count: int, end: str | None, chat: bool, more: dict[str, Any]
) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": end} | (
        {"delta": {"content": piece}} if chat else {"text": piece}
    )
    timings = {
        "prompt_n": 12,
        "prompt_ms": 3.0,
        "prompt_per_second": 4000.0,
        "predicted_n": count,
        "predicted_ms": (count - 1) * 2.0,
        "predicted_per_second": 500.0 if count > 1 else 0,
        "ttft_ms": 4.2,
        "mbu": 0.37,
        "draft_n": 40,
        "draft_n_accepted": 30,
        "cache_n": 5,
    } | more
    return {"choices": [choice], "timings": timings, "phase": "done" if end else "decode"}


@pytest.fixture
def stand_in(context: BrowserContext) -> StandIn:
    """What answers in place of a server on ``stand_in_page``."""
    stand_in = StandIn()
    context.route(re.compile(".*"), stand_in.answer)
    return stand_in


@pytest.fixture
def stand_in_page(page: Page, stand_in: StandIn) -> Page:
    """The playground, open and ready, with a stand-in for the server."""
    page.goto(ORIGIN)
    page.wait_for_selector("#state[data-state=ready]")
    return page


@pytest.fixture(scope="module")
def workbench(browser: Browser) -> Iterator[Page]:
    """The page as a place to try its modules in; a file's tests share it and leave it as it was."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE * 1000)
    context.route(re.compile(".*"), StandIn().answer)
    page = context.new_page()
    page.goto(ORIGIN)
    yield page
    context.close()


SERVE = [sys.executable, "-m", "monolane", "serve", "--model", "demo", "--port", "0"]


class Server:
    """A server of our own in a process of its own, with the demo model; ``key`` may be empty."""

    def __init__(self, folder: Path, key: str, backend: str = "auto") -> None:
        self.key = key
        self._log = folder / "server.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*SERVE, "--backend", backend],
                env=os.environ | ({"MONOLANE_API_KEY": key} if key else {}),
                stdout=log,
                stderr=log,
            )
        self.url = self._wait()

    def _wait(self) -> str:
        """Return the URL once the model is loaded."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self._process.poll() is None:
            time.sleep(0.05)
            if found := re.search(r" at (http://\S+)", self._log.read_text()):
                try:
                    with urllib.request.urlopen(f"{found[1]}/health", timeout=5):
                        return found[1]
                except OSError:
                    continue  # 503: it is still loading
        self._process.kill()
        raise AssertionError(
            f"the server was not ready within {PATIENCE} s: {self._log.read_text()}"
        )

    def close(self) -> None:
        """End the process and wait for it."""
        self._process.terminate()
        self._process.wait(timeout=PATIENCE)


@pytest.fixture(scope="session")
def server(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without a key, for all tests of the process."""
    server = Server(tmp_path_factory.mktemp("server"), key="")
    yield server
    server.close()


@pytest.fixture
def slow_server(chromium: str, tmp_path: Path) -> Iterator[Server]:
    """A server whose answers take seconds: the reference draws some 300 tokens a second."""
    server = Server(tmp_path, key="", backend="reference")
    yield server
    server.close()


@pytest.fixture
def locked(chromium: str, tmp_path: Path) -> Iterator[Server]:
    """A server that wants a key."""
    server = Server(tmp_path, key="key-of-the-playground-tests-0123456789")
    yield server
    server.close()


@pytest.fixture
def server_page(page: Page, server: Server) -> Page:
    """The playground of a real server, open and ready."""
    page.goto(server.url)
    page.wait_for_selector("#state[data-state=ready]")
    return page


@pytest.fixture
def picture(page: Page) -> Callable[[str], None]:
    """Takes a picture of the page, where a folder for it is named."""
    folder = os.environ.get("PLAYGROUND_SCREENSHOTS")

    def take(name: str) -> None:
        if folder:
            page.screenshot(path=Path(folder) / f"{name}.png")

    return take
