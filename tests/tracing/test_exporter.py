"""Batches of spans sent to a collector on loopback.

1. A batch is one request of OTLP in JSON, with the headers and the compression that the settings say.
2. A connection that fails, 429, 502, 503 and 504 are followed by the batch again, as Retry-After says, and until its
   time is over; any other status is not.
3. A server that stops waits no longer for a collector that is away.
4. What is lost makes a line when losing begins and one when it ends, and spans that a collector rejects make one; no
   line quotes the collector.
"""

import logging

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags

from collectorkit import Answer, collecting
from turnkeeper.testing import unreachable_url
from turnkeeper.tracing.environment import Compression, ExportSettings
from turnkeeper.tracing.exporter import RETRIED, JsonSpanExporter, read_retry_after

SUCCESS, FAILURE = SpanExportResult.SUCCESS, SpanExportResult.FAILURE
AT_ONCE = {"retry-after": "0"}


def span(name: str = "turn") -> ReadableSpan:
    context = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return ReadableSpan(name, context=context, start_time=1, end_time=2)


def build(url: str, settings: ExportSettings | None = None) -> JsonSpanExporter:
    return JsonSpanExporter(url, settings or ExportSettings())


@pytest.mark.parametrize("compression", [*Compression])
def test_a_batch_is_one_request(compression: Compression) -> None:
    settings = ExportSettings(headers={"x-tenant": "one"}, compression=compression)
    with collecting() as collector:
        assert build(collector.url, settings).export([span("turn"), span("chat")]) is SUCCESS
        ((headers, _),) = collector.requests
        assert (headers["content-type"], headers["x-tenant"]) == ("application/json", "one")
        assert [each.name for each in collector.spans] == ["turn", "chat"]


@pytest.mark.parametrize("status", sorted(RETRIED))
def test_what_may_be_sent_again_is(status: int) -> None:
    with collecting(Answer(status, AT_ONCE), Answer(status, AT_ONCE)) as collector:
        assert build(collector.url).export([span()]) is SUCCESS
        assert len(collector.requests) == 3
        assert len({body for _, body in collector.requests}) == 1


@pytest.mark.parametrize("status", [301, 400, 401, 404, 413, 415, 500])
def test_any_other_status_is_final(status: int) -> None:
    with collecting(Answer(status, AT_ONCE | {"location": "/other"})) as collector:
        assert build(collector.url).export([span()]) is FAILURE
        assert len(collector.requests) == 1


def test_a_wait_beyond_the_time_of_the_batch_is_not_made() -> None:
    with collecting(Answer(503, {"retry-after": "3600"})) as collector:
        assert build(collector.url).export([span()]) is FAILURE
        assert len(collector.requests) == 1


def test_a_collector_that_is_not_there_takes_no_longer_than_the_batch_may() -> None:
    with unreachable_url() as url:
        assert build(url, ExportSettings(timeout_s=0.2)).export([span()]) is FAILURE


def test_a_server_that_stops_does_not_wait() -> None:
    with collecting(Answer(503)) as collector:
        exporter = build(collector.url, ExportSettings(timeout_s=3600))
        exporter.shutdown()
        assert exporter.export([span()]) is FAILURE
        assert exporter.force_flush() is True


def test_losing_spans_is_told_once_and_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "turnkeeper.tracing")
    refusal = Answer(400, body=b'{"message": "secret"}')
    with collecting(refusal, refusal) as collector:
        exporter = build(collector.url)
        for _ in range(4):
            exporter.export([span(), span()])
        assert caplog.messages == [
            f"the collector at {collector.url} takes no spans: HTTP 400",
            "the collector takes spans again; 4 were lost",
        ]


def test_a_collector_without_json_is_told_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    with collecting(Answer(415)) as collector:
        build(collector.url).export([span()])
    assert "http/protobuf" in caplog.text


ANSWERS = {
    "rejected": (b'{"partialSuccess": {"rejectedSpans": "3", "errorMessage": "secret"}}', 1),
    "a warning alone": (b'{"partialSuccess": {"errorMessage": "secret"}}', 0),
    "none rejected": (b'{"partialSuccess": {"rejectedSpans": 0}}', 0),
    "nothing": (b"", 0),
    "no JSON": (b"fine", 0),
    "a list": (b"[]", 0),
}


@pytest.mark.parametrize(("body", "lines"), ANSWERS.values(), ids=ANSWERS)
def test_rejected_spans_are_told(body: bytes, lines: int, caplog: pytest.LogCaptureFixture) -> None:
    with collecting(Answer(200, body=body)) as collector:
        assert build(collector.url).export([span()]) is SUCCESS
    assert [record.message for record in caplog.records] == ["the collector rejected 3 spans of a batch"] * lines


AT = 784_111_777.0
WAITS = {
    "seconds": ("120", 120.0),
    "a date": ("Sun, 06 Nov 1994 08:49:40 GMT", 3.0),
    "a date that is over": ("Sun, 06 Nov 1994 08:49:30 GMT", 0.0),
    "nothing": ("", None),
    "a word": ("later", None),
    "less than nothing": ("-1", None),
}


@pytest.mark.parametrize(("said", "wait_s"), WAITS.values(), ids=WAITS)
def test_retry_after_is_seconds_or_a_date(said: str, wait_s: float | None) -> None:
    assert read_retry_after({"retry-after": said}, AT) == wait_s
