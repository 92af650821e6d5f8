"""Traces of turns for OpenTelemetry, which the extra ``turnkeeper[otel]`` installs."""

from turnkeeper.tracing.attribute import CONVENTIONS, SpanAttribute
from turnkeeper.tracing.setup import build_tracing

__all__ = ["CONVENTIONS", "SpanAttribute", "build_tracing"]
