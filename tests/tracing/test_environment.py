"""What OpenTelemetry's environment variables say of the way to a collector.

1. A variable of traces goes before that of all signals; an empty one says nothing.
2. What cannot be used is refused at the start, by its name.
"""

from pathlib import Path

import pytest

from turnkeeper.errors import ConfigError
from turnkeeper.tracing.environment import Compression, ExportSettings, Protocol, read_protocol, read_settings

PREFIX = "OTEL_EXPORTER_OTLP"


def test_nothing_said_is_json_without_compression_for_ten_seconds() -> None:
    assert read_protocol({}) is Protocol.JSON
    assert read_settings({}) == ExportSettings(headers={}, timeout_s=10.0, compression=Compression.NONE)


def test_a_variable_of_traces_goes_before_that_of_all_signals() -> None:
    environ = {f"{PREFIX}_TRACES_TIMEOUT": "3", f"{PREFIX}_TIMEOUT": "4", f"{PREFIX}_COMPRESSION": "GZip"}
    settings = read_settings(environ)
    assert (settings.timeout_s, settings.compression) == (3.0, Compression.GZIP)
    assert read_protocol({f"{PREFIX}_TRACES_PROTOCOL": "", f"{PREFIX}_PROTOCOL": "http/protobuf"}) is Protocol.PROTOBUF


def test_headers_are_written_as_in_baggage() -> None:
    settings = read_settings({f"{PREFIX}_HEADERS": "authorization=Basic%20abc,x-tenant=one"})
    assert settings.headers == {"authorization": "Basic abc", "x-tenant": "one"}


def test_certificates_are_files(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.touch()
    assert read_settings({f"{PREFIX}_CERTIFICATE": str(file)}).certificate == str(file)


REFUSED = {
    "PROTOCOL": "grpc",
    "TIMEOUT": "soon",
    "COMPRESSION": "zstd",
    "CERTIFICATE": "/nowhere/ca.pem",
    "CLIENT_CERTIFICATE": "/nowhere/own.pem",
    "CLIENT_KEY": "/nowhere/own.key",
}


@pytest.mark.parametrize(("name", "value"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_used_is_refused_by_name(name: str, value: str) -> None:
    environ = {f"{PREFIX}_{name}": value}
    with pytest.raises(ConfigError, match=f"{PREFIX}_{name} .*{value}"):
        (read_protocol if name == "PROTOCOL" else read_settings)(environ)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_a_timeout_is_a_time(value: str) -> None:
    with pytest.raises(ConfigError, match="seconds"):
        read_settings({f"{PREFIX}_TIMEOUT": value})
