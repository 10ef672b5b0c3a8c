"""Whose turn it is by the key that came, and who may ask without one."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import KEY, PATIENCE
from operated import Start

from monolane.errors import RequestError
from monolane.serve import Keys, Policy, ServerOptions, add_key
from monolane.serve._keys import GUEST, key_hash
from monolane.serve._run.scheduler import Scheduler
from monolane.serve._run.service import Service


def test_a_key_may_have_a_priority(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    fast, plain, slow = (add_key(path, name, x) for name, x in (("a", 60), ("b", 0), ("c", -2.5)))
    assert [line.partition(" priority=")[2] for line in path.read_text().splitlines()] == [
        *("60", "", "-2.5")
    ]
    keys = Keys.of([KEY]) + Keys.read(path)
    found = [keys.priorities.get(key_hash(x.encode()), 0) for x in (fast, plain, slow, KEY)]
    assert found == [60, 0, -2.5, 0]
    assert all(keys.admit(x.encode()) for x in (fast, plain, slow, KEY))
    path.write_text(path.read_text() + f"d sha256:{'0' * 64} priority=high\n")
    with pytest.raises(RequestError, match=r"line 4: expected .* ' priority=SECONDS' behind them"):
        Keys.read(path)
    with pytest.raises(RequestError, match="priority: expected -86400 to 86400 s, got 1e"):
        add_key(tmp_path / "others", "e", 1e9)


def test_a_head_start_is_no_rank() -> None:
    """Whoever has waited longer than the head start goes first."""

    async def test() -> None:
        now = 0.0
        scheduler = Scheduler(Policy(), 10, clock=lambda: now)
        scheduler.enqueue(1)
        order = []
        for moment, ahead in ((0, 0), (50, 0), (70, 60), (71, 0), (72, -600)):
            now = moment
            turn = scheduler.enqueue(1, ahead)
            turn.granted.add_done_callback(lambda _, x=(moment, ahead): order.append(x))
        for _ in range(5):
            scheduler.release()
            await asyncio.sleep(0)
        assert order == [(0, 0), (70, 60), (50, 0), (71, 0), (72, -600)]

    asyncio.run(test())


def test_guests_need_keys_beside_them() -> None:
    with pytest.raises(RequestError, match="guests: expected keys beside them, got none"):
        ServerOptions(guests=1)
    service = Service(lambda: None, ServerOptions(guests=1, keys=Keys.of([KEY])))  # type: ignore[arg-type,return-value]
    assert service.ahead(GUEST) < service.ahead(key_hash(KEY.encode())) == 0
    assert service.namespace(GUEST) != service.namespace(GUEST)


def post(url: str, path: str = "/v1/completions", key: str = "", **more: Any) -> httpx.Response:
    body = {"prompt": "x", "ignore_eos": True, **more}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.post(f"{url}{path}", json=body, headers=headers, timeout=PATIENCE)


def test_a_guest_gets_a_small_answer_and_nothing_else(operate: Start) -> None:
    url = operate("--guests", "2", "--guest-tokens", "5", MONOLANE_API_KEY=KEY).wait_ready()
    for wanted in (None, 3, 9):
        reply = post(url, max_tokens=wanted)
        assert reply.status_code == 200
        assert reply.json()["usage"]["completion_tokens"] == min(wanted or 5, 5)
        assert post(url, key=KEY, max_tokens=9).json()["usage"]["completion_tokens"] == 9
    assert httpx.get(f"{url}/v1/models").status_code == 200
    for more in ({"n": 2}, {"prompt": ["x", "y"]}):
        refused = post(url, **more)
        assert refused.status_code == 403
        assert "expected one answer without a key, got 2" in refused.text
    for path in ("/metrics", "/slots", "/props", "/openapi.json", "/v1/embeddings", "/completion"):
        assert httpx.get(f"{url}{path}").status_code == 401, path
    assert post(url, "/v1/responses").status_code == 401
    assert post(url, key="ml-a-wrong-key-of-many-letters").status_code == 401


def test_the_next_guest_is_told_to_come_back(operate: Start) -> None:
    url = operate("--guests", "1", MONOLANE_API_KEY=KEY).wait_ready()
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        """Send the head of a request and half of its body, which takes the place."""
        with httpx.Client() as client:

            def body() -> Any:
                yield b'{"prompt": '
                begun.set()
                over.wait(PATIENCE)
                yield b'"x", "max_tokens": 2}'

            headers = {"content-type": "application/json"}
            client.post(f"{url}/v1/completions", content=body(), headers=headers, timeout=PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert begun.wait(PATIENCE)
        while (refused := post(url, max_tokens=2)).status_code == 200:
            pass  # the head has not come yet
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "5"
        assert post(url, key=KEY, max_tokens=2).status_code == 200
    finally:
        over.set()
        holder.join()
    assert post(url, max_tokens=2).status_code == 200
