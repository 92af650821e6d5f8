"""Turns tracing on: where spans go, and what they say of their server.

Everything but the endpoint is OpenTelemetry's own, by its environment variables: the sampler (``OTEL_TRACES_SAMPLER``),
protocol, headers and certificates of the endpoint (``OTEL_EXPORTER_OTLP_...``), batches (``OTEL_BSP_...``), and what is
said of the server (``OTEL_SERVICE_NAME``, ``OTEL_RESOURCE_ATTRIBUTES``).
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

from turnkeeper import __version__
from turnkeeper.errors import ConfigError
from turnkeeper.telemetry import NoTracing, Tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter


def build_tracing(endpoint: str | None, *, instance_id: str) -> Tracing:
    """Build what follows the turns of a server.

    Args:
        endpoint: the URL that takes OTLP over HTTP; None follows nothing, and imports nothing.
        instance_id: the name of the server.

    Raises:
        ConfigError: OpenTelemetry is not installed, or one of its environment variables cannot be used.
    """
    if endpoint is None:
        return NoTracing()
    _require("opentelemetry.sdk")
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # not at the top: optional
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from turnkeeper.tracing.spans import OtelTracing

    chosen = OTELResourceDetector().detect().attributes
    ours = {"service.name": "turnkeeper", "service.version": __version__, "service.instance.id": instance_id}
    provider = TracerProvider(
        resource=Resource.create({name: value for name, value in ours.items() if name not in chosen}),
        shutdown_on_exit=False,
    )
    return OtelTracing(provider, BatchSpanProcessor(_build_exporter(endpoint)))


def _build_exporter(endpoint: str) -> "SpanExporter":
    from turnkeeper.tracing.environment import Protocol, read_protocol, read_settings
    from turnkeeper.tracing.exporter import JsonSpanExporter

    if read_protocol(os.environ) is Protocol.JSON:
        return JsonSpanExporter(endpoint, read_settings(os.environ))
    _require("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint)


def _require(module: str) -> None:
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"--trace-endpoint needs {module}", hint="pip install 'turnkeeper[otel]'") from error
