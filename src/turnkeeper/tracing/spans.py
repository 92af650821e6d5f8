"""Turns and engine calls as spans.

::

    the agent's span          traceparent of its request
    `- turn                   begun with the turn, ended by its report
       `- chat                one for each engine call; the engine gets its traceparent

A span is made by the report that its turn or call has ended; until then there are only its ids, which the engine has
to be sent. It is put together here and given to OpenTelemetry's processor as it is, since a span of the SDK's tracer
takes five times as much. Sampler, ids and resource are the SDK's. Knows no exporter.
"""

import asyncio
import contextlib
import re
import threading
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from turnkeeper import __version__
from turnkeeper.errors import TurnkeeperError
from turnkeeper.ids import SessionId
from turnkeeper.telemetry import EngineCallEnded, Report, TurnEnded
from turnkeeper.tracing.attribute import CALL_SPAN, OPERATION, SCHEMA_URL, TURN_SPAN, SpanAttribute

CLOSE_S = 5.0
"""How long a server that stops waits for its last spans to be exported."""

_PROVIDER = "turnkeeper"
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
"""A trace parent of the W3C; a later version of it may have more behind these parts."""

_UNSET = Status(StatusCode.UNSET)
_SERVER, _CLIENT = SpanKind.SERVER, SpanKind.CLIENT

NAME = SimpleNamespace(**{each.name: each.value for each in SpanAttribute})
"""The names of attributes as plain strings: to look up a member of an enumeration takes Python 3.11 0.3 µs, and a turn
has some thirty."""

Attributes: TypeAlias = dict[str, Any]


class OpenSpan(NamedTuple):
    """A span that has begun."""

    name: str
    kind: SpanKind
    context: SpanContext
    header: str
    """The span as trace parent of what is below it."""
    parent: SpanContext | None
    start_ns: int
    attributes: Attributes
    """What is known of it at its beginning."""


class OtelTracing:
    """Makes a span of each turn and of each engine call."""

    def __init__(self, provider: TracerProvider, processor: SpanProcessor) -> None:
        """Make spans.

        Args:
            provider: its sampler, ids and resource are those of the spans.
            processor: takes the spans that have ended; it is shut down with this.
        """
        self._provider = provider
        self._processor = processor
        self._scope = InstrumentationScope("turnkeeper", __version__, SCHEMA_URL)
        self._turns: dict[tuple[SessionId, int], OpenSpan] = {}
        self._by_header: dict[str, OpenSpan] = {}
        self._calls: dict[str, OpenSpan] = {}

    def begin_turn(self, session_id: SessionId, number: int, at: float, trace: Mapping[str, str]) -> Mapping[str, str]:
        """Begin the span of a turn below that of the agent."""
        span = self._turns[session_id, number] = self._open_turn(trace, at)
        self._by_header[span.header] = span
        return {**trace, "traceparent": span.header}

    def begin_call(self, rid: str, url: str, at: float, trace: Mapping[str, str]) -> Mapping[str, str]:
        """Begin the span of an engine call below that of its turn."""
        turn = self._by_header.get(trace.get("traceparent", ""))
        if turn is None:
            return trace  # a call of no turn
        above = turn.context
        context, header = self._draw_context(above.trace_id, above.trace_flags, above.trace_state)
        if context.trace_flags.sampled:
            known = describe_call(rid, url)
            self._calls[rid] = OpenSpan(CALL_SPAN, _CLIENT, context, header, above, _read_ns(at), known)
        return {**trace, "traceparent": header}

    def read(self, report: Report) -> None:
        """End the span of a turn or call that has ended."""
        match report:
            case EngineCallEnded():
                if span := self._calls.pop(report.rid, None):
                    given_up: Attributes = {NAME.CALL_GIVEN_UP: True} if report.is_cancelled else {}
                    self._end(span, report.at, given_up, report.error)
            case TurnEnded():
                self._end_turn(report)
            case _:
                pass

    async def close(self) -> None:
        """End what is open, and export the last spans."""
        for span in (*self._calls.values(), *self._turns.values()):
            self._end(span, span.start_ns / 1e9, {}, None)
        await self._export_last()

    async def _export_last(self) -> None:
        """Export what is left, in a thread that the end of the process does not wait for."""
        loop, is_done = asyncio.get_running_loop(), asyncio.Event()

        def export() -> None:
            self._processor.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any longer
                loop.call_soon_threadsafe(is_done.set)

        threading.Thread(target=export, name="last-spans", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await is_done.wait()

    def _open_turn(self, trace: Mapping[str, str], at: float) -> OpenSpan:
        parent = read_parent(trace)
        above = Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())
        trace_id = self._provider.id_generator.generate_trace_id() if parent is None else parent.trace_id
        choice = self._provider.sampler.should_sample(above, trace_id, TURN_SPAN, _SERVER)
        flags = TraceFlags(TraceFlags.SAMPLED if choice.decision.is_sampled() else TraceFlags.DEFAULT)
        context, header = self._draw_context(trace_id, flags, choice.trace_state)
        return OpenSpan(TURN_SPAN, _SERVER, context, header, parent, _read_ns(at), {})

    def _draw_context(self, trace_id: int, flags: TraceFlags, state: TraceState | None) -> tuple[SpanContext, str]:
        """Draw the id of a span; the span, and its trace parent."""
        span_id = self._provider.id_generator.generate_span_id()
        context = SpanContext(trace_id, span_id, is_remote=False, trace_flags=flags, trace_state=state)
        return context, f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"

    def _end_turn(self, report: TurnEnded) -> None:
        span = self._turns.pop((report.session_id, report.number), None)
        if span is None:  # its prompt was not rendered
            span = self._open_turn(report.trace, report.at - report.times.total_s)
        else:
            self._by_header.pop(span.header, None)
        if span.context.trace_flags.sampled:
            self._end(span, report.at, describe_turn(report), report.error)

    def _end(self, span: OpenSpan, at: float, known: Attributes, error: Exception | None) -> None:
        status = _UNSET
        if error is not None:  # by its code: its text may quote an agent or an engine
            code = error.code if isinstance(error, TurnkeeperError) else type(error).__name__
            known, status = {**known, NAME.ERROR_TYPE: code}, Status(StatusCode.ERROR, code)
        self._processor.on_end(
            ReadableSpan(
                span.name,
                context=span.context,
                parent=span.parent,
                resource=self._provider.resource,
                attributes={**span.attributes, **known},
                kind=span.kind,
                status=status,
                start_time=span.start_ns,
                end_time=max(span.start_ns, _read_ns(at)),
                instrumentation_scope=self._scope,
            )
        )


def read_parent(trace: Mapping[str, str]) -> SpanContext | None:
    """Read the span that a request belongs to; None where it names none that is valid."""
    found = _TRACEPARENT.match(trace.get("traceparent", ""))
    if found is None or not (trace_id := int(found[1], 16)) or not (span_id := int(found[2], 16)):
        return None
    state = trace.get("tracestate")
    return SpanContext(
        trace_id,
        span_id,
        is_remote=True,
        trace_flags=TraceFlags(int(found[3], 16) & TraceFlags.SAMPLED),
        trace_state=TraceState.from_header([state]) if state else None,
    )


def describe_turn(report: TurnEnded) -> Attributes:
    """Describe a turn that has ended by its attributes; those without a value are left out."""
    times = report.times
    known: Attributes = {
        NAME.OPERATION_NAME: OPERATION,
        NAME.PROVIDER_NAME: _PROVIDER,
        NAME.CONVERSATION_ID: report.session_id,
        NAME.REQUEST_ID: report.request_id,
        NAME.DIALECT: report.dialect,
        NAME.TURN_NUMBER: report.number,
        NAME.TURN_END: str(report.end),
        NAME.INPUT_TOKENS: report.prompt_tokens,
        NAME.ENGINE_CALLS: report.engine_calls,
        NAME.RENDERING_S: times.rendering_s,
        NAME.GATE_S: times.gate_s,
        NAME.ENGINE_S: times.engine_s,
        NAME.HELD_S: times.held_s,
        NAME.RECORDING_S: times.recording_s,
    }
    if report.sampled_tokens is not None:
        known[NAME.OUTPUT_TOKENS] = report.sampled_tokens
    if report.first_token_s is not None:
        known[NAME.TIME_TO_FIRST_CHUNK] = report.first_token_s
    if report.turn_id is not None:
        known |= _describe_record(report)
    return known


def _describe_record(report: TurnEnded) -> Attributes:
    known: Attributes = {
        NAME.TURN_ID: report.turn_id,
        NAME.TURN_LABEL: str(report.label),
        NAME.TURN_CAUSE: str(report.cause),
        NAME.FINISH_REASONS: (str(report.finish_reason),),
        NAME.CACHED_TOKENS: report.cached_tokens,
    }
    if report.parent is not None:
        known[NAME.TURN_PARENT] = report.parent
    if report.weight_version is not None:
        known[NAME.WEIGHT_VERSION] = report.weight_version
    return known


def describe_call(rid: str, url: str) -> Attributes:
    """Describe an engine call by its attributes."""
    return {**_describe_place(url), NAME.CALL_ID: rid}


@lru_cache(maxsize=1024)
def _describe_place(url: str) -> Mapping[str, Any]:
    """The attributes that all calls of one engine have."""
    place = urlsplit(url)
    known: Attributes = {
        NAME.OPERATION_NAME: OPERATION,
        NAME.PROVIDER_NAME: _PROVIDER,
        NAME.SERVER_ADDRESS: place.hostname or url,
    }
    if place.port is not None:
        known[NAME.SERVER_PORT] = place.port
    return MappingProxyType(known)


def _read_ns(at: float) -> int:
    return int(at * 1e9)
