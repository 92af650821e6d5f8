"""Tracing turned on, with OpenTelemetry's own exporter and a collector on loopback.

1. Spans arrive as OTLP over HTTP when the server stops, and say which server they are of.
2. What OpenTelemetry's environment variables say of the server wins.
3. A collector that is not there keeps a server from nothing: neither from turns nor from stopping.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from servicekit import build_kit, user
from turnkeeper.telemetry import Tracing
from turnkeeper.testing import settle, unreachable_url
from turnkeeper.tracing import build_tracing


@contextmanager
def collecting() -> Iterator[tuple[str, list[Any]]]:
    """A collector: its endpoint, and what arrived there."""
    received: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", received
        server.shutdown()
        thread.join()


async def take_turn(tracing: Tracing) -> None:
    kit = build_kit(tracing=tracing)
    turn = await kit.begin(kit.create(), [user("hello")])
    await settle()
    kit.engine.answer(text="hi")
    await turn.read()


def read_resource(received: list[Any]) -> dict[str, str]:
    (spans,) = received[0].resource_spans
    return {each.key: each.value.string_value for each in spans.resource.attributes}


async def test_spans_arrive_and_name_their_server() -> None:
    with collecting() as (endpoint, received):
        tracing = build_tracing(endpoint, instance_id="one")
        await take_turn(tracing)
        await tracing.close()
    names = {span.name for scope in received[0].resource_spans[0].scope_spans for span in scope.spans}
    assert names == {"turn", "chat"}
    resource = read_resource(received)
    assert (resource["service.name"], resource["service.instance.id"]) == ("turnkeeper", "one")


async def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "rollout")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=seven")
    with collecting() as (endpoint, received):
        tracing = build_tracing(endpoint, instance_id="one")
        await take_turn(tracing)
        await tracing.close()
    resource = read_resource(received)
    assert (resource["service.name"], resource["service.instance.id"]) == ("rollout", "seven")


async def test_a_collector_that_is_not_there_keeps_nothing() -> None:
    tracing = build_tracing(f"{unreachable_url()}/v1/traces", instance_id="one")
    await take_turn(tracing)
    async with asyncio.timeout(8):
        await tracing.close()
