"""A collector on loopback for tests: answers as it is told, and reads what comes by the official OTLP messages."""

import base64
import gzip
import json
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

HEX = ("traceId", "spanId", "parentSpanId")
"""The fields that OTLP writes in hex, where JSON of protobuf has base64."""


def decode_json(body: bytes) -> Any:
    """Decode OTLP in JSON, with every field that the official messages do not know refused."""
    return json_format.ParseDict(_to_base64(json.loads(body)), ExportTraceServiceRequest())


def _to_base64(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _to_base64(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [_to_base64(each) for each in value]
    return base64.b64encode(bytes.fromhex(value)).decode() if key in HEX else value


@dataclass(frozen=True)
class Answer:
    """What the collector says to one request."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"{}"


@dataclass
class Collector:
    """A collector, and what it got."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    """For the next requests; later ones get a plain 200."""
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    """Headers by lower-case name, and bodies as they came."""

    @property
    def received(self) -> list[Any]:
        """What came, decoded."""
        return [self._decode(headers, body) for headers, body in self.requests]

    @property
    def spans(self) -> list[Any]:
        """The spans that came."""
        return [
            span
            for message in self.received
            for of_resource in message.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]

    @property
    def resource(self) -> dict[str, str]:
        """What the first message says of its server."""
        return {each.key: each.value.string_value for each in self.received[0].resource_spans[0].resource.attributes}

    @staticmethod
    def _decode(headers: Mapping[str, str], body: bytes) -> Any:
        plain = {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(headers.get("content-encoding", ""), bytes)
        if headers["content-type"] == "application/json":
            return decode_json(plain(body))
        return ExportTraceServiceRequest.FromString(plain(body))


@contextmanager
def collecting(*answers: Answer) -> Iterator[Collector]:
    """Run a collector that gives these answers first."""
    collector = Collector(answers=list(answers))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
            answer = collector.answers.pop(0) if collector.answers else Answer()
            self.send_response(answer.status)
            for name, value in {**answer.headers, "content-length": str(len(answer.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True  # a client's open connection would hold the end up

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        collector.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        yield collector
        server.shutdown()
        thread.join()
