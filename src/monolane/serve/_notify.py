"""What systemd is told of a service of Type=notify, by its own protocol: sd_notify(3).

A datagram of NAME=value lines to the socket that NOTIFY_SOCKET names; without one, nothing. A
watchdog is told twice within each of its times, as sd_watchdog_enabled(3) asks for, and not while
decoding stands still: systemd then starts the service anew.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable

log = logging.getLogger("monolane.serve")


def notify(**states: str | int) -> bool:
    """Tell states, such as ``READY=1``; return whether somebody is there to hear it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):  # a path, or a name in Linux's abstract namespace
        return False
    message = "".join(f"{name}={value}\n" for name, value in states.items())
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.connect(address)
            sender.sendall(message.encode())
    except OSError as error:
        log.warning("NOTIFY_SOCKET cannot be told %s: %s", ", ".join(states), error)
        return False
    return True


def watchdog_seconds() -> float:
    """Return how often a watchdog wants to be told, at least; 0: there is none for this process."""
    pid = os.environ.get("WATCHDOG_PID", "")
    with contextlib.suppress(ValueError):
        if not pid or int(pid) == os.getpid():
            return max(0, int(os.environ.get("WATCHDOG_USEC", "0"))) / 2e6
    return 0.0


async def feed_watchdog(well: Callable[[], bool]) -> None:
    """Tell the watchdog, as long as all is well, until cancelled; return where there is none."""
    seconds = watchdog_seconds()
    while seconds:
        if well():
            notify(WATCHDOG=1)
        await asyncio.sleep(seconds)
