"""A trace of each request for OpenTelemetry: the request, and the phases of each of its answers.

Spans are made when a request is over, from the moments that its choices note anyway: so tracing
costs a request nothing while it runs. They go out in batches from a thread of the SDK's own.
"""

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.types import Scope

from monolane._version import __version__
from monolane.errors import MissingExtraError
from monolane.serve._run.choice import Choice

if TYPE_CHECKING:
    from opentelemetry.trace import Span

log = logging.getLogger("monolane.serve")
# OpenTelemetry's own words for where traces go.
_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Spans:
    """Sends a trace of each request that was posted."""

    def __init__(self, endpoint: str, model: str) -> None:
        """``endpoint``: base URL of a collector, by HTTP; "": where the variables say.

        MissingExtraError where the SDK is not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise MissingExtraError("traces", "otel") from None
        about = {"service.version": __version__}
        if not os.environ.get("OTEL_SERVICE_NAME"):
            about["service.name"] = "monolane"
        self._provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        url = f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        self._tracer = self._provider.get_tracer("monolane.serve", __version__)
        self._model = model

    @staticmethod
    def wanted(endpoint: str, model: str) -> "Spans | None":
        """Return what sends traces where the option or a variable asks for it, else None."""
        if endpoint:
            return Spans(endpoint, model)
        if not any(map(os.environ.get, _VARIABLES)):
            return None
        try:
            return Spans("", model)
        except MissingExtraError as error:  # others may have set it for others
            log.warning("%s is set, but %s", next(filter(os.environ.get, _VARIABLES)), error)
            return None

    def record(self, scope: Scope, status: int, began: int) -> None:
        """Make the spans of a request that is over; ``began``: time.perf_counter_ns()."""
        if scope["method"] != "POST":
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        ended = time.perf_counter_ns()
        wall = time.time_ns() - ended  # of time.perf_counter_ns() = 0
        path = scope["raw_path"].decode("latin-1")
        choices: list[Choice] = scope["monolane.choices"]
        span = self._tracer.start_span(
            f"POST {path}" if choices else "POST",  # names that nobody can choose
            context=TraceContextTextMapPropagator().extract(dict(Headers(scope=scope).items())),
            kind=SpanKind.SERVER,
            start_time=wall + began,
            attributes={
                "http.request.method": "POST",
                "http.response.status_code": status,
                "url.path": path[:256],
                "monolane.request_id": scope["monolane.request_id"],
            },
        )
        if choices:
            span.set_attributes(
                {
                    "gen_ai.response.model": self._model,
                    "gen_ai.usage.input_tokens": len(choices[0].prompt_ids),
                    "gen_ai.usage.output_tokens": sum(choice.drawn for choice in choices),
                    "monolane.end": scope["monolane.answer"]["end"],
                }
            )
        if status >= 500 or not status:
            span.set_status(Status(StatusCode.ERROR))
        for choice in choices:
            self._phases(set_span_in_context(span), choice, wall, ended)
        span.end(wall + ended)

    def _phases(self, inside: Any, choice: Choice, wall: int, ended: int) -> None:
        """Make a span of each phase that a choice came to: what began ends with the next, or now.

        Phases: waiting for a turn, reading the prompt, drawing tokens.
        """
        phases: list[tuple[str, int, int, dict[str, int]]] = [
            ("queue", choice.arrived, choice.admitted, {}),
            (
                "prefill",
                choice.admitted,
                choice.first,
                {"prompt_tokens": len(choice.prompt_ids), "kept_tokens": choice.cached},
            ),
            (
                "decode",
                choice.first,
                choice.last,
                {
                    "tokens": choice.drawn,
                    "drafted_tokens": choice.drafts.tokens,
                    "accepted_tokens": choice.drafts.accepted,
                },
            ),
        ]
        for name, start, end, told in phases:
            if start:
                attributes = {f"monolane.{key}": value for key, value in told.items()}
                span: Span = self._tracer.start_span(
                    name,
                    context=inside,
                    start_time=wall + start,
                    attributes={"monolane.choice": choice.index, **attributes},
                )
                span.end(wall + max(start, end or ended))

    def close(self) -> None:
        """Send what is left; takes a few seconds where nobody is there to take it."""
        self._provider.shutdown()
