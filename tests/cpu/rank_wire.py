"""A wire to a rank joined by TCP: it passes bytes on, and its links can be closed or die."""

import json
import socket
import threading
from contextlib import suppress


class Link:
    """A connection that somebody made through a wire."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.rank: int | None = None  # who made it, once it has said so
        self.dead = False  # what is sent over it arrives nowhere, and nobody is told
        self._ends = (near, far)
        self._threads = [threading.Thread(target=self._pass, args=(near, far))]
        self._threads.append(threading.Thread(target=self._pass, args=(far, near)))
        for thread in self._threads:
            thread.start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while found := source.recv(65536):
                if self.rank is None and source is self._ends[0]:
                    hello = json.loads(found.split(b"\n")[0])["hello"]
                    self.rank = hello.get("rank", 0)
                if not self.dead:
                    target.sendall(found)
        if not self.dead:
            self.close()

    def close(self) -> None:
        """Have both ends see the end of it."""
        for end in self._ends:
            with suppress(OSError):  # its host was faster
                end.shutdown(socket.SHUT_RDWR)

    def join(self) -> bool:
        """Give back sockets and threads, if both ways have ended; return whether they have."""
        if any(thread.is_alive() for thread in self._threads):
            return False
        for end in self._ends:
            end.close()
        return True


class Wire:
    """Listens on loopback, and passes on what comes to a place on loopback."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        self._links: list[Link] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    @property
    def links(self) -> list[Link]:
        """Those that are open, and have said who made them."""
        with self._lock:
            self._links = [link for link in self._links if not link.join()]
            return [link for link in self._links if link.rank is not None]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._door.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._port))
                except OSError:  # nobody listens there
                    near.close()
                    continue
                with self._lock:
                    self._links.append(Link(near, far))

    def close(self) -> None:
        """Close all links, and take no more."""
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self._thread.join()
        with self._lock:
            for link in self._links:
                link.dead = False
                link.close()
        while self.links or self._links:
            pass
