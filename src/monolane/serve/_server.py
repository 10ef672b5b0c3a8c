"""The process: a socket, the event loop, signals, and an orderly end."""

import asyncio
import contextlib
import logging
import math
import resource
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from monolane.engine import Engine
from monolane.errors import BackendError
from monolane.serve._anthropic import routes as messages
from monolane.serve._anthropic.errors import error_json
from monolane.serve._http.admission import Admission
from monolane.serve._http.guard import Guard
from monolane.serve._http.page import page_routes
from monolane.serve._http.paths import Paths
from monolane.serve._http.protocol import LimitedProtocol, Turns
from monolane.serve._http.spans import Spans
from monolane.serve._llamacpp import routes as llamacpp
from monolane.serve._llamacpp.errors import error_json as llamacpp_error
from monolane.serve._notify import feed_watchdog, notify
from monolane.serve._openai.embeddings import OPERATIONS as EMBEDDINGS
from monolane.serve._openai.embeddings import embedding_routes
from monolane.serve._openai.responses import routes as responses
from monolane.serve._openai.routes import OPEN, routes
from monolane.serve._options import ServerOptions
from monolane.serve._run.memory import unsettle
from monolane.serve._run.service import Service
from monolane.serve._tools.formats import AUTO, format_named

_GRACE = 5  # seconds from the end of the drain until what is left is cancelled
_TELL = 3  # of these, to tell clients of the end
_LAST = 1.0  # seconds for what a second signal has left to end by itself
_BACKLOG = 2048
# Bytes that the kernel keeps for a client that does not read, where it would take megabytes: two
# seconds of a fast stream.
_SEND_BUFFER = 128 << 10
# Seconds after which a thread that wants the GIL has it, where others do not let go of it: Python's
# 5 ms, several times for one event, are a pause that a reader sees.
_SWITCH_SECONDS = 0.001


def serve(
    load: Callable[[], Engine],
    options: ServerOptions,
    *,
    bandwidth: Callable[[], float | None] = lambda: None,
    announce: Callable[[str], None] = lambda url: None,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; what runs then may finish within ``drain_seconds``.

    ``load`` makes the engine while the port is open already and /health says 503; ``bandwidth``
    measures bytes/s of the machine's memory for ``mbu``. ``announce`` gets the URL when the port is
    open, ``ready`` when the model is loaded. Raises BackendError if the address or the certificate
    cannot be used, RequestError for a ``tool_format`` that is none, and what ``load`` raises.
    """
    if options.tool_format != AUTO:
        format_named(options.tool_format)
    _check_certificate(options)
    with _listening(options) as listener:
        service = Service(load, options, bandwidth, reads_apart=True)
        url = _url(options, listener)
        server = _Server(service, listener, lambda: ready(url))
        announce(url)
        try:
            server.run_until_signal()
        finally:
            unsettle()
    if service.failure is not None:
        raise service.failure


# Operations besides those of OpenAI's older API.
OTHERS = (*EMBEDDINGS, *llamacpp.OPERATIONS, *responses.OPERATIONS, *messages.OPERATIONS)


def build_app(
    service: Service,
    stop: Callable[[], None] = lambda: None,
    ready: Callable[[], None] = lambda: None,
) -> ASGIApp:
    """Return the ASGI application; its lifespan loads and closes the service.

    ``ready`` is called when the model is loaded, ``stop`` when it could not be.
    """

    ends = False
    spans = Spans.wanted(service.options.traces, service.options.model_name)

    async def load() -> None:
        await service.start()
        if service.failure is not None:
            stop()
        elif not ends:
            ready()
            notify(READY=1, STATUS=f"serving {service.options.model_name}")

    @contextlib.asynccontextmanager
    async def lifespan(_: Router) -> AsyncIterator[None]:
        nonlocal ends
        loading = asyncio.create_task(load())
        feeding = asyncio.create_task(feed_watchdog(lambda: service.health()[1] != "stalled"))
        yield
        ends = True
        await loading
        await service.close()
        feeding.cancel()
        if spans is not None:
            await asyncio.to_thread(spans.close)

    page, (all_routes, native) = page_routes(), _routes(service)
    router = Router([*all_routes, *page], redirect_slashes=False, lifespan=lifespan)
    open_paths = [*OPEN, *(route.path for route in page)]
    spellings = dict.fromkeys(messages.PATHS, error_json)
    native_paths = ("/embedding", *(route.path for route in native))
    spellings |= dict.fromkeys(native_paths, llamacpp_error)
    note = service.metrics.refusals.note
    paths = Paths([*all_routes, *page])
    return Guard(router, service.options, open_paths, note, spellings, spans, paths)


def build_router(service: Service) -> ASGIApp:
    """Return the routes alone: no page, no keys, and errors are raised."""
    return Router(_routes(service)[0], redirect_slashes=False)


def _routes(service: Service) -> tuple[list[Route], list[Route]]:
    """Return all routes, and of these llama.cpp's, whose errors are spelled in its own way."""
    openai = [*routes(service, OTHERS), *responses.responses_routes(service)]
    openai += [*embedding_routes(service)]
    native = llamacpp.llamacpp_routes(service)  # before the others: /completions is one of them
    native += _without_version(openai)
    return [*openai, *native, *messages.messages_routes(service)], native


def _without_version(given: list[Route]) -> list[Route]:
    """Return the routes of /v1 without it, for clients whose base URL lacks it."""
    return [
        Route(route.path.removeprefix("/v1"), route.endpoint, methods=[*(route.methods or ())])
        for route in given
        if route.path.startswith("/v1/")
    ]


class _Server(uvicorn.Server):
    def __init__(
        self, service: Service, listener: socket.socket, ready: Callable[[], None]
    ) -> None:
        options = service.options
        config = uvicorn.Config(
            build_app(service, self._stop, ready),
            loop="asyncio",  # also where uvloop is installed: only this loop is tested
            http=type(
                "Protocol",
                (LimitedProtocol,),
                {
                    "turns": Turns(),
                    "admission": Admission(),
                    "send_seconds": options.send_seconds,
                    "max_connections": options.max_connections,
                },
            ),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            ssl_certfile=options.tls_cert,
            ssl_keyfile=options.tls_key,
            timeout_graceful_shutdown=math.ceil(options.drain_seconds) + _GRACE,
        )
        super().__init__(config)
        self._service, self._listener = service, listener

    def run_until_signal(self) -> None:
        """Run until a signal asks for the end, and return after it."""
        _allow_files(self._service.options.max_connections)
        # uvicorn raises the signal again when it is done, but an end on request is no failure.
        signal.signal(signal.SIGTERM, lambda *_: None)
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        before = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            self.run(sockets=[self._listener])
        finally:
            sys.setswitchinterval(before)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, and let those that run come to an end."""
        service = self._service
        notify(STOPPING=1, STATUS="draining")
        if service.state == "ready":
            service.state = "draining"
        loop = asyncio.get_running_loop()
        seconds = service.options.drain_seconds
        timers = [
            loop.call_later(seconds, service.end_requests),
            # Of who does not read, uvicorn would cancel the tasks, and log each as a failure.
            loop.call_later(seconds + _TELL, self._cut),
        ]
        await super().shutdown(sockets)
        for timer in timers:
            timer.cancel()
        service.abandon()  # what a second signal has left: its threads would keep the process
        self._cut()
        if tasks := set(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=_LAST)
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what is cancelled now

    def _cut(self) -> None:
        """Close all connections; who waits for a client then goes on to its end."""
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end; a second signal, whichever, ends at once."""
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)

    def _stop(self) -> None:
        self.should_exit = True


@contextlib.contextmanager
def _listening(options: ServerOptions) -> Iterator[socket.socket]:
    """Give the socket to listen on, and close it behind; BackendError if there can be none."""
    if options.socket is None:
        with _listen(options.host, options.port) as listener:
            yield listener
        return
    with _listen_at(options.socket) as listener:
        try:
            yield listener
        finally:
            options.socket.unlink(missing_ok=True)


def _listen_at(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _answers(path):  # of a server that was killed
            path.unlink()
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)  # a path may be too long
        raise BackendError(
            f"cannot listen on the socket {path}: {reason}; choose another path with --host"
        ) from None
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named for asyncio's sake: it sets TCP_NODELAY on no socket of protocol 0, and
    # without it the second write of a reply on a kept connection waits 40 ms for the client's ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)  # of its connections
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)  # before the address is announced: an early client waits
    except OSError as error:
        listener.close()
        raise BackendError(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose another --port, or "
            "0 for any that is free"
        ) from None
    return listener


def _check_certificate(options: ServerOptions) -> None:
    if options.tls_cert is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # An empty password: a key that needs one is refused here, and not asked for on a terminal.
        context.load_cert_chain(options.tls_cert, options.tls_key, password="")
    except OSError as error:  # ssl.SSLError is one
        raise BackendError(
            f"tls_cert {options.tls_cert}, tls_key {options.tls_key or 'in the same file'}: "
            f"expected a PEM certificate and its private key without a password: {error}"
        ) from None


def _url(options: ServerOptions, listener: socket.socket) -> str:
    host = options.host
    if options.socket is not None:
        return f"unix:{options.socket}"
    name = f"[{host}]" if ":" in host else host
    scheme = "http" if options.tls_cert is None else "https"
    return f"{scheme}://{name}:{listener.getsockname()[1]}"


def _allow_files(connections: int) -> None:
    """Raise the limit on open files so that it is the connections that are bounded."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
