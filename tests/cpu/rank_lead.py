"""A rank 0 made by hand, which sends a rank what no honest one would: wishes, passes, frames."""

import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from monolane.cpu._handshake import join
from monolane.cpu._native import Setting
from monolane.cpu._rank_messages import hear, say
from monolane.executor_api import Loading, split_address
from monolane.model import Weights, digest

MIXTURE, WIDE = 256, 64  # kPlanMixtureWidth and kPlanMaxWidth of csrc/abi/plan_abi.h

# csrc/abi/pass.h.
ROW = np.dtype([(name, "<i4") for name in ("slot", "position", "token")], align=True)
RUN = np.dtype(
    [(name, "<i4") for name in ("slot", "first", "rows", "certain", "position", "settled")],
    align=True,
)
CHORE = np.dtype(
    [(name, "<i4") for name in ("kind", "slot", "target", "has_tail")]
    + [(name, "<i8") for name in ("begin", "end", "name", "from", "tail_from")],
    align=True,
)
PASS = np.dtype(
    [
        ("width", "<i4"),
        ("lent", "u1"),
        ("help", "u1"),
        ("rows", ROW, MIXTURE),
        ("runs", "<i4"),
        ("run", RUN, WIDE),
        ("wanted", "<i4"),
        ("wanted_row", "<i4", WIDE),
        ("hidden", "u1"),
        ("offered", "u1"),
        ("chore", CHORE),
    ],
    align=True,
)
NONE, COPY, SAVE, RESTORE, CUT, DROP = range(6)  # Chore::Kind

# csrc/ranks/tcp_links.cpp.
MAGIC = 0x32524C4D
HEAD = struct.Struct("<IiII")  # magic, worker, count, parts
WRITTEN = struct.Struct("<iiIIQii")  # part, rows, bytes, stride, offset, to_leader, unused
LOST = -1
HEAD_PART, FIRST_OUTPUT, STREAM, LOGITS = 0, 3, 7, 9  # Exchange::Part


def chore(kind: int, **values: int) -> np.ndarray:
    """A chore as the leader says it, but for what is given."""
    made = np.zeros((), CHORE)
    made["kind"], made["slot"], made["target"], made["tail_from"] = kind, -1, -1, -1
    for name, value in values.items():
        made[name] = value
    return made


def one_row() -> np.ndarray:
    """A sane pass of one row, whose logits are wanted."""
    made = np.zeros((), PASS)
    made["width"] = made["wanted"] = 1
    made["rows"][0] = (0, 0, 1)
    made["chore"] = chore(NONE)
    return made


def ending(done: np.ndarray) -> np.ndarray:
    """A sane pass without rows, which ends an epoch with a chore."""
    made = np.zeros((), PASS)
    made["chore"] = done
    return made


def wish_of(weights: Weights, addresses: Sequence[str], rank: int = 1) -> dict[str, Any]:
    """What an honest rank 0 would ask of a rank, of a thread each."""
    ranks = 1 + len(addresses)
    loading = Loading(dtype="float32", context=64, max_sequences=2, workers=ranks, ranks=ranks)
    lanes = max(weights.config.num_lanes, ranks)
    setting = Setting(loading, "portable", lanes, apart=True)
    told = {"rank": rank, "addresses": list(addresses), "digest": digest(weights)}
    return {**told, "patience": 5.0, "setting": setting.wish()}


class RankLead:
    """Joins a rank as rank 0; with ``ask`` and ``send`` it says whatever it is told to."""

    def __init__(self, address: str, key: bytes) -> None:
        self.channel = socket.create_connection(split_address(address), 60)
        self.channel.settimeout(60)
        join(self.channel, key, {"kind": "lead", "session": "0" * 32})
        self._workers, self._passes = 2, 0

    def ask(self, wish: dict[str, Any]) -> dict[str, Any]:
        """Send a wish; return the answer."""
        say(self.channel, wish)
        while "loading" in (word := hear(self.channel)):
            pass
        return word

    def send_pass(self, made: np.ndarray, count: int | None = None, parts: int = 1) -> None:
        """Send a pass as the next one, or as the ``count``-th."""
        self._passes += 1
        data = made.tobytes()
        written = (HEAD_PART, 1, len(data), len(data), 0, 0, 0)
        whole = (WRITTEN.pack(*written) + data) * parts
        self.send(self._workers, self._passes if count is None else count, parts, whole)

    def send(self, worker: int, count: int, parts: int, data: bytes, magic: int = MAGIC) -> None:
        """Send a frame."""
        self.channel.sendall(HEAD.pack(magic, worker, count, parts) + data)

    def await_count(self, count: int) -> None:
        """Wait until the rank has counted so many phases."""
        while (frame := self._frame())[1] < count:
            assert frame[0] != LOST, frame[2]

    def refusal(self) -> str:
        """Return what the rank says of itself before it hangs up; "" if nothing."""
        try:
            while True:
                worker, _, text = self._frame()
                if worker == LOST:
                    return text
        except ConnectionError:
            return ""

    def _frame(self) -> tuple[int, int, str]:
        magic, worker, count, parts = HEAD.unpack(self._bytes(HEAD.size))
        assert magic == MAGIC
        if worker == LOST:
            return worker, count, self._bytes(parts).decode()
        for _ in range(parts):
            _, rows, each, *_ = WRITTEN.unpack(self._bytes(WRITTEN.size))
            self._bytes(rows * each)
        return worker, count, ""

    def _bytes(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            more = self.channel.recv(count - len(found))
            if not more:
                raise ConnectionError("the rank hung up")
            found += more
        return found

    def __enter__(self) -> "RankLead":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.channel.close()
