"""SGLang on the wire that suits how it is served: chat, or generate under prefill/decode disaggregation.

There a prompt is prefilled by one server and continued by another, whose KV slots for it hold no routing of their
own. What it returns for the prompt on the chat route are the rows of nothing, or of an earlier request. A router that
joins the prefill server's rows to the others does so on ``/generate``.
"""

import logging
from dataclasses import replace

from turnkeeper.choices import EngineWire
from turnkeeper.engines.engine import EngineState, EngineStatus, GenerateRequest, Generation, IdsSink, ParseMessage
from turnkeeper.engines.net.client import EngineClient
from turnkeeper.engines.sglang.chat import SglangEngine
from turnkeeper.engines.sglang.generate import SglangGenerateEngine

logger = logging.getLogger("turnkeeper.engines")


class AutoSglangEngine(SglangGenerateEngine):
    """One SGLang server or router; each look at it says anew which wire is right."""

    def __init__(self, url: str, client: EngineClient, parse: ParseMessage) -> None:
        """Talk to the server at ``url``; ``parse`` reads ids into messages, where the engine does not."""
        super().__init__(url, client, parse)
        self.wire = EngineWire.CHAT
        self._is_known = False

    async def generate(self, request: GenerateRequest, *, on_ids: IdsSink | None = None) -> Generation:
        """Generate one reply; ids are streamed on the generate wire alone."""
        if not self._is_known:
            await self.fetch_status()
        if self.wire is EngineWire.GENERATE:
            return await super().generate(request, on_ids=on_ids)
        return await SglangEngine.generate(self, request)

    async def fetch_status(self) -> tuple[EngineStatus, ...]:
        """Look at the server, and choose the wire for the turns after it."""
        (status,) = await SglangEngine.fetch_status(self)
        # A router that lists no worker for a while says nothing of how they serve.
        if status.state is not EngineState.UNREACHABLE and (status.can_abort or not self._is_known):
            self._choose(status)
        return (replace(status, wire=self.wire),)

    def _choose(self, status: EngineStatus) -> None:
        wire = EngineWire.GENERATE if status.is_disaggregated else EngineWire.CHAT
        if wire is not self.wire:
            serves = "serves by" if status.is_disaggregated else "no longer serves by"
            logger.info("%s %s prefill/decode disaggregation: turns take its %s route", self.url, serves, wire)
        self.wire, self._is_known = wire, True
