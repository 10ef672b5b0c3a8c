"""``monolane serve``: the HTTP server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from monolane.cli import _options as options

# Beyond the last-level cache of most machines; 'bench' takes twice as much, and more time.
_PROBE_BYTES = 512 << 20

if TYPE_CHECKING:
    from monolane.serve import Keys


def serve(
    model: options.Model = "demo",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", help="0: any that is free.")] = 8000,
    name: Annotated[
        str | None, typer.Option(help="What the model goes by [default: --model].")
    ] = None,
    tool_format: Annotated[
        str,
        typer.Option(
            help="How the model spells tool calls: auto (as its chat template shows), hermes, xml, "
            "mistral, mistral-named, llama, smollm, harmony or generic."
        ),
    ] = "auto",
    policy: Annotated[
        str,
        typer.Option(
            help="latency: one request at a time, at full speed; share:K: up to K together. "
            "':short-first' behind it lets short requests overtake."
        ),
    ] = "latency",
    queue: Annotated[int, typer.Option(help="Sequences that may wait.")] = 64,
    deadline: Annotated[float, typer.Option(help="Seconds that a request may take in all.")] = 600,
    drain: Annotated[float, typer.Option(help="Seconds to finish requests after SIGTERM.")] = 30,
    stall: Annotated[
        float, typer.Option(help="Seconds without a token, read or drawn, until /health says 503.")
    ] = 120,
    api_keys: Annotated[
        Path | None, typer.Option(help="File of hashed keys, as 'monolane key' writes it.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="PEM certificate chain: HTTPS, and only that.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="PEM key of it [default: in the certificate's file].")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Name that requests may address; repeatable.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Origin whose web pages may ask; repeatable.")
    ] = None,
    max_body: Annotated[int, typer.Option(help="Bytes of a request.")] = 8 << 20,
    bandwidth: Annotated[
        bool, typer.Option(help="Measure the memory's bandwidth at the start, for 'mbu'.")
    ] = True,
    backend: options.BackendName = "auto",
    dtype: options.Dtype = "auto",
    cache_dtype: options.CacheDtype = "auto",
    context: options.Context = None,
    prefix_cache: options.PrefixCache = "auto",
    prefix_file: options.PrefixFile = None,
    share_prefixes: Annotated[
        bool, typer.Option("--share-prefixes", help="Prefixes of one key serve those of all.")
    ] = False,
    speculation: options.Speculation = "auto",
    draft: options.Draft = None,
    heads: options.Heads = None,
    generation_config: options.GenerationConfig = "auto",
    override_generation_config: Annotated[
        str | None,
        typer.Option(help='JSON that goes before it, such as {"temperature": 0.6, "top_k": 20}.'),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of requests that name none [default: each draw is new]."),
    ] = None,
    any_model: Annotated[
        bool, typer.Option("--any-model", help="Requests may name any model, and get this one.")
    ] = False,
    workers: options.Workers = None,
    expert_memory: options.ExpertMemory = None,
    ranks: options.Ranks = "1",
    key_file: options.KeyFile = None,
    devices: options.Devices = 1,
) -> None:
    """Serve a model by OpenAI's and Anthropic's APIs; a page at /."""
    import logging

    from monolane._progress import still
    from monolane.cli._defaults import server_defaults
    from monolane.cli._ranks import find_ranks
    from monolane.cli._report import print_note
    from monolane.engine import Engine
    from monolane.serve import Policy, ServerOptions
    from monolane.serve import serve as run

    settings = ServerOptions(
        host=host,
        port=port,
        model_name=name or model,
        tool_format=tool_format,
        policy=Policy.parse(policy),
        tls_cert=tls_cert,
        tls_key=tls_key,
        keys=_keys(api_keys),
        share_prefixes=share_prefixes,
        speculation=speculation,  # type: ignore[arg-type]  # checked there
        defaults=server_defaults(generation_config, override_generation_config, seed),
        model_defaults=generation_config == "auto",
        any_model=any_model,
        allowed_hosts=tuple(allow_host or ()),
        allowed_origins=tuple(allow_origin or ()),
        queue_limit=queue,
        deadline_seconds=deadline,
        drain_seconds=drain,
        stall_seconds=stall,
        max_body_bytes=max_body,
    )
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )

    over = find_ranks(ranks, key_file)

    def load() -> Engine:
        slots = settings.policy.slots
        with still(f"loading {model}"):
            return Engine.load(
                model,
                backend,
                dtype,
                context,
                slots,
                prefix_cache,
                prefix_file,
                ranks=over,
                devices=devices,
                draft=draft,
                heads=heads,
                cache_dtype=cache_dtype,
                workers=workers,
                expert_memory=expert_memory,
            )

    run(
        load,
        settings,
        bandwidth=_read_bandwidth if bandwidth else lambda: None,
        announce=lambda url: print_note(f"monolane starts {model} at {url}"),
    )


def _read_bandwidth() -> float:
    """Return the bytes/s that this machine reads, as 'bench' measures it; takes half a second."""
    from monolane._processor import read_processor
    from monolane.measure import ReadProbe

    probe = ReadProbe(read_processor().workers, _PROBE_BYTES)
    probe.warm_up()
    return probe.measure()


def _keys(path: Path | None) -> "Keys":
    from monolane import _env
    from monolane.serve import Keys

    given = _env.API_KEY.get().text
    keys = Keys.of([given] if given else [])
    return keys if path is None else keys + Keys.read(path)
