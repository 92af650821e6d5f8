"""The choice of an adapter for each engine URL.

Owns the choice between wires, and detecting the kind of a server where the operator left it open: SGLang answers
``/model_info``, vLLM answers ``/version``; a router that answers neither is in front of SGLang.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from turnkeeper.choices import EngineKind, EngineWire
from turnkeeper.engines.engine import (
    Engine,
    EngineState,
    EngineStatus,
    GenerateRequest,
    Generation,
    IdsSink,
    ParseMessage,
    RelayReply,
    RelayRequest,
)
from turnkeeper.engines.net.client import EngineClient
from turnkeeper.engines.sglang.chat import SHORT_CALL_TIMEOUT_S, SglangEngine
from turnkeeper.engines.sglang.disaggregation import AutoSglangEngine
from turnkeeper.engines.sglang.generate import SglangGenerateEngine
from turnkeeper.engines.vllm.generate import VllmEngine
from turnkeeper.errors import EngineError
from turnkeeper.fleet.pool import EnginePool, PoolMember

WrapEngine: TypeAlias = Callable[[str, Engine], Engine]
"""Wraps the engine of a URL, for instance with the check of its route."""


def connect_engines(
    urls: Sequence[str],
    client: EngineClient,
    *,
    kind: EngineKind,
    wire: EngineWire | None,
    parse: ParseMessage,
    now: Callable[[], float],
    wrap: WrapEngine | None = None,
) -> Engine:
    """Make one engine of the engines at these URLs. Nothing is called yet.

    Args:
        urls: the addresses of engines or routers, at least one.
        client: shared by all engines; the caller closes it.
        kind: the kind of the engines, or auto.
        wire: the route of SGLang that generates; None takes the one that suits each server.
        parse: makes messages of ids, for wires that answer ids alone.
        now: a monotonic clock, in seconds.
        wrap: wraps the engine of each URL.
    """
    members: list[PoolMember] = []
    for url in dict.fromkeys(url.rstrip("/") for url in urls):
        engine = _connect(url, client, kind, wire, parse)
        members.append(PoolMember(url=url, engine=wrap(url, engine) if wrap is not None else engine))
    return members[0].engine if len(members) == 1 else EnginePool(members, now=now)


def _connect(url: str, client: EngineClient, kind: EngineKind, wire: EngineWire | None, parse: ParseMessage) -> Engine:
    if kind is EngineKind.AUTO:
        return DetectedEngine(url, client, lambda found: _connect(url, client, found, wire, parse))
    if kind is EngineKind.VLLM:
        return VllmEngine(url, client, parse)
    match wire:
        case EngineWire.CHAT:
            return SglangEngine(url, client)
        case EngineWire.GENERATE:
            return SglangGenerateEngine(url, client, parse)
        case None:
            return AutoSglangEngine(url, client, parse)


async def detect_kind(url: str, client: EngineClient) -> EngineKind:
    """Detect the kind of the server at a URL.

    Raises:
        EngineError: the server does not answer.
    """
    info = await client.call("GET", f"{url}/model_info", timeout_s=SHORT_CALL_TIMEOUT_S)
    if info.status != 200:
        version = await client.call("GET", f"{url}/version", timeout_s=SHORT_CALL_TIMEOUT_S)
        if version.status == 200 and b'"version"' in version.body:
            return EngineKind.VLLM
    return EngineKind.SGLANG


class DetectedEngine:
    """An engine whose kind is detected at its first use, and tried again while it does not answer."""

    def __init__(self, url: str, client: EngineClient, connect: Callable[[EngineKind], Engine]) -> None:
        """Detect the server at ``url`` when it is first used; ``connect`` makes the adapter for its kind."""
        self.url = url
        self._client = client
        self._connect = connect
        self._known: Engine | None = None

    async def _find(self) -> Engine:
        if self._known is None:
            self._known = self._connect(await detect_kind(self.url, self._client))
        return self._known

    async def generate(self, request: GenerateRequest, *, on_ids: IdsSink | None = None) -> Generation:
        return await (await self._find()).generate(request, on_ids=on_ids)

    async def relay(self, call: RelayRequest) -> RelayReply:
        return await (await self._find()).relay(call)

    async def abort(self, rid: str) -> None:
        # A server of unknown kind runs no attempt.
        if self._known is not None:
            await self._known.abort(rid)

    async def fetch_status(self) -> tuple[EngineStatus, ...]:
        try:
            engine = await self._find()
        except EngineError as error:
            return (EngineStatus(url=self.url, state=EngineState.UNREACHABLE, error=str(error)),)
        return await engine.fetch_status()

    async def close(self) -> None:
        if self._known is not None:
            await self._known.close()
