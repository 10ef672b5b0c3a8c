"""One replica: the engine and its whole HTTP application, reached by Ray instead of by a socket."""

import asyncio
import os
from collections.abc import AsyncIterator, MutableMapping
from contextlib import suppress
from typing import Any

from ray import serve

from monolane import Engine
from monolane.serve import Keys, Policy, ServerOptions, Service, build_app

Headers = list[tuple[bytes, bytes]]
Message = MutableMapping[str, Any]

REPLICA_HEADER = b"x-monolane-replica"


class EngineReplica:
    """Serves a model with the policy, limits, keys and routes of ``monolane serve``.

    ``cores``: how many this replica has to itself; the replicas of one machine take theirs side by
    side. Decode threads spin while they wait for each other: two engines on one core would each be
    slower than half.
    """

    async def __init__(
        self, model: str, policy: str, cores: int | None, hosts: tuple[str, ...]
    ) -> None:
        context = serve.get_replica_context()
        self._name = context.replica_id.unique_id.encode()
        if cores is not None:
            _take_cores(context.rank.local_rank, cores)
        key = os.environ.get("MONOLANE_API_KEY")
        options = ServerOptions(
            model_name=model,
            policy=Policy.parse(policy),
            keys=Keys.of([key] if key else []),
            allowed_hosts=hosts,
        )
        self._service = Service(
            lambda: Engine.load(model, max_sequences=options.policy.slots), options
        )
        self._app = build_app(self._service)
        await self._service.start()
        if self._service.failure is not None:
            raise self._service.failure

    async def check_health(self) -> None:
        """Have Ray replace this replica when /health would not say 200."""
        status, word = self._service.health()
        if status != 200:
            raise RuntimeError(f"the engine is {word}")

    async def answer(
        self, scope: dict[str, Any], body: bytes
    ) -> "AsyncIterator[tuple[int, Headers] | bytes]":
        """Yield status and headers, then the parts of the body as they come.

        ``scope`` is what ASGI calls so, without what cannot travel. A client that goes away closes
        this generator, and that stops the decode.
        """
        parts: asyncio.Queue[Message | None] = asyncio.Queue()
        gone = asyncio.Event()
        requests = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Message:
            for message in requests:
                return message
            await gone.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            try:
                await self._app({**scope, "type": "http"}, receive, parts.put)
            finally:
                parts.put_nowait(None)

        task = asyncio.create_task(run())
        try:
            while (part := await parts.get()) is not None:
                if part["type"] == "http.response.start":
                    headers = [*part["headers"], (REPLICA_HEADER, self._name)]
                    yield part["status"], headers
                elif part.get("body"):
                    yield part["body"]
            await task
        finally:
            gone.set()
            with suppress(asyncio.CancelledError):
                await task


def _take_cores(rank: int, count: int) -> None:
    have = sorted(os.sched_getaffinity(0))
    mine = have[rank * count : (rank + 1) * count]
    if len(mine) < count:
        raise RuntimeError(
            f"cores: expected {(rank + 1) * count} on this machine, for replica {rank} of it, got "
            f"{len(have)}; use fewer replicas or fewer cores each"
        )
    os.sched_setaffinity(0, mine)
