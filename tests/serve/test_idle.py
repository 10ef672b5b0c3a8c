"""A server that nobody asks anything takes next to no processor time."""

import time

import httpx

from .conftest import PATIENCE, ServerProcess, demo_command, wait_until

SECONDS = 10
SHARE = 0.005  # of one core


def test_an_idle_server_takes_less_than_half_a_percent_of_a_core() -> None:
    """Before its first answer and behind it. Processor time: other programs do not count."""
    server = ServerProcess(demo_command())
    try:
        server.wait_ready()
        for asked in (False, True):
            if asked:
                body = {"prompt": "Once", "max_tokens": 8}
                httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE)
            wait_until(server.is_idle)
            before = server.cpu_seconds()
            time.sleep(SECONDS)
            assert server.cpu_seconds() - before <= SHARE * SECONDS
    finally:
        server.close()
