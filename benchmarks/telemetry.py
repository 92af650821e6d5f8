"""What following a turn costs in CPU: ``python -m benchmarks.telemetry``.

What one turn reports (its beginning, its engine call, its record and its end) is given to the readers of reports, many
times over: to none, to the metrics, and to traces that are off, not sampled, sampled, and exported. These are encoded
by a thread and sent to a process that throws them away: as JSON, and as protobuf by OpenTelemetry's exporter. The cases
take turns within each round. A figure is the median of all rounds, or the least, which other work on the machine
disturbed least, less that of no readers. CPU of the whole process.
"""

import gc
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from statistics import median
from time import process_time, strftime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from turnkeeper.core import Cause, FinishReason, Label
from turnkeeper.ids import SessionId, TurnId
from turnkeeper.metrics import Metrics
from turnkeeper.telemetry import (
    EngineCallEnded,
    NoTracing,
    Report,
    Tracing,
    TurnBegan,
    TurnEnd,
    TurnEnded,
    TurnTimes,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

URL = "http://10.0.0.1:30000"
SESSION = SessionId("0af7651916cd43dd8448eb211c80319c")
SAMPLED = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "x-request-id": "0af7651916cd43dd8448eb211c80319c",
}
BATCH = 256
"""The turns whose spans fill a batch: the queue never holds many more, as in a server."""

UNSAMPLED = {**SAMPLED, "traceparent": SAMPLED["traceparent"][:-1] + "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """What follows the turns of one case."""

    name: str
    tracing: Tracing
    read: Callable[[Report], None]
    trace: Mapping[str, str]
    finish: Callable[[], Any] = lambda: None
    """Waits until all that was handed on is done."""


def follow_turn(follower: Follower, number: int) -> None:
    """Follow one turn with one engine call, from its beginning to its end."""
    read, tracing, rid = follower.read, follower.tracing, f"rid-{number}"
    read(TurnBegan(at=1.0, session_id=SESSION, number=number, dialect="chat", trace=follower.trace))
    headers = tracing.begin_turn(SESSION, number, 1.0, follower.trace)
    tracing.begin_call(rid, URL, 1.1, headers)
    read(EngineCallEnded(at=3.0, url=URL, seconds=1.9, rid=rid))
    read(
        TurnEnded(
            at=3.1,
            session_id=SESSION,
            number=number,
            end=TurnEnd.RECORDED,
            dialect="chat",
            times=TurnTimes(rendering_s=0.01, engine_s=1.9, recording_s=0.001),
            prompt_tokens=32_000,
            sampled_tokens=300,
            engine_calls=1,
            engine_url=URL,
            turn_id=TurnId(number),
            parent=TurnId(0),
            label=Label.EXTENSION,
            cause=Cause.NONE,
            finish_reason=FinishReason.TOOL_CALLS,
            cached_tokens=31_000,
            weight_version="7",
            request_id=SAMPLED["x-request-id"],
            trace=follower.trace,
        )
    )


@contextmanager
def discarding() -> Generator[str]:
    """A collector in a process of its own that throws away what it gets; its address."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=discard, args=(theirs,), daemon=True)
    process.start()
    yield f"http://127.0.0.1:{ours.recv()}/v1/traces"
    process.terminate()
    process.join()


def discard(told: "Connection[int, None]") -> None:
    """Throw away what comes, until the process is ended."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told.send(server.server_port)
        server.serve_forever()


def build_followers(endpoint: str) -> tuple[Follower, ...]:
    """Build the cases; the first follows nothing."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

    from turnkeeper.tracing.environment import ExportSettings
    from turnkeeper.tracing.exporter import JsonSpanExporter
    from turnkeeper.tracing.spans import OtelTracing

    def ignore(_: Report) -> None: ...

    def trace(name: str, processor: SpanProcessor, headers: Mapping[str, str]) -> Follower:
        provider = TracerProvider(shutdown_on_exit=False)
        tracing = OtelTracing(provider, processor)
        return Follower(name=name, tracing=tracing, read=tracing.read, trace=headers, finish=processor.force_flush)

    def export(name: str, exporter: SpanExporter) -> Follower:
        return trace(name, BatchSpanProcessor(exporter), SAMPLED)

    return (
        Follower(name="nothing", tracing=NoTracing(), read=ignore, trace=SAMPLED),
        Follower(name="metrics", tracing=NoTracing(), read=Metrics([URL]).record_report, trace=SAMPLED),
        Follower(name="traces, off", tracing=NoTracing(), read=NoTracing().read, trace=SAMPLED),
        trace("traces, not sampled", SpanProcessor(), UNSAMPLED),
        trace("traces, sampled", SpanProcessor(), SAMPLED),
        export("traces, sampled and exported", JsonSpanExporter(endpoint, ExportSettings())),
        export("traces, exported as protobuf", OTLPSpanExporter(endpoint=endpoint)),
    )


def measure(follower: Follower, count: int) -> float:
    """Measure the CPU of following one turn, in microseconds."""
    gc.collect()  # quick, since run() has frozen what was there before
    began = process_time()
    for number in range(count):
        follow_turn(follower, number)
        if number % BATCH == BATCH - 1:
            follower.finish()
    follower.finish()
    return (process_time() - began) / count * 1e6


def run(rounds: int, count: int) -> dict[str, list[float]]:
    """Measure every case in each round, in turns; the figures of all rounds, in microseconds a turn."""
    with discarding() as endpoint:
        followers = build_followers(endpoint)
        figures: dict[str, list[float]] = {follower.name: [] for follower in followers}
        gc.collect()
        gc.freeze()
        for _ in range(rounds + 1):
            for follower in followers:
                figures[follower.name].append(measure(follower, count))
        gc.unfreeze()
        return {name: values[1:] for name, values in figures.items()}  # the first round warms up


def main(
    rounds: Annotated[int, typer.Option(help="How often each case is measured.")] = 9,
    count: Annotated[int, typer.Option(help="Turns in each measurement.")] = 2_000,
) -> None:
    """Measure what following a turn costs, in CPU."""
    figures = run(rounds, count)
    nothing = figures.pop("nothing")
    table = Table("case", "median", "least", title=f"µs of CPU a turn, {strftime('%Y-%m-%d')}")
    table.add_row("nothing", f"({median(nothing):.1f})", f"({min(nothing):.1f})")
    for name, values in figures.items():
        table.add_row(name, f"{median(values) - median(nothing):.1f}", f"{min(values) - min(nothing):.1f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
