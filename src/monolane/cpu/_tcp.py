"""Connections of ranks by TCP, as the system is to treat them."""

import socket

from monolane.executor_api import split_address


def connect(address: str, patience: float) -> socket.socket:
    """Return a connection to an address; OSError, also when it takes longer than ``patience``."""
    return tuned(socket.create_connection(split_address(address), patience), patience)


def tuned(channel: socket.socket, patience: float) -> socket.socket:
    """Send small frames at once, and find out by itself that a host is gone."""
    channel.settimeout(patience)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = max(1, round(patience / 3))
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(patience * 1000))
    return channel
