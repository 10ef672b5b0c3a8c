"""Traces of requests: what a collector of OpenTelemetry gets of a real server."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from operated import PATIENCE, Start

pytest.importorskip("opentelemetry.sdk", reason="needs the SDK: pip install 'monolane[otel]'")


class Collector:
    """Takes what is sent by OTLP over HTTP."""

    def __init__(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        self.spans: list[Any] = []
        self.about: dict[str, str] = {}
        self.paths: set[str] = set()
        came = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # as http.server calls it
                import gzip

                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                message = ExportTraceServiceRequest.FromString(body)
                for resource in message.resource_spans:
                    for x in resource.resource.attributes:
                        came.about[x.key] = x.value.string_value
                    for scope in resource.scope_spans:
                        came.spans += scope.spans
                came.paths.add(self.path)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(name="collector")
def _collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()


def values(span: Any) -> dict[str, Any]:
    return {x.key: getattr(x.value, x.value.WhichOneof("value")) for x in span.attributes}


@pytest.mark.parametrize("by", ["variable", "option"])
def test_a_request_and_its_phases_are_spans(operate: Start, collector: Collector, by: str) -> None:
    if by == "variable":
        server = operate(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    else:
        server = operate("--traces", collector.url, OTEL_SERVICE_NAME="mine")
    url = server.wait_ready()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = {"prompt": "secret words", "max_tokens": 5, "ignore_eos": True}
    headers = {"traceparent": parent, "x-request-id": "mine"}
    before = time.time_ns()
    reply = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=PATIENCE)
    assert reply.status_code == 200
    refused = httpx.post(f"{url}/v1/completions", json={"prompt": 1.5}, timeout=PATIENCE)
    assert refused.status_code == 400
    assert httpx.get(f"{url}/health").status_code == 200
    assert server.stop() == 0  # which sends what is left
    after = time.time_ns()
    assert collector.about["service.name"] == ("monolane" if by == "variable" else "mine")
    assert collector.paths == {"/v1/traces"}
    (other,) = (x for x in collector.spans if x.name == "POST")
    assert values(other)["http.response.status_code"] == 400
    spans = {x.name: x for x in collector.spans if x is not other}
    assert [*spans] == ["queue", "prefill", "decode", "POST /v1/completions"]
    whole = spans.pop("POST /v1/completions")
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == tuple(parent.split("-")[1:3])
    told = values(whole)
    assert (told["http.response.status_code"], told["monolane.request_id"]) == (200, "mine")
    usage = reply.json()["usage"]
    assert told["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 5
    ends = before
    for phase in spans.values():  # one after another, within the request
        assert phase.parent_span_id == whole.span_id
        assert ends <= phase.start_time_unix_nano <= phase.end_time_unix_nano
        ends = phase.end_time_unix_nano
    assert before <= whole.start_time_unix_nano < ends <= whole.end_time_unix_nano <= after
    assert values(spans["decode"])["monolane.tokens"] == 5
    assert values(spans["prefill"])["monolane.prompt_tokens"] == usage["prompt_tokens"]
    assert "secret" not in str(collector.spans)


def test_nothing_is_loaded_where_nobody_asks_for_traces(operate: Start) -> None:
    server = operate()
    server.wait_ready()
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "google/_upb" not in maps  # protobuf, which the exporter needs


def test_a_collector_that_is_gone_keeps_nobody_waiting(
    operate: Start, collector: Collector
) -> None:
    collector.server.shutdown()
    collector.server.server_close()
    server = operate("--traces", collector.url)
    url = server.wait_ready()
    body = {"prompt": "x", "max_tokens": 2}
    assert httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE).status_code == 200
    assert server.stop() == 0
