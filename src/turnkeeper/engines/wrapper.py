"""An engine around another one, for what happens before or beside a call: a hook, a check, a list of running calls."""

from turnkeeper.engines.engine import (
    Engine,
    EngineStatus,
    GenerateRequest,
    Generation,
    IdsSink,
    RelayReply,
    RelayRequest,
)


class EngineWrapper:
    """Passes every call on to the engine inside. A subclass changes the calls that it is about."""

    def __init__(self, engine: Engine) -> None:
        """Wrap an engine."""
        self._engine = engine

    async def generate(self, request: GenerateRequest, *, on_ids: IdsSink | None = None) -> Generation:
        """Generate one reply with the engine inside."""
        return await self._engine.generate(request, on_ids=on_ids)

    async def relay(self, call: RelayRequest) -> RelayReply:
        """Pass a call through to the engine inside, unread."""
        return await self._engine.relay(call)

    async def abort(self, rid: str) -> None:
        """Ask the engine inside to abort one attempt."""
        await self._engine.abort(rid)

    async def fetch_status(self) -> tuple[EngineStatus, ...]:
        """Ask the engine inside for its status."""
        return await self._engine.fetch_status()

    async def close(self) -> None:
        """Release the connections of the engine inside."""
        await self._engine.close()
