"""The ranks 1.. on other hosts, seen from rank 0: joined by address, watched by their connections.

Nobody here can start them: ``monolane rank`` runs there, and waits for the next rank 0 when this
one hangs up.
"""

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress

from monolane._core import Executor as NativeExecutor
from monolane.cpu._handshake import HandshakeError, join
from monolane.cpu._native import Setting
from monolane.cpu._rank_messages import STALLED, await_answer, say
from monolane.cpu._tcp import connect
from monolane.errors import BackendError, RankError
from monolane.executor_api import RankAddresses


class JoinedRanks:
    """The ranks 1.. of a setting, loading since this was made; ``wait`` until they are ready.

    digest   of the model, which theirs must have too
    """

    processes: tuple[int, ...] = ()  # of this host: none

    def __init__(
        self, ranks: RankAddresses, setting: Setting, digest: str, patience: float
    ) -> None:
        self._addresses = ranks.addresses
        self._sockets: list[socket.socket] = []
        self._fault: Callable[[int], str] = lambda _: ""
        session = secrets.token_hex(16)
        try:
            for rank in range(1, setting.ranks):
                self._join(rank, session, ranks.key, patience)
            for rank, channel in enumerate(self._sockets, 1):
                wish = {"rank": rank, "addresses": self._addresses, "digest": digest}
                with suppress(OSError):  # it is lost already: ``wait`` says so
                    say(channel, {**wish, "patience": patience, "setting": setting.wish()})
        except BaseException:
            self.close()
            raise

    def _join(self, rank: int, session: str, key: bytes, patience: float) -> None:
        address = self._addresses[rank - 1]
        try:
            channel = connect(address, patience)
            self._sockets.append(channel)
            join(channel, key, {"kind": "lead", "session": session})
        except HandshakeError as error:
            raise BackendError(f"rank {rank} at {address} {error}") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise RankError(
                f"rank {rank} at {address} does not answer: {reason}; is "
                f"'monolane rank --listen {address}' running there?",
                rank,
            ) from None

    def wait(self, patience: float) -> None:
        """Wait until all ranks are ready; RankError or BackendError if one is not."""
        for rank, channel in enumerate(self._sockets, 1):
            answer = await_answer(channel, rank, patience, self.fate)
            if "error" in answer:
                raise BackendError(f"rank {rank} at {self._addresses[rank - 1]}: {answer['error']}")

    def watch(self, core: NativeExecutor, patience: float) -> None:
        """Have the core exchange with them, and find them lost."""
        for channel in self._sockets:
            channel.setblocking(True)
        numbers = [-1, *(channel.fileno() for channel in self._sockets)]
        core.connect(numbers, round(patience * 1e9))
        self._fault = core.fault

    def fate(self, rank: int) -> str:
        """Return what became of a rank: its address and a verb, for people."""
        return f"at {self._addresses[rank - 1]} {self._fault(rank) or STALLED}"

    def close(self) -> None:
        """Hang up, which ends what the ranks do for this one. Harmless when called twice."""
        for channel in self._sockets:
            with suppress(OSError):  # the other end was faster
                channel.shutdown(socket.SHUT_RDWR)  # also of the core's copies
            channel.close()
