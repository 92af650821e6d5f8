"""What OpenTelemetry's environment variables say of the way to a collector.

Its own exporter reads them by itself; ours is told by `ExportSettings`. Endpoint and sampler are read elsewhere: the
first is an option of the server, the second the SDK's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from opentelemetry.util.re import parse_env_headers

from turnkeeper.errors import ConfigError

DEFAULT_TIMEOUT_S = 10.0


class Protocol(StrEnum):
    """The forms of OTLP that are spoken."""

    JSON = "http/json"
    """JSON, by the exporter of this package."""
    PROTOBUF = "http/protobuf"
    """Protobuf, by OpenTelemetry's exporter, which takes three times as much CPU a turn."""


class Compression(StrEnum):
    """How bodies are compressed."""

    NONE = "none"
    """Not at all."""
    GZIP = "gzip"
    """With gzip."""
    DEFLATE = "deflate"
    """With zlib."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """How a collector is reached."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers of every request, by their lower-case names."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    """The time for a batch of spans, repetitions included."""
    compression: Compression = Compression.NONE
    certificate: str | None = None
    """The path of the certificates by which the collector's is checked; None takes the system's."""
    client_certificate: str | None = None
    """The path of the certificate that the collector is shown."""
    client_key: str | None = None
    """The path of its key."""


def read_protocol(environ: Mapping[str, str]) -> Protocol:
    """Read the form of OTLP that is asked for; JSON where nothing is said.

    Raises:
        ConfigError: the form is not spoken.
    """
    said = _find(environ, "PROTOCOL") or Protocol.JSON
    if said not in [*Protocol]:
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {said!r}, and traces are sent as http/json or http/protobuf",
            hint="set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json",
        )
    return Protocol(said)


def read_settings(environ: Mapping[str, str]) -> ExportSettings:
    """Read ``OTEL_EXPORTER_OTLP_TRACES_...``, and what is not given there from ``OTEL_EXPORTER_OTLP_...``.

    Raises:
        ConfigError: a value cannot be used.
    """
    return ExportSettings(
        headers=dict(parse_env_headers(_find(environ, "HEADERS") or "", liberal=True)),
        timeout_s=_read_timeout(_find(environ, "TIMEOUT")),
        compression=_read_compression(_find(environ, "COMPRESSION")),
        certificate=_find_file(environ, "CERTIFICATE"),
        client_certificate=_find_file(environ, "CLIENT_CERTIFICATE"),
        client_key=_find_file(environ, "CLIENT_KEY"),
    )


def _find(environ: Mapping[str, str], name: str) -> str | None:
    """Find a variable; an empty one counts as not set."""
    found = environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or environ.get(f"OTEL_EXPORTER_OTLP_{name}") or ""
    return found.strip() or None


def _find_file(environ: Mapping[str, str], name: str) -> str | None:
    found = _find(environ, name)
    if found is not None and not Path(found).is_file():
        raise ConfigError(f"OTEL_EXPORTER_OTLP_{name} names {found}, and there is no such file")
    return found


def _read_timeout(said: str | None) -> float:
    """Seconds, as OpenTelemetry's own exporter for Python reads them."""
    if said is None:
        return DEFAULT_TIMEOUT_S
    try:
        seconds = float(said)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(f"OTEL_EXPORTER_OTLP_TIMEOUT is {said!r}, and no number of seconds above 0")
    return seconds


def _read_compression(said: str | None) -> Compression:
    chosen = (said or Compression.NONE).lower()
    if chosen not in [*Compression]:
        raise ConfigError(f"OTEL_EXPORTER_OTLP_COMPRESSION is {said!r}, and not one of {', '.join(Compression)}")
    return Compression(chosen)
