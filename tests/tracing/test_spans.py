"""Turns as spans of OpenTelemetry, made by its own SDK.

1. A turn is one span below the agent's, in the agent's trace; each engine call is a child of it, and the engine is sent
   the call's trace parent. Without a valid trace parent of the agent, a trace begins with the turn.
2. A turn has its span whatever its end: recorded, failed before or at its engine, given up.
3. Attributes are those of the table, with their values; none holds a text, and an error is named by its code.
4. What the agent does not sample is not recorded, and the engine is told so. Nothing is left open.
5. Without an endpoint nothing is imported, and headers go to the engine as they came.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.trace import SpanKind, StatusCode

from servicekit import Kit, build_kit, user
from turnkeeper.errors import EngineError
from turnkeeper.telemetry import NoTracing
from turnkeeper.testing import settle
from turnkeeper.tracing import CONVENTIONS, SpanAttribute, build_tracing
from turnkeeper.tracing.attribute import CALL_SPAN, TURN_SPAN
from turnkeeper.tracing.spans import OtelTracing, describe_call, read_parent

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
AGENT = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01", "tracestate": "vendor=1", "x-request-id": "r-1"}


class Traced:
    """A service whose spans are kept."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        self.tracing = OtelTracing(provider, SimpleSpanProcessor(self.exporter))
        self.kit: Kit = build_kit(tracing=self.tracing, **options)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def get(self, name: str) -> ReadableSpan:
        (found,) = (span for span in self.spans if span.name == name)
        return found

    async def take(
        self, trace: dict[str, str] | None = None, *, text: str = "hi", error: Exception | None = None
    ) -> None:
        session_id = self.kit.create()
        turn = await self.kit.begin(session_id, [user("hello")], trace=AGENT if trace is None else trace)
        await settle()
        await self.kit.clock.advance(3.0)
        if error is not None:
            self.kit.engine.fail(error)
        else:
            self.kit.engine.answer(text=text)
        await asyncio.gather(turn.read(), return_exceptions=True)


@asynccontextmanager
async def traced(**options: Any) -> AsyncGenerator[Traced]:
    made = Traced(**options)
    yield made
    await made.tracing.close()


async def test_a_turn_is_a_span_below_the_agents_with_a_child_for_its_call() -> None:
    async with traced() as at:
        await at.take()
        turn, call = at.get(TURN_SPAN), at.get(CALL_SPAN)
        assert (turn.kind, call.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
        assert f"{turn.context.trace_id:032x}" == f"{call.context.trace_id:032x}" == TRACE_ID
        assert turn.parent is not None
        assert f"{turn.parent.span_id:016x}" == SPAN_ID
        assert call.parent == turn.context
        assert turn.context.trace_state.get("vendor") == "1"
        (sent,) = at.kit.engine.calls
        assert sent.request.trace == {
            "traceparent": f"00-{TRACE_ID}-{call.context.span_id:016x}-01",
            "tracestate": "vendor=1",
            "x-request-id": "r-1",
        }
        assert turn.end_time is not None
        assert turn.start_time is not None
        assert turn.end_time - turn.start_time == pytest.approx(3e9, abs=1e6)


async def test_a_turn_has_the_attributes_of_the_table() -> None:
    async with traced() as at:
        await at.take(text="secret words")
        recorded = at.kit.reports[-1]
        turn, call = dict(at.get(TURN_SPAN).attributes or {}), dict(at.get(CALL_SPAN).attributes or {})
        assert turn == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "turnkeeper",
            "gen_ai.conversation.id": recorded.session_id,
            "gen_ai.usage.input_tokens": recorded.prompt_tokens,
            "gen_ai.usage.output_tokens": recorded.sampled_tokens,
            "gen_ai.usage.cache_read.input_tokens": 0,
            "gen_ai.response.finish_reasons": ("stop",),
            "turnkeeper.request.id": "r-1",
            "turnkeeper.dialect": "chat",
            "turnkeeper.turn.number": recorded.number,
            "turnkeeper.turn.id": 0,
            "turnkeeper.turn.label": "root",
            "turnkeeper.turn.cause": "first",
            "turnkeeper.turn.end": "recorded",
            "turnkeeper.weight_version": "v0",
            "turnkeeper.engine.calls": 1,
            "turnkeeper.phase.rendering_s": 0.0,
            "turnkeeper.phase.gate_s": 0.0,
            "turnkeeper.phase.engine_s": 3.0,
            "turnkeeper.phase.held_s": 0.0,
            "turnkeeper.phase.recording_s": 0.0,
        }
        assert call == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "turnkeeper",
            "server.address": "engine",
            "turnkeeper.call.id": at.kit.engine.calls[0].request.rid,
        }
        assert {*turn, *call} <= {*SpanAttribute}


async def test_the_first_tokens_of_a_stream_are_timed() -> None:
    async with traced(on_abort="resume") as at:
        turn = await at.kit.begin(at.kit.create(), [user("hello")], trace=AGENT, stream=True)
        await at.kit.clock.advance(2.0)
        at.kit.engine.calls[-1].stream("h")
        at.kit.engine.answer(text="hi")
        await turn.read()
        assert (at.get(TURN_SPAN).attributes or {})["gen_ai.response.time_to_first_chunk"] == 2.0


def test_the_port_of_an_engine_is_named_where_its_url_has_one() -> None:
    known = describe_call("rid", "http://10.0.0.1:30000/v1")
    assert (known["server.address"], known["server.port"]) == ("10.0.0.1", 30000)


INVALID = {
    "none": "",
    "short": "00-1",
    "no trace": f"00-{'0' * 32}-{SPAN_ID}-01",
    "no span": f"00-{TRACE_ID}-{'0' * 16}-01",
    "no version": f"ff-{TRACE_ID}-{SPAN_ID}-01",
    "upper case": f"00-{TRACE_ID.upper()}-{SPAN_ID}-01",
}


@pytest.mark.parametrize("parent", INVALID.values(), ids=INVALID)
async def test_without_a_trace_of_the_agent_one_begins(parent: str) -> None:
    async with traced() as at:
        await at.take({"traceparent": parent} if parent else {})
        turn = at.get(TURN_SPAN)
        assert turn.parent is None
        assert at.kit.engine.calls[0].request.trace["traceparent"].startswith(f"00-{turn.context.trace_id:032x}-")


def test_a_later_version_of_the_header_is_read() -> None:
    parent = read_parent({"traceparent": f"01-{TRACE_ID}-{SPAN_ID}-01-more"})
    assert parent is not None
    assert f"{parent.span_id:016x}" == SPAN_ID


async def test_what_the_agent_does_not_sample_is_not_recorded() -> None:
    async with traced() as at:
        await at.take({"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-00"})
        assert at.spans == ()
        assert at.kit.engine.calls[0].request.trace["traceparent"].endswith("-00")


async def test_a_failed_call_fails_both_spans_by_its_code() -> None:
    async with traced() as at:
        await at.take(error=EngineError("the engine at http://secret broke"))
        for span in (at.get(TURN_SPAN), at.get(CALL_SPAN)):
            assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "engine")
            assert (span.attributes or {})["error.type"] == "engine"
            assert "secret" not in span.to_json()


async def test_a_turn_that_cannot_be_rendered_has_a_span_below_the_agents() -> None:
    async with traced() as at:
        session_id = at.kit.create(max_seq_len=1)
        with pytest.raises(Exception, match="token"):
            await at.kit.begin(session_id, [user("far too long")], trace=AGENT)
        turn = at.get(TURN_SPAN)
        assert turn.status.description == "context_length"
        assert turn.parent is not None
        assert f"{turn.parent.span_id:016x}" == SPAN_ID


async def test_a_call_that_is_given_up_says_so() -> None:
    async with traced() as at:
        session_id = at.kit.create()
        await at.kit.begin(session_id, [user("hello")], trace=AGENT)
        await settle()
        at.kit.backend.sessions.delete(session_id)
        await settle()
        assert (at.get(CALL_SPAN).attributes or {})["turnkeeper.call.given_up"] is True
        assert (at.get(TURN_SPAN).attributes or {})["turnkeeper.turn.end"] == "abandoned"


async def test_a_server_that_stops_ends_the_spans_that_are_open() -> None:
    at = Traced()
    await at.kit.begin(at.kit.create(), [user("hello")], trace=AGENT)
    await settle()
    await at.tracing.close()
    assert {span.name for span in at.spans} == {TURN_SPAN, CALL_SPAN}


async def test_an_exporter_takes_the_spans() -> None:
    async with traced() as at:
        await at.take()
        assert len(encode_spans(at.spans).SerializeToString()) > 500


def test_the_names_are_those_of_the_conventions() -> None:
    theirs = {
        value
        for module in (gen_ai_attributes, server_attributes, error_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    own = {name for name in SpanAttribute if name.startswith("turnkeeper.")}
    assert {*SpanAttribute} - own <= theirs
    assert CONVENTIONS.count(".") == 2


async def test_without_an_endpoint_nothing_is_done() -> None:
    kit = build_kit()
    turn = await kit.begin(kit.create(), [user("hello")], trace=AGENT)
    await settle()
    kit.engine.answer(text="hi")
    await turn.read()
    assert kit.engine.calls[0].request.trace == AGENT
    assert isinstance(build_tracing(None, instance_id="x"), NoTracing)


def test_without_an_endpoint_nothing_is_imported() -> None:
    script = (
        "import sys; from turnkeeper.server.build import build_parts; from turnkeeper.tracing import build_tracing; "
        "build_tracing(None, instance_id='x'); print([name for name in sys.modules if 'opentelemetry' in name])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
