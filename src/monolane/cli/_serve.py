"""``monolane serve``: the HTTP server."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from monolane._loading import Loading
from monolane.cli import _options as options
from monolane.cli._groups import After, grouped

# Beyond the last-level cache of most machines; 'bench' takes twice as much, and more time.
_PROBE_BYTES = 512 << 20

if TYPE_CHECKING:
    from monolane.serve import Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the server is, and what it calls the model."""

    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", "-p", help="0: any that is free.")] = 8000
    root_path: Annotated[
        str, typer.Option(help="What a proxy puts before the paths, such as /llm.")
    ] = ""
    name: Annotated[str | None, typer.Option(help="What the model goes by [default: --model].")] = (
        None
    )
    tool_format: Annotated[
        str,
        typer.Option(
            help="How the model spells tool calls: auto (as its chat template shows), hermes, xml, "
            "mistral, mistral-named, llama, pythonic, smollm, harmony, deepseek, deepseek-v3.1, "
            "deepseek-v3.2, deepseek-v4, kimi-k2, glm, glm-flat, hunyuan, minimax, minimax-m1, "
            "seed, gemma, granite, lfm2, nemotron, apriel, apertus, atem, cohere, command-r, "
            "firefunction, functionary-v3.1, functionary-v3.2, gigachat, gigachat3, minicpm5, "
            "solar or generic."
        ),
    ] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Who decodes when, and for how long."""

    policy: Annotated[
        str,
        typer.Option(
            help="latency: one request at a time, at full speed; share:K: up to K together. "
            "':short-first' behind it lets short requests overtake."
        ),
    ] = "latency"
    queue: Annotated[int, typer.Option(help="Sequences that may wait.")] = 64
    deadline: Annotated[
        float, typer.Option(help="Seconds that a request may take, but for reading its prompt.")
    ] = 600
    drain: Annotated[float, typer.Option(help="Seconds to finish requests after SIGTERM.")] = 30
    stall: Annotated[
        float, typer.Option(help="Seconds without a token, read or drawn, until /health says 503.")
    ] = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may ask."""

    api_keys: Annotated[
        Path | None, typer.Option(help="File of hashed keys, as 'monolane key' writes it.")
    ] = None
    guests: Annotated[
        int,
        typer.Option(
            help="Requests without a key that may be answered or wait at a time, for a public page."
        ),
    ] = 0
    guest_tokens: Annotated[int, typer.Option(help="Tokens of an answer to a guest.")] = 256
    tls_cert: Annotated[
        Path | None, typer.Option(help="PEM certificate chain: HTTPS, and only that.")
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(help="PEM key of it [default: in the certificate's file].")
    ] = None
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Name that requests may address; repeatable.")
    ] = None
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Origin whose web pages may ask; repeatable.")
    ] = None
    max_body: Annotated[int, typer.Option(help="Bytes of a request.")] = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What requests get that do not say."""

    share_prefixes: Annotated[
        bool,
        typer.Option("--share-prefixes", help="Prefixes of one key serve those of all."),
        After("prefix_file"),
    ] = False
    speculation: Annotated[options.Speculation, After("share_prefixes")] = "auto"
    generation_config: Annotated[options.GenerationConfig, After("heads")] = "auto"
    override_generation_config: Annotated[
        str | None,
        typer.Option(help='JSON that goes before it, such as {"temperature": 0.6, "top_k": 20}.'),
        After("generation_config"),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of requests that name none [default: each draw is new]."),
        After("override_generation_config"),
    ] = None
    any_model: Annotated[
        bool,
        typer.Option("--any-model", help="Requests may name any model, and get this one."),
        After("seed"),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """What is logged, on stderr, and traced."""

    log_level: Annotated[
        str,
        typer.Option(help="debug (every request), info (answers), warning (refusals) or error."),
    ] = "info"
    log_format: Annotated[
        str, typer.Option(help="text, or json: one object a line, for programs.")
    ] = "text"
    traces: Annotated[
        str,
        typer.Option(
            help="Send a trace of each request to this collector of OpenTelemetry, such as "
            "http://127.0.0.1:4318 [default: as OTEL_EXPORTER_OTLP_ENDPOINT says]."
        ),
    ] = ""


@grouped("serve")
def serve(
    *,
    model: options.Model = "demo",
    address: Address,
    limits: Limits,
    access: Access,
    bandwidth: Annotated[
        bool, typer.Option(help="Measure the memory's bandwidth at the start, for 'mbu'.")
    ] = True,
    loading: Loading,
    requests: Requests,
    logs: Logs,
) -> None:
    """Serve a model by OpenAI's and Anthropic's APIs; a page at /."""
    from contextlib import ExitStack

    from monolane._progress import log_lines, still
    from monolane.cli._defaults import server_defaults
    from monolane.cli._logs import log_to_stderr, logged_end
    from monolane.cli._report import print_note
    from monolane.cli._servers import registered
    from monolane.engine import Engine
    from monolane.serve import Policy, ServerOptions
    from monolane.serve import serve as run

    settings = ServerOptions(
        host=address.host,
        port=address.port,
        model_name=address.name or model,
        tool_format=address.tool_format,
        policy=Policy.parse(limits.policy),
        tls_cert=access.tls_cert,
        tls_key=access.tls_key,
        keys=_keys(access.api_keys),
        share_prefixes=requests.share_prefixes,
        speculation=requests.speculation,  # type: ignore[arg-type]  # checked there
        defaults=server_defaults(
            requests.generation_config, requests.override_generation_config, requests.seed
        ),
        model_defaults=requests.generation_config == "auto",
        any_model=requests.any_model,
        allowed_hosts=tuple(access.allow_host or ()),
        allowed_origins=tuple(access.allow_origin or ()),
        queue_limit=limits.queue,
        deadline_seconds=limits.deadline,
        drain_seconds=limits.drain,
        stall_seconds=limits.stall,
        guests=access.guests,
        guest_tokens=access.guest_tokens,
        max_body_bytes=access.max_body,
        root_path=address.root_path,
        traces=logs.traces,
    )
    log_to_stderr(logs.log_level, logs.log_format)
    tell: Callable[[str], None] = print_note
    if logs.log_format == "json":
        tell = logging.getLogger("monolane.serve").info
        log_lines(tell)

    def load() -> Engine:
        slots = settings.policy.slots
        with still(f"loading {model}"):
            return Engine.open(replace(loading, model=model, max_sequences=slots))

    with ExitStack() as known:  # to 'monolane ps'

        def announce(url: str) -> None:
            known.enter_context(registered(settings.model_name, url))
            tell(f"monolane starts {model} at {url}")

        with logged_end(logs.log_format):
            run(
                load,
                settings,
                bandwidth=_read_bandwidth if bandwidth else lambda: None,
                announce=announce,
                ready=lambda url: tell(f"monolane is ready at {url}"),
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
