"""A server whose tokens come at a set pace: python paced_server.py '{"tokens_per_second": 3000}'.

Keys of the argument that PacedExecutor does not know are ServerOptions; ``policy`` is its text.
``ready_with`` names a file: it has its model, says so, and is not ready until somebody makes it.
``embeds``: it takes requests for embeddings, as long as none has its turn.
"""

import json
import logging
import sys
import time
from pathlib import Path

from monolane import Engine
from monolane.measure import paced_engine
from monolane.serve import Policy, ServerOptions, serve

PACED = ("tokens_per_second", "prefill", "context")


def wait_for(file: Path) -> None:
    sys.stderr.write(f"waits for {file}\n")
    while not file.exists():
        time.sleep(0.01)


def main() -> None:
    given = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO)
    paced = {key: given.pop(key) for key in PACED if key in given}
    policy = Policy.parse(given.pop("policy", "latency"))
    ready = given.pop("ready_with", None)
    embeds = given.pop("embeds", False)

    def load() -> Engine:
        engine = paced_engine(**paced, slots=policy.slots)
        engine.backend.executor.has_hidden = embeds
        return engine

    options = ServerOptions(port=0, policy=policy, model_name="paced", **given)
    serve(
        load,
        options,
        bandwidth=lambda: wait_for(Path(ready)) if ready else None,
        announce=lambda url: sys.stderr.write(f"at {url}\n"),
    )


if __name__ == "__main__":
    main()
