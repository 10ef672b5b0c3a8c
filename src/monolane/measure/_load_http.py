"""What was read on a connection, as HTTP: parsed when its answer is over, never on the way."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import h11


@dataclass(slots=True)
class Parsed:
    """``parts`` of the body with the times (ns) at which they came.

    ``whole``: the end of the answer is there; ``kept``: the connection may carry another.
    """

    head: h11.Response | None = None
    parts: list[tuple[int, bytes]] = field(default_factory=list)
    whole: bool = False
    kept: bool = False


def parse_reads(reads: Iterable[tuple[int, bytes]], *, ended: bool) -> Parsed:
    """Return what the reads of one answer were; h11.RemoteProtocolError for what is no HTTP.

    ``ended``: the server has closed the connection behind them.
    """
    wire = h11.Connection(h11.CLIENT)
    wire.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    wire.send(h11.EndOfMessage())
    found, first = Parsed(), True
    for time_ns, data in reads:
        first = False
        wire.receive_data(data)
        while True:
            event = wire.next_event()
            if isinstance(event, h11.Response):
                found.head = event
            elif isinstance(event, h11.Data):
                found.parts.append((time_ns, bytes(event.data)))
            elif not isinstance(event, h11.InformationalResponse):
                break
        found.whole = found.whole or isinstance(event, h11.EndOfMessage)
    found.kept = found.whole and wire.their_state is h11.DONE
    if found.head is None and not first and ended:
        wire.receive_data(b"")  # whatever came is no response any more
        wire.next_event()
    return found
