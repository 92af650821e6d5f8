"""Turns tracing on: where spans go, and what they say of their server.

Everything but the endpoint is OpenTelemetry's own, by its environment variables: the sampler (``OTEL_TRACES_SAMPLER``),
headers and certificates of the endpoint (``OTEL_EXPORTER_OTLP_...``), batches (``OTEL_BSP_...``), and what is said of
the server (``OTEL_SERVICE_NAME``, ``OTEL_RESOURCE_ATTRIBUTES``).
"""

from importlib.util import find_spec

from turnkeeper import __version__
from turnkeeper.errors import ConfigError
from turnkeeper.telemetry import NoTracing, Tracing


def build_tracing(endpoint: str | None, *, instance_id: str) -> Tracing:
    """Build what follows the turns of a server.

    Args:
        endpoint: the URL that takes OTLP over HTTP; None follows nothing, and imports nothing.
        instance_id: the name of the server.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    if endpoint is None:
        return NoTracing()
    if find_spec("opentelemetry.sdk") is None or find_spec("opentelemetry.exporter.otlp.proto.http") is None:
        raise ConfigError("--trace-endpoint needs OpenTelemetry", hint="pip install 'turnkeeper[otel]'")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # not at the top: optional
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from turnkeeper.tracing.spans import OtelTracing

    chosen = OTELResourceDetector().detect().attributes
    ours = {"service.name": "turnkeeper", "service.version": __version__, "service.instance.id": instance_id}
    provider = TracerProvider(
        resource=Resource.create({name: value for name, value in ours.items() if name not in chosen}),
        shutdown_on_exit=False,
    )
    return OtelTracing(provider, BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
