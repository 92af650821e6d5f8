"""Spans as OTLP in JSON, held against OpenTelemetry's own protobuf encoder.

1. Decoded by the official messages, the JSON is what the official encoder makes of the same spans.
2. The flags hold the span's own as well, which the official encoder leaves out.
3. Ids are hex and 64-bit numbers are strings, as OTLP has them and protobuf's JSON does not.
"""

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_protobuf
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from collectorkit import decode_json
from turnkeeper.tracing.otlp import encode_spans

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = (
    texts
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.lists(texts, max_size=3).map(tuple)
)
attributes = st.dictionaries(texts.filter(bool), values, max_size=5)
contexts = st.builds(
    SpanContext,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    is_remote=st.booleans(),
    trace_flags=st.just(TraceFlags(TraceFlags.SAMPLED)),
    trace_state=st.just(TraceState.from_header(["vendor=1,other=a b"])) | st.none(),
)
statuses = st.builds(Status, st.just(StatusCode.ERROR), texts) | st.just(Status(StatusCode.UNSET))
nanoseconds = st.integers(0, 2**63 - 1)


@st.composite
def span_lists(draw: st.DrawFn) -> list[ReadableSpan]:
    resource = Resource(draw(st.dictionaries(texts.filter(bool), texts, max_size=2)), "https://schema")
    scope = InstrumentationScope("turnkeeper", "1", "https://other")
    return [
        ReadableSpan(
            draw(texts),
            context=draw(contexts),
            parent=draw(contexts | st.none()),
            resource=resource,
            attributes=draw(attributes),
            kind=draw(st.sampled_from([*SpanKind])),
            status=draw(statuses),
            start_time=draw(nanoseconds),
            end_time=draw(nanoseconds),
            instrumentation_scope=scope,
        )
        for _ in range(draw(st.integers(1, 3)))
    ]


def list_spans(message: Any) -> list[Any]:
    return [span for of in message.resource_spans for scope in of.scope_spans for span in scope.spans]


@settings(max_examples=50)
@given(span_lists())
def test_the_json_is_what_the_official_encoder_makes(spans: list[ReadableSpan]) -> None:
    ours, theirs = decode_json(encode_spans(spans)), encode_protobuf(spans)
    for span in list_spans(ours):
        assert span.flags & 0xFF == TraceFlags.SAMPLED
        span.flags &= ~0xFF
    assert ours == theirs


def test_the_form_is_that_of_the_specification() -> None:
    known: Mapping[str, Any] = {"a": 2**53 + 1}
    context = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1))
    span = ReadableSpan("turn", context=context, attributes=known, start_time=5, end_time=7)
    (rendered,) = json.loads(encode_spans([span]))["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert rendered == {
        "traceId": "0" * 31 + "1",
        "spanId": "0" * 15 + "2",
        "name": "turn",
        "kind": 1,
        "startTimeUnixNano": "5",
        "endTimeUnixNano": "7",
        "attributes": [{"key": "a", "value": {"intValue": "9007199254740993"}}],
        "status": {},
        "flags": 0x101,
    }
