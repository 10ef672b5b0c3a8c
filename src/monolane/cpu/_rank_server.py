"""A rank that other hosts may join: it listens, loads its lanes when a rank 0 asks, and decodes.

One rank 0 at a time. When that hangs up or is lost, the next is served: it may be the same one,
which starts anew after another rank was lost.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from monolane.cpu._handshake import HandshakeError, admit, join
from monolane.cpu._native import Native
from monolane.cpu._rank_messages import beating, hear, say
from monolane.cpu._tcp import connect, tuned
from monolane.cpu._wish import Wish
from monolane.errors import BackendError, MonolaneError
from monolane.executor_api import check_key, split_address
from monolane.model import Weights, digest

log = logging.getLogger("monolane.cpu")

_GREETING = 10.0  # seconds that a handshake may take
_ENDING = 5.0  # and the end of the last rank 0; a new one waits longer for the first word
_GREETED = 32  # connections that may be in a handshake at once: more are closed
_LOOK = 200  # ms between two looks whether this process is to end


class RankListener:
    """Serves ranks 0 that join at an address, with one model; ``serve`` until ``close``."""

    def __init__(self, weights: Weights, address: str, key: bytes) -> None:
        check_key(key)
        host, port = split_address(address)
        self._weights, self._key = weights, key
        self._digest = digest(weights)
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._door = socket.create_server((host, port), family=family)
        except OSError as error:
            raise BackendError(f"rank: cannot listen at {address}: {error.strerror}") from None
        port = self._door.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._leading = threading.Lock()  # held by the one rank 0 that is served
        self._greeting = threading.Semaphore(_GREETED)
        self._arrival = threading.Condition()  # of a session or a peer
        self._sessions: set[str] = set()  # of ranks 0 that have joined
        self._peers: dict[tuple[str, int], socket.socket] = {}  # by session and rank
        self._over = threading.Event()

    def serve(self) -> None:
        """Answer whoever joins, until ``close`` is called by another thread."""
        self._door.settimeout(_LOOK / 1000)
        while not self._over.is_set():
            try:
                channel, place = self._door.accept()
            except TimeoutError:
                continue
            except OSError:
                if self._over.is_set():
                    return
                raise
            if not self._greeting.acquire(blocking=False):
                channel.close()
                continue
            who = f"{place[0]}:{place[1]}"
            threading.Thread(target=self._greet, args=(channel, who), daemon=True).start()

    def close(self) -> None:
        """End ``serve``, and what is being decoded."""
        self._over.set()
        self._door.close()
        with self._leading:  # its session is over when it has seen that
            pass

    def _greet(self, channel: socket.socket, who: str) -> None:
        with ExitStack() as stack:
            stack.callback(channel.close)
            try:
                try:
                    hello = admit(tuned(channel, _GREETING), self._key)
                finally:
                    self._greeting.release()
                kind, session = str(hello.get("kind")), str(hello.get("session"))
                if kind == "peer":
                    stack.pop_all()  # the session's now
                    self._arrive(channel, session, int(hello.get("rank", 0)))
                elif kind == "lead":
                    with self._joined(session):
                        self._follow(channel, session, who)
            except HandshakeError as error:
                log.warning("rank: %s was refused: %s", who, error)
            except (OSError, ValueError) as error:
                log.warning("rank: %s is gone: %s", who, error)

    def _arrive(self, channel: socket.socket, session: str, rank: int) -> None:
        """Keep a peer for its session; one whose session is over is sent away."""
        with self._arrival:
            if self._arrival.wait_for(lambda: session in self._sessions, _GREETING):
                self._peers[session, rank] = channel
                self._arrival.notify_all()
            else:
                channel.close()

    @contextmanager
    def _joined(self, session: str) -> Iterator[None]:
        with self._arrival:
            self._sessions.add(session)
            self._arrival.notify_all()
        try:
            yield
        finally:
            self._forget(session)

    def _follow(self, channel: socket.socket, session: str, who: str) -> None:
        """Take part in all that one rank 0 decodes."""
        if not self._leading.acquire(timeout=_ENDING):
            with beating(channel):
                wish = hear(channel)
            del wish
            say(channel, {"error": "it decodes for another rank 0 already; end that first"})
            return
        try:
            log.info("rank: %s has joined", who)
            log.info("rank: %s %s", who, self._decode(channel, session) or "has left")
        finally:
            self._leading.release()

    def _decode(self, channel: socket.socket, session: str) -> str:
        """Return what became of rank 0, a verb; empty if nothing has."""
        told = hear(channel)
        links: list[socket.socket | None] = []
        try:
            try:
                with beating(channel):
                    wish = Wish.read(told, self._weights.config, self._digest)
                    self._meet(links, channel, wish, session)
                    native = Native(self._weights, wish.setting, wish.rank)
                    native.convert()
            except MonolaneError as error:
                say(channel, {"error": str(error)})
                return f"was refused: {error}"
            for link in links:
                if link is not None:
                    link.setblocking(True)
            say(channel, {"ready": True})
            numbers = [-1 if link is None else link.fileno() for link in links]
            native.core.connect(numbers, round(wish.patience * 1e9))
            native.core.follow()
            while native.core.follows(_LOOK) and not self._over.is_set():
                pass
            return native.core.fault(0)
        finally:
            for link in links:
                if link is not None:
                    link.close()

    def _meet(
        self,
        links: list[socket.socket | None],
        lead: socket.socket,
        wish: Wish,
        session: str,
    ) -> None:
        """Connect to the ranks before this one, and wait for those behind; fills ``links``."""
        own, patience = wish.rank, wish.patience
        links.append(lead)
        for rank, address in enumerate(wish.addresses, 1):
            links.append(None)
            if rank == own:
                continue
            try:
                if rank < own:
                    links[-1] = before = connect(address, patience)
                    join(before, self._key, {"kind": "peer", "session": session, "rank": own})
                else:
                    links[-1] = self._peer(session, rank, patience)
            except (OSError, HandshakeError) as error:
                raise BackendError(f"cannot reach rank {rank} at {address}: {error}") from None

    def _peer(self, session: str, rank: int, patience: float) -> socket.socket:
        with self._arrival:
            if not self._arrival.wait_for(lambda: (session, rank) in self._peers, patience):
                raise TimeoutError("it has not joined")
            return self._peers.pop((session, rank))

    def _forget(self, session: str) -> None:
        """Close what peers of a session that came to nothing have left."""
        with self._arrival:
            self._sessions.discard(session)
            for place in [place for place in self._peers if place[0] == session]:
                self._peers.pop(place).close()


def serve_rank(weights: Weights, address: str, key: bytes, ready: Callable[[str], None]) -> None:
    """Serve ranks 0 at an address until this process ends; ``ready`` is told where."""
    listener = RankListener(weights, address, key)
    ready(listener.address)
    try:
        listener.serve()
    finally:
        listener.close()
