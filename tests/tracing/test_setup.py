"""Tracing turned on, with a collector on loopback.

1. Spans arrive as OTLP over HTTP when the server stops, and say which server they are of: in JSON, or in protobuf by
   OpenTelemetry's own exporter where the environment asks for it.
2. What OpenTelemetry's environment variables say of the server wins.
3. A collector that is not there, or that does not answer, keeps a server from nothing: neither from turns nor from
   stopping.
4. What is not installed, and a protocol that is not spoken, is refused at the start.
"""

import asyncio
import socket
import sys

import pytest

from collectorkit import collecting
from servicekit import build_kit, user
from turnkeeper.errors import ConfigError
from turnkeeper.telemetry import Tracing
from turnkeeper.testing import settle, unreachable_url
from turnkeeper.tracing import build_tracing

PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"


async def take_turn(tracing: Tracing) -> None:
    kit = build_kit(tracing=tracing)
    turn = await kit.begin(kit.create(), [user("hello")])
    await settle()
    kit.engine.answer(text="hi")
    await turn.read()


FORMS = {"http/json": "application/json", "http/protobuf": "application/x-protobuf", "": "application/json"}


@pytest.mark.parametrize(("protocol", "content_type"), FORMS.items(), ids=FORMS)
async def test_spans_arrive_and_name_their_server(
    protocol: str, content_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROTOCOL, protocol)
    with collecting() as collector:
        tracing = build_tracing(collector.url, instance_id="one")
        await take_turn(tracing)
        await tracing.close()
        assert {span.name for span in collector.spans} == {"turn", "chat"}
        assert collector.requests[0][0]["content-type"] == content_type
        assert collector.resource["service.name"] == "turnkeeper"
        assert collector.resource["service.instance.id"] == "one"


async def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "rollout")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=seven")
    with collecting() as collector:
        tracing = build_tracing(collector.url, instance_id="one")
        await take_turn(tracing)
        await tracing.close()
        assert collector.resource["service.name"] == "rollout"
        assert collector.resource["service.instance.id"] == "seven"


async def test_a_collector_that_is_not_there_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with unreachable_url() as url:
        tracing = build_tracing(f"{url}/v1/traces", instance_id="one")
        await take_turn(tracing)
        async with asyncio.timeout(3):
            await tracing.close()


@pytest.mark.parametrize("protocol", ["http/json", "http/protobuf"])
async def test_a_collector_that_does_not_answer_keeps_no_server_from_stopping(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROTOCOL, protocol)
    monkeypatch.setattr("turnkeeper.tracing.spans.CLOSE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracing = build_tracing(f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces", instance_id="one")
        await take_turn(tracing)
        async with asyncio.timeout(3):
            await tracing.close()


async def test_a_protocol_that_is_not_spoken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROTOCOL, "grpc")
    with pytest.raises(ConfigError, match="grpc"):
        build_tracing("http://127.0.0.1:4318/v1/traces", instance_id="one")


MISSING = {
    "opentelemetry": "http/json",
    "opentelemetry.sdk": "http/json",
    "opentelemetry.exporter.otlp.proto.http": "http/protobuf",
}


@pytest.mark.parametrize(("module", "protocol"), MISSING.items(), ids=MISSING)
def test_an_endpoint_without_the_extra_is_refused(module: str, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROTOCOL, protocol)
    for name in [each for each in sys.modules if each == module or each.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError) as raised:
        build_tracing("http://127.0.0.1:4318/v1/traces", instance_id="x")
    assert raised.value.hint == "pip install 'turnkeeper[otel]'"
