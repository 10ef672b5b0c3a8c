"""Ranks joined by TCP: who may join, and what happens when a connection or a rank is lost."""

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from far_ranks import KEY, RankProcess, listening
from rank_lead import RankLead, wish_of

from monolane.cpu import CpuExecutor, RankListener
from monolane.cpu._handshake import admit
from monolane.cpu._handshake import join as join_as
from monolane.cpu._rank_messages import hear, say
from monolane.errors import BackendError, RankError, RequestError
from monolane.executor_api import Advance, RankAddresses, read_key, split_address
from monolane.model import Weights

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "src" / "monolane" / "demo"
GOLDEN = ROOT / "tests" / "golden"
IDS = list(range(40))


def join(addresses: RankAddresses, model: Path = DEMO, patience: float = 60.0) -> CpuExecutor:
    ranks = 1 + len(addresses.addresses)
    return CpuExecutor(
        Weights.open(model),
        context=1024 if model == DEMO else 128,
        slots=1,
        workers=ranks,
        ranks=addresses,
        patience=patience,
    )


@pytest.fixture(scope="module")
def wanted() -> np.ndarray:
    alone = CpuExecutor(Weights.open(DEMO), context=1024, slots=1, workers=2)
    return alone.logits(0, IDS)


def at(door: socket.socket) -> str:
    return f"127.0.0.1:{door.getsockname()[1]}"


def ask(executor: CpuExecutor) -> np.ndarray:
    executor.take()
    executor.truncate(0, 0)
    return executor.logits(0, IDS)


def decode(executor: CpuExecutor) -> None:
    """Draw tokens until something goes wrong."""
    while True:
        executor.truncate(0, 0)
        executor.start([Advance(slot=0, token_ids=(1, 2, 3), budget=900)])
        while not executor.read(0.1):
            executor.take()


# ---- Who may join ----


def test_the_same_key_is_needed(wanted: np.ndarray) -> None:
    with listening(DEMO, 1) as addresses:
        with pytest.raises(BackendError, match="has another key: give both hosts the same"):
            join(RankAddresses(addresses.addresses, b"another key of 16 bytes"))
        executor = join(addresses)
        np.testing.assert_array_equal(ask(executor), wanted)
        executor.close()


def test_a_listener_with_another_key_is_not_believed() -> None:
    """It admits whoever comes, but cannot prove that it has the key."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def admit_all() -> None:
            channel, _ = door.accept()
            with channel, channel.makefile("rwb") as words:
                for answer in (b'{"nonce": "1"}\n', b'{"proof": "2"}\n'):
                    words.readline()
                    words.write(answer)
                    words.flush()

        thread = threading.Thread(target=admit_all)
        thread.start()
        address = at(door)
        with pytest.raises(BackendError, match="has another key"):
            join(RankAddresses((address,), KEY))
        thread.join()


def test_the_same_model_is_needed() -> None:
    with (
        listening(GOLDEN / "no_comm", 1) as addresses,
        pytest.raises(BackendError, match=r"rank 1 at .*: its model is another: expected SHA-256"),
    ):
        join(addresses)


def test_a_key_is_needed_on_this_host_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user of it may connect to loopback."""
    monkeypatch.delenv("MONOLANE_RANK_KEY", raising=False)
    told = "key: expected one that all ranks share, got none: name a file .*--key-file, or set MONO"
    for refused in (
        lambda: RankListener(Weights.open(DEMO), "0.0.0.0:0", b""),
        lambda: RankListener(Weights.open(DEMO), "127.0.0.1:0", b""),
        lambda: RankAddresses(("192.0.2.1:7000",)),
        lambda: RankAddresses(("127.0.0.1:7000",)),
        lambda: RankAddresses.parse("127.0.0.1:7000"),
    ):
        with pytest.raises(BackendError, match=told):
            refused()
    with pytest.raises(BackendError, match="key: expected at least 16 characters, got 5"):
        RankAddresses(("127.0.0.1:7000",), b"short")
    file = tmp_path / "key"
    file.write_bytes(b"\n" + KEY + b"\n")
    parsed = RankAddresses.parse(" 192.0.2.1:7000, [::1]:7001", file)
    assert parsed.addresses == ("192.0.2.1:7000", "[::1]:7001")
    assert parsed.key == read_key(file) == KEY
    monkeypatch.setenv("MONOLANE_RANK_KEY", "another key of 16 bytes")
    assert RankAddresses.parse("127.0.0.1:7000").key == b"another key of 16 bytes"
    assert RankAddresses.parse("127.0.0.1:7000", file).key == KEY
    assert split_address("[::1]:7001") == ("::1", 7001)
    assert KEY.decode() not in repr(RankAddresses(("127.0.0.1:7000",), KEY))
    for wrong in ("127.0.0.1", ":7000", "127.0.0.1:x", "127.0.0.1:70000"):
        with pytest.raises(RequestError, match="address: expected host:port"):
            split_address(wrong)
    with pytest.raises(RequestError, match="expected a different host:port for each rank"):
        RankAddresses(("127.0.0.1:7000", "127.0.0.1:7000"), KEY)


def test_who_is_no_rank_is_sent_away_and_harms_nobody(wanted: np.ndarray) -> None:
    with listening(DEMO, 1) as addresses:
        place = split_address(addresses.addresses[0])
        for said in (
            b"GET / HTTP/1.1\r\n\r\n",
            b'{"monolane": 1}\n',
            b"[]\n",
            b"[" * 100_000 + b"\n",
            os.urandom(64) + b"\n",
        ):
            with socket.create_connection(place, 60) as stranger:
                stranger.sendall(said)
                stranger.settimeout(60)
                with contextlib.suppress(ConnectionError):
                    assert b"error" in stranger.recv(4096)
        with socket.create_connection(place, 60) as old:
            old.sendall(b'{"monolane": 1, "version": "0", "nonce": "", "hello": {}}\n')
            assert b"install the same version on each host" in old.recv(4096)
        with socket.create_connection(place, 60):  # says nothing, while others join
            executor = join(addresses)
            np.testing.assert_array_equal(ask(executor), wanted)
            executor.close()


def test_a_peer_whose_session_is_over_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a rank that was stopped while others joined it: or each would leave a socket here."""
    monkeypatch.setattr("monolane.cpu._rank_server._GREETING", 0.2)
    with listening(DEMO, 1) as addresses:
        place = split_address(addresses.addresses[0])
        with socket.create_connection(place, 60) as late:
            join_as(late, KEY, {"kind": "peer", "session": "over", "rank": 2})
            assert late.recv(1) == b""


@pytest.mark.parametrize("rank", [1, 2])
def test_a_peer_that_is_stopped_while_it_joins_is_waited_for_as_long_as_rank_0_says(
    rank: int,
) -> None:
    """Rank 1 waits for rank 2, which joins it; rank 2 connects to rank 1, and waits for a word."""
    # Of eight lanes, which four ranks can share.
    with (
        listening(GOLDEN / "delay1_8lanes", 1) as addresses,
        socket.create_server(("127.0.0.1", 0)) as stopped,
    ):
        own, other = addresses.addresses[0], at(stopped)
        both = [own, other] if rank == 1 else [other, own]
        weights = Weights.open(GOLDEN / "delay1_8lanes")
        wish = wish_of(weights, [*both, "127.0.0.1:1"], rank) | {"patience": 0.3}
        with RankLead(own, KEY) as lead:
            reason = {1: "it has not joined", 2: "timed out"}[rank]
            found = f"cannot reach rank {3 - rank} at {other}: {reason}"
            assert lead.ask(wish) == {"error": found}


def test_a_rank_that_falls_silent_while_it_loads_is_named_with_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:

        def load() -> None:
            channel, _ = door.accept()
            with channel:
                admit(channel, KEY)
                hear(channel)
                say(channel, {"loading": True})
                assert channel.recv(1) == b""

        thread = threading.Thread(target=load)
        thread.start()
        told = f"rank 1 at {at(door)} made no progress while it loaded the model"
        with pytest.raises(RankError, match=told):
            join(RankAddresses((at(door),), KEY), patience=1.0)
        thread.join()


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        free = at(door)
    told = (
        f"rank 1 at {free} does not answer: Connection refused; is 'monolane rank --listen {free}'"
    )
    with pytest.raises(RankError, match=told):
        join(RankAddresses((free,), KEY))


# ---- What is lost ----


class Wire:
    """Passes bytes on between rank 0 and a rank, and is cut when so many have come back."""

    def __init__(self, address: str) -> None:
        self.left = 1 << 62  # bytes until it is cut
        self._to = split_address(address)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = at(self._door)
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ends = (self._door.accept()[0], socket.create_connection(self._to))
                self._threads.append(threading.Thread(target=self._pass, args=ends))
                self._threads[-1].start()

    def _pass(self, near: socket.socket, far: socket.socket) -> None:
        with near, far, contextlib.suppress(OSError):
            while True:
                for one in select.select([near, far], [], [])[0]:
                    other, found = (near, one.recv(65536)) if one is far else (far, one.recv(65536))
                    if one is far:
                        found = found[: self.left]
                        self.left -= len(found)
                    other.sendall(found)
                    if not found or self.left == 0:
                        self.left = 1 << 62
                        return

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for thread in self._threads:
            thread.join()


def test_a_connection_cut_in_the_midst_of_a_frame_is_told_and_joined_anew(
    wanted: np.ndarray,
) -> None:
    with listening(DEMO, 1) as addresses:
        wire = Wire(addresses.addresses[0])
        executor = join(RankAddresses((wire.address,), KEY))
        try:
            for left in (1, 1000, 54321):
                np.testing.assert_array_equal(ask(executor), wanted)
                wire.left = left
                told = f"rank 1 at {wire.address} (closed its connection|was cut off).*; ask again"
                with pytest.raises(RankError, match=told) as caught:
                    decode(executor)
                assert caught.value.rank == 1
                assert executor.length(0) == 0
            np.testing.assert_array_equal(ask(executor), wanted)
        finally:
            executor.close()
            wire.close()


@pytest.fixture
def process() -> Iterator[RankProcess]:
    one = RankProcess(DEMO)
    yield one
    one.end()


def test_a_rank_that_is_stopped_is_named_and_served_again_when_it_goes_on(
    process: RankProcess, wanted: np.ndarray
) -> None:
    executor = join(RankAddresses((process.address,), KEY), patience=2.0)
    np.testing.assert_array_equal(ask(executor), wanted)
    process.send(signal.SIGSTOP)
    with pytest.raises(RankError, match=f"rank 1 at {process.address} made no progress for 2 s"):
        decode(executor)
    with pytest.raises(RankError, match=f"rank 1 at {process.address} does not answer: timed out"):
        ask(executor)
    process.send(signal.SIGCONT)
    np.testing.assert_array_equal(ask(executor), wanted)
    executor.close()


def test_a_rank_that_is_killed_is_named_and_another_may_take_its_place(wanted: np.ndarray) -> None:
    first = RankProcess(DEMO)
    executor = join(RankAddresses((first.address,), KEY))
    np.testing.assert_array_equal(ask(executor), wanted)
    first.send(signal.SIGKILL)
    with pytest.raises(
        RankError, match=f"rank 1 at {first.address} (closed|was cut off)"
    ) as caught:
        decode(executor)
    assert caught.value.rank == 1
    with pytest.raises(RankError, match=f"rank 1 at {first.address} does not answer"):
        ask(executor)
    first.end()
    second = RankProcess(DEMO, first.address)
    try:
        np.testing.assert_array_equal(ask(executor), wanted)
    finally:
        executor.close()
        assert second.end() == 130


def test_a_second_rank_0_is_told_that_another_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monolane.cpu._rank_server._ENDING", 0.1)
    with listening(DEMO, 1) as addresses:
        first = join(addresses)
        with pytest.raises(BackendError, match="it decodes for another rank 0 already"):
            join(addresses)
        first.close()


@pytest.mark.slow
@pytest.mark.parametrize("lost", [1, 3])
def test_of_four_ranks_the_lost_one_is_named(lost: int, wanted: np.ndarray) -> None:
    processes = [RankProcess(DEMO) for _ in range(3)]
    addresses = RankAddresses(tuple(one.address for one in processes), KEY)
    executor = join(addresses)
    alone = CpuExecutor(Weights.open(DEMO), context=1024, slots=1, workers=4)
    try:
        np.testing.assert_array_equal(ask(executor), ask(alone))
        processes[lost - 1].send(signal.SIGKILL)
        with pytest.raises(RankError, match=f"rank {lost} at {addresses.addresses[lost - 1]}"):
            decode(executor)
    finally:
        executor.close()
        for one in processes:
            one.end()
