"""N replicas of an engine behind Ray Serve, each request where its beginning was seen before.

    pip install 'monolane[scale]'
    python examples/scale_out/app.py --replicas 2                    one machine, until Ctrl-C
    serve run --app-dir examples/scale_out app:build replicas=8      on a Ray cluster

docs/scale-out.md tells what it costs and what it does not do.
"""

import argparse
import os
import signal
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass

try:
    from ray import serve
except ModuleNotFoundError:
    sys.exit("app.py: expected Ray Serve, which is not installed; pip install 'monolane[scale]'")
from gateway import Gateway
from ray.serve.config import ProxyLocation, RequestRouterConfig
from replica import EngineReplica

_ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"


@dataclass(frozen=True)
class Wish:
    """What ``serve run`` is told as name=value, and ``main`` by options.

    queue  requests of one replica, running and waiting, from which on others are tried
    cores  of each replica to itself; 0: whatever the operating system gives
    hosts  names that clients may address besides this machine's loopback, by commas
    """

    model: str = "demo"
    policy: str = "latency"
    replicas: int = 2
    queue: int = 16
    cores: int = 0
    hosts: str = ""


def build(args: dict[str, str]) -> serve.Application:
    """Return the application: a gateway, and the replicas behind it."""
    defaults = Wish()
    wish = Wish(**{name: type(getattr(defaults, name))(text) for name, text in args.items()})
    engines = serve.deployment(
        EngineReplica,
        name="engine",
        num_replicas=wish.replicas,
        max_ongoing_requests=wish.queue,
        health_check_period_s=2,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=30,
        ray_actor_options={"num_cpus": wish.cores},
        request_router_config=RequestRouterConfig(
            request_router_class=_ROUTER, request_router_kwargs={"num_fallback_replicas": 2}
        ),
    ).bind(
        wish.model,
        wish.policy,
        wish.cores or None,
        tuple(host for host in wish.hosts.split(",") if host),
    )
    gateway = serve.deployment(
        serve.ingress()(Gateway),
        name="gateway",
        max_ongoing_requests=1000,
        ray_actor_options={"num_cpus": 0},
    )
    return gateway.bind(engines)


def main() -> None:
    """Start Ray on this machine, and serve at a port that only this machine reaches."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in asdict(Wish()).items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--port", type=int, default=8000)
    options = vars(parser.parse_args())
    port = options.pop("port")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    cpus = max(len(os.sched_getaffinity(0)), options["replicas"] * options["cores"])
    ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False)
    serve.start(
        proxy_location=ProxyLocation.HeadOnly, http_options={"host": "127.0.0.1", "port": port}
    )
    serve.run(build({name: str(value) for name, value in options.items()}), name="monolane")
    sys.stderr.write(f"{options['replicas']} replicas of {options['model']} ")
    sys.stderr.write(f"at http://127.0.0.1:{port}\n")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        signal.pause()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
