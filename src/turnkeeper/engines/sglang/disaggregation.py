"""The choice of SGLang's route for a server: chat, or generate under prefill/decode disaggregation.

Under disaggregation one server prefills a prompt and another decodes it, whose KV slots for the prompt hold no routing
of their own. On the chat route the rows of the prompt are then zeros, or those of an earlier request. A router that
joins the prefill server's rows to the others does so on ``/generate``.
"""

import logging
from dataclasses import replace

from turnkeeper.choices import EngineWire
from turnkeeper.engines.engine import (
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
from turnkeeper.engines.sglang.chat import SglangEngine
from turnkeeper.engines.sglang.generate import SglangGenerateEngine

logger = logging.getLogger("turnkeeper.engines")


class AutoSglangEngine:
    """One SGLang server or router, on the wire that its newest status asks for."""

    def __init__(self, url: str, client: EngineClient, parse: ParseMessage) -> None:
        """Call the server at ``url``; ``parse`` makes messages of ids on the generate wire."""
        self._chat = SglangEngine(url, client)
        self._generate = SglangGenerateEngine(url, client, parse)
        self.url = self._chat.url
        self.wire = EngineWire.CHAT
        """The route on which turns are generated."""
        self._is_known = False

    async def generate(self, request: GenerateRequest, *, on_ids: IdsSink | None = None) -> Generation:
        if not self._is_known:
            await self.fetch_status()
        engine = self._generate if self.wire is EngineWire.GENERATE else self._chat
        return await engine.generate(request, on_ids=on_ids)

    async def relay(self, call: RelayRequest) -> RelayReply:
        return await self._chat.relay(call)

    async def abort(self, rid: str) -> None:
        await self._chat.abort(rid)

    async def fetch_status(self) -> tuple[EngineStatus, ...]:
        (status,) = await self._chat.fetch_status()
        # A router that lists no worker for a while does not show how its workers serve.
        if status.state is not EngineState.UNREACHABLE and (status.can_abort or not self._is_known):
            self._choose_wire(status)
        return (replace(status, wire=self.wire),)

    async def close(self) -> None:
        """Do nothing: the client is the caller's."""

    def _choose_wire(self, status: EngineStatus) -> None:
        wire = EngineWire.GENERATE if status.is_disaggregated else EngineWire.CHAT
        if wire is not self.wire:
            serves = "serves by" if status.is_disaggregated else "no longer serves by"
            logger.info("%s %s prefill/decode disaggregation: turns take its %s route", self.url, serves, wire)
        self.wire, self._is_known = wire, True
