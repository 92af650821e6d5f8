"""Sends spans to a collector, as OTLP in JSON over HTTP.

It is called by the thread of OpenTelemetry's batch processor, with one batch at a time. A batch is sent again as its
protocol has it: after a connection that failed and after 429, 502, 503 and 504, with waits that double or as
``Retry-After`` says, until its time is over. What is lost is logged when losing begins and when it ends, so that a
collector that is away for an hour makes two lines.
"""

import gzip
import logging
import random
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime

import orjson
import urllib3
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from turnkeeper.tracing.environment import Compression, ExportSettings
from turnkeeper.tracing.otlp import encode_spans

logger = logging.getLogger("turnkeeper.tracing")

RETRIED = frozenset({429, 502, 503, 504})
"""The statuses after which a batch is sent again."""

FIRST_WAIT_S = 1.0
"""The wait before a batch is sent again for the first time, give or take a fifth, where the collector names none."""


class JsonSpanExporter(SpanExporter):
    """Sends each batch of spans in one request."""

    def __init__(self, endpoint: str, settings: ExportSettings) -> None:
        """Open no connection yet.

        Args:
            endpoint: the URL that takes spans.
            settings: how it is reached.
        """
        self._endpoint = endpoint
        self._settings = settings
        self._headers = {**settings.headers, "content-type": "application/json"}
        if settings.compression is not Compression.NONE:
            self._headers["content-encoding"] = settings.compression
        self._pool = urllib3.PoolManager(
            ca_certs=settings.certificate,
            cert_file=settings.client_certificate,
            key_file=settings.client_key,
        )
        self._stopping = threading.Event()
        self._lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch of spans, which are of one resource and one scope; return when it was taken or is lost."""
        refusal = self._send(_compress(encode_spans(spans), self._settings.compression))
        if refusal is None:
            if self._lost:
                logger.info("the collector takes spans again; %d were lost", self._lost)
            self._lost = 0
            return SpanExportResult.SUCCESS
        if not self._lost:
            logger.warning("the collector at %s takes no spans: %s", self._endpoint, refusal)
        self._lost += len(spans)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Wait no longer for a collector that is away."""
        self._stopping.set()
        self._pool.clear()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return True: nothing is kept here."""
        return True

    def _send(self, body: bytes) -> str | None:
        """Send a body until it is taken; return why it was not, or None."""
        deadline, wait_s = time.monotonic() + self._settings.timeout_s, FIRST_WAIT_S
        while True:
            asked_s: float | None = None
            try:
                reply = self._pool.request(
                    "POST",
                    self._endpoint,
                    body=body,
                    headers=self._headers,
                    timeout=max(0.001, deadline - time.monotonic()),
                    retries=False,
                    redirect=False,
                )
            except urllib3.exceptions.HTTPError as error:
                refusal = type(error).__name__
            else:
                if 200 <= reply.status < 300:
                    _note_rejected(reply.data)
                    return None
                refusal = _describe(reply.status)
                if reply.status not in RETRIED:
                    return refusal
                asked_s = read_retry_after(reply.headers, time.time())
            pause_s = wait_s * random.uniform(0.8, 1.2) if asked_s is None else asked_s
            if time.monotonic() + pause_s > deadline or self._stopping.wait(pause_s):
                return refusal
            wait_s *= 2


def read_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Read for how many seconds a collector asks to wait; None where it does not say.

    Args:
        headers: of its reply.
        now: Unix seconds.
    """
    said = headers.get("retry-after", "").strip()
    if said.isascii() and said.isdigit():
        return float(said)
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - now)
    except ValueError:
        return None


def _compress(body: bytes, compression: Compression) -> bytes:
    match compression:
        case Compression.GZIP:
            return gzip.compress(body, compresslevel=1, mtime=0)
        case Compression.DEFLATE:
            return zlib.compress(body, level=1)
        case Compression.NONE:
            return body


def _describe(status: int) -> str:
    if status == 415:
        return "HTTP 415, no JSON; OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf sends protobuf"
    return f"HTTP {status}"


def _note_rejected(answer: bytes) -> None:
    """Log the spans of a batch that a collector took without them."""
    try:
        rejected = int(orjson.loads(answer)["partialSuccess"]["rejectedSpans"])
    except (ValueError, TypeError, KeyError):
        return
    if rejected:
        logger.warning("the collector rejected %d spans of a batch", rejected)
